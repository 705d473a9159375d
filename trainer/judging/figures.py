"""Pictures of a result, drawn with Pillow: who is taken for whom, and whether probabilities can be believed."""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from trainer.judging.results import Bin, Classified, Evaluation

MOST_CLASSES = 200  # in one picture
LONGEST_LABEL = 24
CELLS = ((12, 56), (30, 36), (60, 24), (MOST_CLASSES, 14))  # for up to so many classes, so many pixels
ROOM_FOR_COUNTS = 24
MARGIN, TITLE, NARROWEST = 12, 40, 520
PLOT, BELOW = (60, 48, 450, 300), 80  # left, top, width and height of the upper diagram; height of the lower one
INK, QUIET, GRID = (29, 35, 48), (102, 112, 133), (228, 231, 236)
RIGHT, WRONG = np.array([21, 94, 117]), np.array([190, 18, 60])  # the darkest of each

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Chosen:
    """The classes that a confusion matrix shows: names, counts [true, given], and how many examples each has."""

    names: tuple[str, ...]
    counts: Counts
    examples: Counts


def figures_of(result: Evaluation) -> dict[str, bytes]:
    """The pictures that there are of a result, by name."""
    if not isinstance(result, Classified):
        return {}
    return {"confusion": draw_confusion(result), "reliability": draw_reliability(result)}


