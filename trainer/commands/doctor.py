"""`doctor`: says whether the input or the model will hold a run up, and what to change."""

import argparse
import os
from typing import Any

from shards.errors import DONE, UsageError
from trainer.commands.request import config_command, load_config, print_table
from trainer.quiet import import_tensorflow
from trainer.reading.cache import check_cache
from trainer.reading.checks import check_training
from trainer.reading.source import open_source
from trainer.running.cluster import Cluster


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = config_command(commands, "doctor", run, "measure input and model apart, and say which is the bottleneck")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each of the three measurements (default 5)")


def run(arguments: argparse.Namespace) -> int:
    """Prints a table, a verdict and advice; trains and writes nothing."""
    config = load_config(arguments)
    if not arguments.seconds > 0:
        raise UsageError(f"--seconds {arguments.seconds:g} must be more than 0")
    source = open_source(config)
    check_training(config, source, workers=1)
    check_cache(config, source)
    import_tensorflow()
    from trainer.running.doctor import advise, examine
    from trainer.running.strategy import open_workplace

    workplace = open_workplace(config, Cluster(), threads=None)
    found = examine(config, source, workplace, seconds=arguments.seconds)
    print_table(*found.table())
    print(found.verdict())
    for advice in advise(found, config, source, cores=len(os.sched_getaffinity(0))):
        print(f"- {advice}")
    return DONE
