"""What the bytes of a picture file say before any pixel is decoded: format, size, orientation, completeness."""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pipelines.reasons import Reason, RejectedImage

Format = Literal["jpeg", "png", "bmp", "gif", "webp"]

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# The sizes of the known DIB headers: "BM" alone would make a picture of many a text file.
BMP_HEADER_SIZES = (12, 16, 40, 52, 56, 64, 108, 124)
# Exif comes in one of the first segments; only colour profiles and other metadata may stand before it.
EXIF_WINDOW = 128 * 1024
ORIENTATION_TAG, SHORT, LONG = 0x0112, 3, 4


def sniff(data: bytes) -> Format | None:
    """Returns the format that the first bytes announce."""
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if data.startswith(PNG_SIGNATURE):
        return "png"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "webp"
    if data.startswith(b"BM") and int.from_bytes(data[14:18], "little") in BMP_HEADER_SIZES:
        return "bmp"
    return None


def exif_orientation(tiff: bytes) -> int:
    """Returns the orientation 1..8 of an Exif block without its `Exif\\0\\0` prefix; 1 if absent or not valid."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, start)
        for entry in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(f"{order}HH", tiff, entry)
            if tag == ORIENTATION_TAG:
                return _orientation_value(tiff, entry + 8, code=order + {SHORT: "H", LONG: "I"}.get(kind, "x"))
    except struct.error:  # Broken metadata does not make a broken picture.
        pass
    return 1


def _orientation_value(tiff: bytes, at: int, *, code: str) -> int:
    values = struct.unpack_from(code, tiff, at)
    return values[0] if values and 1 <= values[0] <= 8 else 1


def jpeg_orientation(data: bytes) -> int:
    """Returns the Exif orientation of a JPEG file."""
    at = data.find(b"Exif\0\0", 0, EXIF_WINDOW)
    if at < 4 or data[at - 4 : at - 2] != b"\xff\xe1":  # Not the start of an APP1 segment: some other metadata.
        return 1
    return exif_orientation(data[at + 6 : at + 0x10000])


@dataclass(frozen=True, slots=True)
class PngHeader:
    """The facts of a complete PNG file; `transparency` is the tRNS chunk, `animated` means APNG."""

    height: int
    width: int
    depth: int
    colour_type: int
    transparency: bytes | None
    orientation: int
    animated: bool

    @property
    def is_opaque(self) -> bool:
        """True for grey (0), RGB (2) and palette (3) pictures without a transparent colour."""
        return self.colour_type < 4 and self.transparency is None


def read_png_header(data: bytes) -> PngHeader:
    """Walks all chunks and returns the facts; a cut or damaged file is rejected, which decoders do not always do."""
    chunks = png_chunks(data)
    name, body = next(chunks)
    if name != b"IHDR" or len(body) != 13:
        raise RejectedImage(Reason.DECODE_FAILED, "PNG file does not start with an IHDR chunk")
    width, height, depth, colour_type = struct.unpack_from(">IIBB", body)
    rest = {name: body for name, body in chunks if name in (b"tRNS", b"eXIf", b"acTL")}
    transparency = bytes(rest[b"tRNS"]) if b"tRNS" in rest else None
    orientation = exif_orientation(bytes(rest.get(b"eXIf", b"")))
    return PngHeader(height, width, depth, colour_type, transparency, orientation, animated=b"acTL" in rest)


def png_chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Yields name and body of each chunk up to IEND; critical chunks have passed their checksum."""
    view, at = memoryview(data), len(PNG_SIGNATURE)
    name = b""
    while name != b"IEND":
        size, name = struct.unpack_from(">I4s", data, at) if at + 12 <= len(data) else (len(data), b"IEND")
        end = at + 8 + size
        if end + 4 > len(data):
            raise RejectedImage(Reason.TRUNCATED, f"PNG file ends inside a chunk, after {len(data)} bytes")
        # The first letter of a critical chunk is a capital; a damaged comment is no reason to lose a picture.
        if name[:1].isupper() and zlib.crc32(view[at + 4 : end]) != int.from_bytes(view[end : end + 4], "big"):
            raise RejectedImage(Reason.DECODE_FAILED, f"PNG chunk {name!r} at byte {at} has a wrong checksum")
        yield name, view[at + 8 : end]
        at = end + 4


@dataclass(frozen=True, slots=True)
class WebpHeader:
    """The facts of a WebP file; `simple` means one lossy picture with neither alpha nor metadata."""

    height: int
    width: int
    simple: bool
    orientation: int


def read_webp_header(data: bytes) -> WebpHeader:
    """Returns the facts of a WebP file whose length is what its own header says."""
    try:
        (size,) = struct.unpack_from("<I", data, 4)
        height, width = _webp_size(data)
    except struct.error as error:
        raise RejectedImage(Reason.TRUNCATED, f"WebP file ends inside its header, after {len(data)} bytes") from error
    if size + 8 > len(data):
        raise RejectedImage(Reason.TRUNCATED, f"WebP file has {len(data)} bytes, its header says {size + 8}")
    return WebpHeader(height, width, simple=data[12:16] == b"VP8 ", orientation=_webp_orientation(data))


def _webp_size(data: bytes) -> tuple[int, int]:
    match data[12:16]:
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", data, 26)
            return height & 0x3FFF, width & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", data, 21)
            return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
        case b"VP8X":
            low_width, high_width, low_height, high_height = struct.unpack_from("<HBHB", data, 24)
            return (high_height << 16 | low_height) + 1, (high_width << 16 | low_width) + 1
    raise RejectedImage(Reason.DECODE_FAILED, f"WebP file starts with the unknown chunk {data[12:16]!r}")


def _webp_orientation(data: bytes) -> int:
    at = data.rfind(b"EXIF") if data[12:16] == b"VP8X" else -1
    # The specification wants the bare block; Pillow and others write the JPEG prefix as well.
    return exif_orientation(data[at + 8 : at + 0x10000].removeprefix(b"Exif\0\0")) if at >= 0 else 1
