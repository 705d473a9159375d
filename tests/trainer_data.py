"""Small datasets for the trainer's tests, written with `shards` alone: no Beam, no tf.Transform."""

import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from shards_data import make_counts
from sklearn.datasets import load_digits

from shards.example import encode_example
from shards.manifest import FORMAT_VERSION, MANIFEST, FeatureEntry, Manifest, ShardEntry, SplitEntry
from shards.records import RecordWriter
from shards.settings import set_dotted, validate
from trainer.config import TrainConfig

MEAN, STD = [0.5, 0.4, 0.3], [0.25, 0.2, 0.5]
ROW_MEAN, ROW_STD = 5.0, 2.0
PICTURE_FEATURES = {"image": "bytes", "key": "bytes", "height": "int64", "width": "int64"}
ROW_FEATURES = {"features": "float", "key": "bytes"}
LABEL_FEATURES = {
    "single": {"label": "int64", "label_name": "bytes"},
    "multi": {"label": "int64", "label_name": "bytes"},
    "regression": {"target": "float"},
    "none": {},
}
Picture = tuple[bytes, Any]
Columns = dict[str, list[Any]]
Row = tuple[list[float], Any]  # the numbers; then a class id, label ids, or target numbers


def make_config(dataset: Path | str, output: Path | str = "nowhere", **values: Any) -> TrainConfig:
    """A small config; dotted keys are written with two underscores."""
    settings: dict[str, Any] = {
        "dataset": str(dataset),
        "output": str(output),
        "global_batch": 6,
        "input": {"lanes": 2},
    }
    for key, value in ({"steps": 4} | values).items():
        set_dotted(settings, key.replace("__", "."), value)
    return validate(TrainConfig, settings, place="the test")


def encode(pixels: Any, kind: str = "PNG") -> bytes:
    """The array [height, width, 3] as a file."""
    stream = io.BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8), "RGB").save(stream, kind)
    return stream.getvalue()


def random_pictures(
    count: int, *, size: tuple[int, int] = (8, 8), classes: int = 3, kind: str = "PNG"
) -> list[Picture]:
    """Noise whose brightness tells the class, so that a model can learn it."""
    generator = np.random.default_rng(7)
    labels = [n % 3 for n in range(count)]
    return [(encode(generator.integers(0, 80, (*size, 3)) + 80 * n, kind), n) for n in labels]


def random_rows(count: int, *, kind: str = "single", length: int = 6) -> list[Row]:
    """Noise around ROW_MEAN; what is learnt depends on its first three numbers alone, so that a small model can."""
    numbers = np.random.default_rng(11).normal(size=(count, length)).astype(np.float32)
    learn: dict[str, Callable[[Any], Any]] = {
        "single": lambda row: int(row[0] + row[1] > 0),
        "multi": lambda row: [label for label in range(3) if row[label] > 0],
        "regression": lambda row: [float(row[0] - row[1]), float(row[2])],
        "none": lambda row: None,
    }
    return [((row * ROW_STD + ROW_MEAN).tolist(), learn[kind](row)) for row in numbers]


def digits(side: int = 32) -> list[Picture]:
    """The 1,797 digits of scikit-learn, enlarged."""
    data = load_digits()
    pictures = []
    for pixels, label in zip(data.images, data.target, strict=True):
        picture = Image.fromarray((pixels * 15.9).astype(np.uint8)).resize((side, side), Image.Resampling.BILINEAR)
        pictures.append((encode(np.stack([picture] * 3, axis=-1)), int(label)))
    return pictures


def write_dataset(
    directory: Path,
    splits: Mapping[str, Sequence[Picture | Row]],
    *,
    kind: str = "single",
    labels: Sequence[str] = ("a", "b", "c"),
    shards: int = 3,
    resize: Mapping[str, Any] | None = None,
    features: Mapping[str, str] | None = None,
    columns: Callable[[Any], Columns] = lambda label: {},
    transform: bool = True,
) -> Path:
    """Writes a complete dataset of pictures or rows; shards get uneven shares, because real ones do.

    `columns` gives the numbers of extra columns for a label.
    """
    named = labels if kind in ("single", "multi") else ()
    entries = [
        _write_split(directory, name, examples, kind=kind, labels=named, shards=shards, columns=columns)
        for name, examples in splits.items()
    ]
    first = next(example for examples in splits.values() for example in examples)
    rows = 0 if isinstance(first[0], bytes) else len(first[0])
    lengths = {"features": rows, "target": len(first[1]) if kind == "regression" else 1}
    if kind == "multi":
        lengths |= {"label": None, "label_name": None}
    types = features or (ROW_FEATURES if rows else PICTURE_FEATURES) | LABEL_FEATURES[kind]
    extra = columns(first[1])
    types = types | {name: "int64" if isinstance(each[0], int) else "float" for name, each in extra.items()}
    lengths |= {name: len(each) for name, each in extra.items()}
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name="test",
        fingerprint="test",
        made_by={},
        settings={"image": {"resize": resize or {"mode": "exact", "size": 8, "width": None, "height": None}}},
        label_kind=kind,
        labels=tuple(named),
        features=tuple(
            FeatureEntry(name=name, type=each, description="", length=lengths.get(name, 1))
            for name, each in types.items()
        ),
        counts=make_counts({entry.name: entry.records for entry in entries}),
        splits=tuple(entries),
        files=(),
    )
    (directory / MANIFEST).write_text(manifest.to_json())
    if transform:
        write_transform(directory / "transform_fn", kind=kind, rows=rows)
    return directory


