"""What a person is shown of a record: its picture or its numbers, a caption, and its boxes."""

from collections.abc import Mapping
from dataclasses import dataclass

from shards.example import Values

Box = tuple[float, float, float, float]  # ymin, xmin, ymax, xmax, as fractions of the picture
_SHOWN_VALUES = 12


@dataclass(frozen=True)
class Sample:
    """One record; `caption` is what its label or target says, or else its key."""

    caption: str
    key: str = ""
    image: bytes = b""
    size: tuple[int, int] = (0, 0)  # height, width
    features: tuple[float, ...] = ()
    boxes: tuple[Box, ...] = ()


def make_sample(example: Mapping[str, Values]) -> Sample:
    """The sample of a record with any kind of label or none."""
    key = ", ".join(map(show_plainly, example.get("key", [])))
    said = example.get("label_name", example.get("target"))
    images = [value for value in example.get("image", []) if isinstance(value, bytes)]
    sides = _floats(example.get("boxes", []))
    return Sample(
        caption=key if said is None else ", ".join(map(show_plainly, said)),
        key=key,
        image=images[0] if images else b"",
        size=(_first_int(example.get("height", [])), _first_int(example.get("width", []))),
        features=_floats(example.get("features", [])),
        boxes=tuple(zip(sides[::4], sides[1::4], sides[2::4], sides[3::4], strict=True)),
    )


def _first_int(values: Values) -> int:
    return next((value for value in values if isinstance(value, int)), 0)


def _floats(values: Values) -> tuple[float, ...]:
    return tuple(value for value in values if isinstance(value, float))


def show_plainly(value: bytes | int | float) -> str:
    """A value as a reader expects it: text, or a number without the digits that 32 bits do not hold."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(float(f"{value:.7g}")) if isinstance(value, float) else str(value)


def show_values(values: Values) -> str:
    """The values of a feature in a few words: text as it is, other bytes by their number, and no more than a dozen."""
    more = f",... ({len(values):,} values)" if len(values) > _SHOWN_VALUES else ""
    return ",".join(_show_value(value) for value in values[:_SHOWN_VALUES]) + more


def _show_value(value: bytes | int | float) -> str:
    if not isinstance(value, bytes):
        return show_plainly(value)
    text = value[:100].decode("utf-8", "backslashreplace")
    return repr(text) if len(value) <= 100 and text.isprintable() else f"<{len(value):,} bytes>"
