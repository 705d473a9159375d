"""What the records hold, told three ways.

The manifest's feature list, a TFMD schema, and the files that make TFDS open the dataset.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from pipelines.config import ColumnConfig
from shards.manifest import FeatureEntry, SplitEntry

FEATURES = (
    FeatureEntry(name="image", type="bytes", description="the encoded picture, 8-bit RGB"),
    FeatureEntry(name="label", type="int64", description="class id, from 0, in the order of the manifest's labels"),
    FeatureEntry(name="label_name", type="bytes", description="class name, UTF-8"),
    FeatureEntry(name="key", type="bytes", description="source-relative path or the listing's id, UTF-8"),
    FeatureEntry(name="height", type="int64", description="rows of the stored picture"),
    FeatureEntry(name="width", type="int64", description="columns of the stored picture"),
)
_RECORD_TYPES: dict[str, Any] = {"int": "int64", "float": "float", "text": "bytes"}
_TFMD_TYPES = {"bytes": schema_pb2.BYTES, "int64": schema_pb2.INT, "float": schema_pb2.FLOAT}


def feature_list(columns: Mapping[str, ColumnConfig]) -> tuple[FeatureEntry, ...]:
    """Our own features, then the user's columns."""
    extras = (
        FeatureEntry(name=name, type=_RECORD_TYPES[column.type], description=f"extra column of type {column.type}")
        for name, column in columns.items()
    )
    return (*FEATURES, *extras)


def schema_text(features: Sequence[FeatureEntry], labels: Sequence[str]) -> str:
    """schema.pbtxt: every feature is required and scalar; `image` is an image, the label has its domain."""
    schema = schema_pb2.Schema()
    for entry in features:
        feature = schema.feature.add(name=entry.name, type=_TFMD_TYPES[entry.type])
        feature.presence.min_fraction = 1.0
        feature.presence.min_count = 1
        feature.shape.SetInParent()  # an empty shape is a scalar
    by_name = {feature.name: feature for feature in schema.feature}
    by_name["image"].image_domain.SetInParent()
    domain = by_name["label"].int_domain
    domain.name, domain.min, domain.max, domain.is_categorical = "label", 0, len(labels) - 1, True
    by_name["label_name"].string_domain.name = "label_name"
    by_name["label_name"].string_domain.value.extend(labels)
    return text_format.MessageToString(schema)


def tfds_files(
    name: str,
    features: Sequence[FeatureEntry],
    labels: Sequence[str],
    splits: Sequence[SplitEntry],
    *,
    image_format: str,
) -> dict[str, str]:
    """The three text files that `tfds.builder_from_directory` reads, by file name."""
    return {
        "dataset_info.json": _json(_dataset_info(name, splits)),
        "features.json": _json(_tfds_features(features, labels, image_format)),
        "label.labels.txt": "".join(f"{label}\n" for label in labels),
    }


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _dataset_info(name: str, splits: Sequence[SplitEntry]) -> dict[str, Any]:
    # proto-JSON: 64-bit integers are text.
    return {
        "name": name,
        "version": "1.0.0",
        "description": "Made by shardsmith.",
        "fileFormat": "tfrecord",
        "supervisedKeys": {"tuple": {"items": [{"featureKey": "image"}, {"featureKey": "label"}]}},
        "splits": [
            {
                "name": split.name,
                "shardLengths": [str(shard.records) for shard in split.shards],
                "numBytes": str(split.bytes),
                "filepathTemplate": "{SPLIT}/{SPLIT}-{SHARD_INDEX}.{FILEFORMAT}",
            }
            for split in splits
        ],
    }


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
    }
    text = {"pythonClassName": f"{core}text_feature.Text", "text": {}}
    return {
        "pythonClassName": f"{core}features_dict.FeaturesDict",
        "featuresDict": {
            "features": {
                entry.name: special.get(entry.name)
                or (text if entry.type == "bytes" else _tfds_number(f"{core}scalar.Scalar", entry))
                for entry in features
            }
        },
    }


def _tfds_number(class_name: str, entry: FeatureEntry) -> dict[str, Any]:
    dtype = "float32" if entry.type == "float" else "int64"
    return {"pythonClassName": class_name, "tensor": {"shape": {}, "dtype": dtype, "encoding": "none"}}
