"""`evaluate`: judges a checkpoint on a split."""

import argparse
import json
from pathlib import Path
from typing import Any

from shards.errors import DONE
from shards.files import write_atomically
from trainer.commands.request import (
    add_checkpoint_flag,
    add_worker_flags,
    config_command,
    find_cluster,
    forwarded,
    load_config,
    other_command,
    print_table,
)
from trainer.judging.results import Evaluation
from trainer.quiet import import_tensorflow
from trainer.reading.source import open_source
from trainer.running.workers import run_workers


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = config_command(commands, "evaluate", run, "judge a checkpoint on a split")
    parser.add_argument("--split", help="split to judge on (default: splits.evaluate of the config)")
    add_checkpoint_flag(parser)
    add_worker_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Judges, prints the result and writes it beside the run."""
    config, cluster = load_config(arguments), find_cluster(arguments)
    source = open_source(config)
    split = source.split(arguments.split or config.splits.evaluate).name
    if arguments.local_workers:
        return run_workers(forwarded(arguments), count=arguments.local_workers, output=Path(config.output))
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
        print(f"made     {path}\nnext     {other_command(arguments, 'export')}", flush=True)
    workplace.wait_for_all()
    return DONE


def _tell_evaluation(result: Evaluation) -> None:
    print_table(*result.table())
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    print(f"{metrics} ({result.counted}), loss {result.loss:.4f} on {result.split}")
