"""Decodes stored pictures, only to prove that they can be."""

import io
import struct
import zlib

from PIL import Image, ImageFile, JpegImagePlugin, PngImagePlugin

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_DECODER_ERRORS = (
    ArithmeticError, AttributeError, EOFError, LookupError, OSError, RuntimeError, SyntaxError, TypeError, ValueError,
    Image.DecompressionBombError, struct.error, zlib.error,
)  # fmt: skip


def decoded_size(data: bytes) -> tuple[int, int]:
    """The (height, width) of a stored picture, every pixel of which was decoded; raises ValueError if that fails."""
    # The plug-ins themselves, not Image.open: records hold JPEG or PNG, and what a build let in is no bomb.
    is_png = data.startswith(_PNG_SIGNATURE)
    plugin: type[ImageFile.ImageFile] = PngImagePlugin.PngImageFile if is_png else JpegImagePlugin.JpegImageFile
    try:
        with plugin(io.BytesIO(data)) as picture:
            picture.load()
    except _DECODER_ERRORS as error:
        raise ValueError(f"the picture cannot be decoded: {error}") from error
    return picture.height, picture.width
