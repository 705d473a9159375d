"""The command line. The request is checked before TensorFlow is imported; each command is a module of `commands`."""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from shards import __version__
from shards.errors import run
from trainer.commands import doctor, evaluate, export, look, order, predict, train

COMMANDS = (
    train,
    evaluate,
    export,
    predict,
    order,
    look,
    doctor,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns 0 when done, 1 when it failed, 2 when the request was wrong."""
    arguments = _parser().parse_args(argv)
    return run(lambda: arguments.command(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer", description="Train on a dataset that `pipelines` built.")
    parser.add_argument("--version", action="version", version=f"shardsmith {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(commands)
    return parser


def _leave(code: int) -> NoReturn:
    """Ends the process at once: taking down a cluster and input pipelines that live on sleeps for several seconds."""
    with contextlib.suppress(OSError, ValueError):  # nobody may be listening any more
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _leave(main())
