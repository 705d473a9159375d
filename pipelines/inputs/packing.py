"""A reference as bytes, for the shuffle and the spool; without Beam."""

import pickle

from pipelines.values import Before, Fault, InputRef, Location

# The fields of a ref around its nested values: what the source says, and what is found out on the way.
_SAID, _FOUND = slice(2, 9), slice(11, None)
_SAID_COUNT = 7


def pack_ref(ref: InputRef) -> bytes:
    """The ref's fields as bare tuples: a fifth of what pickling the classes with their names costs."""
    fault, before = ref.fault and tuple(ref.fault), ref.before and tuple(ref.before)
    fields = tuple(ref)
    return pickle.dumps((tuple(ref.location), fault, before, ref.key, *fields[_SAID], *fields[_FOUND]), 5)


def unpack_ref(packed: bytes) -> InputRef:
    """The ref again."""
    location, fault, before, key, *rest = pickle.loads(packed)
    nested = fault and Fault(*fault), before and Before(*before)
    return InputRef._make((key, Location(*location), *rest[:_SAID_COUNT], *nested, *rest[_SAID_COUNT:]))
