"""Asks an exported model about files, or about the records of a dataset, with nothing but the SavedModel itself."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from shards.errors import ShardsmithError, UsageError
from trainer.quiet import own_words, reason_of
from trainer.reading.columns import Columns
from trainer.reading.dataset import Share, evaluation_records
from trainer.reading.source import Records, Rows, find_columns
from trainer.serving.answers import Answers, find_answers
from trainer.serving.export import SERVING

PICTURES, ROWS = "image_bytes", "features"  # what a served model of ours takes
AT_ONCE = {PICTURES: 32, ROWS: 1024}
SUFFIXES = {PICTURES: (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"), ROWS: (".npy",)}


@dataclass(frozen=True)
class Prediction:
    """The answer about one file, row of a file or record (`about` tells which), as plain values; or an error."""

    about: dict[str, Any]
    answer: dict[str, Any] | None = None
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Everything that there is to say."""
        return self.about | (self.answer or {}) | ({"error": self.error} if self.error else {})


@dataclass(frozen=True)
class Question:
    """What a model is asked about; `given` are encoded bytes or a row, or the OSError that tells why not.

    `columns` are the numbers that some models take beside it, by name.
    """

    about: dict[str, Any]
    given: Any
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Served:
    """An exported model: its serving function, the kind of its answers, the input that it takes, and columns."""

    function: Any
    answers: type[Answers]
    takes: str
    length: int  # of a row
    columns: Mapping[str, Any] = field(default_factory=dict)  # the tensors that it takes beside the input, by name

    def __call__(self, **given: Any) -> dict[str, Any]:
        """The answers for a batch."""
        return self.function(**given)

    def __str__(self) -> str:
        """Reads like `takes rows of 100 features`."""
        beside = f" and columns {', '.join(self.columns)}" if self.columns else ""
        return f"takes {'pictures' if self.takes == PICTURES else Rows(self.length)}{beside}"


def load_served(directory: str) -> Served:
    """Loads what `export` wrote."""
    if not (Path(directory) / "saved_model.pb").is_file():
        raise UsageError(f"no exported model at {directory}; make one with: python -m trainer export CONFIG")
    loaded = tf.saved_model.load(directory)
    function = loaded.signatures.get(SERVING)
    specs = function.structured_input_signature[1] if function else {}
    answers = find_answers(function.structured_outputs) if function else None
    takes = next((name for name in AT_ONCE if name in specs), None)
    if answers is None or takes is None:
        raise UsageError(f"the model at {directory} is not one that `python -m trainer export` writes")
    function.owner = loaded  # the function holds its variables weakly
    columns = {name: spec for name, spec in sorted(specs.items()) if name != takes}
    return Served(function, answers, takes, length=specs[takes].shape[1] if takes == ROWS else 0, columns=columns)


def find_files(served: Served, paths: Sequence[str]) -> list[str]:
    """The files as given, and in place of a folder those below it that the model takes by their names, sorted."""
    return [
        name for path in paths for name in (_below(path, SUFFIXES[served.takes]) if os.path.isdir(path) else [path])
    ]


def _below(folder: str, suffixes: tuple[str, ...]) -> list[str]:
    files = [str(path) for path in Path(folder).rglob("*") if path.name.lower().endswith(suffixes) and path.is_file()]
    if not files:
        raise UsageError(f"no file below {folder} ends with {', '.join(suffixes)}; name the files themselves")
    return sorted(files)


def predict(served: Served, files: Sequence[str]) -> Iterator[Prediction]:
    """The answers about files in order, one per picture or row; a bad file does not hold up the others."""
    if served.columns:
        raise UsageError(f"the model {served}, which files do not have; ask it about a dataset that has: --dataset DIR")
    if served.takes == ROWS:
        return _answer(served, (question for name in files for question in _read_rows(name, served.length)))
    return _answer(served, (Question({"file": name}, _read(name)) for name in files))


