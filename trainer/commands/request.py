"""What commands share: flags, the config and cluster that they name, and the same request for another process."""

import argparse
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from shards.errors import UsageError
from shards.settings import load_settings, parse_assignments
from trainer.config import TrainConfig
from trainer.running.cluster import Cluster, read_cluster
from trainer.running.workers import MAX_RESTARTS, run_workers

WAIT_SECONDS = 600

# Flags that a worker is given as its command was; a new flag of `train` or `evaluate` belongs here.
FORWARDED = (
    "dataset",
    "output",
    "split",
    "checkpoint",
    "record_keys",
    "wait_for_workers",
    "profile",
)
AGREED = ("split", "record_keys")  # of these, what every worker must be given alike


def config_command(commands: Any, name: str, command: Callable[..., int], text: str) -> argparse.ArgumentParser:
    """Declares a command that takes CONFIG and overrides of it."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("config", metavar="CONFIG", help="YAML file; configs/train_demo.yaml is a small example")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting; repeatable"
    )
    parser.add_argument("--dataset", metavar="DIR", help="override dataset")
    parser.add_argument("--output", metavar="DIR", help="override output")
    parser.set_defaults(command=command, name=name)
    return parser


def add_checkpoint_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --checkpoint."""
    parser.add_argument(
        "--checkpoint",
        metavar="WHICH",
        help="newest (default), best, a step, or a path such as OUTPUT/checkpoints/step-100",
    )


def add_worker_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what a command that runs on several workers takes."""
    parser.add_argument("--local-workers", type=positive, metavar="N", help="run as N processes on this machine")
    parser.add_argument(
        "--max-restarts",
        type=natural,
        default=MAX_RESTARTS,
        metavar="N",
        help="how often local workers are started again without a new checkpoint in between (default: %(default)s)",
    )
    parser.add_argument(
        "--wait-for-workers",
        type=positive,
        default=WAIT_SECONDS,
        metavar="SECONDS",
        help="how long to wait at the start for the other workers of TF_CONFIG (default: %(default)s)",
    )
    parser.add_argument("--threads", type=positive, help=argparse.SUPPRESS)  # the share of a local worker
    parser.add_argument(
        "--supervisor", type=positive, help=argparse.SUPPRESS
    )  # the process that started a local worker


def positive(text: str) -> int:
    """A number of at least 1."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def natural(text: str) -> int:
    """A number of at least 0."""
    return 0 if text == "0" else positive(text)


def load_config(arguments: argparse.Namespace) -> TrainConfig:
    """The config with its overrides."""
    overrides = parse_assignments(arguments.set)
    overrides |= {key: value for key in ("dataset", "output") if (value := getattr(arguments, key)) is not None}
    config = load_settings(TrainConfig, arguments.config, overrides)
    config.order  # noqa: B018  refuses a batch that the lanes cannot share
    return config


def find_cluster(arguments: argparse.Namespace) -> Cluster:
    """The cluster this process belongs to, or the one it is about to start."""
    cluster = read_cluster(os.environ)
    if arguments.local_workers and cluster.workers > 1:
        raise UsageError("--local-workers starts its own cluster, but TF_CONFIG names one; unset TF_CONFIG")
    return Cluster(workers=arguments.local_workers) if arguments.local_workers else cluster


def forwarded(arguments: argparse.Namespace) -> list[str]:
    """The arguments of this command for a worker."""
    words = [arguments.name, arguments.config]
    for assignment in arguments.set:
        words += ["--set", assignment]
    for name in FORWARDED:
        value = getattr(arguments, name, None)
        if value not in (None, False):
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words


def start_workers(arguments: argparse.Namespace, config: TrainConfig) -> int:
    """The same command as several processes on this machine."""
    return run_workers(
        forwarded(arguments),
        count=arguments.local_workers,
        output=Path(config.output),
        max_restarts=arguments.max_restarts,
    )


def agreed_flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """The flags, as they are typed, that every worker must be given alike."""
    return {f"--{name.replace('_', '-')}": getattr(arguments, name, None) for name in AGREED}


def other_command(arguments: argparse.Namespace, name: str) -> str:
    """The line for another command on the same run."""
    kept = {key: vars(arguments)[key] for key in ("config", "set", "dataset", "output")}
    return f"python -m trainer {shlex.join(forwarded(argparse.Namespace(name=name, **kept)))}"


def print_table(header: Sequence[str], *rows: Sequence[str]) -> None:
    """Prints rows under a header."""
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
