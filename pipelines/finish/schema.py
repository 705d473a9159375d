"""What the records hold, told three ways.

The manifest's feature list, a TFMD schema, and the files that make TFDS open the dataset.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from pipelines.config import BuildConfig, ColumnConfig
from pipelines.values import Content
from shards.manifest import FeatureEntry, SplitEntry

KEY = FeatureEntry(name="key", type="bytes", description="source-relative path or the listing's id, UTF-8")
IMAGE = FeatureEntry(name="image", type="bytes", description="the encoded picture, 8-bit RGB")
SIDES = (
    FeatureEntry(name="height", type="int64", description="rows of the stored picture"),
    FeatureEntry(name="width", type="int64", description="columns of the stored picture"),
)
BOXES = FeatureEntry(
    name="boxes", type="float", length=None, per="box", description="ymin, xmin, ymax, xmax of each box, as fractions"
)
_RECORD_TYPES: dict[str, Any] = {"int": "int64", "float": "float", "text": "bytes"}
_TFMD_TYPES = {"bytes": schema_pb2.BYTES, "int64": schema_pb2.INT, "float": schema_pb2.FLOAT}


def feature_list(config: BuildConfig, content: Content) -> tuple[FeatureEntry, ...]:
    """Our own features, then the user's columns."""
    row = FeatureEntry(name="features", type="float", description="the row of numbers", length=content.row_length or 1)
    payload = [IMAGE] if content.is_images else [row]
    extras = [_column_entry(name, column) for name, column in config.columns.items()]
    boxes = [BOXES] if config.boxes else []
    return (*payload, *_label_entries(config), KEY, *(SIDES if content.is_images else ()), *boxes, *extras)


def _label_entries(config: BuildConfig) -> list[FeatureEntry]:
    labels = config.labels
    if labels.kind == "none":
        return []
    if labels.kind == "regression":
        return [FeatureEntry(name="target", type="float", description="what is predicted", length=labels.length)]
    several = labels.kind == "multi"
    told = f"class id{'s' * several}, from 0, in the order of the manifest's labels"
    length = None if several else 1
    return [
        FeatureEntry(name="label", type="int64", description=told, length=length),
        FeatureEntry(name="label_name", type="bytes", description=f"class name{'s' * several}, UTF-8", length=length),
    ]


def _column_entry(name: str, column: ColumnConfig) -> FeatureEntry:
    what = "a value per box" if column.per == "box" else "extra column"
    return FeatureEntry(
        name=name,
        type=_RECORD_TYPES[column.type],
        description=f"{what} of type {column.type}",
        length=1 if column.is_scalar else None,
        per="box" if column.per == "box" else "record",
    )


def schema_text(features: Sequence[FeatureEntry], labels: Sequence[str]) -> str:
    """schema.pbtxt: lengths are fixed where ours are; `image` is an image, the label has its domain."""
    schema = schema_pb2.Schema()
    for entry in features:
        _add_feature(schema, entry)
    by_name = {feature.name: feature for feature in schema.feature}
    if "image" in by_name:
        by_name["image"].image_domain.SetInParent()
    if "label" in by_name:
        domain = by_name["label"].int_domain
        domain.name, domain.min, domain.max, domain.is_categorical = "label", 0, len(labels) - 1, True
        by_name["label_name"].string_domain.name = "label_name"
        by_name["label_name"].string_domain.value.extend(labels)
    return text_format.MessageToString(schema)


def _add_feature(schema: Any, entry: FeatureEntry) -> None:
    feature = schema.feature.add(name=entry.name, type=_TFMD_TYPES[entry.type])
    if entry.length is None:
        feature.value_count.min = 0
        return
    feature.presence.min_fraction = 1.0
    feature.presence.min_count = 1
    feature.shape.SetInParent()  # an empty shape is a scalar
    if entry.length > 1:
        feature.shape.dim.add(size=entry.length)


