"""What we wrote opens elsewhere: TFDS, plain tf.data, TFMD, DALI's index."""

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from google.protobuf import text_format
from PIL import Image
from tensorflow_metadata.proto.v0 import schema_pb2


def records_of(built, split):
    """The examples of a split through nothing but TensorFlow."""
    files = [str(built.root / shard.path) for shard in built.manifest.split(split).shards]
    spec = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "label_name": tf.io.FixedLenFeature([], tf.string),
        "key": tf.io.FixedLenFeature([], tf.string),
        "height": tf.io.FixedLenFeature([], tf.int64),
        "width": tf.io.FixedLenFeature([], tf.int64),
    }
    return [tf.io.parse_single_example(raw, spec) for raw in tf.data.TFRecordDataset(files)]


def test_plain_tf_data_reads_every_record(built):
    examples = [e for split in ("train", "validation") for e in records_of(built, split)]
    assert len(examples) == 40
    keys = {e["key"].numpy().decode() for e in examples}
    expected = {f"{c}/{n:03d}.jpg" for c in ("cat", "dog") for n in range(20) if n % 3}
    expected |= {f"{c}/deep/{n:03d}.png" for c in ("cat", "dog") for n in range(0, 20, 3)}
    assert keys == expected
    for example in examples:
        label = example["label_name"].numpy().decode()
        assert example["key"].numpy().decode().startswith(label)
        assert ["cat", "dog"][int(example["label"])] == label
        assert (int(example["height"]), int(example["width"])) == (32, 32)


def test_the_stored_pictures_are_the_sources_pictures(built):
    for example in records_of(built, "validation"):
        stored = tf.io.decode_png(example["image"]).numpy().astype(int)
        source = Image.open(built.source / example["key"].numpy().decode()).convert("RGB")
        # 40x30 -> 32x32: fewer columns, more rows; Pillow filters differently, the picture is the same.
        reference = np.asarray(source.resize((32, 32), Image.Resampling.BICUBIC)).astype(int)
        assert stored.shape == (32, 32, 3)
        assert np.abs(stored - reference).mean() < 6


def test_tfds_opens_the_directory(built):
    builder = tfds.builder_from_directory(str(built.root))
    assert builder.name == "animals"
    assert builder.info.splits["train"].num_examples == built.manifest.split("train").records
    assert len(builder.info.splits["train"].filenames) == len(built.manifest.split("train").shards) > 1
    assert builder.info.features["label"].names == ["cat", "dog"]
    seen = {}
    for split in ("train", "validation"):
        for example in builder.as_dataset(split=split):
            assert example["image"].shape == (32, 32, 3)
            seen[example["key"].numpy().decode()] = int(example["label"])
    assert len(seen) == 40
    assert all(label == (not key.startswith("cat")) for key, label in seen.items())
    (image, label) = next(iter(builder.as_dataset(split="validation", as_supervised=True)))
    assert image.dtype == tf.uint8
    assert int(label) in (0, 1)


def test_tfds_reads_a_slice_in_stored_order(built):
    builder = tfds.builder_from_directory(str(built.root))
    config = tfds.ReadConfig(interleave_cycle_length=1)
    sliced = builder.as_dataset(split="train[2:7]", shuffle_files=False, read_config=config)
    ours = [e["key"].numpy() for e in records_of(built, "train")][2:7]
    assert [e["key"].numpy() for e in sliced] == ours


def test_the_schema_describes_the_records(built):
    schema = text_format.Parse((built.root / "schema.pbtxt").read_text(), schema_pb2.Schema())
    features = {feature.name: feature for feature in schema.feature}
    assert sorted(features) == ["height", "image", "key", "label", "label_name", "width"]
    assert features["image"].WhichOneof("domain_info") == "image_domain"
    assert (features["label"].int_domain.min, features["label"].int_domain.max) == (0, 1)
    assert list(features["label_name"].string_domain.value) == ["cat", "dog"]
    assert all(feature.presence.min_fraction == 1 for feature in schema.feature)


def test_the_index_finds_every_record(built):
    """The way DALI and our trainer seek: offset and size from the index, straight into the file."""
    shard = built.manifest.split("train").shards[0]
    data = (built.root / shard.path).read_bytes()
    records = [raw.numpy() for raw in tf.data.TFRecordDataset([str(built.root / shard.path)])]
    lines = (built.root / shard.index).read_text().splitlines()
    assert len(lines) == len(records) == shard.records
    for line, record in zip(lines, records, strict=True):
        offset, size = map(int, line.split())
        assert data[offset + 12 : offset + size - 4] == record
