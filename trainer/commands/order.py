"""`order`: prints which examples a run reads at which step."""

import argparse
import json
import re
from typing import Any

from shards.errors import DONE, UsageError
from trainer.commands.request import config_command, load_config
from trainer.reading.checks import check_training
from trainer.reading.keys import keys_of_steps
from trainer.reading.source import open_source


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = config_command(commands, "order", run, "print the keys of the examples that a run reads, step by step")
    parser.add_argument(
        "--steps",
        metavar="A:B",
        default=":",
        help="the batches that lead from step A of the run to step B: 0:10 are the first ten (default: all)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per step instead of a line per example")


def run(arguments: argparse.Namespace) -> int:
    """Prints step and key of each example, in the order of the batch; copies that fill a batch up are left out."""
    config = load_config(arguments)
    source = open_source(config)
    check_training(config, source, workers=1)
    split = source.split(config.splits.train)
    draws = split.draws(config.input.sampling)
    first, end = parse_steps(arguments.steps, total=config.total_steps(draws))
    per_epoch = config.order.steps_per_epoch(draws)
    for step, keys in keys_of_steps(config, split, first, end):
        if arguments.json:
            print(json.dumps({"step": step, "epoch": step // per_epoch, "keys": keys}, ensure_ascii=False))
        else:
            print("".join(f"{step}\t{key}\n" for key in keys), end="")
    return DONE


def parse_steps(text: str, *, total: int) -> tuple[int, int]:
    """The steps (first, end) that A:B means in a run of `total` steps; either may be left out."""
    found = re.fullmatch(r"(\d*):(\d*)", text, re.ASCII)
    if not found:
        raise UsageError(f"--steps {text!r} is not a range such as 0:10 (the first ten steps)")
    first, end = int(found[1] or 0), int(found[2] or total)
    if first >= end:
        raise UsageError(f"--steps {text!r} has no steps: {first} is not below {end}")
    if end > total:
        raise UsageError(f"--steps {text!r} goes beyond the run's {total} steps; set epochs or steps higher")
    return first, end
