"""The other workers of a run: joined once all of them match, and missed in one line when one is lost."""

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import tensorflow as tf

from shards.errors import RESTART, RestartMe
from trainer.config import TrainConfig
from trainer.running.cluster import Cluster
from trainer.running.handshake import Card, check_cards
from trainer.running.links import watched_links
from trainer.running.meeting import meet
from trainer.running.strategy import Workplace, check_strategy, open_workplace

LOST_PEER = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError, tf.errors.AbortedError)
ABORTED = "Collective ops is aborted by"  # whatever TensorFlow calls the reason, it lies with another worker
UNHEALTHY = re.compile(r"^/job:(chief|worker)/(?:replica:\d+/)?task:(\d+)$", re.MULTILINE)
FORMING_SECONDS = 120.0  # enough for slow devices to wake


@contextmanager
def joined(
    config: TrainConfig, cluster: Cluster, card: Card, *, threads: int | None, seconds: float
) -> Iterator[Workplace]:
    """The workplace that all workers share, once each has shown within `seconds` that it is there and matches.

    A worker that is lost inside is a RestartMe, wherever TensorFlow stumbles over it.
    """
    check_strategy(config.strategy, cluster)
    check_cards(meet(cluster, json.dumps(card), seconds=seconds))
    try:
        with _dying_when_stuck():
            workplace = open_workplace(config, cluster, threads=threads)
        with watched_links(cluster, lambda peer: _leave_without(cluster.name(peer))):
            yield workplace
    except tf.errors.OpError as error:
        if cluster.workers == 1 or not tells_of_a_lost_peer(error):
            raise
        raise RestartMe(_lost(_who(error.message, cluster))) from error


def tells_of_a_lost_peer(error: tf.errors.OpError) -> bool:
    """Whether the reason of an error lies with another worker."""
    return isinstance(error, LOST_PEER) or ABORTED in error.message


@contextmanager
def _dying_when_stuck() -> Iterator[None]:
    """Ends the process by SIGALRM when TensorFlow does not come back.

    A worker that dies in the moment between the meeting and TensorFlow's first heartbeat leaves the others waiting for
    an hour in C++, where neither Python's threads nor its signal handlers get a turn.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, FORMING_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _lost(who: str) -> str:
    return (
        f"{who} was lost: it died, froze or was cut off; see its log. "
        "Restart all workers with the same command to resume from the last checkpoint"
    )


def _leave_without(who: str) -> NoReturn:
    """Ends this process from another thread: the main one waits in TensorFlow, which does not know."""
    print(f"error: {_lost(who)}", file=sys.stderr, flush=True)
    os._exit(RESTART)


def _who(message: str, cluster: Cluster) -> str:
    """The worker that TensorFlow names, if it does."""
    named = {cluster.index_of(job, int(task)) for job, task in UNHEALTHY.findall(message)}
    known = cluster.others if len(cluster.others) == 1 else sorted(named & set(cluster.others))
    return " and ".join(map(cluster.name, known)) or "another worker"
