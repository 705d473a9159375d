"""The pipeline that Beam and TFRecord tutorials teach: `python -m benchmarks.tutorial TREE OUTPUT SIDE`.

Files are matched and read, Pillow does the picture, TensorFlow makes the Example, whole Examples are reshuffled (or the
classes would lie one after the other) and written as TFRecord. It runs on Beam's local runner, in memory, as ours does.
"""

import io
import sys
from pathlib import Path
from typing import Any

import apache_beam as beam
import tensorflow as tf
from apache_beam.io import fileio
from apache_beam.options.pipeline_options import PipelineOptions
from PIL import Image, ImageOps


def make_example(file: Any, labels: dict[str, int], side: int) -> bytes:
    """One matched file as a serialised Example."""
    image = Image.open(io.BytesIO(file.read())).convert("RGB")
    image = ImageOps.fit(image, (side, side))
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=95)
    name = Path(file.metadata.path).parent.name
    feature = {
        "image": _bytes_feature(buffer.getvalue()),
        "label": _int_feature(labels[name]),
        "label_name": _bytes_feature(name.encode()),
        "key": _bytes_feature(file.metadata.path.encode()),
        "height": _int_feature(side),
        "width": _int_feature(side),
    }
    data: bytes = tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
    return data


def _bytes_feature(value: bytes) -> Any:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def _int_feature(value: int) -> Any:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def main(tree: str, output: str, side: str) -> None:
    """Runs the pipeline."""
    labels = {path.name: number for number, path in enumerate(sorted(Path(tree).iterdir()))}
    with beam.Pipeline(options=PipelineOptions(runner="FnApiRunner")) as pipeline:
        _ = (
            pipeline
            | "Match" >> fileio.MatchFiles(f"{tree}/*/*.jpg")
            | "Read" >> fileio.ReadMatches()
            | "Process" >> beam.Map(make_example, labels=labels, side=int(side))
            | "Shuffle" >> beam.Reshuffle()
            | "Write" >> beam.io.WriteToTFRecord(f"{output}/data", file_name_suffix=".tfrecord")
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
