"""How references travel through Beam."""

import pickle

import apache_beam as beam

from pipelines.values import Before, Fault, InputRef, Location

# The fields of a ref around its nested values: what the source says, and what is found out on the way.
_SAID, _FOUND = slice(2, 9), slice(11, None)
_SAID_COUNT = 7


class InputRefCoder(beam.coders.Coder):
    """Encodes a ref as bare tuples: a fifth of what pickling the classes with their names costs in the shuffle."""

    def encode(self, value: InputRef) -> bytes:
        """The ref's fields as bytes."""
        fault, before = value.fault and tuple(value.fault), value.before and tuple(value.before)
        fields = tuple(value)
        return pickle.dumps((tuple(value.location), fault, before, value.key, *fields[_SAID], *fields[_FOUND]), 5)

    def decode(self, encoded: bytes) -> InputRef:
        """The ref again."""
        location, fault, before, key, *rest = pickle.loads(encoded)
        nested = fault and Fault(*fault), before and Before(*before)
        return InputRef._make((key, Location(*location), *rest[:_SAID_COUNT], *nested, *rest[_SAID_COUNT:]))

    def is_deterministic(self) -> bool:
        """Refs are never keys."""
        return False


beam.coders.registry.register_coder(InputRef, InputRefCoder)
