"""A contact sheet: the first pictures of a dataset on one PNG, each with its label."""

import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

_CELL, _CAPTION, _COLUMNS = 128, 16, 8


def write_sheet(pictures: Sequence[tuple[bytes, str]], path: Path) -> None:
    """Draws one or more (encoded picture, caption) pairs in a grid; a picture that cannot be decoded is red."""
    columns = min(_COLUMNS, len(pictures))
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * _CELL, rows * (_CELL + _CAPTION)), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (data, caption) in enumerate(pictures):
        left, top = number % columns * _CELL, number // columns * (_CELL + _CAPTION)
        picture = _thumbnail(data)
        sheet.paste(picture, (left + (_CELL - picture.width) // 2, top + (_CELL - picture.height) // 2))
        draw.text((left + 4, top + _CELL + 2), caption[:20], fill="black")
    sheet.save(path, "PNG")


def _thumbnail(data: bytes) -> Image.Image:
    try:
        picture = Image.open(io.BytesIO(data)).convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):  # what Pillow raises for broken files
        return Image.new("RGB", (_CELL - 8, _CELL - 8), "red")
    scale = min((_CELL - 8) / picture.width, (_CELL - 8) / picture.height)
    return picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))
