"""The one module that knows tf.Transform.

Analyses the facts of a build and saves the graph that training and serving apply. The graph treats a picture as a
batch of pixels: its input `pixel` has one RGB row in [0, 1] per pixel, and the analysis feeds it each picture's mean
colour. So the normalisation is learnt from moments, a hundred bytes per image, and applied to pictures of any size.
Every image counts once, whatever its size. Extra columns keep their names; rows of different inputs are independent,
so whoever has no use for one feeds it no rows.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from apache_beam.options.pipeline_options import PipelineOptions
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.tfxio.tensor_adapter import TensorAdapterConfig

from pipelines.analysis.canonical import canonical_bytes
from pipelines.config import BuildConfig, ColumnConfig
from pipelines.values import Content
from pipelines.writing.facts import FEATURES, LABEL_NAME, PIXEL, PIXEL_SQUARE, TARGET, facts_schema, read_facts

LABEL_FREQUENCY = "label_frequency"
_NO_LABELS = "49d0cd50-04bb-48c0-bc6f-5b575dce351a"  # what tf.Transform writes as a vocabulary of nothing
Tensors = Mapping[str, Any]


def analyze_facts(
    files: Iterable[Path],
    output: Path,
    *,
    labels: Sequence[str],
    config: BuildConfig,
    content: Content,
    options: PipelineOptions,
) -> None:
    """Runs one analysis over the facts files and saves the SavedModel at `output`/transform_fn.

    One worker reads all files, in the order of their names: the borders of buckets depend on the order of rows.
    A million pictures take some two seconds.
    """
    adapter = TensorAdapterConfig(facts_schema(config, content), _tensor_representations(config, content))
    preprocess = partial(preprocess_facts, labels=tuple(labels), config=config)
    paths = [str(file) for file in sorted(files, key=lambda file: file.name)]
    with (
        tempfile.TemporaryDirectory(dir=output) as scratch,
        tft_beam.Context(temp_dir=scratch),
        beam.Pipeline(options=options) as pipeline,
    ):
        batches = (
            pipeline
            | "FactsFiles" >> beam.Create(paths, reshuffle=False)  # path
            | "ReadFacts" >> beam.FlatMap(read_facts)  # pa.RecordBatch
        )
        transform_fn = (batches, adapter) | "Analyze" >> tft_beam.AnalyzeDataset(preprocess)
        _ = transform_fn | "Save" >> tft_beam.WriteTransformFn(str(output))
    _make_canonical(output / "transform_fn")


def _make_canonical(transform_fn: Path) -> None:
    """Rewrites the SavedModel so that the same analysis always leaves the same bytes."""
    path = transform_fn / "saved_model.pb"
    path.write_bytes(canonical_bytes(SavedModel.FromString(path.read_bytes())))
    # TensorFlow's checksum of the bytes before, with a random id. Optional to readers; the manifest has a better one.
    (transform_fn / "fingerprint.pb").unlink(missing_ok=True)


def preprocess_facts(inputs: Tensors, *, labels: Sequence[str], config: BuildConfig) -> dict[str, Any]:
    """The graph: label names to ids, pixels or features to zero mean and unit variance, each column by its scale."""
    outputs: dict[str, Any] = {}
    if LABEL_NAME in inputs:
        # The ids are the plan's (they are in the records already); the vocabulary adds how often each label occurs.
        tft.vocabulary(inputs[LABEL_NAME], store_frequency=True, vocab_filename=LABEL_FREQUENCY)
        # Tracked by tft, or the table would be filled anew at every call of the graph.
        table = tft.make_and_track_object(partial(_label_table, labels), name="labels")
        outputs["label"] = table.lookup(inputs[LABEL_NAME])
    if TARGET in inputs:
        outputs[TARGET] = tf.identity(inputs[TARGET])
    if PIXEL in inputs:
        outputs[PIXEL] = _normalise(inputs)
    else:
        outputs[FEATURES] = tft.scale_to_z_score(inputs[FEATURES], elementwise=True)
    return outputs | {name: _scale(inputs[name], name, each) for name, each in config.scalar_columns.items()}


def _label_table(labels: Sequence[str]) -> Any:
    ids = tf.lookup.KeyValueTensorInitializer(tf.constant(labels), tf.range(len(labels), dtype=tf.int64))
    return tf.lookup.StaticHashTable(ids, default_value=-1)


def _normalise(inputs: Tensors) -> Any:
    mean = tft.mean(inputs[PIXEL], reduce_instance_dims=False)
    mean_square = tft.mean(inputs[PIXEL_SQUARE], reduce_instance_dims=False)
    # Constant pictures have no spread: half a grey level keeps the division finite.
    std = tf.sqrt(tf.maximum(mean_square - mean * mean, (0.5 / 255) ** 2))
    return (inputs[PIXEL] - mean) / std


def _scale(values: Any, name: str, column: ColumnConfig) -> Any:
    match column.scale:
        case "z_score":
            return tft.scale_to_z_score(tf.cast(values, tf.float32))
        case "min_max":
            return tft.scale_to_0_1(tf.cast(values, tf.float32))
        case "buckets":
            return tft.bucketize(tf.cast(values, tf.float32), column.buckets)
        case "vocabulary":
            return tft.compute_and_apply_vocabulary(values, num_oov_buckets=1, vocab_filename=f"{name}_vocabulary")
        case "none":
            return tf.identity(values)


def _tensor_representations(config: BuildConfig, content: Content) -> dict[str, Any]:
    lengths = {PIXEL: 3, PIXEL_SQUARE: 3, FEATURES: content.row_length, TARGET: config.labels.length}
    names = facts_schema(config, content).names
    dense = {name: _dense(name, [lengths[name]] if name in lengths else []) for name in names}
    return dense | ({LABEL_NAME: _varlen(LABEL_NAME)} if config.labels.kind == "multi" else {})


def _varlen(name: str) -> Any:
    representation = schema_pb2.TensorRepresentation()
    representation.varlen_sparse_tensor.column_name = name
    return representation


def _dense(name: str, shape: Sequence[int]) -> Any:
    representation = schema_pb2.TensorRepresentation()
    representation.dense_tensor.column_name = name
    for size in shape:
        representation.dense_tensor.shape.dim.add(size=size)
    return representation


def read_label_frequencies(transform_fn: Path) -> dict[str, int]:
    """The label vocabulary that the analysis counted."""
    if not (transform_fn / "assets" / LABEL_FREQUENCY).exists():
        return {}  # labels of kind none or regression have no vocabulary
    lines = (transform_fn / "assets" / LABEL_FREQUENCY).read_text(encoding="utf-8").splitlines()
    counted = {label: int(count) for count, label in (line.split(" ", 1) for line in lines)}
    return {} if list(counted) == [_NO_LABELS] else counted
