"""One picture file in, one stored picture out: `process_image`, the hot loop of a build, without Beam or TensorFlow.

The contract:

1. The format comes from the first bytes, never from the name: JPEG, PNG, BMP, GIF (first frame), WebP.
2. Limits on bytes, pixels, frames and the ratio of the sides are checked before pixels are decoded, and those on pixels
   on the size after the resize as well.
3. Exif orientation is applied (JPEG, PNG, WebP); Exif that is not valid is ignored.
4. Everything becomes 8-bit RGB: grey is replicated, palettes are expanded, alpha is composited over white, 16 bits
   become 8 by round(v / 257), CMYK is converted by Pillow without colour profiles.
5. The resize modes are described in `pipelines.pictures.resize`: down with area averaging, up with Lanczos.
6. JPEG is decoded with the accurate DCT and up-sampling, scaled inside the DCT only while the picture keeps twice the
   sides it needs. Truncated and damaged files are rejected; warnings that concern no pixel are accepted. If the config
   keeps truncated files, a JPEG that only ends early is stored with the missing part as libjpeg fills it: grey.
7. `jpeg` is stored with 4:2:0 chroma, `png` with fixed settings. `original` keeps the file's own bytes if it is an
   intact JPEG or (not animated) PNG, 8-bit RGB without alpha, upright, and the resize changes nothing; other pictures
   from lossless formats (PNG, GIF, BMP) are stored as PNG and those from JPEG and WebP as JPEG.
8. The same bytes and settings give the same result, in any thread.

Whatever is wrong with a picture is a `RejectedImage`; a MemoryError says that this process has not enough for it; any
other exception is a bug in this code.
"""

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import BmpImagePlugin, GifImagePlugin, Image, ImageFile, JpegImagePlugin, WebPImagePlugin

from pipelines.config import ImageConfig
from pipelines.pictures.formats import Format, name_unread, sniff
from pipelines.pictures.forms import to_pixels
from pipelines.pictures.headers import (
    JpegFacts,
    PngHeader,
    count_gif_frames,
    read_jpeg_facts,
    read_png_header,
    read_webp_header,
)
from pipelines.pictures.resize import WHITE, Geometry, Pixels, Size, jpeg_shrink, plan_resize, resample
from pipelines.reasons import Reason, RejectedImage

StoredFormat = Literal["jpeg", "png"]
Moments = tuple[float, float, float]

# The caller runs several pictures at once, so OpenCV's own threads would only contend; and Intel's IPP, where a build
# has it, rounds differently from OpenCV's own code and chooses by processor.
cv2.setNumThreads(1)
cv2.ipp.setUseIPP(False)

