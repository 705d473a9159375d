"""The other workers of a run: joined once all of them match, and missed in one line when one is lost."""

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from shards.errors import RestartMe
from trainer.config import TrainConfig
from trainer.running.cluster import Cluster
from trainer.running.handshake import Card, check_cards
from trainer.running.meeting import meet
from trainer.running.strategy import Workplace, check_strategy, open_workplace

LOST_PEER = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError, tf.errors.AbortedError)
ABORTED = "Collective ops is aborted by"  # whatever TensorFlow calls the reason, it lies with another worker
UNHEALTHY = re.compile(r"^/job:(chief|worker)/(?:replica:\d+/)?task:(\d+)$", re.MULTILINE)
FORMING_SECONDS = 60.0


def join(config: TrainConfig, cluster: Cluster, card: Card, *, threads: int | None, seconds: float) -> Workplace:
    """The workplace that all workers share, after each has shown that it is there and matches the others."""
    check_strategy(config.strategy, cluster)
    check_cards(meet(cluster, json.dumps(card), seconds=seconds))
    with _dying_when_stuck():
        return open_workplace(config, cluster, threads=threads)


@contextmanager
def missing_lost_peers(cluster: Cluster) -> Iterator[None]:
    """Turns TensorFlow's errors about other workers into ours, wherever they come up."""
    try:
        yield
    except tf.errors.OpError as error:
        if cluster.workers == 1 or not tells_of_a_lost_peer(error):
            raise
        raise RestartMe(
            f"{_who(error.message, cluster)} was lost: it died, froze or was cut off; see its log. "
            "Restart all workers with the same command to resume from the last checkpoint"
        ) from error


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


def _who(message: str, cluster: Cluster) -> str:
    """The worker that TensorFlow names, if it does."""
    named = {cluster.index_of(job, int(task)) for job, task in UNHEALTHY.findall(message)}
    known = cluster.others if len(cluster.others) == 1 else sorted(named & set(cluster.others))
    return " and ".join(map(cluster.name, known)) or "another worker"
