"""What the bytes of a picture file say before any pixel is decoded: size, frames, orientation, completeness."""

import io
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipelines.pictures.formats import PNG_SIGNATURE
from pipelines.reasons import Reason, RejectedImage

APP1, SOS = 0xE1, 0xDA
SOF_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
MARKERS_WITHOUT_LENGTH = frozenset((0x00, 0x01, *range(0xD0, 0xDA)))
ORIENTATION_TAG, SHORT, LONG = 0x0112, 3, 4


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


@dataclass(frozen=True, slots=True)
class JpegFacts:
    """What the segments before the first scan say; `frame` is the SOF marker, 0 if it was not found."""

    frame: int
    orientation: int

    @property
    def is_common(self) -> bool:
        """True for baseline, extended and progressive Huffman coding, which every decoder reads."""
        return self.frame in (0xC0, 0xC1, 0xC2)


def read_jpeg_facts(data: bytes) -> JpegFacts:
    """Returns the coding process and the Exif orientation of a JPEG file."""
    frame, orientation = 0, 1
    for marker, start, end in jpeg_segments(data):
        if marker in SOF_MARKERS:
            frame = marker
        elif marker == APP1 and data.startswith(b"Exif\0\0", start):
            orientation = exif_orientation(data[start + 6 : end])
    return JpegFacts(frame, orientation)


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields marker, start and end of each segment before the first scan; stops where the file is not well formed."""
    at, size = 2, len(data)
    while at + 4 <= size and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        end = at + 2 + (data[at + 2] << 8 | data[at + 3])
        if marker == SOS or marker in MARKERS_WITHOUT_LENGTH or end > size:
            return
        yield marker, at + 4, end
        at = end


_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# No comment or colour profile needs as much. What cannot unpack to it at zlib's best ratio need not be tried.
LARGEST_TEXT, ZLIB_RATIO = 8_000_000, 1032


@dataclass(frozen=True, slots=True)
class PngHeader:
    """The facts of a complete PNG file.

    `essence` is the file without the chunks that do not shape pixels: text, colour profiles and animation frames cannot
    make a decoder fail, complain on stderr or choose another frame.
    """

    height: int
    width: int
    depth: int
    colour_type: int
    orientation: int
    frames: int
    transparency: bytes | None  # the tRNS chunk
    essence: bytes

    @property
    def is_opaque(self) -> bool:
        """True for grey (0), RGB (2) and palette (3) pictures without a transparent colour."""
        return self.colour_type < 4 and self.transparency is None


def read_png_header(data: bytes) -> PngHeader:
    """Walks all chunks and returns the facts; a cut or damaged file is rejected, which decoders do not always do."""
    if not b"\0\0\0\x0dIHDR".startswith(data[8:16]):
        raise RejectedImage(Reason.DECODE_FAILED, "PNG file does not start with an IHDR chunk")
    essence, bodies, frames, packed = io.BytesIO(), dict[bytes, bytes](), 0, 0
    essence.write(PNG_SIGNATURE)
    for name, chunk in png_chunks(data):  # one at a time: a file of nothing but empty chunks has millions
        if _shapes_pixels(name):
            essence.write(chunk)
        if name in (b"IHDR", b"tRNS", b"eXIf", b"acTL"):
            bodies.setdefault(name, bytes(chunk[8:-4]))
        frames += name == b"fcTL"
        packed += len(chunk) if name == b"IDAT" else 0
        if len(chunk) > LARGEST_TEXT // ZLIB_RATIO and unpacks_beyond(
            [_packed_text(name, bytes(chunk[8:-4]))], LARGEST_TEXT
        ):
            raise RejectedImage(Reason.DECODE_FAILED, f"PNG chunk {name!r} unpacks to more than {LARGEST_TEXT} bytes")
    width, height, depth, colour_type = struct.unpack_from(">IIBB", bodies[b"IHDR"])
    unpacked = height * (width * depth * _PNG_CHANNELS.get(colour_type, 1) // 8 + 8)  # at most, even if interlaced
    pixels = (chunk[8:-4] for name, chunk in png_chunks(data) if name == b"IDAT")
    if packed > unpacked and unpacks_beyond(pixels, unpacked):
        raise RejectedImage(Reason.DECODE_FAILED, f"PNG unpacks to more than the {unpacked} bytes that its pixels need")
    announced = int.from_bytes(bodies.get(b"acTL", b"\0\0\0\1")[:4], "big")
    return PngHeader(
        height, width, depth, colour_type,
        orientation=exif_orientation(bodies.get(b"eXIf", b"")),
        frames=max(1, announced, frames),
        transparency=bodies.get(b"tRNS"),
        essence=essence.getvalue(),
    )  # fmt: skip


def png_chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Yields name and bytes of each chunk up to IEND; those that shape pixels have passed their checksum."""
    view, at, name = memoryview(data), len(PNG_SIGNATURE), b""
    while name != b"IEND":
        size, name = struct.unpack_from(">I4s", data, at) if at + 12 <= len(data) else (len(data), b"")
        end = at + 12 + size
        if end > len(data):
            raise RejectedImage(Reason.TRUNCATED, f"PNG file ends inside a chunk, after {len(data)} bytes")
        if _shapes_pixels(name) and zlib.crc32(view[at + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            raise RejectedImage(Reason.DECODE_FAILED, f"PNG chunk {name!r} at byte {at} has a wrong checksum")
        yield name, view[at:end]
        at = end


def _packed_text(name: bytes, body: bytes | memoryview) -> bytes:
    """The zlib stream inside of a chunk that libraries unpack when they open a file; b"" if it has none."""
    if name not in (b"zTXt", b"iCCP", b"iTXt"):
        return b""
    _, _, rest = bytes(body).partition(b"\0")
    if name != b"iTXt":
        return rest[1:]
    return rest[2:].split(b"\0", 2)[-1] if rest[:1] == b"\1" else b""


def unpacks_beyond(parts: Iterable[bytes | memoryview], limit: int) -> bool:
    """Whether a zlib stream holds more than `limit` bytes; it is unpacked no further than that."""
    inflater, left = zlib.decompressobj(), limit
    try:
        for part in parts:
            left -= len(inflater.decompress(part, left + 1))
            if left < 0:
                return True
    except zlib.error:  # not a bomb; if it matters, the decoder will say what is wrong
        pass
    return False


def _shapes_pixels(name: bytes) -> bool:
    # The first letter of a critical chunk is a capital; a damaged comment is no reason to lose a picture.
    return name[:1].isupper() or name == b"tRNS"


@dataclass(frozen=True, slots=True)
class WebpHeader:
    """The facts of a WebP file; `simple` means one lossy picture with neither alpha nor metadata."""

    height: int
    width: int
    simple: bool
    orientation: int
    frames: int


def read_webp_header(data: bytes) -> WebpHeader:
    """Returns the facts of a WebP file whose length is what its own header says."""
    try:
        (size,) = struct.unpack_from("<I", data, 4)
        height, width = _webp_size(data)
    except struct.error as error:
        raise RejectedImage(Reason.TRUNCATED, f"WebP file ends inside its header, after {len(data)} bytes") from error
    if size + 8 > len(data):
        raise RejectedImage(Reason.TRUNCATED, f"WebP file has {len(data)} bytes, its header says {size + 8}")
    orientation, frames = 1, 0
    for name, start, end in webp_chunks(data):
        frames += name == b"ANMF"
        if name == b"EXIF":
            # The specification wants the bare block; Pillow and others write the JPEG prefix as well.
            orientation = exif_orientation(data[start:end].removeprefix(b"Exif\0\0"))
    return WebpHeader(height, width, data[12:16] == b"VP8 ", orientation, max(1, frames))


def webp_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yields name, start and end of each chunk; stops where the file is not well formed."""
    at = 12
    while at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        start, at = at + 8, at + 8 + size + size % 2
        yield name, start, start + size


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


GIF_EXTENSION, GIF_FRAME = 0x21, 0x2C


def count_gif_frames(data: bytes, *, enough: int) -> int:
    """Returns how many frames a GIF file holds, or `enough` if there are as many; walks blocks, decodes nothing."""
    frames, at = 0, 13 + _colour_table_size(data, 10)
    while frames < enough and at < len(data):
        if data[at] == GIF_FRAME:
            frames += 1
            at = _skip_sub_blocks(data, at + 11 + _colour_table_size(data, at + 9))
        elif data[at] == GIF_EXTENSION:
            at = _skip_sub_blocks(data, at + 2)
        elif data[at] == 0:  # decoders pass over stray zeros between blocks
            at += 1
        else:
            break
    return max(1, frames)


def _colour_table_size(data: bytes, at: int) -> int:
    flags = data[at] if at < len(data) else 0
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _skip_sub_blocks(data: bytes, at: int) -> int:
    while at < len(data) and data[at]:
        at += 1 + data[at]
    return at + 1