# The plug-ins themselves, not Image.open: the format is known already, and our own limit replaces its bomb check.
PLUGINS: dict[Format, Callable[[io.BytesIO], ImageFile.ImageFile]] = {
    "jpeg": JpegImagePlugin.JpegImageFile,
    "bmp": BmpImagePlugin.BmpImageFile,
    "gif": GifImagePlugin.GifImageFile,
    "webp": WebPImagePlugin.WebPImageFile,
}
DECODER_ERRORS = (
    ArithmeticError, AttributeError, EOFError, LookupError, OSError, RuntimeError, SyntaxError, TypeError,
    ValueError, cv2.error, struct.error, zlib.error,
)  # fmt: skip
# libjpeg's warnings about bytes that carry no pixels; the rest ("bad Huffman code", "premature end") mean lost pixels.
HARMLESS_JPEG_WARNINGS = (
    "extraneous bytes before marker",
    "Inconsistent progression sequence",
    "Invalid SOS parameters",
    "unknown JFIF revision",
    "Unknown Adobe color transform",
)
# What the two decoders say of a file that ends inside its scans; "premature end of data segment" may be other damage.
JPEG_ENDS_EARLY = ("Premature end of JPEG file", "image file is truncated")
LONGEST_SIDE: dict[StoredFormat, int] = {"jpeg": 65_500, "png": 1_000_000}
# On photographs libpng's Sub filter with run-length matching is smaller than zlib's default, at three times the speed.
PNG_SETTINGS = (
    cv2.IMWRITE_PNG_COMPRESSION, 1, cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_RLE,
    cv2.IMWRITE_PNG_FILTER, cv2.IMWRITE_PNG_FILTER_SUB,
)  # fmt: skip
# Exif orientations 5 to 8 are mirrored along the diagonal first; then these are flipped (0 rows, 1 columns, -1 both).
FLIPS = {2: 1, 3: -1, 4: 0, 6: 1, 7: -1, 8: 0}


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as it is stored, with the moments of its pixels (RGB, values in 0..1) before they were encoded.

    `stored_size`, `orientation` and `geometry` tell how it came from the file's own pixels, so that boxes can follow.
    """

    data: bytes
    format: StoredFormat
    height: int
    width: int
    channel_mean: Moments
    channel_mean_square: Moments
    stored_size: Size
    orientation: int
    geometry: Geometry
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """A file whose header was read; `decode` gives RGB pixels of its size, or less if still twice what is asked."""

    format: Format | Literal["array"]
    size: Size  # as stored in the file, before the orientation is applied
    decode: Callable[[Size], Pixels]
    orientation: int = 1
    frames: int = 1
    is_plain: bool = False  # 8-bit RGB without alpha: a reader of the file itself gets the pixels that we got


def process_image(data: bytes, config: ImageConfig) -> Picture:
    """Returns the picture that a record stores for this file; raises RejectedImage if there is none."""
    return _process(open_source(data, config), config, data)


def process_array(data: bytes, form: str, config: ImageConfig) -> Picture:
    """The same for an array of pixels."""
    return _process(open_array(data, form, config), config, data)


def decode_small(data: bytes, form: str, config: ImageConfig, *, size: Size) -> Pixels:
    """The upright picture of a file or array for whoever needs no more than twice this size; JPEG decodes no more."""
    source = open_array(data, form, config) if form else open_source(data, config)
    decoded, _ = decode_source(source, size, data, config)
    return orient(decoded, source.orientation)


def _process(source: Source, config: ImageConfig, data: bytes) -> Picture:
    turned = source.orientation >= 5
    height, width = source.size[::-1] if turned else source.size
    plan = plan_resize(height, width, config.resize)
    unchanged = plan.scaled == plan.final == source.size and source.orientation == 1
    stored = stored_format(source, config)
    check_result(plan, stored, config)
    decoded, truncated = decode_source(source, plan.scaled[::-1] if turned else plan.scaled, data, config)
    with _memory_errors():
        pixels = resample(orient(decoded, source.orientation), plan)
        keep = config.encode.format == "original" and source.is_plain and unchanged and not truncated
        encoded = data if keep else encode(pixels, stored, quality=config.encode.quality)
        moments = channel_moments(pixels)
    return Picture(encoded, stored, *plan.final, *moments, source.size, source.orientation, plan, truncated)


def decode_source(source: Source, scaled: Size, data: bytes, config: ImageConfig) -> tuple[Pixels, bool]:
    """Returns the pixels, and whether some of them are missing from the file and were made up by the decoder."""
    try:
        return source.decode(scaled), False
    except RejectedImage as reject:
        only_cut = source.format == "jpeg" and any(text in reject.message for text in JPEG_ENDS_EARLY)
        if config.truncated == "keep" and only_cut:
            with suppress(RejectedImage):
                # With an end marker Pillow takes the file for whole, and libjpeg fills what it does not find.
                return _decode_with_pillow("jpeg", data + b"\xff\xd9"), True
        raise


def open_source(data: bytes, config: ImageConfig) -> Source:
    """Reads the header of a picture that is within the limits."""
    if not data:
        raise RejectedImage(Reason.EMPTY_FILE, "file has no bytes")
    if len(data) > config.max_file_mb * 1e6:
        message = f"file has {len(data) / 1e6:.1f} MB, image.max_file_mb is {config.max_file_mb:g}"
        raise RejectedImage(Reason.FILE_TOO_LARGE, message)
    form = sniff(data)
    if form is None:
        raise _reject_format(data)
    source = OPENERS[form](data) if form in OPENERS else open_with_pillow(form, data)
    _check_header(source, config)
    if form == "gif":
        _check_frames(count_gif_frames(data, enough=config.max_frames + 1), config, more=" or more")
    return source


def open_array(data: bytes, form: str, config: ImageConfig) -> Source:
    """An array of pixels that is within the limits."""
    pixels = to_pixels(data, form)
    source = Source("array", (pixels.shape[0], pixels.shape[1]), lambda scaled: pixels)
    _check_header(source, config)
    return source


def _reject_format(data: bytes) -> RejectedImage:
    if name := name_unread(data):
        return RejectedImage(Reason.UNSUPPORTED_FORMAT, f"{name} is not read here; convert it to PNG or JPEG")
    message = f"file starts with {data[:8]!r}, which is not JPEG, PNG, BMP, GIF or WebP"
    return RejectedImage(Reason.UNKNOWN_FORMAT, message)


def _check_header(source: Source, config: ImageConfig) -> None:
    if min(source.size) < 1:
        raise RejectedImage(Reason.DECODE_FAILED, f"{source.format} picture has no pixels ({_show(source.size)})")
    _check_pixels(source.size, "picture has", config)
    if max(source.size) > config.max_aspect * min(source.size):
        message = f"picture is {_show(source.size)}, image.max_aspect is {config.max_aspect:g}"
        raise RejectedImage(Reason.EXTREME_ASPECT, message)
    _check_frames(source.frames, config)


def _check_frames(frames: int, config: ImageConfig, *, more: str = "") -> None:
    if frames > config.max_frames:
        message = f"animation has {frames}{more} frames, image.max_frames is {config.max_frames}"
        raise RejectedImage(Reason.TOO_MANY_FRAMES, message)


def check_result(plan: Geometry, stored: StoredFormat, config: ImageConfig) -> None:
    """Rejects a picture that the resize would blow up (a very long one, say), or that its stored format cannot hold."""
    _check_pixels(plan.scaled, "resize would make", config)
    if max(plan.final) > LONGEST_SIDE[stored]:
        limit = f"{stored} holds at most {LONGEST_SIDE[stored]} pixels a side"
        raise RejectedImage(Reason.TOO_MANY_PIXELS, f"stored picture would be {_show(plan.final)}, {limit}")


def _check_pixels(size: Size, subject: str, config: ImageConfig) -> None:
    megapixels = size[0] * size[1] / 1e6
    if megapixels > config.max_megapixels:
        limit = f"image.max_megapixels is {config.max_megapixels:g}"
        raise RejectedImage(Reason.TOO_MANY_PIXELS, f"{subject} {megapixels:.1f} megapixels ({_show(size)}), {limit}")


def _show(size: Size) -> str:
    return f"{size[1]}x{size[0]}"


def open_jpeg(data: bytes) -> Source:
    """Opens JPEG files, and the first picture of MPO files."""
    facts = read_jpeg_facts(data)
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:  # Cut, odd (rare chroma layouts) or with harmless warnings: Pillow tells these apart.
        return open_with_pillow("jpeg", data, orientation=facts.orientation)
    size = (int(height), int(width))
    decode = partial(_decode_jpeg, data, size, colours, facts)
    return Source("jpeg", size, decode, facts.orientation, is_plain=facts.is_common and colours in ("YCbCr", "RGB"))


def _decode_jpeg(data: bytes, size: Size, colours: str, facts: JpegFacts, scaled: Size) -> Pixels:
    # libjpeg-turbo before 3.1.4 ignores the scale of a lossless JPEG and writes past the end of the smaller buffer.
    shrink = jpeg_shrink(size, scaled) if facts.is_common else 1
    sides = {"min_height": -(-size[0] // shrink), "min_width": -(-size[1] // shrink)}
    is_rgb = colours not in ("CMYK", "YCCK")
    try:
        pixels = simplejpeg.decode_jpeg(data, "RGB" if is_rgb else "CMYK", fastdct=False, fastupsample=False, **sides)
    except ValueError as error:
        if not any(warning in str(error) for warning in HARMLESS_JPEG_WARNINGS):
            raise _rejection("jpeg", error) from error
        return _decode_with_pillow("jpeg", data)
    if is_rgb:
        return pixels
    # CMYK was decoded only to prove that the file is whole, of which simplejpeg is a stricter judge than Pillow.
    del pixels
    return _decode_with_pillow("jpeg", data)


def open_png(data: bytes) -> Source:
    """Opens PNG files, and the default picture of animated ones."""
    header = read_png_header(data)
    is_rgb = header.depth == 8 and header.colour_type == 2 and header.is_opaque and header.frames == 1
    decode = partial(_decode_png, header)
    return Source("png", (header.height, header.width), decode, header.orientation, header.frames, is_plain=is_rgb)


def _decode_png(header: PngHeader, scaled: Size) -> Pixels:
    # OpenCV's libpng insists on every row; Pillow leaves missing ones black, and drops the low byte of 16 bits.
    if header.depth <= 8 and header.is_opaque:
        return _decode_with_opencv("png", header.essence, cv2.IMREAD_COLOR_RGB)
    raw = _decode_with_opencv("png", header.essence, cv2.IMREAD_UNCHANGED)
    if raw.ndim == 2 and header.transparency is not None:
        raw = _whiten_transparent_grey(raw, header.transparency, depth=header.depth)
    if header.depth == 16:
        raw = _to_8_bits(raw)
    if raw.ndim == 3 and raw.shape[2] == 4:
        return np.asarray(_over_white(Image.fromarray(cv2.cvtColor(raw, cv2.COLOR_BGRA2RGBA))))
    rgb: Pixels = cv2.cvtColor(raw, cv2.COLOR_GRAY2RGB if raw.ndim == 2 else cv2.COLOR_BGR2RGB)
    return rgb


def _to_8_bits(deep: npt.NDArray[Any]) -> npt.NDArray[Any]:
    levels = ((np.arange(65536, dtype=np.uint32) + 128) // 257).astype(np.uint8)  # round(v / 257): a tie cannot occur
    return levels[deep]  # a table needs no copy of the picture in more bits


def _whiten_transparent_grey(grey: npt.NDArray[Any], level: bytes, *, depth: int) -> npt.NDArray[Any]:
    # OpenCV makes alpha of transparent colours but forgets the grey one; below 8 bits it has spread the levels.
    white, levels = int(np.iinfo(grey.dtype).max), (1 << depth) - 1
    return np.where(grey == (int.from_bytes(level, "big") & levels) * white // levels, grey.dtype.type(white), grey)


def open_webp(data: bytes) -> Source:
    """Opens WebP files, and the first frame of animated ones."""
    header = read_webp_header(data)
    decode = partial(_decode_webp, data, header.simple)
    return Source("webp", (header.height, header.width), decode, header.orientation, header.frames)


def _decode_webp(data: bytes, is_simple: bool, scaled: Size) -> Pixels:
    # Both use libwebp and give the same pixels; OpenCV takes two thirds of the time but knows no alpha and no frames.
    return _decode_with_opencv("webp", data, cv2.IMREAD_COLOR_RGB) if is_simple else _decode_with_pillow("webp", data)


OPENERS: dict[Format, Callable[[bytes], Source]] = {"jpeg": open_jpeg, "png": open_png, "webp": open_webp}


def open_with_pillow(form: Format, data: bytes, *, orientation: int = 1) -> Source:
    """Opens GIF, BMP, and JPEG that is too unusual for the faster decoder."""
    with _rejections(form):
        width, height = PLUGINS[form](io.BytesIO(data)).size
    return Source(form, (height, width), lambda scaled: _decode_with_pillow(form, data), orientation)


def _decode_with_pillow(form: Format, data: bytes) -> Pixels:
    with _rejections(form):
        image: Image.Image = PLUGINS[form](io.BytesIO(data))
        image.load()
        if image.has_transparency_data:
            image = image if image.mode == "RGBA" else image.convert("RGBA")  # which would copy it for nothing
            return np.asarray(_over_white(image))
        return np.asarray(image.convert("RGB"))


def _over_white(image: Image.Image) -> Image.Image:
    white = Image.new("RGB", image.size, WHITE)
    white.paste(image, mask=image)
    return white


def _decode_with_opencv(form: Format, data: bytes, flags: int) -> npt.NDArray[Any]:
    with _rejections(form):
        pixels: npt.NDArray[Any] | None = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if pixels is None:
        raise RejectedImage(Reason.DECODE_FAILED, f"{form} data is damaged")
    return pixels


@contextmanager
def _rejections(form: Format) -> Iterator[None]:
    """Turns what a decoder raises on bad bytes into a rejection; wraps decoder calls only: our own bugs must show."""
    try:
        yield
    except (Image.DecompressionBombError, *DECODER_ERRORS) as error:
        raise _rejection(form, error) from error


@contextmanager
def _memory_errors() -> Iterator[None]:
    try:
        yield
    except cv2.error as error:
        if error.code == cv2.Error.StsNoMem:
            raise MemoryError(str(error)) from error
        raise


def _rejection(form: Format, error: Exception) -> RejectedImage:
    message = f"{form}: {str(error) or type(error).__name__}"
    if "insufficient memory" in message.lower():  # as libjpeg and OpenCV say it
        raise MemoryError(message) from error
    if isinstance(error, Image.DecompressionBombError):  # Only a GIF frame beyond its own canvas comes this far.
        return RejectedImage(Reason.TOO_MANY_PIXELS, message)
    # A plug-in of Pillow that ran out of bytes in the header says so only in the cause.
    if isinstance(error.__cause__, (IndexError, EOFError, struct.error)):
        return RejectedImage(Reason.TRUNCATED, f"{form}: file ends inside its header")
    if any(word in message.lower() for word in ("truncated", "premature end", "not enough image data")):
        return RejectedImage(Reason.TRUNCATED, message)
    return RejectedImage(Reason.DECODE_FAILED, message)


def orient(pixels: Pixels, orientation: int) -> Pixels:
    """Turns stored pixels upright, as Exif asks."""
    if orientation >= 5:
        pixels = cv2.transpose(pixels)
    return cv2.flip(pixels, FLIPS[orientation]) if orientation in FLIPS else pixels


def channel_moments(pixels: Pixels) -> tuple[Moments, Moments]:
    """Returns the mean and the mean square of R, G and B, on a scale of 0..1."""
    means, deviations = cv2.meanStdDev(pixels)
    red, green, blue = (value / 255 for value in means.ravel().tolist())
    red_sd, green_sd, blue_sd = (value / 255 for value in deviations.ravel().tolist())
    return (red, green, blue), (red_sd**2 + red**2, green_sd**2 + green**2, blue_sd**2 + blue**2)


def stored_format(source: Source, config: ImageConfig) -> StoredFormat:
    """Returns the format of the record's bytes; `original` never makes a lossless picture lossy."""
    if config.encode.format != "original":
        return config.encode.format
    return "png" if source.format in ("png", "gif", "bmp", "array") else "jpeg"


def encode(pixels: Pixels, stored: StoredFormat, *, quality: int) -> bytes:
    """Returns the file bytes of RGB pixels."""
    if stored == "jpeg":
        data: bytes = simplejpeg.encode_jpeg(pixels, quality, "RGB", "420", fastdct=False)
        return data
    done, array = cv2.imencode(".png", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), PNG_SETTINGS)
    assert done, "sides were checked by check_result"
    return array.tobytes()
