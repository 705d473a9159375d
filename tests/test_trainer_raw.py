"""Picture files decoded inside a served model: the pixels of the build, whatever the file."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pipelines.config import ImageConfig
from pipelines.pictures.images import decode_source, open_source
from pipelines.pictures.images import orient as orient_as_built
from pipelines.reasons import RejectedImage
from trainer.reading.raw import decode_raw, exif_orientation, orient

DECODE = tf.function(decode_raw, input_signature=[tf.TensorSpec([], tf.string)])
ORIENTATION = tf.function(exif_orientation, input_signature=[tf.TensorSpec([], tf.string)])
DATA = Path(os.environ.get("SHARDSMITH_DATA") or Path(__file__).parents[2] / "shared/data")


def picture(mode: str = "RGB", size: tuple[int, int] = (24, 16)) -> Image.Image:
    rows, columns = np.mgrid[0 : size[1], 0 : size[0]]
    channels = [rows * 9 % 256, columns * 7 % 256, (rows + columns) * 5 % 256, columns * 10 % 256]
    return Image.fromarray(np.stack(channels, -1).astype(np.uint8)).convert(mode)


def saved(image: Image.Image, kind: str, orientation: int | None = None, **options: Any) -> bytes:
    stream = io.BytesIO()
    if orientation is not None:
        exif = Image.Exif()
        exif[0x010F] = "a maker before the orientation"
        exif[0x0112] = orientation
        options["exif"] = exif
    image.save(stream, kind, **options)
    return stream.getvalue()


def built(data: bytes) -> Any:
    source = open_source(data, ImageConfig())
    pixels, _ = decode_source(source, source.size, data, ImageConfig())
    return orient_as_built(pixels, source.orientation)


@pytest.mark.parametrize(
    ("kind", "mode", "options"),
    [
        ("JPEG", "RGB", {"quality": 95}),
        ("JPEG", "L", {}),
        ("JPEG", "CMYK", {}),
        ("JPEG", "RGB", {"progressive": True}),
        *(("PNG", mode, {}) for mode in ("RGB", "RGBA", "L", "LA", "1", "P")),
        ("GIF", "P", {}),
        ("WEBP", "RGB", {"lossless": True}),
        ("WEBP", "RGBA", {"lossless": True}),
        ("BMP", "RGB", {}),
        ("BMP", "L", {}),
    ],
)
def test_pixels_are_those_of_the_build(kind: str, mode: str, options: dict[str, Any]) -> None:
    data = saved(picture(mode), kind, **options)
    difference = np.abs(DECODE(data).numpy().astype(int) - built(data))
    assert difference.mean() <= (2 if kind == "JPEG" else 0.5)
    assert difference.max() <= (8 if kind == "JPEG" else 1)


def test_sixteen_bits_are_rounded_not_cut() -> None:
    deep = np.arange(24 * 16, dtype=np.uint16).reshape(16, 24) * 170
    data = saved(Image.fromarray(deep), "PNG")
    np.testing.assert_array_equal(DECODE(data).numpy(), built(data))
    assert DECODE(data).numpy()[0, 1, 0] == 1  # 170 / 257 is nearer to 1


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", [1, 2, 3, 4, 5, 6, 7, 8])
def test_exif_orientation_is_applied(kind: str, orientation: int) -> None:
    options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {}
    data = saved(picture(), kind, orientation, **options)
    assert int(ORIENTATION(data)) == orientation
    expected = built(data)
    assert expected.shape == ((24, 16, 3) if orientation >= 5 else (16, 24, 3))
    assert np.abs(DECODE(data).numpy().astype(int) - expected).mean() <= 2


@pytest.mark.parametrize("byte_order", ["little", "big"])
@pytest.mark.parametrize(("value", "expected"), [(6, 6), (0, 1), (9, 1)])
def test_both_byte_orders_and_senseless_values(byte_order: Any, value: int, expected: int) -> None:
    mark = b"II*\0" if byte_order == "little" else b"MM\0*"
    entry = [(0x0112, 2), (3, 2), (1, 4), (value, 2), (0, 2)]
    block = mark + b"".join(number.to_bytes(size, byte_order) for number, size in [(8, 4), (1, 2), *entry])
    segment = b"Exif\0\0" + block
    plain = saved(picture(), "JPEG")
    data = plain[:2] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + plain[2:]
    assert int(ORIENTATION(data)) == expected
    assert open_source(data, ImageConfig()).orientation == expected


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_broken_metadata_reads_as_the_build_reads_it(draw: st.DataObject) -> None:
    """Any byte of the header changed, or the file cut: the orientation is the build's, or both refuse the file."""
    data = bytearray(saved(picture(), draw.draw(st.sampled_from(["JPEG", "PNG", "WEBP"])), 6))
    place = draw.draw(st.integers(0, min(160, len(data) - 1)))
    data[place] = draw.draw(st.integers(0, 255))
    changed = bytes(data[: draw.draw(st.sampled_from([len(data), place + 1, place + 40]))])
    found = int(ORIENTATION(changed))
    assert 1 <= found <= 8
    try:
        expected = open_source(changed, ImageConfig()).orientation
    except RejectedImage:
        return
    assert found == expected


@pytest.mark.parametrize("data", [b"", b"R", b"<html>", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"BM", b"RIFFxxxxWEBP"])
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        DECODE(data)


def test_orient_is_the_builds() -> None:
    pixels = np.asarray(picture())
    for orientation in range(1, 9):
        np.testing.assert_array_equal(
            orient(tf.constant(pixels), tf.constant(orientation)), orient_as_built(pixels, orientation)
        )


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the photographs beside the project")
def test_real_photographs() -> None:
    files = sorted(path for path in (DATA / "photos").rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))[
        ::9
    ]
    assert len(files) >= 10
    for path in files:
        data = path.read_bytes()
        assert np.abs(DECODE(data).numpy().astype(int) - built(data)).mean() <= 2, path
