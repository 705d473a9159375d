"""By what equal inputs are known: a digest of their bytes."""

import hashlib


def content_digest(data: bytes) -> int:
    """The first 64 bits of the sha256: enough to find who may be equal, not to prove it."""
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little")
