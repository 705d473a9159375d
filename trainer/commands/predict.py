"""`predict`: asks an exported model about files or a dataset."""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shards.errors import DONE, FAILED, ShardsmithError, UsageError
from trainer.commands.request import print_table
from trainer.quiet import import_tensorflow
from trainer.reading.source import open_records

if TYPE_CHECKING:
    from trainer.serving.predict import Prediction, Served

FIRST_RECORDS = 20  # of a dataset, shown when no file is asked for


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "predict",
        help="ask an exported model about files or a dataset",
        description="Ask an exported model about pictures, rows in .npy files, or the records of a dataset.",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="pictures or folders; for a model of rows: .npy files")
    parser.add_argument("--dataset", metavar="DIR", help="ask about a dataset instead of files; it needs no labels")
    parser.add_argument("--split", help="split of the dataset (default: the only one)")
    parser.add_argument("--model", required=True, metavar="DIR", help="directory that `export` wrote")
    parser.add_argument("--jsonl", metavar="OUT", help="write one JSON object per answer here instead of a table")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints or writes the answers; fails when a file could not be answered about."""
    if bool(arguments.files) == bool(arguments.dataset):
        raise UsageError("predict needs either files or --dataset")
    if arguments.split and not arguments.dataset:
        raise UsageError("--split is the split of a dataset; give --dataset too, or leave it out")
    records = open_records(arguments.dataset, arguments.split) if arguments.dataset else None
    import_tensorflow()
    from trainer.serving.predict import find_files, load_served, predict, predict_records

    served = load_served(arguments.model)
    failed: list[Prediction] = []
    predictions = predict_records(served, records) if records else predict(served, find_files(served, arguments.files))
    if arguments.jsonl:
        count = _write_jsonl(Path(arguments.jsonl), _noting(failed, predictions))
        print(f"made     {arguments.jsonl} with {count} predictions")
    else:
        _tell_predictions(served, _noting(failed, islice(predictions, FIRST_RECORDS if records else None)))
        if records and records.split.records > FIRST_RECORDS:
            print(f"the first {FIRST_RECORDS} of {records.split.records:,} records; --jsonl OUT writes all")
    for prediction in failed:
        print(f"error: {' '.join(map(str, prediction.about.values()))} {prediction.error}", file=sys.stderr)
    return FAILED if failed else DONE


def _noting(failed: "list[Prediction]", predictions: "Iterable[Prediction]") -> "Iterator[Prediction]":
    """Passes predictions on, and keeps those that failed."""
    for prediction in predictions:
        if prediction.error:
            failed.append(prediction)
        yield prediction


def _write_jsonl(path: Path, predictions: "Iterable[Prediction]") -> int:
    count = 0
    try:
        with path.open("w", encoding="utf-8") as stream:
            for prediction in predictions:
                stream.write(json.dumps(prediction.as_dict(), ensure_ascii=False) + "\n")
                count += 1
    except OSError as error:
        raise ShardsmithError(f"{path} cannot be written: {error.strerror}") from error
    return count


def _tell_predictions(served: "Served", predictions: "Iterable[Prediction]") -> None:
    answered = [(each.about, served.answers.summary(each.answer)) for each in predictions if each.answer]
    rows = [{name: str(value) for name, value in (about | summary).items()} for about, summary in answered]
    if rows:
        print_table(list(rows[0]), *(list(row.values()) for row in rows))
