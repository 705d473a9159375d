"""By what equal inputs are known: a digest of their bytes, or of what is known of them."""

import hashlib
import json
from typing import Any


def content_digest(data: bytes) -> int:
    """The first 64 bits of the sha256: enough to find who may be equal, not to prove it."""
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little")


def digest_of(known: tuple[Any, ...]) -> int:
    """64 bits that stand for some values."""
    return int.from_bytes(hashlib.blake2b(json.dumps(known).encode(), digest_size=8).digest(), "little")
