"""A first look at an input, before anything is made of it: the hash of its bytes, and of what it looks like."""

import hashlib
from dataclasses import dataclass

from pipelines.config import BuildConfig
from pipelines.pictures.images import decode_small
from pipelines.pictures.perceptual import FLAT, SIDE, perceptual_hash
from pipelines.pictures.process import read_input
from pipelines.reasons import RejectedImage
from pipelines.values import Fault, InputRef


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen: the sha256, empty if the input cannot be read; its look, empty if it cannot be decoded."""

    sha256: bytes = b""
    look: bytes = b""

    @property
    def weight(self) -> int:
        """How many bytes it takes to hand this over, roughly."""
        return len(self.sha256) + len(self.look)


@dataclass(frozen=True, slots=True)
class Glance:
    """A job for the decoders: read the input and, if `decode`, see what it looks like.

    What is wrong with an input is found again, and told, when it is written; here it just has less to show.
    """

    ref: InputRef
    decode: bool
    data: bytes | None = None
    verdict: Fault | None = None

    def perform(self, config: BuildConfig) -> Seen:
        """Looks at the input; with a verdict on it, at no more than its bytes."""
        if self.ref.fault:
            return Seen()
        try:
            data = read_input(self.ref.location, config.image) if self.data is None else self.data
        except RejectedImage:
            return Seen()
        sha256 = hashlib.sha256(data).digest()
        if self.verdict or not self.decode:
            return Seen(sha256)
        try:
            pixels = decode_small(data, self.ref.location.form, config.image, size=(SIDE, SIDE))
        except RejectedImage:
            return Seen(sha256)
        return Seen(sha256, perceptual_hash(pixels) or FLAT)

    def refuse(self, reason: str, message: str) -> Seen:
        """Nothing was seen."""
        return Seen()
