"""Small datasets for the trainer's tests, written with `shards` alone: no Beam, no tf.Transform."""

import hashlib
import io
from collections.abc import Mapping, Sequence
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
FEATURES = {
    "image": "bytes",
    "label": "int64",
    "label_name": "bytes",
    "key": "bytes",
    "height": "int64",
    "width": "int64",
}
Picture = tuple[bytes, int]


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
    splits: Mapping[str, Sequence[Picture]],
    *,
    labels: Sequence[str] = ("a", "b", "c"),
    shards: int = 3,
    resize: Mapping[str, Any] | None = None,
    features: Mapping[str, str] | None = None,
    transform: bool = True,
) -> Path:
    """Writes a complete dataset; shards get uneven shares, because real ones do."""
    entries = [
        _write_split(directory, name, pictures, labels=labels, shards=shards) for name, pictures in splits.items()
    ]
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name="test",
        fingerprint="test",
        made_by={},
        settings={"image": {"resize": resize or {"mode": "exact", "size": 8, "width": None, "height": None}}},
        label_kind="single",
        labels=tuple(labels),
        features=tuple(
            FeatureEntry(name=name, type=kind, description="") for name, kind in (features or FEATURES).items()
        ),
        counts=make_counts({entry.name: entry.records for entry in entries}),
        splits=tuple(entries),
        files=(),
    )
    (directory / MANIFEST).write_text(manifest.to_json())
    if transform:
        write_transform(directory / "transform_fn")
    return directory


def _write_split(
    directory: Path, name: str, pictures: Sequence[Picture], labels: Sequence[str], shards: int
) -> SplitEntry:
    (directory / name).mkdir(parents=True, exist_ok=True)
    edges = [len(pictures) * n * (n + 1) // (shards * (shards + 1)) for n in range(shards + 1)]
    entries, ordinal = [], 0
    for shard, (first, last) in enumerate(pairwise(edges)):
        path, index = f"{name}/{name}-{shard:05}.tfrecord", f"{name}/{name}-{shard:05}.idx"
        with (directory / path).open("wb") as stream, (directory / index).open("wb") as rows:
            writer = RecordWriter(stream, rows)
            for data, label in pictures[first:last]:
                writer.write(_example(data, label, labels, key=f"{name}/{ordinal}"))
                ordinal += 1
            written = writer.finish()
        index_sha256 = hashlib.sha256((directory / index).read_bytes()).hexdigest()
        entries.append(
            ShardEntry(
                path=path,
                bytes=written.bytes,
                sha256=written.sha256,
                index=index,
                index_sha256=index_sha256,
                records=written.records,
                inputs="",
            )
        )
    return SplitEntry(
        name=name, records=len(pictures), bytes=sum(e.bytes for e in entries), labels={}, shards=tuple(entries)
    )


def _example(data: bytes, label: int, labels: Sequence[str], *, key: str) -> bytes:
    with Image.open(io.BytesIO(data)) as picture:
        width, height = picture.size
    return encode_example(
        {
            "image": data,
            "label": [label],
            "label_name": labels[label].encode(),
            "key": key.encode(),
            "height": [height],
            "width": [width],
        }
    )


def write_transform(directory: Path) -> None:
    """A SavedModel with the inputs and outputs that tf.Transform's has."""
    import tensorflow as tf

    class Module(tf.Module):
        pass

    signature = {
        "pixel": tf.TensorSpec([None, 3], tf.float32),
        "pixel_square": tf.TensorSpec([None, 3], tf.float32),
        "label_name": tf.TensorSpec([None], tf.string),
        "weight_kg": tf.TensorSpec([None], tf.float32),
    }

    @tf.function(input_signature=[signature])
    def transform_fn(inputs: Any) -> Any:
        return {
            "pixel": (inputs["pixel"] - MEAN) / STD,
            "label": tf.strings.length(inputs["label_name"], unit="UTF8_CHAR"),
            "weight_kg": inputs["weight_kg"] / 2.0,
        }

    module = Module()
    module.transform_fn = transform_fn.get_concrete_function()
    tf.saved_model.save(module, str(directory))