def tfds_files(
    name: str,
    features: Sequence[FeatureEntry],
    labels: Sequence[str],
    splits: Sequence[SplitEntry],
    *,
    image_format: str,
    version: int = 1,
) -> dict[str, str]:
    """The text files that `tfds.builder_from_directory` reads, by file name."""
    names = {"label.labels.txt": "".join(f"{label}\n" for label in labels)} if labels else {}
    return {
        "dataset_info.json": _json(_dataset_info(name, features, splits, version)),
        "features.json": _json(_tfds_features(features, labels, image_format)),
    } | names


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _dataset_info(
    name: str, features: Sequence[FeatureEntry], splits: Sequence[SplitEntry], version: int
) -> dict[str, Any]:
    there = {feature.name for feature in features}
    keys = [{"featureKey": key} for key in ("image", "features", "label", "target") if key in there]
    supervised = {"supervisedKeys": {"tuple": {"items": keys}}} if len(keys) == 2 else {}
    # proto-JSON: 64-bit integers are text.
    return {
        "name": name,
        "version": f"{version}.0.0",
        "description": "Made by shardsmith.",
        "fileFormat": "tfrecord",
        **supervised,
        "splits": [
            {
                "name": split.name,
                "shardLengths": [str(length) for length in _shard_lengths(split)],
                "numBytes": str(split.bytes),
                "filepathTemplate": "{SPLIT}/{SPLIT}-{SHARD_INDEX}.{FILEFORMAT}",
            }
            for split in splits
        ],
    }


def _shard_lengths(split: SplitEntry) -> list[int]:
    """The records of every shard by its index; TFDS reads none where an index is no longer in use."""
    lengths = {int(shard.path.rpartition("-")[2].partition(".")[0]): shard.records for shard in split.shards}
    return [lengths.get(index, 0) for index in range(max(lengths, default=-1) + 1)]


def _tfds_features(features: Sequence[FeatureEntry], labels: Sequence[str], image_format: str) -> dict[str, Any]:
    core = "tensorflow_datasets.core.features."
    special: dict[str, dict[str, Any]] = {
        "image": {
            "pythonClassName": f"{core}image_feature.Image",
            "image": {
                "shape": {"dimensions": ["-1", "-1", "3"]},
                "dtype": "uint8",
                **({"encodingFormat": image_format} if image_format else {}),
            },
        },
        "label": {
            "pythonClassName": f"{core}class_label_feature.ClassLabel",
            "classLabel": {"numClasses": str(len(labels))},
        },
        # A sequence of these is stored as TFDS itself stores it: one flat list of floats.
        "boxes": {
            "pythonClassName": f"{core}bounding_boxes.BBoxFeature",
            "boundingBox": {"shape": {"dimensions": ["4"]}, "dtype": "float32", "bboxFormat": "REL_YXYX"},
        },
    }
    return {
        "pythonClassName": f"{core}features_dict.FeaturesDict",
        "featuresDict": {"features": {entry.name: _tfds_feature(core, entry, special) for entry in features}},
    }


def _tfds_feature(core: str, entry: FeatureEntry, special: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    text = {"pythonClassName": f"{core}text_feature.Text", "text": {}}
    one = special.get(entry.name) or (text if entry.type == "bytes" else _tfds_number(core, entry))
    if entry.length is not None:
        return one
    return {"pythonClassName": f"{core}sequence_feature.Sequence", "sequence": {"feature": one, "length": "-1"}}


def _tfds_number(core: str, entry: FeatureEntry) -> dict[str, Any]:
    dtype = "float32" if entry.type == "float" else "int64"
    several = entry.length is not None and entry.length > 1
    shape = {"dimensions": [str(entry.length)]} if several else {}
    name = "tensor_feature.Tensor" if several else "scalar.Scalar"
    return {"pythonClassName": f"{core}{name}", "tensor": {"shape": shape, "dtype": dtype, "encoding": "none"}}
