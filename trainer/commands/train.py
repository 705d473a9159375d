"""`train`: begins a run, or goes on with it."""

import argparse
import time
from typing import TYPE_CHECKING, Any

from shards.errors import DONE
from trainer.commands.request import (
    add_worker_flags,
    agreed_flags,
    config_command,
    find_cluster,
    load_config,
    other_command,
    start_workers,
)
from trainer.config import TrainConfig
from trainer.learning.class_weights import find_class_weights
from trainer.learning.progress import check_metrics
from trainer.learning.rates import Rates, plan_rates
from trainer.quiet import import_tensorflow
from trainer.reading.cache import check_cache
from trainer.reading.checks import check_replicas, check_training
from trainer.reading.source import Rows, Source, open_source
from trainer.running.cluster import Cluster
from trainer.running.signals import Summons, listening

if TYPE_CHECKING:
    from trainer.learning.loop import Outcome


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = config_command(commands, "train", run, "train, or resume, the run that CONFIG describes")
    parser.add_argument(
        "--record-keys", action="store_true", help="write the keys of the examples of each step to OUTPUT/keys; slower"
    )
    parser.add_argument(
        "--profile", action="store_true", help="write a trace of a few steps of worker 0 for TensorBoard's profiler"
    )
    add_worker_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Trains to the end of the run."""
    config, cluster = load_config(arguments), find_cluster(arguments)
    source = open_source(config)
    check_training(config, source, workers=cluster.workers)
    check_metrics(config, source)
    find_class_weights(config, source)  # refuses labels that there are not
    check_cache(config, source)
    rates = plan_rates(config, records=source.split(config.splits.train).draws(config.input.sampling))
    if arguments.local_workers:
        return start_workers(arguments, config)
    with listening(supervisor=arguments.supervisor) as summons:
        _greet(config, source, cluster)
        _tell_rates(config, rates)
        _train(arguments, config, source, cluster=cluster, summons=summons)
    return DONE


def _train(
    arguments: argparse.Namespace, config: TrainConfig, source: Source, *, cluster: Cluster, summons: Summons
) -> None:
    started = time.monotonic()
    import_tensorflow()
    from trainer.learning.loop import train
    from trainer.running.handshake import make_card
    from trainer.running.peers import joined

    splits = {config.splits.train, config.splits.evaluate if config.evaluate_every_epochs else config.splits.train}
    card = make_card(config, source, cluster, splits=splits, flags=agreed_flags(arguments))
    seconds = arguments.wait_for_workers
    with joined(config, cluster, card, threads=arguments.threads, seconds=seconds) as workplace:
        check_replicas(config, workplace.strategy.num_replicas_in_sync)
        summons.attach(workplace.leaving)
        outcome = train(config, source, workplace, record_keys=arguments.record_keys, profile=arguments.profile)
        _tell_outcome(config, outcome, seconds=time.monotonic() - started)
        print(f"next     {other_command(arguments, 'export')}", flush=True)
        workplace.wait_for_all()


def _greet(config: TrainConfig, source: Source, cluster: Cluster) -> None:
    split, name = source.split(config.splits.train), config.model.name_for(rows=isinstance(source.form, Rows))
    print(
        f"training {name} on {split.records:,} {source.form} {source.goal}, "
        f"{config.total_steps(split.draws(config.input.sampling)):,} steps of {config.global_batch}"
        + (f", worker {cluster.index} of {cluster.workers}" if cluster.workers > 1 else ""),
        flush=True,
    )


def _tell_rates(config: TrainConfig, rates: Rates) -> None:
    base = config.optimizer.base_batch
    scaled = f" (scaled by {config.global_batch} / {base})" if base else ""
    print(f"learning rate {rates}{scaled}", flush=True)


def _tell_outcome(config: TrainConfig, outcome: "Outcome", *, seconds: float) -> None:
    if outcome.early:
        _tell_early(config, outcome)
    elif outcome.first_step == outcome.last_step:
        print(
            f"finished already, at step {outcome.last_step}; to train further set more epochs, or choose another output"
        )
    else:
        print(f"trained  steps {outcome.first_step + 1} to {outcome.last_step} in {seconds:.0f} s, start-up included")
    if outcome.skipped:
        print(
            f"skipped  {outcome.skipped:,} examples with damaged records; see all damage with: "
            f"python -m shards verify {config.dataset}"
        )
    if outcome.evaluation:
        name, value = next(iter(outcome.evaluation.metrics.items()))
        print(f"{name:<8} {value:.4f} on {outcome.evaluation.split}")
    if outcome.best and config.checkpoint.best:
        best = outcome.best
        print(f"best     {best.metric} {best.value:.4f} at step {best.step}; --checkpoint best evaluates or exports it")
    print(f"weights  sha256 {outcome.weights}")
    print(f"made     {outcome.checkpoint}, and metrics.jsonl and tensorboard/ in {config.output}")


def _tell_early(config: TrainConfig, outcome: "Outcome") -> None:
    print(
        f"stopped  early, at step {outcome.last_step}: {config.early_stopping.patience} evaluations in a row were no "
        "better; raise early_stopping.patience to train on"
    )
