"""`evaluate`: judges a checkpoint on a split."""

import argparse
from pathlib import Path
from typing import Any

from shards.errors import DONE
from trainer.commands.request import (
    add_checkpoint_flag,
    add_worker_flags,
    agreed_flags,
    config_command,
    find_cluster,
    load_config,
    other_command,
    print_table,
    start_workers,
)
from trainer.config import TrainConfig
from trainer.judging.figures import figures_of
from trainer.judging.files import write_evaluation
from trainer.judging.labels import LONGEST_TABLE
from trainer.judging.results import Evaluation
from trainer.quiet import import_tensorflow
from trainer.reading.source import Source, Split, open_source
from trainer.running.cluster import Cluster
from trainer.running.signals import Summons, listening


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
    split = source.split(arguments.split or config.splits.evaluate)
    if arguments.local_workers:
        return start_workers(arguments, config)
    with listening(supervisor=arguments.supervisor) as summons:
        _judge(arguments, config, source, cluster=cluster, split=split, summons=summons)
    return DONE


def _judge(
    arguments: argparse.Namespace,
    config: TrainConfig,
    source: Source,
    *,
    cluster: Cluster,
    split: Split,
    summons: Summons,
) -> None:
    import_tensorflow()
    from trainer.judging.evaluate import evaluate_checkpoint
    from trainer.running.handshake import make_card
    from trainer.running.peers import joined
    from trainer.running.report import write_images

    card = make_card(config, source, cluster, splits=[split.name], flags=agreed_flags(arguments))
    seconds = arguments.wait_for_workers
    with joined(config, cluster, card, threads=arguments.threads, seconds=seconds) as workplace:
        summons.install()  # again: TensorFlow has put a handler of its own for SIGTERM in its place
        found, result = evaluate_checkpoint(
            config, source, workplace, split=split.name, checkpoint=arguments.checkpoint
        )
        print(f"evaluated {found}")
        _tell_evaluation(result)
        if cluster.is_chief:
            figures = figures_of(result)
            made, *others = write_evaluation(Path(config.output), result, split, figures=figures)
            write_images(Path(config.output), result.split, figures, result.step)
            print(f"made     {made}, and {', '.join(path.name for path in others)} in {made.with_suffix('')}")
            print(f"next     {other_command(arguments, 'export')}", flush=True)
        workplace.wait_for_all()


def _tell_evaluation(result: Evaluation) -> None:
    print_table(*result.table())
    if result.left_out:
        print(f"the worst {LONGEST_TABLE}; {result.left_out:,} more are in the files")
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    print(f"{metrics} ({result.counted}), loss {result.loss:.4f} on {result.split}")
