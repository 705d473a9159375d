"""Why a picture is left out of a dataset: the closed list of reasons, and the one exception that carries them."""

from enum import StrEnum


class Reason(StrEnum):
    """What is wrong with a rejected item; the values are names of counters and of rows in the reject report."""

    # The file has no bytes.
    EMPTY_FILE = "empty_file"
    # The file has more bytes than image.max_file_mb allows.
    FILE_TOO_LARGE = "file_too_large"
    # The first bytes are not those of a JPEG, PNG, BMP, GIF or WebP file.
    UNKNOWN_FORMAT = "unknown_format"
    # The picture has, or would have after the resize, more pixels than image.max_megapixels or its format allows.
    TOO_MANY_PIXELS = "too_many_pixels"
    # The file ends before the picture does.
    TRUNCATED = "truncated"
    # The bytes are damaged, or of a variant that no decoder here reads.
    DECODE_FAILED = "decode_failed"
    # The file could not be read at all: it vanished, or we may not open it.
    UNREADABLE = "unreadable"
    # Another item already has the same key.
    DUPLICATE_KEY = "duplicate_key"
    # The row of a listing is incomplete or not of the stated types.
    BAD_ROW = "bad_row"
    # The file lies in no class folder.
    NO_LABEL = "no_label"


class RejectedImage(Exception):
    """An item that cannot become a record; the only exception that the build turns into a reject."""

    def __init__(self, reason: Reason, message: str) -> None:
        """Keeps both as `args` too, so that the exception survives pickling between workers."""
        super().__init__(reason, message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        """Reads like `truncated: premature end of JPEG file`."""
        return f"{self.reason}: {self.message}"
