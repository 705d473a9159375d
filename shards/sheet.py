"""A contact sheet: the first pictures of a dataset on one PNG, each with its label and its boxes."""

import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from shards.samples import Box, Sample

_CELL, _CAPTION, _COLUMNS = 128, 16, 8
_LETTERS = 20  # fit under a picture
_BOX_COLOUR = (255, 0, 128)


def write_sheet(samples: Sequence[Sample], path: Path, *, keys: bool = False) -> None:
    """Draws one or more pictures in a grid, with `keys` on a second line; one that cannot be decoded is red."""
    columns = min(_COLUMNS, len(samples))
    rows, height = -(-len(samples) // columns), _CELL + _CAPTION * (1 + keys)
    sheet = Image.new("RGB", (columns * _CELL, rows * height), "white")
    draw = ImageDraw.Draw(sheet)
    for number, sample in enumerate(samples):
        left, top = number % columns * _CELL, number // columns * height
        picture = _thumbnail(sample.image)
        _draw_boxes(picture, sample.boxes)
        sheet.paste(picture, (left + (_CELL - picture.width) // 2, top + (_CELL - picture.height) // 2))
        draw.text((left + 4, top + _CELL + 2), sample.caption[:_LETTERS], fill="black")
        if keys:  # the end of a key tells more than its beginning
            draw.text((left + 4, top + _CELL + _CAPTION), sample.key[-_LETTERS:], fill="grey")
    sheet.save(path, "PNG")


def _thumbnail(data: bytes) -> Image.Image:
    try:
        picture = Image.open(io.BytesIO(data)).convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):  # what Pillow raises for broken files
        return Image.new("RGB", (_CELL - 8, _CELL - 8), "red")
    scale = min((_CELL - 8) / picture.width, (_CELL - 8) / picture.height)
    return picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))


def _draw_boxes(picture: Image.Image, boxes: Sequence[Box]) -> None:
    draw = ImageDraw.Draw(picture)
    for top, left, bottom, right in boxes:
        first = (round(left * (picture.width - 1)), round(top * (picture.height - 1)))
        last = (round(right * (picture.width - 1)), round(bottom * (picture.height - 1)))
        draw.rectangle((first, last), outline=_BOX_COLOUR)