def _write_split(
    directory: Path,
    name: str,
    examples: Sequence[Picture | Row],
    *,
    kind: str,
    labels: Sequence[str],
    shards: int,
    columns: Callable[[Any], Columns],
) -> SplitEntry:
    (directory / name).mkdir(parents=True, exist_ok=True)
    edges = [len(examples) * n * (n + 1) // (shards * (shards + 1)) for n in range(shards + 1)]
    entries, ordinal = [], 0
    for shard, (first, last) in enumerate(pairwise(edges)):
        path = f"{name}/{name}-{shard:05}"
        with (directory / f"{path}.tfrecord").open("wb") as stream, (directory / f"{path}.idx").open("wb") as rows:
            writer = RecordWriter(stream, rows)
            for data, label in examples[first:last]:
                values = {"key": f"{name}/{ordinal}".encode()} | _input(data) | _label(kind, label, labels)
                writer.write(encode_example(values | columns(label)))
                ordinal += 1
        entries.append(ShardEntry.of(path, writer.finish()))
    given = Counter(name for _, label in examples for name in _label(kind, label, labels).get("label_name", []))
    return SplitEntry(
        name=name,
        records=len(examples),
        bytes=sum(e.bytes for e in entries),
        labels={name.decode(): count for name, count in sorted(given.items())},
        shards=tuple(entries),
    )


def _input(data: bytes | list[float]) -> dict[str, Any]:
    if not isinstance(data, bytes):
        return {"features": data}
    with Image.open(io.BytesIO(data)) as picture:
        width, height = picture.size
    return {"image": data, "height": [height], "width": [width]}


def _label(kind: str, label: Any, labels: Sequence[str]) -> dict[str, Any]:
    if kind in ("none", "regression"):
        return {"target": label} if kind == "regression" else {}
    ids = [label] if kind == "single" else label
    return {"label": ids, "label_name": [labels[number].encode() for number in ids]}


def write_transform(directory: Path, *, kind: str = "single", rows: int = 0) -> None:
    """A SavedModel with the inputs and outputs that tf.Transform's has."""
    import tensorflow as tf

    class Module(tf.Module):
        pass

    pixels = {"pixel": tf.TensorSpec([None, 3], tf.float32), "pixel_square": tf.TensorSpec([None, 3], tf.float32)}
    signature: dict[str, Any] = {"features": tf.TensorSpec([None, rows], tf.float32)} if rows else pixels
    signature["weight_kg"] = tf.TensorSpec([None], tf.float32)
    if kind == "single":
        signature["label_name"] = tf.TensorSpec([None], tf.string)
    elif kind == "multi":
        signature["label_name"] = tf.SparseTensorSpec([None, None], tf.string)
    elif kind == "regression":
        signature["target"] = tf.TensorSpec([None, 2], tf.float32)

    @tf.function(input_signature=[signature])
    def transform_fn(inputs: Any) -> Any:
        outputs = {"weight_kg": inputs["weight_kg"] / 2.0}
        if rows:
            outputs["features"] = (inputs["features"] - ROW_MEAN) / ROW_STD
        else:
            outputs["pixel"] = (inputs["pixel"] - MEAN) / STD
        if "label_name" in inputs:
            name = inputs["label_name"]
            texts = name.values if isinstance(name, tf.SparseTensor) else name
            outputs["label"] = tf.strings.length(texts, unit="UTF8_CHAR")
        return outputs

    module = Module()
    module.transform_fn = transform_fn.get_concrete_function()
    tf.saved_model.save(module, str(directory))
