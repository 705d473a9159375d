"""Why an input is left out of a dataset: the closed list of reasons, and the one exception that carries them."""

from enum import StrEnum


class Reason(StrEnum):
    """What is wrong with a rejected input; the values are names of counters and of rows in the reject report."""

    # The file or the member has no bytes.
    EMPTY_FILE = "empty_file"
    # It could not be read at all: it vanished, we may not open it, or it is no file (a socket, a device).
    UNREADABLE = "unreadable"
    # It is not what it was when it was listed: another size or another time of modification.
    CHANGED = "changed"
    # It has more bytes than image.max_file_mb allows.
    FILE_TOO_LARGE = "file_too_large"
    # The first bytes are those of no picture format that we know.
    UNKNOWN_FORMAT = "unknown_format"
    # The first bytes are those of a picture format that is not read here, such as TIFF or HEIC.
    UNSUPPORTED_FORMAT = "unsupported_format"
    # It has, or would have after the resize, more pixels than image.max_megapixels or the stored format allows.
    TOO_MANY_PIXELS = "too_many_pixels"
    # It is an animation of more frames than image.max_frames allows.
    TOO_MANY_FRAMES = "too_many_frames"
    # One side is more than image.max_aspect times the other.
    EXTREME_ASPECT = "extreme_aspect"
    # The bytes end before the picture does.
    TRUNCATED = "truncated"
    # The bytes are damaged, or of a variant that no decoder here reads.
    DECODE_FAILED = "decode_failed"
    # The decoder's process died of it, twice.
    DECODER_CRASHED = "decoder_crashed"
    # It took longer than image.max_seconds, twice.
    TIMED_OUT = "timed_out"
    # Decoding it takes more memory than image.max_memory_mb allows.
    OUT_OF_MEMORY = "out_of_memory"
    # An array has values that are not finite, or pixels outside of 0..1.
    BAD_VALUES = "bad_values"
    # A row of a listing or table is incomplete or not of the stated types.
    BAD_ROW = "bad_row"
    # A member of an archive that cannot be an input: a link, a name outside of the archive, an unknown compression.
    BAD_MEMBER = "bad_member"
    # Nothing says what its label is.
    NO_LABEL = "no_label"
    # It is said to be of a split that the build does not know.
    UNKNOWN_SPLIT = "unknown_split"
    # Another input already has the same key.
    DUPLICATE_KEY = "duplicate_key"


# Not a reject but an account of its own: the very same input was listed more than once (by two globs, say).
LISTED_TWICE = "listed_twice"
# It has the same bytes as another input, or looks like one (`dedupe`); or such inputs have different labels.
DUPLICATE, NEAR_DUPLICATE, CONFLICTING_LABELS = "duplicate", "near_duplicate", "conflicting_labels"
ALIKE = frozenset({DUPLICATE, NEAR_DUPLICATE, CONFLICTING_LABELS})
DUPLICATES = ALIKE | {LISTED_TWICE}


class RejectedImage(Exception):
    """An input that cannot become a record; the only exception that the build turns into a reject."""

    def __init__(self, reason: Reason, message: str) -> None:
        """Keeps both as `args` too, so that the exception survives pickling between workers."""
        super().__init__(reason, message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        """Reads like `truncated: premature end of JPEG file`."""
        return f"{self.reason}: {self.message}"
