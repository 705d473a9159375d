"""Tests of the picture code: every rule of the contract in `pipelines.pictures.images`, on small pictures made here."""

import contextlib
import io
import pickle
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from pipelines.config import ImageConfig, ResizeConfig
from pipelines.pictures.formats import sniff
from pipelines.pictures.headers import count_gif_frames, exif_orientation, read_jpeg_facts
from pipelines.pictures.images import Picture, process_image
from pipelines.pictures.resize import jpeg_shrink, plan_resize
from pipelines.reasons import Reason, RejectedImage

Array = npt.NDArray[np.uint8]
RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
PNG = {"encode": {"format": "png"}}
ORIGINAL = {"encode": {"format": "original"}}
ALL_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")


def config(**values: Any) -> ImageConfig:
    return ImageConfig.model_validate(values)


def save(image: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def corners(height: int = 48, width: int = 64) -> Image.Image:
    """A picture whose four quarters differ, so that no rotation or mirror image of it looks like another."""
    pixels = np.zeros((height, width, 3), np.uint8)
    top, left = height // 2, width // 2
    pixels[:top, :left], pixels[:top, left:], pixels[top:, :left], pixels[top:, left:] = RED, GREEN, BLUE, (90, 160, 30)
    return Image.fromarray(pixels)


def photo(height: int = 120, width: int = 160) -> Image.Image:
    """A smooth picture with some texture, the kind that JPEG is made for."""
    noise = np.random.default_rng(7).integers(0, 256, (8, 10, 3), dtype=np.uint8)
    return Image.fromarray(cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC))


def pixels_of(picture: Picture) -> Array:
    return np.asarray(Image.open(io.BytesIO(picture.data)).convert("RGB"))


def stored(data: bytes, **values: Any) -> Array:
    """The pixels that a lossless build stores."""
    return pixels_of(process_image(data, config(**values, **PNG)))


def reject(data: bytes, **values: Any) -> RejectedImage:
    with pytest.raises(RejectedImage) as caught:
        process_image(data, config(**values))
    return caught.value


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(header: tuple[int, int, int, int], rows: list[bytes], *extra: bytes) -> bytes:
    """A PNG from (width, height, depth, colour type) and unfiltered rows."""
    ihdr = chunk(b"IHDR", struct.pack(">IIBBBBB", *header, 0, 0, 0))
    idat = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
    return b"\x89PNG\r\n\x1a\n" + ihdr + b"".join(extra) + idat + chunk(b"IEND", b"")


def deep_png(colour_type: int, values: list[int], *extra: bytes) -> bytes:
    """A 16-bit PNG of one row."""
    width = len(values) // {0: 1, 2: 3, 4: 2, 6: 4}[colour_type]
    return png((width, 1, 16, colour_type), [struct.pack(f">{len(values)}H", *values)], *extra)


