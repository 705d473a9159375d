"""The worst mistakes with their keys and pictures: a line of JSON each, and a page for a person to look at."""

import base64
import html
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from shards.errors import ShardsmithError
from shards.example import decode_example
from shards.records import DamagedRecord, read_records
from shards.samples import Sample, make_sample
from trainer.judging.results import Evaluation
from trainer.judging.tally import Mistake
from trainer.reading.source import Split

SMALL_ENOUGH = 20_000  # bytes of a picture that is shown as it is stored; others are made smaller
SIDE = 192
SHOWN_NUMBERS = 8
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1d2330; }
h1 { margin-bottom: 0; } .quiet { color: #667085; }
.mistakes { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: 1rem; }
figure { margin: 0; border: 1px solid #e4e7ec; border-radius: .4rem; padding: .6rem; }
figure img { width: 100%; height: 10rem; object-fit: contain; background: #f2f4f7; }
figcaption { font-size: 13px; overflow-wrap: anywhere; } .true { color: #155e75; } .given { color: #be123c; }
"""


def read_samples(split: Split, ordinals: Sequence[int]) -> list[Sample]:
    """The records with these ordinals."""
    starts = np.cumsum([0, *split.shard_records])
    samples = []
    for ordinal in ordinals:
        shard = int(np.searchsorted(starts, ordinal, side="right")) - 1
        samples.append(_read_sample(split, shard, int(ordinal - starts[shard])))
    return samples


def _read_sample(split: Split, shard: int, record: int) -> Sample:
    offset = int(split.offsets(shard, np.array([record]))[0])
    try:
        with Path(split.paths[shard]).open("rb") as stream:
            stream.seek(offset)
            return make_sample(decode_example(next(read_records(stream))[1]))
    except (OSError, DamagedRecord, ValueError, StopIteration) as error:
        raise ShardsmithError(f"record {record} of {split.paths[shard]} cannot be read: {error}") from error


def mistake_lines(mistakes: Iterable[Mistake], samples: Iterable[Sample]) -> str:
    """A line of JSON per mistake, the worst first."""
    rows = ({"key": sample.key, **mistake.about, "loss": mistake.loss}
            for mistake, sample in zip(mistakes, samples, strict=True))  # fmt: skip
    return "".join(json.dumps(_finite(row), ensure_ascii=False) + "\n" for row in rows)


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no word for what is not a number."""
    return {name: None if isinstance(value, float) and not np.isfinite(value) else value for name, value in row.items()}


def render_mistakes(result: Evaluation, samples: Sequence[Sample]) -> str:
    """A page that needs no server and no network."""
    title = html.escape(f"Worst mistakes on {result.split}, step {result.step}")
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    what = f"The {len(samples)} with the highest loss, the worst first" if samples else "No mistakes"
    figures = map(_figure, result.mistakes, samples)
    body = (
        f'<h1>{title}</h1><p class="quiet">{html.escape(metrics)} ({html.escape(result.counted)}). {what}.</p>'
        f'<div class="mistakes">{"".join(figures)}</div>'
    )
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _figure(mistake: Mistake, sample: Sample) -> str:
    true, given = (html.escape(_in_words(mistake.about[name])) for name in ("true", "given"))
    sure = mistake.about.get("probability")
    probability = "" if sure is None else f", probability {sure:.4f}"
    return (
        f'<figure>{_picture(sample)}<figcaption><span class="true">{true}</span><br>'
        f'taken for <span class="given">{given}</span>{probability}<br>'
        f'<span class="quiet">loss {mistake.loss:.4f}<br>{html.escape(sample.key)}</span></figcaption></figure>'
    )


def _in_words(said: str | list[Any]) -> str:
    """A class, labels or numbers."""
    if isinstance(said, str):
        return said
    words = [value if isinstance(value, str) else f"{value:.5g}" for value in said[:SHOWN_NUMBERS]]
    return ", ".join(words) + (", ..." if len(said) > SHOWN_NUMBERS else "") if words else "no label"


def _picture(sample: Sample) -> str:
    if not sample.image:
        return ""
    found = _thumbnail(sample.image)
    if found is None:
        return '<p class="quiet">the picture cannot be decoded</p>'
    kind, data = found
    return f'<img alt="{html.escape(sample.key)}" src="data:image/{kind};base64,{base64.b64encode(data).decode()}">'


def _thumbnail(data: bytes) -> tuple[str, bytes] | None:
    """The format and bytes of a picture that is small enough to be one of many on a page."""
    try:
        with Image.open(io.BytesIO(data)) as picture:
            if len(data) <= SMALL_ENOUGH and picture.format in ("JPEG", "PNG"):
                return picture.format.lower(), data
            small = picture.convert("RGB")
            small.thumbnail((SIDE, SIDE))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):  # what Pillow raises for broken files
        return None
    stream = io.BytesIO()
    small.save(stream, "JPEG", quality=80)
    return "jpeg", stream.getvalue()