def predict_records(served: Served, records: Records) -> Iterator[Prediction]:
    """The answers about the records of a split by key, in stored order."""
    stored = records.stored
    taken = ROWS if stored.name == "features" else PICTURES
    if (served.takes, served.length) != (taken, records.row_length):
        has = Rows(records.row_length) if taken == ROWS else "pictures"
        raise UsageError(f"the model {served}, but {records.directory} has {has}")
    columns = Columns(find_columns(list(served.columns), records.features, records.directory))
    return _answer(served, _read_records(records, columns))


def _answer(served: Served, questions: Iterator[Question]) -> Iterator[Prediction]:
    while some := list(islice(questions, AT_ONCE[served.takes])):
        answers = iter(_ask(served, [each for each in some if not isinstance(each.given, OSError)]))
        for each in some:
            failed = isinstance(each.given, OSError)
            yield Prediction(each.about, error=str(each.given)) if failed else next(answers)


def _ask(served: Served, questions: Sequence[Question]) -> list[Prediction]:
    """Predicts all at once; if that fails, one by one, to find out who is to blame."""
    if not questions:
        return []
    given = tf.constant([each.given for each in questions]) if served.takes == PICTURES else _stack(questions)
    columns = {
        name: tf.reshape(np.stack([each.columns[name] for each in questions]), [-1, *spec.shape[1:]])
        for name, spec in served.columns.items()
    }
    try:
        answer = {name: tensor.numpy() for name, tensor in served(**{served.takes: given}, **columns).items()}
    except tf.errors.InvalidArgumentError as error:
        if len(questions) > 1:
            return [answer for each in questions for answer in _ask(served, [each])]
        return [Prediction(questions[0].about, error=f"cannot be decoded: {reason_of(error.message)}")]
    rows = ({name: values[row] for name, values in answer.items()} for row in range(len(questions)))
    return [Prediction(each.about, served.answers.answer(row)) for each, row in zip(questions, rows, strict=True)]


def _stack(questions: Iterable[Question]) -> Any:
    return tf.constant(np.stack([each.given for each in questions]), tf.float32)


def _read_records(records: Records, columns: Columns) -> Iterator[Question]:
    """The input, columns and key of each record, read as evaluation reads them."""
    name, length = records.stored.name, records.row_length
    spec = tf.io.FixedLenFeature([length], tf.float32) if length else tf.io.FixedLenFeature([], tf.string)
    batch = AT_ONCE[ROWS if length else PICTURES]
    share = Share(worker=0, workers=1, batch=batch, threads=len(os.sched_getaffinity(0)))
    read = evaluation_records(records.split, share, features={name: spec} | columns.stored, worker_batch=batch)
    try:
        for record in read.take(records.split.records).as_numpy_iterator():
            values = dict(zip(columns.names, columns.of(record).values(), strict=True))
            yield Question({"key": record["key"].decode()}, record[name], values)
    except tf.errors.OpError as error:
        if ours := own_words(error.message):
            raise ShardsmithError(ours) from error
        raise ShardsmithError(
            f"{records.directory} cannot be read: {reason_of(error.message)}; "
            f"find the damage with: python -m shards verify {records.directory}"
        ) from error


def _read_rows(name: str, length: int) -> Iterator[Question]:
    """The rows of a .npy file, never all in memory; one row may stand alone."""
    try:
        array = np.atleast_2d(np.lib.format.open_memmap(name, mode="r"))
        if array.ndim != 2 or array.shape[1] != length or array.dtype.kind not in "fiub":
            raise ValueError(f"it has shape {array.shape} and type {array.dtype}")
    except ValueError as error:
        yield Question({"file": name}, OSError(f"is not a .npy file of rows of {length} numbers: {error}"))
    except OSError as error:
        yield Question({"file": name}, OSError(f"cannot be read: {error.strerror or error}"))
    else:
        for number, row in enumerate(array):
            yield Question({"file": name, "row": number}, np.asarray(row, np.float32))


def _read(name: str) -> bytes | OSError:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        return OSError(f"cannot be read: {error.strerror or error}")
