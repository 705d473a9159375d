"""`look`: writes training pictures as the network is going to see them to a PNG."""

import argparse
import os
from itertools import islice
from pathlib import Path
from typing import Any

from shards.errors import DONE, UsageError
from trainer.commands.request import config_command, load_config, positive
from trainer.quiet import import_tensorflow
from trainer.reading.checks import check_training
from trainer.reading.source import Rows, open_source


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = config_command(commands, "look", run, "write training pictures, changed as CONFIG says, to a PNG")
    parser.add_argument("--png", type=Path, required=True, metavar="OUT", help="the file to write")
    parser.add_argument("--count", type=positive, default=32, metavar="N", help="how many pictures (default 32)")
    parser.add_argument("--step", type=int, default=0, metavar="N", help="from this step of the run on (default 0)")


def run(arguments: argparse.Namespace) -> int:
    """Writes the contact sheet: each picture with its label and its key."""
    config = load_config(arguments)
    source = open_source(config)
    check_training(config, source, workers=1)
    if isinstance(source.form, Rows):
        raise UsageError(f"{config.dataset} has {source.form}, no pictures to look at")
    if arguments.step < 0:
        raise UsageError(f"--step {arguments.step} is before the first step, 0")
    import_tensorflow()
    from shards.sheet import write_sheet
    from trainer.learning.look import training_samples

    threads = len(os.sched_getaffinity(0))
    samples = training_samples(config, source, start_step=arguments.step, threads=threads)
    shown = list(islice(samples, arguments.count))
    try:
        write_sheet(shown, arguments.png, keys=True)
    except OSError as error:
        raise UsageError(f"--png {arguments.png} cannot be written: {error.strerror}") from error
    print(f"made     {arguments.png} with {len(shown)} pictures, from step {arguments.step} on")
    return DONE
