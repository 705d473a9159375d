"""The command line: train, evaluate, export, predict. The request is checked before TensorFlow is imported."""

import argparse
import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.table import Table

from shards import __version__
from shards.errors import DONE, FAILED, ShardsmithError, UsageError, run
from shards.files import write_atomically
from shards.settings import load_settings, parse_assignments
from trainer.config import TrainConfig
from trainer.judging.results import Evaluation
from trainer.quiet import import_tensorflow
from trainer.reading.source import Rows, Source, check_training, open_records, open_source
from trainer.running.cluster import Cluster, read_cluster
from trainer.running.signals import hold, listen
from trainer.running.workers import run_workers

if TYPE_CHECKING:
    from trainer.learning.loop import Outcome
    from trainer.serving.predict import Prediction, Served

FIRST_RECORDS = 20  # of a dataset, shown when no file is asked for


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns 0 when done, 1 when it failed, 2 when the request was wrong."""
    arguments = _parser().parse_args(argv)
    return run(lambda: arguments.command(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer", description="Train on a dataset that `pipelines` built.")
    parser.add_argument("--version", action="version", version=f"shardsmith {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    train = _config_command(commands, "train", _train, "train, or resume, the run that CONFIG describes")
    evaluate = _config_command(commands, "evaluate", _evaluate, "judge a checkpoint on a split")
    evaluate.add_argument("--split", help="split to judge on (default: splits.evaluate of the config)")
    export = _config_command(commands, "export", _export, "write a SavedModel that takes encoded pictures or rows")
    for command in (evaluate, export):
        command.add_argument(
            "--checkpoint", metavar="PATH", help="for example OUTPUT/checkpoints/step-100 (default: newest)"
        )
    for command in (train, evaluate):
        command.add_argument("--local-workers", type=_positive, metavar="N", help="run as N processes on this machine")
        command.add_argument("--threads", type=_positive, help=argparse.SUPPRESS)  # the share of a local worker
    predict = commands.add_parser(
        "predict",
        help="ask an exported model about files or a dataset",
        description="Ask an exported model about pictures, rows in .npy files, or the records of a dataset.",
    )
    predict.add_argument("files", nargs="*", metavar="FILE", help="pictures; for a model of rows: .npy files")
    predict.add_argument("--dataset", metavar="DIR", help="ask about a dataset instead of files; it needs no labels")
    predict.add_argument("--split", help="split of the dataset (default: the only one)")
    predict.add_argument("--model", required=True, metavar="DIR", help="directory that `export` wrote")
    predict.add_argument("--jsonl", metavar="OUT", help="write one JSON object per answer here instead of a table")
    predict.set_defaults(command=_predict)
    return parser


def _config_command(commands: Any, name: str, command: Callable[..., int], text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("config", metavar="CONFIG", help="YAML file; configs/train_demo.yaml is a small example")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting; repeatable"
    )
    parser.add_argument("--dataset", metavar="DIR", help="override dataset")
    parser.add_argument("--output", metavar="DIR", help="override output")
    parser.set_defaults(command=command, name=name)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def _load(arguments: argparse.Namespace) -> TrainConfig:
    overrides = parse_assignments(arguments.set)
    overrides |= {key: value for key in ("dataset", "output") if (value := getattr(arguments, key)) is not None}
    config = load_settings(TrainConfig, arguments.config, overrides)
    config.order  # noqa: B018  refuses a batch that the lanes cannot share
    return config


def _cluster(arguments: argparse.Namespace) -> Cluster:
    """The cluster this process belongs to, or the one it is about to start."""
    cluster = read_cluster(os.environ)
    if arguments.local_workers and cluster.workers > 1:
        raise UsageError("--local-workers starts its own cluster, but TF_CONFIG names one; unset TF_CONFIG")
    return Cluster(workers=arguments.local_workers) if arguments.local_workers else cluster


def _forwarded(arguments: argparse.Namespace) -> list[str]:
    """The arguments of this command for a worker."""
    flags = [("--set", value) for value in arguments.set]
    flags += [(f"--{key}", getattr(arguments, key, None)) for key in ("dataset", "output", "split", "checkpoint")]
    return [
        arguments.name,
        arguments.config,
        *(part for flag, value in flags if value is not None for part in (flag, value)),
    ]


def _other_command(arguments: argparse.Namespace, name: str) -> str:
    """The line for another command on the same run."""
    kept = argparse.Namespace(**vars(arguments) | {"name": name, "split": None, "checkpoint": None})
    return f"python -m trainer {shlex.join(_forwarded(kept))}"


def _train(arguments: argparse.Namespace) -> int:
    config, cluster = _load(arguments), _cluster(arguments)
    source = open_source(config)
    check_training(config, source, workers=cluster.workers)
    if arguments.local_workers:
        return run_workers(_forwarded(arguments), count=arguments.local_workers, output=Path(config.output))
    _greet(config, source, cluster)
    started = time.monotonic()
    hold()
    import_tensorflow()
    from trainer.learning.loop import train
    from trainer.running.strategy import open_workplace

    workplace = open_workplace(config, cluster, threads=arguments.threads)
    listen(workplace.leaving)
    outcome = train(config, source, workplace)
    _tell_outcome(config, outcome, seconds=time.monotonic() - started)
    print(f"next     {_other_command(arguments, 'export')}", flush=True)
    workplace.wait_for_all()
    return DONE


def _greet(config: TrainConfig, source: Source, cluster: Cluster) -> None:
    split, name = source.split(config.splits.train), config.model.name_for(rows=isinstance(source.form, Rows))
    print(
        f"training {name} on {split.records:,} {source.form} {source.goal}, "
        f"{config.total_steps(split.records):,} steps of {config.global_batch}"
        + (f", worker {cluster.index} of {cluster.workers}" if cluster.workers > 1 else ""),
        flush=True,
    )


def _tell_outcome(config: TrainConfig, outcome: "Outcome", *, seconds: float) -> None:
    if outcome.first_step == outcome.last_step:
        print(
            f"finished already, at step {outcome.last_step}; to train further set more epochs, or choose another output"
        )
    else:
        print(f"trained  steps {outcome.first_step + 1} to {outcome.last_step} in {seconds:.0f} s, start-up included")
    if outcome.evaluation:
        name, value = next(iter(outcome.evaluation.metrics.items()))
        print(f"{name:<8} {value:.4f} on {outcome.evaluation.split}")
    print(f"weights  sha256 {outcome.weights}")
    print(f"made     {outcome.checkpoint}, and metrics.jsonl and tensorboard/ in {config.output}")


def _evaluate(arguments: argparse.Namespace) -> int:
    config, cluster = _load(arguments), _cluster(arguments)
    source = open_source(config)
    config.order.check_workers(cluster.workers)
    split = source.split(arguments.split or config.splits.evaluate).name
    if arguments.local_workers:
        return run_workers(_forwarded(arguments), count=arguments.local_workers, output=Path(config.output))
    import_tensorflow()
    from trainer.judging.evaluate import evaluate_checkpoint
    from trainer.running.strategy import open_workplace

    workplace = open_workplace(config, cluster, threads=arguments.threads)
    found, result = evaluate_checkpoint(config, source, workplace, split=split, checkpoint=arguments.checkpoint)
    print(f"evaluated {found}")
    _tell_evaluation(result)
    if cluster.is_chief:
        path = Path(config.output) / f"evaluation-{split}.json"
        write_atomically(path, (json.dumps(result.as_dict(), indent=1, ensure_ascii=False) + "\n").encode())
        print(f"made     {path}\nnext     {_other_command(arguments, 'export')}", flush=True)
    workplace.wait_for_all()
    return DONE


def _tell_evaluation(result: Evaluation) -> None:
    _print_table(*result.table())
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    print(f"{metrics} ({result.counted}), loss {result.loss:.4f} on {result.split}")


def _print_table(header: Sequence[str], *rows: Sequence[str]) -> None:
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _export(arguments: argparse.Namespace) -> int:
    config = _load(arguments)
    source = open_source(config)
    import_tensorflow()
    from trainer.learning.task import make_task
    from trainer.reading.inputs import make_inputs
    from trainer.serving.export import export

    found, target = export(config, source, checkpoint=arguments.checkpoint)
    takes, gives = make_inputs(source.form).signature.name, ", ".join(make_task(source).served)
    print(f"exported {found}\nmade     {target} (takes {takes}, gives {gives})")
    print(f"next     python -m trainer predict FILE... --model {shlex.quote(str(target))}")
    return DONE


def _predict(arguments: argparse.Namespace) -> int:
    if bool(arguments.files) == bool(arguments.dataset):
        raise UsageError("predict needs either files or --dataset")
    if arguments.split and not arguments.dataset:
        raise UsageError("--split is the split of a dataset; give --dataset too, or leave it out")
    records = open_records(arguments.dataset, arguments.split) if arguments.dataset else None
    import_tensorflow()
    from trainer.serving.predict import load_served, predict, predict_records

    served = load_served(arguments.model)
    failed: list[Prediction] = []
    predictions = predict_records(served, records) if records else predict(served, arguments.files)
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
    answered = [(each.about, served.task.summary(each.answer)) for each in predictions if each.answer]
    rows = [{name: str(value) for name, value in (about | summary).items()} for about, summary in answered]
    if rows:
        _print_table(list(rows[0]), *(list(row.values()) for row in rows))


def _leave(code: int) -> NoReturn:
    """Ends the process at once: taking down a cluster and input pipelines that live on sleeps for several seconds."""
    with contextlib.suppress(OSError, ValueError):  # nobody may be listening any more
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _leave(main())