def lossless_jpeg(side: int = 64) -> bytes:
    """A JPEG of the rare lossless kind (SOF3): three channels, every difference 0, so all 128."""
    adobe = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"
    frame = b"\xff\xc3\x00\x11\x08" + struct.pack(">HH", side, side) + b"\x03R\x11\x00G\x11\x00B\x11\x00"
    table = b"\xff\xc4\x00\x14\x00\x01" + bytes(15) + b"\x00"  # one code, the bit 0, for "no difference"
    scan = b"\xff\xda\x00\x0c\x03R\x00G\x00B\x00\x01\x00\x00"
    return b"\xff\xd8" + adobe + frame + table + scan + bytes(side * side * 3 // 8) + b"\xff\xd9"


# Rule 1: the format is in the bytes.


@pytest.mark.parametrize("form", ALL_FORMATS)
def test_each_format_is_found_by_its_bytes(form: str) -> None:
    assert sniff(save(photo(), form)) == form.lower()


NOT_PICTURES = [b"x", b"BM is not always a bitmap", b"RIFF\0\0\0\0WAVEfmt ", bytes(64), b"<html><body>404</body>"]


@pytest.mark.parametrize("data", NOT_PICTURES)
def test_other_bytes_are_of_unknown_format(data: bytes) -> None:
    error = reject(data)
    assert error.reason is Reason.UNKNOWN_FORMAT
    assert error.message == f"file starts with {data[:8]!r}, which is not JPEG, PNG, BMP, GIF or WebP"


UNREAD = {
    b"II*\0\x08\0\0\0": "TIFF (or a camera's raw file)",
    b"MM\0+\0\x08\0\0": "TIFF (or a camera's raw file)",
    b"\0\0\0\x18ftypheic\0\0\0\0mif1heic": "HEIF (HEIC)",
    b"\0\0\0\x18ftypmif1\0\0\0\0mif1avif": "AVIF",
    b"\0\0\0\x0cjP  \r\n\x87\n\0\0": "JPEG 2000",
    b"\xff\x4f\xff\x51\0\x29": "JPEG 2000",
    b"\xff\x0a\xfa\x1f": "JPEG XL",
    b"\0\0\1\0\1\0\x10\x10\0\0\1\0": "ICO",
    b"8BPS\0\1": "PSD",
    b'<?xml version="1.0"?>\n<!-- a drawing -->\n<svg xmlns="...">': "SVG",
    b"<svg viewBox='0 0 1 1'/>": "SVG",
    b"%PDF-1.7\n": "PDF",
    b"\x76\x2f\x31\x01\2\0\0\0": "OpenEXR",
    b"P6\n2 2\n255\n": "PNM",
    bytes(18) + b"TRUEVISION-XFILE.\0": "TGA",
}


@pytest.mark.parametrize(("data", "name"), UNREAD.items())
def test_known_formats_that_are_not_read_are_named(data: bytes, name: str) -> None:
    error = reject(data)
    assert error.reason is Reason.UNSUPPORTED_FORMAT
    assert error.message == f"{name} is not read here; convert it to PNG or JPEG"


def test_a_video_is_no_heif() -> None:
    assert reject(b"\0\0\0\x18ftypisom\0\0\0\0isommp42").reason is Reason.UNKNOWN_FORMAT


# Rule 2: limits come first.


def test_empty_file() -> None:
    error = reject(b"")
    assert (error.reason, error.message) == (Reason.EMPTY_FILE, "file has no bytes")


def test_file_too_large() -> None:
    error = reject(save(photo(), "BMP"), max_file_mb=0.05)
    assert (error.reason, error.message) == (Reason.FILE_TOO_LARGE, "file has 0.1 MB, image.max_file_mb is 0.05")


@pytest.mark.parametrize("form", ALL_FORMATS)
def test_too_many_pixels(form: str) -> None:
    error = reject(save(photo(), form), max_megapixels=0.0191)
    assert error.reason is Reason.TOO_MANY_PIXELS
    assert error.message == "picture has 0.0 megapixels (160x120), image.max_megapixels is 0.0191"
    assert process_image(save(photo(), form), config(max_megapixels=0.0192)).width == 160


def test_a_header_is_enough_to_refuse_a_bomb() -> None:
    bomb = png((60000, 60000, 8, 2), [b""])
    assert reject(bomb).message == "picture has 3600.0 megapixels (60000x60000), image.max_megapixels is 100"


def test_a_gif_frame_larger_than_its_canvas_counts() -> None:
    data = bytearray(save(corners().convert("P"), "GIF"))
    data[6:10] = struct.pack("<HH", 1, 1)
    assert reject(bytes(data), max_megapixels=0.003).reason is Reason.TOO_MANY_PIXELS
    assert process_image(bytes(data), config()).width == 64


def test_a_resize_that_blows_up_is_refused() -> None:
    line = save(Image.new("RGB", (20000, 1)), "PNG")
    error = reject(line, resize={"mode": "center_crop", "size": 256}, max_aspect=20000)
    assert error.message == "resize would make 1310.7 megapixels (5120000x256), image.max_megapixels is 100"


def test_a_side_too_long_for_jpeg_is_refused() -> None:
    line = save(Image.new("RGB", (70000, 1)), "PNG")
    error = reject(line, max_aspect=70000)
    assert error.message == "stored picture would be 70000x1, jpeg holds at most 65500 pixels a side"
    assert process_image(line, config(max_aspect=70000, **PNG)).width == 70000


@pytest.mark.parametrize("size", [(201, 2), (2, 201)])
@pytest.mark.parametrize("form", ALL_FORMATS)
def test_extreme_sides_are_refused_upright_or_not(form: str, size: tuple[int, int]) -> None:
    data = save(Image.new("RGB", size), form)
    error = reject(data)
    assert error.reason is Reason.EXTREME_ASPECT
    assert error.message == f"picture is {size[0]}x{size[1]}, image.max_aspect is 100"
    assert process_image(data, config(max_aspect=100.5)).width == size[0]


def animation(form: str, frames: int) -> bytes:
    pictures = [Image.new("RGB", (6, 4), (7 * n % 256, n % 256, 0)) for n in range(frames)]
    return save(pictures[0], form, save_all=True, append_images=pictures[1:], duration=20)


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP"])
def test_animations_of_too_many_frames_are_refused(form: str) -> None:
    data = animation(form, 12)
    error = reject(data, max_frames=11)
    more = " or more" if form == "GIF" else ""
    assert error.reason is Reason.TOO_MANY_FRAMES
    assert error.message == f"animation has 12{more} frames, image.max_frames is 11"
    assert process_image(data, config(max_frames=12)).width == 6


def test_gif_frames_are_counted_past_extensions_and_local_palettes() -> None:
    data = animation("GIF", 30)
    assert Image.open(io.BytesIO(data)).n_frames == 30
    assert count_gif_frames(data, enough=1000) == 30
    assert count_gif_frames(data, enough=7) == 7
    assert count_gif_frames(save(photo(), "GIF"), enough=1000) == 1


@given(st.binary(max_size=300))
def test_counting_gif_frames_always_ends(noise: bytes) -> None:
    assert 1 <= count_gif_frames(b"GIF89a" + noise, enough=50) <= 50


def test_an_animated_png_may_not_lie_about_its_frames() -> None:
    data = animation("PNG", 12)
    at = data.index(b"acTL")
    lie = data[: at - 4] + chunk(b"acTL", struct.pack(">II", 1, 0)) + data[at + 16 :]
    assert reject(lie, max_frames=11).message == "animation has 12 frames, image.max_frames is 11"


# Rule 3: pictures stand upright.


def oriented(form: str, orientation: int, **options: Any) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return save(corners(), form, exif=exif, **options)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("form", "options"), [("JPEG", {"quality": 95}), ("PNG", {}), ("WEBP", {"lossless": True})])
def test_orientation_is_applied_as_pillow_does(form: str, options: dict[str, Any], orientation: int) -> None:
    data = oriented(form, orientation, **options)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    assert expected.shape[:2] == ((48, 64) if orientation < 5 else (64, 48))
    np.testing.assert_allclose(stored(data), expected, atol=2)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_and_dct_scaling_go_together(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = save(corners(480, 640), "JPEG", exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    sides = {"height": 30, "width": 40} if orientation < 5 else {"height": 40, "width": 30}
    small = stored(data, resize={"mode": "exact", **sides})
    expected = np.asarray(upright.resize((sides["width"], sides["height"]), Image.Resampling.BOX))
    assert np.abs(small.astype(int) - expected).mean() < 2


def test_exif_in_either_byte_order_and_as_long() -> None:
    entry = {"<": b"II*\0", ">": b"MM\0*"}
    for order, magic in entry.items():
        for kind, value in ((3, "HH"), (4, "I")):
            words = struct.pack(order + value, 6, 0) if value == "HH" else struct.pack(order + value, 6)
            block = magic + struct.pack(order + "IHHHI", 8, 1, 0x0112, kind, 1) + words
            assert exif_orientation(block) == 6


@pytest.mark.parametrize("value", [0, 9, 255])
def test_an_orientation_that_does_not_exist_is_ignored(value: int) -> None:
    assert stored(oriented("JPEG", value)).shape == (48, 64, 3)


@given(st.binary(max_size=200))
def test_any_exif_gives_an_orientation(noise: bytes) -> None:
    assert exif_orientation(b"II*\0" + noise) in range(1, 9)
    assert stored(save(corners(4, 6), "JPEG", exif=b"Exif\0\0MM\0*" + noise)).size == 72


# Rule 4: everything becomes 8-bit RGB.


def white_from_alpha(image: Image.Image) -> Array:
    rgba = np.asarray(image.convert("RGBA")).astype(float)
    flat: Array = np.rint(rgba[..., :3] * rgba[..., 3:] / 255 + 255 - rgba[..., 3:]).astype(np.uint8)
    return flat


def rgba() -> Image.Image:
    image = photo().convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    return image


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB"])
@pytest.mark.parametrize("form", ["PNG", "GIF", "BMP"])
def test_lossless_modes_keep_their_colours(mode: str, form: str) -> None:
    image = photo().convert(mode)
    if (mode, form) == ("RGB", "GIF"):
        image = image.quantize()
    np.testing.assert_array_equal(stored(save(image, form)), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
@pytest.mark.parametrize(("form", "options"), [("PNG", {}), ("WEBP", {"lossless": True, "exact": True})])
def test_alpha_is_composited_over_white(mode: str, form: str, options: dict[str, Any]) -> None:
    image = rgba().convert(mode)
    np.testing.assert_allclose(stored(save(image, form, **options)), white_from_alpha(image), atol=1)


def test_transparent_colours_become_white() -> None:
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((1, 0), 1)
    for data in (save(palette, "PNG", transparency=0), save(palette, "GIF", transparency=0)):
        assert stored(data).tolist() == [[[255, 255, 255], [40, 50, 60]]]
    assert stored(save(palette, "PNG", transparency=b"\x00\x80")).tolist() == [[[255, 255, 255], [147, 152, 157]]]
    assert stored(save(Image.new("RGB", (1, 1), RED), "PNG", transparency=RED)).tolist() == [[[255, 255, 255]]]
    assert stored(save(Image.new("L", (1, 1), 7), "PNG", transparency=7)).tolist() == [[[255, 255, 255]]]


def test_16_bits_are_rounded_not_cut() -> None:
    values = [0, 128, 129, 385, 386, 65535]  # 257 * 0.498, 0.502, 1.498, 1.502
    expected = [0, 0, 1, 1, 2, 255]
    assert stored(deep_png(0, values)).tolist() == [[[value] * 3 for value in expected]]
    assert stored(deep_png(2, values)).tolist() == [[expected[:3], expected[3:]]]


def test_16_bit_alpha_is_composited_over_white() -> None:
    assert stored(deep_png(4, [257, 65535, 257, 0])).tolist() == [[[1, 1, 1], [255, 255, 255]]]
    assert stored(deep_png(6, [0, 257, 514, 65535, 0, 0, 0, 32768])).tolist() == [[[0, 1, 2], [127, 127, 127]]]
    assert stored(deep_png(0, [257, 514], chunk(b"tRNS", struct.pack(">H", 257)))).tolist() == [[[255] * 3, [2] * 3]]
    transparent = chunk(b"tRNS", struct.pack(">HHH", 257, 514, 771))
    assert stored(deep_png(2, [257, 514, 771, 771, 514, 257], transparent)).tolist() == [[[255] * 3, [3, 2, 1]]]


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_few_bits_span_the_whole_range(depth: int) -> None:
    row = bytes([((1 << depth) - 1) << (8 - depth)])
    assert stored(png((2, 1, depth, 0), [row])).tolist() == [[[255] * 3, [0] * 3]]
    transparent = chunk(b"tRNS", b"\0\0")
    assert stored(png((2, 1, depth, 0), [row], transparent)).tolist() == [[[255] * 3, [255] * 3]]


def test_grey_and_cmyk_jpeg() -> None:
    for mode in ("L", "CMYK"):
        data = save(photo().convert(mode), "JPEG", quality=95)
        np.testing.assert_allclose(stored(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")), atol=1)


def test_only_the_first_frame_of_animations() -> None:
    frames: dict[str, Any] = {"save_all": True, "append_images": [Image.new("RGB", (6, 4), BLUE)]}
    for form, options in (("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {}), ("MPO", {"quality": 100})):
        data = save(Image.new("RGB", (6, 4), RED), form, **frames, **options)
        np.testing.assert_allclose(stored(data), np.full((4, 6, 3), RED), atol=2, err_msg=form)


# Rule 5: geometry.

MODES = ("exact", "keep_ratio", "keep_ratio_largest", "center_crop", "border")
sides = st.integers(1, 5000)


@pytest.mark.parametrize(
    ("resize", "size"),
    [
        ("none", (120, 160)),
        ("exact:50x40", (40, 50)),
        ("keep_ratio:60", (60, 80)),
        ("keep_ratio:240", (240, 320)),
        ("keep_ratio_largest:40", (30, 40)),
        ("keep_ratio_largest:41", (31, 41)),
        ("center_crop:32", (32, 32)),
        ("center_crop:300x20", (20, 300)),
        ("border:100", (100, 100)),
        ("border:33x100", (100, 33)),
        ("keep_ratio:120:only_if_larger", (120, 160)),
        ("keep_ratio:119:only_if_larger", (119, 159)),
        ("keep_ratio_largest:160:only_if_larger", (120, 160)),
        ("keep_ratio_largest:159:only_if_larger", (119, 159)),
        ("exact:160x120:only_if_larger", (120, 160)),
        ("exact:200:only_if_larger", (120, 160)),
        ("exact:150x200:only_if_larger", (200, 150)),
        ("center_crop:200:only_if_larger", (120, 160)),
        ("center_crop:150:only_if_larger", (150, 150)),
        ("border:200:only_if_larger", (120, 160)),
        ("border:159:only_if_larger", (159, 159)),
    ],
)
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_stored_size(resize: str, size: tuple[int, int], form: str) -> None:
    picture = process_image(save(photo(), form), config(resize=resize))
    assert (picture.height, picture.width) == size
    assert pixels_of(picture).shape == (*size, 3)


@given(height=sides, width=sides, mode=st.sampled_from(MODES), box=st.tuples(sides, sides), grow=st.booleans())
def test_every_plan_is_sound(height: int, width: int, mode: Any, box: tuple[int, int], grow: bool) -> None:
    size = {"size": box[0]} if mode.startswith("keep_ratio") else {"height": box[0], "width": box[1]}
    plan = plan_resize(height, width, ResizeConfig.model_validate({"mode": mode, "only_if_larger": not grow, **size}))
    assert min(plan.scaled) >= 1
    if mode != "exact":  # The other side is within half a pixel of the ratio, or the one pixel that must remain.
        by_height, by_width = width * plan.scaled[0] / height, height * plan.scaled[1] / width
        assert 1 in plan.scaled or min(abs(by_height - plan.scaled[1]), abs(by_width - plan.scaled[0])) <= 0.5001
    for side in (0, 1):
        shown = min(plan.final[side], plan.scaled[side])
        assert 0 <= plan.crop[side] <= plan.scaled[side] - shown
        assert 0 <= plan.pad[side] <= plan.final[side] - shown
    if not grow and height <= min(box) and width <= min(box) and mode in ("exact", "center_crop", "border"):
        assert plan.scaled == plan.final == (height, width)


@given(height=sides, width=sides, size=sides)
def test_the_side_that_was_asked_for_is_exact(height: int, width: int, size: int) -> None:
    assert min(plan_resize(height, width, ResizeConfig(mode="keep_ratio", size=size)).final) == size
    assert max(plan_resize(height, width, ResizeConfig(mode="keep_ratio_largest", size=size)).final) == size
    cropped = plan_resize(height, width, ResizeConfig(mode="center_crop", size=size))
    assert cropped.final == (size, size) == (min(cropped.scaled), min(cropped.scaled))
    assert max(plan_resize(height, width, ResizeConfig(mode="border", size=size)).scaled) == size


@given(height=sides, width=sides, target=st.tuples(sides, sides))
def test_dct_scaling_leaves_twice_the_sides(height: int, width: int, target: tuple[int, int]) -> None:
    shrink = jpeg_shrink((height, width), target)
    assert shrink == 1 or (height / shrink > 2 * target[0] - 1 and width / shrink > 2 * target[1] - 1)


def test_dct_scaling_examples() -> None:
    assert [jpeg_shrink((1600, 1600), (side, side)) for side in (801, 800, 400, 200, 100, 10)] == [1, 1, 2, 4, 8, 8]
    assert jpeg_shrink((1600, 400), (100, 100)) == 2


def test_halves_round_up() -> None:
    assert plan_resize(4, 5, ResizeConfig(mode="keep_ratio", size=2)).final == (2, 3)
    assert plan_resize(1000, 1, ResizeConfig(mode="keep_ratio_largest", size=10)).final == (10, 1)


def test_crop_keeps_the_centre_and_border_is_white() -> None:
    stripes = np.repeat(np.array([[RED, GREEN, GREEN, BLUE]], np.uint8), 2, axis=0)
    data = save(Image.fromarray(stripes), "PNG")
    assert stored(data, resize="center_crop:2").tolist() == [[list(GREEN)] * 2] * 2
    padded = stored(data, resize="border:4")
    assert padded[[0, 3]].tolist() == [[list(WHITE)] * 4] * 2
    np.testing.assert_array_equal(padded[1:3], stripes)


def test_down_scaling_averages_areas_even_if_the_other_side_grows() -> None:
    checks = np.indices((8, 8)).sum(axis=0) % 2 * 255
    data = save(Image.fromarray(checks.astype(np.uint8)), "PNG")
    assert np.ptp(stored(data, resize="exact:4x4")) == 0
    np.testing.assert_allclose(stored(data, resize="exact:4x16"), 128, atol=1)


# Rule 6: damaged files.


@pytest.mark.parametrize("form", ALL_FORMATS)
@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.9, 0.99])
def test_truncated_files_are_rejected(form: str, share: float) -> None:
    data = save(photo(), form)
    assert reject(data[: int(len(data) * share)]).reason in (Reason.TRUNCATED, Reason.DECODE_FAILED)


@pytest.mark.parametrize(
    ("form", "kept", "message"),
    [
        ("JPEG", 1500, "jpeg: Premature end of JPEG file"),
        ("PNG", 1500, "PNG file ends inside a chunk, after 1500 bytes"),
        ("GIF", 1500, "gif: image file is truncated"),
        ("BMP", 1500, "bmp: image file is truncated"),
        ("WEBP", 100, "WebP file has 100 bytes, its header says "),
        ("WEBP", 20, "WebP file ends inside its header, after 20 bytes"),
        ("GIF", 8, "gif: file ends inside its header"),
    ],
)
def test_truncation_is_named(form: str, kept: int, message: str) -> None:
    error = reject(save(photo(), form)[:kept])
    assert error.reason is Reason.TRUNCATED
    assert error.message.startswith(message)


@pytest.mark.parametrize("options", [{"progressive": True}, {"quality": 90}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_without_its_last_bytes_is_truncated(options: dict[str, Any], mode: str) -> None:
    data = save(photo().convert(mode), "JPEG", **options)
    for cut in (1, 2, 50, len(data) // 2):
        assert reject(data[:-cut]).reason is Reason.TRUNCATED
    # Somebody closed the cut file again: half of the picture would be grey.
    assert reject(data[: len(data) // 2] + b"\xff\xd9").reason in (Reason.TRUNCATED, Reason.DECODE_FAILED)


def test_a_png_without_its_end_is_truncated() -> None:
    data = save(photo(), "PNG")
    for cut in (1, 8, 12, 16):
        assert reject(data[:-cut]).reason is Reason.TRUNCATED


@pytest.mark.parametrize(("depth", "colour_type"), [(8, 2), (8, 0), (8, 6), (16, 2)])
def test_a_png_with_missing_rows_is_rejected(depth: int, colour_type: int) -> None:
    row = bytes(4 * {0: 1, 2: 3, 6: 4}[colour_type] * depth // 8)
    assert stored(png((4, 8, depth, colour_type), [row] * 8)).shape == (8, 4, 3)
    assert reject(png((4, 8, depth, colour_type), [row] * 4)).reason in (Reason.TRUNCATED, Reason.DECODE_FAILED)


def test_a_png_with_a_flipped_bit_is_rejected() -> None:
    data = bytearray(png((4, 1, 8, 2), [bytes(range(12))]))
    data[60] ^= 1
    error = reject(bytes(data))
    assert (error.reason, error.message) == (Reason.DECODE_FAILED, "PNG chunk b'IDAT' at byte 33 has a wrong checksum")


def test_damaged_metadata_does_not_cost_a_png() -> None:
    bad = chunk(b"iCCP", b"x\0\x01")[:-1] + b"?"
    assert stored(png((1, 1, 8, 2), [bytes(3)], bad, chunk(b"tEXt", b"no separator"))).tolist() == [[[0, 0, 0]]]
    assert stored(png((1, 1, 8, 6), [b"\1\2\3\xff"], bad)).tolist() == [[[1, 2, 3]]]


def test_harmless_jpeg_warnings_are_accepted() -> None:
    data = save(photo(), "JPEG")
    at = data.index(b"\xff\xc4")
    expected = stored(data)
    np.testing.assert_allclose(stored(data[:at] + b"\0\0\0" + data[at:]), expected, atol=1)
    np.testing.assert_array_equal(stored(data + b"trailing garbage" * 50), expected)
    assert reject(data[:at] + b"\0\0\0" + data[at:-60]).reason is Reason.TRUNCATED


def test_lossless_jpeg_is_never_scaled_by_the_decoder() -> None:
    # In libjpeg-turbo before 3.1.4 this overruns the output buffer and kills the process.
    data = lossless_jpeg()
    assert not read_jpeg_facts(data).is_common
    for size in (64, 16, 4):
        pixels = stored(data, resize={"mode": "exact", "size": size})
        np.testing.assert_array_equal(pixels, np.full((size, size, 3), 128))
    assert process_image(data, config(**ORIGINAL)).data != data


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=300, deadline=None)
@given(form=st.sampled_from(ALL_FORMATS), data=st.data())
def test_mutated_files_are_stored_or_rejected(form: str, data: st.DataObject) -> None:
    original = bytearray(save(corners(16, 24) if form != "GIF" else corners(16, 24).convert("P"), form))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(original) - 1))
        original[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    with contextlib.suppress(RejectedImage):
        picture = process_image(bytes(original), config(resize="border:8", max_megapixels=1))
        assert (picture.height, picture.width) == (8, 8)


MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF\x20\0\0\0WEBPVP8X", b"BM" + bytes(12) + b"\x28\0\0\0")


@pytest.mark.filterwarnings("ignore")
@given(magic=st.sampled_from(MAGIC), noise=st.binary(max_size=300))
def test_garbage_is_a_whole_picture_or_a_reject(magic: bytes, noise: bytes) -> None:
    try:
        picture = process_image(magic + noise, config(max_megapixels=1))
    except RejectedImage:
        return
    with Image.open(io.BytesIO(picture.data)) as stored:
        stored.load()
        assert stored.size == (picture.width, picture.height)


# Truncated JPEGs, if the config keeps them.

KEEP = {"truncated": "keep", **PNG}


@pytest.mark.parametrize("options", [{"quality": 90}, {"progressive": True}, {"subsampling": 0}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_kept_truncated_jpeg_is_grey_where_it_ends(mode: str, options: dict[str, Any]) -> None:
    data = save(photo().convert(mode), "JPEG", **options)
    whole = stored(data)
    picture = process_image(data[: len(data) // 2], config(**KEEP))
    pixels = pixels_of(picture)
    assert picture.truncated
    assert pixels.shape == whole.shape
    if "progressive" not in options:  # a progressive file has its first, coarse scans everywhere
        np.testing.assert_allclose(pixels[:16], whole[:16], atol=2)
        assert np.ptp(pixels[-16:].reshape(-1, 3), axis=0).max() <= 2
    assert not process_image(data, config(**KEEP)).truncated


def test_a_kept_truncated_jpeg_is_resized_and_turned_like_any_other() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = process_image(save(photo(), "JPEG", exif=exif)[:-200], config(resize="keep_ratio:24", **KEEP))
    assert (picture.truncated, picture.height, picture.width) == (True, 32, 24)


def test_a_kept_truncated_jpeg_is_stored_whole() -> None:
    data = save(photo(), "JPEG")[:-200]
    picture = process_image(data, config(truncated="keep", **ORIGINAL))
    assert picture.truncated
    assert picture.data != data
    assert simplejpeg.decode_jpeg(picture.data).shape == (120, 160, 3)  # strict: it fails if anything is missing


def test_only_a_missing_end_is_forgiven() -> None:
    data = save(photo(), "JPEG")
    assert reject(data[:300], **KEEP).reason is Reason.TRUNCATED  # not even the header is whole
    closed = data[: len(data) // 2] + b"\xff\xd9"
    assert reject(closed, **KEEP).reason is Reason.TRUNCATED
    damaged = data[:-400] + b"\xff\0" * 40 + data[-320:-20]
    assert reject(damaged, **KEEP).message == "jpeg: Corrupt JPEG data: bad Huffman code"
    for form in ("PNG", "GIF", "BMP", "WEBP"):
        assert reject(save(photo(), form)[:-50], **KEEP).reason is Reason.TRUNCATED, form


# Rule 7: encoding.


def test_jpeg_is_what_is_asked_for() -> None:
    data = save(photo(), "PNG")
    small, large = (process_image(data, config(encode={"quality": quality})) for quality in (50, 95))
    assert len(small.data) < len(large.data)
    assert (large.format, sniff(large.data)) == ("jpeg", "jpeg")
    assert simplejpeg.decode_jpeg_header(large.data) == (120, 160, "YCbCr", "420")
    assert np.abs(pixels_of(large).astype(int) - np.asarray(photo())).mean() < 3


@pytest.mark.parametrize(("form", "options"), [("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {})])
def test_original_bytes_are_kept(form: str, options: dict[str, Any]) -> None:
    data = save(photo(), form, **options)
    for resize in ("none", "exact:160x120", "keep_ratio:500:only_if_larger", "center_crop:160x120"):
        picture = process_image(data, config(resize=resize, **ORIGINAL))
        assert (picture.data, picture.format) == (data, form.lower())


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (save(photo().convert("L"), "JPEG"), "jpeg"),
        (save(photo().convert("CMYK"), "JPEG"), "jpeg"),
        (oriented("JPEG", 3), "jpeg"),
        (oriented("PNG", 6), "png"),
        (save(photo().convert("L"), "PNG"), "png"),
        (save(photo().convert("P"), "PNG"), "png"),
        (save(rgba(), "PNG"), "png"),
        (deep_png(2, [1, 2, 3]), "png"),
        (save(photo(), "BMP"), "png"),
        (save(photo(), "GIF"), "png"),
        (save(photo(), "WEBP"), "jpeg"),
    ],
)
def test_original_falls_back(data: bytes, form: str) -> None:
    picture = process_image(data, config(**ORIGINAL))
    assert picture.data != data
    assert picture.format == sniff(picture.data) == form


def test_original_is_encoded_again_when_resized() -> None:
    for form in ("JPEG", "PNG"):
        picture = process_image(save(photo(), form), config(resize="keep_ratio:60", **ORIGINAL))
        assert (picture.format, picture.height, sniff(picture.data)) == (form.lower(), 60, form.lower())


def test_original_still_proves_that_the_file_is_good() -> None:
    data = save(photo(), "JPEG")
    assert reject(data[:-100], **ORIGINAL).reason is Reason.TRUNCATED


# Moments, determinism, and the exception itself.


@pytest.mark.parametrize("resize", ["none", "border:100", "center_crop:50"])
def test_moments_are_those_of_the_stored_pixels(resize: str) -> None:
    picture = process_image(save(photo(), "JPEG"), config(resize=resize, **PNG))
    values = pixels_of(picture).reshape(-1, 3) / 255
    np.testing.assert_allclose(picture.channel_mean, values.mean(axis=0))
    np.testing.assert_allclose(picture.channel_mean_square, (values**2).mean(axis=0))


def test_threads_give_the_same_bytes() -> None:
    files = [save(photo(100 + 7 * i, 160), form) for i in range(4) for form in ALL_FORMATS] * 3
    process = partial(process_image, config=config(resize="center_crop:48"))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(process, files)) == [process(data) for data in files]


def test_a_rejection_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(RejectedImage(Reason.TRUNCATED, "half a picture")))
    assert (error.reason, error.message) == (Reason.TRUNCATED, "half a picture")
    assert str(error) == "truncated: half a picture"
