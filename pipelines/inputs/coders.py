"""How references travel through Beam."""

import apache_beam as beam

from pipelines.inputs.packing import pack_ref, unpack_ref
from pipelines.values import InputRef


class InputRefCoder(beam.coders.Coder):
    """Refs as `packing` packs them."""

    def encode(self, value: InputRef) -> bytes:
        """The ref's fields as bytes."""
        return pack_ref(value)

    def decode(self, encoded: bytes) -> InputRef:
        """The ref again."""
        return unpack_ref(encoded)

    def is_deterministic(self) -> bool:
        """Refs are never keys."""
        return False


beam.coders.registry.register_coder(InputRef, InputRefCoder)
