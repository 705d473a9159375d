"""The command line: train, evaluate, export, predict. The request is checked before TensorFlow is imported."""

import argparse
import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.table import Table

from shards import __version__
from shards.errors import DONE, FAILED, ShardsmithError, UsageError, run
from shards.files import write_atomically
from shards.settings import load_settings, parse_assignments
from trainer.cluster import Cluster, read_cluster
from trainer.config import TrainConfig
from trainer.quiet import import_tensorflow
from trainer.source import Source, check_training, open_source
from trainer.workers import run_workers

if TYPE_CHECKING:
    from trainer.evaluate import Evaluation
    from trainer.loop import Outcome
    from trainer.predict import Prediction


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns 0 when done, 1 when it failed, 2 when the request was wrong."""
    arguments = _parser().parse_args(argv)
    return run(lambda: arguments.command(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer", description="Train on a dataset that `pipelines` built.")
    parser.add_argument("--version", action="version", version=f"shardsmith {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    train = _config_command(commands, "train", _train, "train, or resume, the run that CONFIG describes")
    evaluate = _config_command(commands, "evaluate", _evaluate, "count right answers on a split")
    evaluate.add_argument("--split", help="split to judge on (default: splits.evaluate of the config)")
    export = _config_command(commands, "export", _export, "write a SavedModel that takes encoded pictures")
    for command in (evaluate, export):
        command.add_argument(
            "--checkpoint", metavar="PATH", help="for example OUTPUT/checkpoints/step-100 (default: newest)"
        )
    for command in (train, evaluate):
        command.add_argument("--local-workers", type=_positive, metavar="N", help="run as N processes on this machine")
        command.add_argument("--threads", type=_positive, help=argparse.SUPPRESS)  # the share of a local worker
    predict = commands.add_parser("predict", help="ask an exported model about files", description="Classify files.")
    predict.add_argument("files", nargs="+", metavar="FILE")
    predict.add_argument("--model", required=True, metavar="DIR", help="directory that `export` wrote")
    predict.add_argument("--jsonl", metavar="OUT", help="write one JSON object per file here instead of a table")
    predict.set_defaults(command=_predict)
    return parser


def _config_command(commands: Any, name: str, command: Callable[..., int], text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text.capitalize() + ".")
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
    import_tensorflow()
    from trainer.loop import train
    from trainer.strategy import open_workplace

    workplace = open_workplace(config, cluster, threads=arguments.threads)
    outcome = train(config, source, workplace)
    _tell_outcome(config, outcome, seconds=time.monotonic() - started)
    print(f"next     {_other_command(arguments, 'export')}", flush=True)
    workplace.wait_for_all()
    return DONE


def _greet(config: TrainConfig, source: Source, cluster: Cluster) -> None:
    split, (height, width) = source.split(config.splits.train), source.geometry.size
    print(
        f"training {config.model.name} on {split.records:,} pictures of {height}x{width} "
        f"in {len(source.labels)} classes, {config.total_steps(split.records):,} steps of {config.global_batch}"
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
        print(f"accuracy {outcome.evaluation.accuracy:.4f} on {outcome.evaluation.split}")
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
    from trainer.evaluate import evaluate_checkpoint
    from trainer.strategy import open_workplace

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


def _tell_evaluation(result: "Evaluation") -> None:
    table = Table("class", "examples", "correct", "accuracy")
    for row in result.classes:
        share = f"{row.correct / row.examples:.4f}" if row.examples else "-"
        table.add_row(row.label, f"{row.examples:,}", f"{row.correct:,}", share)
    Console().print(table)
    counts = f"{result.correct} of {result.examples}"
    print(f"accuracy {result.accuracy:.4f} ({counts}), loss {result.loss:.4f} on {result.split}")


def _export(arguments: argparse.Namespace) -> int:
    config = _load(arguments)
    source = open_source(config)
    import_tensorflow()
    from trainer.export import export

    found, target = export(config, source, checkpoint=arguments.checkpoint)
    print(f"exported {found}\nmade     {target} (takes image_bytes, gives label, probability, probabilities, classes)")
    print(f"next     python -m trainer predict FILE... --model {shlex.quote(str(target))}")
    return DONE


def _predict(arguments: argparse.Namespace) -> int:
    import_tensorflow()
    from trainer.predict import load_served, predict

    predictions = list(predict(load_served(arguments.model), arguments.files))
    if arguments.jsonl:
        _write_jsonl(Path(arguments.jsonl), predictions)
        print(f"made     {arguments.jsonl} with {len(predictions)} predictions")
    else:
        _tell_predictions(predictions)
    failed = [prediction for prediction in predictions if prediction.error]
    for prediction in failed:
        print(f"error: {prediction.file} {prediction.error}", file=sys.stderr)
    return FAILED if failed else DONE


def _write_jsonl(path: Path, predictions: "Sequence[Prediction]") -> None:
    rows = [
        {key: value for key, value in asdict(prediction).items() if value is not None} for prediction in predictions
    ]
    try:
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    except OSError as error:
        raise ShardsmithError(f"{path} cannot be written: {error.strerror}") from error


def _tell_predictions(predictions: "Sequence[Prediction]") -> None:
    table = Table("file", "class", "probability")
    for prediction in predictions:
        if prediction.error is None:
            table.add_row(prediction.file, prediction.label, f"{prediction.probability:.4f}")
    if table.row_count:
        Console().print(table)


def _leave(code: int) -> NoReturn:
    """Ends the process at once: taking down a cluster and input pipelines that live on sleeps for several seconds."""
    with contextlib.suppress(OSError, ValueError):  # nobody may be listening any more
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _leave(main())
