"""report.html: what a build made, on one page that needs no server and no network."""

import base64
import html
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from shards.example import decode_example
from shards.manifest import Manifest, SplitEntry
from shards.records import read_records

_SAMPLES, _SAMPLE_BYTES, _REJECTS = 24, 60_000, 100
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1d2330; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.2rem; } .quiet { color: #667085; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #e4e7ec; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.path { overflow-wrap: anywhere; }
td:has(.bar) { width: 35%; } .bar { background: #528bff; height: .7rem; border-radius: .2rem; min-width: 1px; }
.samples { display: flex; flex-wrap: wrap; gap: .6rem; } figure { margin: 0; width: 6.5rem; }
figure img { width: 100%; height: 6.5rem; object-fit: contain; background: #f2f4f7; image-rendering: auto; }
figcaption { font-size: 12px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
"""


def render_report(manifest: Manifest, root: Path) -> str:
    """The page; it depends on the dataset alone, so equal datasets have equal reports."""
    counts = manifest.counts
    rejected = sum(counts.rejected.values())
    parts = [
        f"<h1>{html.escape(manifest.name)}</h1>",
        f'<p class="quiet">{counts.listed:,} listed = {counts.written:,} written + {rejected:,} rejected '
        f"+ {counts.duplicates:,} duplicates &middot; {len(manifest.labels):,} classes &middot; "
        f"fingerprint {manifest.fingerprint[:12]}</p>",
        "<h2>Splits</h2>",
        _table(
            ("split", "images", "shards", "MB", "smallest shard", "largest shard"), map(_split_row, manifest.splits)
        ),
        "<h2>Classes</h2>",
        _class_table(manifest),
        "<h2>First pictures</h2>",
        f'<div class="samples">{"".join(_samples(manifest, root))}</div>',
        "<h2>Rejected inputs</h2>",
        _rejects(manifest, root),
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
    megabytes = [f"{size / 1e6:,.2f} MB" for size in (min(sizes), max(sizes))]
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


def _samples(manifest: Manifest, root: Path) -> Iterator[str]:
    first = next(shard for split in manifest.splits for shard in split.shards if shard.records)
    with (root / first.path).open("rb") as stream:
        shown = 0
        for _, record in read_records(stream):
            example = decode_example(record)
            (image,), (label,), (key,) = example["image"], example["label_name"], example["key"]
            assert isinstance(image, bytes)
            assert isinstance(label, bytes)
            assert isinstance(key, bytes)
            if len(image) > _SAMPLE_BYTES:
                continue
            kind = "png" if image.startswith(b"\x89PNG") else "jpeg"
            source = f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
            name, title = html.escape(label.decode()), html.escape(key.decode(), quote=True)
            yield f'<figure><img src="{source}" alt="{name}" title="{title}"><figcaption>{name}</figcaption></figure>'
            shown += 1
            if shown == _SAMPLES:
                return


def _rejects(manifest: Manifest, root: Path) -> str:
    if not manifest.counts.rejected:
        return "<p>None.</p>"
    reasons = _table(("reason", "images"), [(reason, count) for reason, count in manifest.counts.rejected.items()])
    rows = []
    for row in read_rejects(root, limit=_REJECTS):
        cells = "".join(f'<td class="path">{html.escape(row[name])}</td>' for name in ("key", "reason", "message"))
        rows.append(f"<tr>{cells}</tr>")
    more = sum(manifest.counts.rejected.values()) - len(rows)
    note = f'<p class="quiet">and {more:,} more in rejected/</p>' if more else ""
    return f"{reasons}<p></p><table><tr><th>key</th><th>reason</th><th>message</th></tr>{''.join(rows)}</table>{note}"


def read_rejects(root: Path, *, limit: int) -> list[dict[str, str]]:
    """The first rejects of a dataset, in shard order."""
    rows: list[dict[str, str]] = []
    for path in sorted((root / "rejected").glob("*.jsonl")):
        with path.open(encoding="utf-8") as stream:
            for line in stream:
                if len(rows) == limit:
                    return rows
                rows.append(json.loads(line))
    return rows
