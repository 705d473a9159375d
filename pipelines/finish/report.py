"""report.html: what a build made, on one page that needs no server and no network."""

import base64
import html
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pipelines.finish.leak_check import leaks_in_words, read_leaks
from pipelines.reasons import DUPLICATES
from shards.example import decode_example
from shards.manifest import Manifest, ShuffleEntry, SplitEntry
from shards.records import read_index, read_records
from shards.samples import Sample, make_sample, show_plainly

_SAMPLES, _SAMPLE_BYTES, _ROWS, _ROW_VALUES, _REJECTS, _LEAKS = 24, 60_000, 10, 8, 100, 20
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1d2330; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.2rem; } .quiet { color: #667085; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #e4e7ec; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.path { overflow-wrap: anywhere; }
td:has(.bar) { width: 35%; } .bar { background: #528bff; height: .7rem; border-radius: .2rem; min-width: 1px; }
.samples { display: flex; flex-wrap: wrap; gap: .6rem; } figure { margin: 0; width: 6.5rem; position: relative; }
figure img { width: 100%; height: 6.5rem; object-fit: contain; background: #f2f4f7; image-rendering: auto; }
figure svg { position: absolute; left: 0; top: 0; width: 100%; height: 6.5rem; pointer-events: none; }
rect { fill: none; stroke: #ff0080; stroke-width: 1.5; vector-effect: non-scaling-stroke; }
figcaption { font-size: 12px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
"""


def render_report(manifest: Manifest, root: Path, *, shards: Sequence[Path] = ()) -> str:
    """The page; it depends on the dataset alone, so equal datasets have equal reports.

    `shards` are the folders that shards may lie in, where they are not all below the root.
    """
    counts = manifest.counts
    rejected = sum(counts.rejected.values())
    parts = [
        f"<h1>{html.escape(manifest.name)}</h1>",
        f'<p class="quiet">{counts.listed:,} listed = {counts.written:,} written + {rejected:,} rejected '
        f"+ {counts.duplicates:,} duplicates &middot; {counts.written:,} examples {manifest.label_summary} &middot; "
        f"{_boxes_in_words(manifest)}fingerprint {manifest.fingerprint[:12]}</p>",
        "<h2>Splits</h2>",
        _table(
            ("split", "examples", "shards", "MB", "smallest shard", "largest shard"), map(_split_row, manifest.splits)
        ),
        *(["<h2>Classes</h2>", _class_table(manifest)] if manifest.labels else []),
        *_leaks(manifest, root, shards or (root,)),
        *_shuffle(manifest),
        *_first_examples(manifest, shards or (root,)),
        "<h2>Rejected inputs</h2>",
        _rejects(manifest, root),
        "<h2>History</h2>",
        _history(manifest),
        "<h2>Settings</h2>",
        f"<pre>{html.escape(json.dumps(manifest.settings, indent=1, sort_keys=True, ensure_ascii=False))}</pre>",
    ]
    title = html.escape(manifest.name)
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _table(header: Sequence[str], rows: Iterable[Sequence[str | int]]) -> str:
    def cell(tag: str, value: str | int, first: bool) -> str:
        text = f"{value:,}" if isinstance(value, int) else value
        return f"<{tag}{'' if first else ' class=number'}>{text}</{tag}>"

    lines = [f"<tr>{''.join(cell('th', name, place == 0) for place, name in enumerate(header))}</tr>"]
    lines += [f"<tr>{''.join(cell('td', value, place == 0) for place, value in enumerate(row))}</tr>" for row in rows]
    return f"<table>{''.join(lines)}</table>"


def _split_row(split: SplitEntry) -> tuple[str | int, ...]:
    sizes = [shard.bytes for shard in split.shards]
    megabytes = [f"{size / 1e6:,.2f} MB" for size in (min(sizes, default=0), max(sizes, default=0))]
    return (html.escape(split.name), split.records, len(sizes), f"{split.bytes / 1e6:,.1f}", *megabytes)


def _class_table(manifest: Manifest) -> str:
    totals = {label: sum(split.labels.get(label, 0) for split in manifest.splits) for label in manifest.labels}
    largest = max(totals.values(), default=1) or 1
    rows: list[tuple[str | int, ...]] = []
    for label, total in totals.items():
        bar = f'<div class="bar" style="width: {100 * total / largest:.1f}%"></div>'
        per_split = [split.labels.get(label, 0) for split in manifest.splits]
        rows.append((html.escape(label), *per_split, total, bar))
    return _table(("class", *(html.escape(split.name) for split in manifest.splits), "all", ""), rows)


def _history(manifest: Manifest) -> str:
    """What each version changed, without its time: the report of equal datasets is equal."""
    header = ("version", "by", "inputs", "added", "removed", "changed", "written", "new_shards", "ended_shards")
    fields = ("version", "command", *header[2:])
    rows = [tuple(getattr(each, name) for name in fields) for each in manifest.history]
    return _table([name.replace("_", " ") for name in header], rows)


def _leaks(manifest: Manifest, root: Path, folders: Sequence[Path]) -> Iterator[str]:
    """What is in two splits, the first of it side by side."""
    if len(manifest.splits) < 2:
        return
    yield f"<h2>Leaks</h2><p>Leaks: {html.escape(leaks_in_words(manifest))}.</p>"
    for leak in read_leaks(root, limit=_LEAKS):
        samples = [_read_sample(*place, folders) for place in zip(leak.shards, leak.records, strict=True)]
        small = [sample for sample in samples if 0 < len(sample.image) <= _SAMPLE_BYTES]
        yield f'<p>{html.escape(str(leak))}</p><div class="samples">{"".join(map(_figure, small))}</div>'


def _read_sample(shard: str, record: int, folders: Sequence[Path]) -> Sample:
    folder = next(folder for folder in folders if (folder / f"{shard}.tfrecord").exists())
    with (folder / f"{shard}.tfrecord").open("rb") as stream:
        stream.seek(int(read_index(folder / f"{shard}.idx")[record][0]))
        return make_sample(decode_example(next(read_records(stream))[1]))


def _shuffle(manifest: Manifest) -> Iterator[str]:
    """How random the order is, in numbers and in words."""
    yield "<h2>Shuffle</h2>"
    yield (
        "<p>Runs tests: by how many standard deviations the order of the examples differs from a random one, with "
        "regard to the order of their keys and to their classes. Class mix: how likely a random order mixes the "
        "classes as unevenly over the shards (chi-square).</p>"
    )
    rows = [
        (
            html.escape(each.split),
            each.examples,
            each.shards,
            "" if each.source_z is None else f"{each.source_z:+.2f}",
            "" if each.class_z is None else f"{each.class_z:+.2f}",
            "" if each.mix_p is None else f"{each.mix_p:.2g}",
            _verdict(each),
        )
        for each in manifest.shuffle
    ]
    yield _table(("split", "examples", "shards", "key order z", "class order z", "class mix p", "order"), rows)
    if not all(each.is_random for each in manifest.shuffle):
        yield "<p>What is appended lies in shards of its own, behind the others, until <code>compact</code>.</p>"


def _verdict(entry: ShuffleEntry) -> str:
    if entry.source_z is None and entry.class_z is None:
        return "too few to tell"
    return "random" if entry.is_random else "not random"


def _boxes_in_words(manifest: Manifest) -> str:
    counts = manifest.counts
    if all(feature.name != "boxes" for feature in manifest.features):
        return ""
    return f"{counts.boxes_kept:,} boxes, {counts.boxes_dropped:,} dropped &middot; "


def _first_examples(manifest: Manifest, folders: Sequence[Path]) -> Iterator[str]:
    samples = _read_samples(manifest, folders)
    if any(feature.name == "image" for feature in manifest.features):
        small = (sample for sample in samples if len(sample.image) <= _SAMPLE_BYTES)
        yield "<h2>First pictures</h2>"
        yield f'<div class="samples">{"".join(map(_figure, itertools.islice(small, _SAMPLES)))}</div>'
    else:
        yield "<h2>First rows</h2>"
        rows = [_feature_row(sample, manifest) for sample in itertools.islice(samples, _ROWS)]
        labelled = {"none": (), "regression": ("target",)}.get(manifest.label_kind, ("label",))
        yield _table(("key", *labelled, "features"), rows)


def _read_samples(manifest: Manifest, folders: Sequence[Path]) -> Iterator[Sample]:
    first = next(shard for split in manifest.splits for shard in split.shards if shard.records)
    path = next(folder / first.path for folder in folders if (folder / first.path).exists())
    with path.open("rb") as stream:
        for _, record in read_records(stream):
            yield make_sample(decode_example(record))


def _figure(sample: Sample) -> str:
    kind = "png" if sample.image.startswith(b"\x89PNG") else "jpeg"
    source = f"data:image/{kind};base64,{base64.b64encode(sample.image).decode()}"
    name, title = html.escape(sample.caption), html.escape(sample.key, quote=True)
    picture = f'<img src="{source}" alt="{name}" title="{title}">{_overlay(sample)}'
    return f"<figure>{picture}<figcaption>{name}</figcaption></figure>"


def _overlay(sample: Sample) -> str:
    """The boxes, in a drawing that is fitted into the figure as the picture is."""
    height, width = sample.size
    rects = [
        f'<rect x="{left * width:.2f}" y="{top * height:.2f}" '
        f'width="{(right - left) * width:.2f}" height="{(bottom - top) * height:.2f}"/>'
        for top, left, bottom, right in sample.boxes
    ]
    return f'<svg viewBox="0 0 {width} {height}">{"".join(rects)}</svg>' if rects else ""


def _feature_row(sample: Sample, manifest: Manifest) -> tuple[str, ...]:
    shown = ", ".join(map(show_plainly, sample.features[:_ROW_VALUES]))
    more = f", ... ({len(sample.features):,} values)" if len(sample.features) > _ROW_VALUES else ""
    label = [] if manifest.label_kind == "none" else [html.escape(sample.caption)]
    return (html.escape(sample.key), *label, shown + more)


def _rejects(manifest: Manifest, root: Path) -> str:
    if not manifest.counts.rejected:
        return "<p>None.</p>"
    reasons = _table(("reason", "inputs"), [(reason, count) for reason, count in manifest.counts.rejected.items()])
    rows = []
    for row in read_rejects(root, limit=_REJECTS):
        key, reason, message = (html.escape(row[name]) for name in ("key", "reason", "message"))
        cells = f'<td class="path">{key}</td><td>{reason}</td><td class="path">{message}</td>'
        rows.append(f"<tr>{cells}</tr>")
    more = sum(manifest.counts.rejected.values()) - len(rows)
    note = f'<p class="quiet">and {more:,} more in rejected/</p>' if more else ""
    return f"{reasons}<p></p><table><tr><th>key</th><th>reason</th><th>message</th></tr>{''.join(rows)}</table>{note}"


def read_rejects(root: Path, *, limit: int) -> list[dict[str, str]]:
    """The first rejects of a dataset, in shard order; an input that was merely listed twice is none."""
    rows: list[dict[str, str]] = []
    for path in sorted((root / "rejected").glob("*.jsonl")):
        with path.open(encoding="utf-8") as stream:
            for line in stream:
                if len(rows) == limit:
                    return rows
                row = json.loads(line)
                rows += [row] if row["reason"] not in DUPLICATES else []
    return rows