def draw_confusion(result: Classified) -> bytes:
    """The confusion matrix as PNG: a row per true class; of many classes those with the most mistakes."""
    chosen = _choose(result)
    cell = next(side for most, side in CELLS if len(chosen.names) <= most)
    size = min(14, cell - 3)
    longest = max(int(_font(size).getlength(name)) for name in chosen.names)
    left, top, side = longest + 3 * MARGIN + 14, TITLE + longest + 2 * MARGIN + 14, cell * len(chosen.names)
    picture = Image.new("RGB", (max(left + side + MARGIN, NARROWEST), top + side + MARGIN), "white")
    picture.paste(_cells(chosen, cell), (left, top))
    draw = ImageDraw.Draw(picture)
    draw.text((MARGIN, MARGIN), _headline(result, len(chosen.names)), fill=INK, font=_font(14))
    for number, name in enumerate(chosen.names):
        middle = number * cell + cell // 2
        draw.text((left - 6, top + middle), name, fill=INK, font=_font(size), anchor="rm")
        _upright(picture, name, (left + middle, top - 6), size=size, colour=INK)
    draw.text((left + side // 2, TITLE), "given class", fill=QUIET, font=_font(14), anchor="ma")
    _upright(picture, "true class", (MARGIN + 7, top + side // 2), anchor="m")
    if cell >= ROOM_FOR_COUNTS:
        _write_counts(draw, chosen, cell, (left, top))
    return _as_png(picture)


def _headline(result: Classified, shown: int) -> str:
    some = f", {shown} of {len(result.classes)} classes" if shown < len(result.classes) else ""
    return f"{result.split}, step {result.step}{some}: accuracy {result.accuracy:.4f} ({result.counted})"


def draw_reliability(result: Classified) -> bytes:
    """As PNG: how often answers are right, by the probability they were given with; below, how many there are."""
    left, top, width, height = PLOT
    picture = Image.new("RGB", (left + width + 2 * MARGIN, top + height + BELOW + 70), "white")
    draw = ImageDraw.Draw(picture)
    ece = result.metrics["ece"]
    draw.text((MARGIN, MARGIN), f"{result.split}, step {result.step}: ECE {ece:.4f}", fill=INK, font=_font(14))
    for tenth in range(0, 11, 2):
        x, y, text = left + width * tenth // 10, top + height - height * tenth // 10, f"{tenth / 10:.1f}"
        draw.line((left, y, left + width, y), fill=GRID)
        draw.text((left - 8, y), text, fill=QUIET, font=_font(12), anchor="rm")
        draw.text((x, top + height + BELOW + 16), text, fill=QUIET, font=_font(12), anchor="ma")
    most = max(each.examples for each in result.bins)
    for each in result.bins:
        if each.examples:
            _draw_bin(draw, each, most)
    draw.line((left, top + height, left + width, top), fill=INK)
    _upright(picture, "right answers", (18, top + height // 2), anchor="m")
    _upright(picture, "examples", (18, top + height + BELOW // 2 + 12), anchor="m")
    below = left + width // 2, top + height + BELOW + 38
    draw.text(below, "probability of the given class", fill=QUIET, font=_font(14), anchor="ma")
    return _as_png(picture)


def _draw_bin(draw: Any, each: Bin, most: int) -> None:
    """The share of right answers as a bar, and in red how far it is from the mean probability."""
    left, top, width, height = PLOT
    begin, end = round(left + each.low * width) + 1, round(left + each.high * width) - 1
    right, sure = (round(top + height * (1 - value / each.examples)) for value in (each.correct, each.confidence))
    draw.rectangle((begin, right, end, top + height), fill=tuple(RIGHT))
    draw.rectangle((begin, min(right, sure), end, max(right, sure)), fill=(253, 205, 212), outline=tuple(WRONG))
    floor = top + height + BELOW + 12
    draw.rectangle((begin, floor - max(1, round(BELOW * each.examples / most)), end, floor), fill=(152, 162, 179))


def _choose(result: Classified) -> Chosen:
    names = [each.label for each in result.classes]
    ids = {name: number for number, name in enumerate(names)}
    wrong = np.array([each.examples + each.given - 2 * each.correct for each in result.classes])
    kept = np.sort(np.argsort(-wrong, kind="stable")[:MOST_CLASSES])
    place = {int(number): at for at, number in enumerate(kept)}
    counts = np.zeros((len(kept), len(kept)), np.int64)
    for cell in result.confusions:
        true, given = place.get(ids[cell.true]), place.get(ids[cell.given])
        if true is not None and given is not None:
            counts[true, given] = cell.examples
    examples = np.array([result.classes[number].examples for number in kept])
    return Chosen(tuple(_drawable(names[number], number) for number in kept), counts, examples)


def _drawable(label: str, number: int) -> str:
    """The label, shortened, or its number if it is in a script that Pillow's own font lacks."""
    try:
        label.encode("latin-1")
    except UnicodeEncodeError:
        return f"class {number}"
    line = " ".join(label.split()) or f"class {number}"
    return line if len(line) <= LONGEST_LABEL else line[: LONGEST_LABEL - 2] + ".."


def _shares(chosen: Chosen) -> npt.NDArray[np.float64]:
    return chosen.counts / np.maximum(chosen.examples, 1)[:, np.newaxis]


def _cells(chosen: Chosen, side: int) -> Image.Image:
    """A square per cell: the darker, the larger its share of the row. Even the smallest share can be seen."""
    shares = _shares(chosen)
    depth = np.where(shares > 0, 0.15 + 0.85 * np.sqrt(shares), 0.0)[..., np.newaxis]
    darkest = np.where(np.eye(len(shares), dtype=bool)[..., np.newaxis], RIGHT, WRONG)
    colours = (255 - depth * (255 - darkest)).astype(np.uint8)
    pixels = colours.repeat(side, axis=0).repeat(side, axis=1)
    pixels[::side] = pixels[:, ::side] = GRID
    return Image.fromarray(pixels)


def _write_counts(draw: Any, chosen: Chosen, cell: int, corner: tuple[int, int]) -> None:
    shares, font = _shares(chosen), _font(11 if cell < 50 else 14)
    for true, given in np.argwhere(chosen.counts).tolist():
        middle = corner[0] + given * cell + cell // 2, corner[1] + true * cell + cell // 2
        colour = "white" if shares[true, given] > 0.25 else INK
        text = str(chosen.counts[true, given])
        fits = font.getlength(text) < cell - 4
        draw.text(middle, text if fits else _short(int(text)), fill=colour, font=font, anchor="mm")


def _short(count: int) -> str:
    """At most four characters: 12k, 3M."""
    for unit, name in ((10**6, "M"), (10**3, "k")):
        if count >= unit:
            return f"{count // unit}{name}"
    return str(count)


def _font(size: int) -> Any:
    return ImageFont.load_default(size)


def _upright(
    picture: Image.Image, text: str, at: tuple[int, int], *, size: int = 14, colour: Any = QUIET, anchor: str = "b"
) -> None:
    """Text that reads from below; `at` is its lower end, or its middle."""
    length, height = int(_font(size).getlength(text)) + 1, size + 2
    line = Image.new("RGB", (length, height), "white")
    ImageDraw.Draw(line).text((0, height // 2), text, fill=colour, font=_font(size), anchor="lm")
    picture.paste(
        line.rotate(90, expand=True), (at[0] - height // 2, at[1] - (length if anchor == "b" else length // 2))
    )


def _as_png(picture: Image.Image) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True)
    return stream.getvalue()
