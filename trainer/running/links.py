"""Watches the connections to the other workers, because TensorFlow's heartbeats only tie each worker to the chief.

When two other workers cannot reach each other, collectives wait for ever, and with them all workers.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from trainer.running.cluster import Cluster, split_address

PERIOD_SECONDS = 2.0
ANSWER_SECONDS = 4.0
LOST_SECONDS = 12.0  # without a connection; TensorFlow notices after some ten what it notices at all
FEWEST_FAILURES = 3  # in a row, so that a pause of this process alone does not count


@contextmanager
def watched_links(cluster: Cluster, on_loss: Callable[[int], object]) -> Iterator[None]:
    """Inside, calls `on_loss` with the worker whose host cannot be reached any more, in another thread."""
    over = threading.Event()

    def watch() -> None:
        with suppress(_Lost, OSError):  # a name that cannot be looked up any more
            asyncio.run(_watch_all(cluster, over, on_loss))

    threading.Thread(target=watch, daemon=True, name="links").start()
    try:
        yield
    finally:
        over.set()


class _Lost(Exception):
    """Ends the watch."""


async def _watch_all(cluster: Cluster, over: threading.Event, on_loss: Callable[[int], object]) -> None:
    await asyncio.gather(*(_watch(cluster, peer, over, on_loss) for peer in cluster.others))


async def _watch(cluster: Cluster, peer: int, over: threading.Event, on_loss: Callable[[int], object]) -> None:
    clock = asyncio.get_running_loop().time
    place = _resolve(cluster.addresses[peer])
    reached, failures = clock(), 0
    while not over.is_set():
        if await _reaches(*place):
            reached, failures = clock(), 0
        else:
            failures += 1
        if failures >= FEWEST_FAILURES and clock() - reached > LOST_SECONDS and not over.is_set():
            on_loss(peer)
            raise _Lost
        await asyncio.sleep(PERIOD_SECONDS)


def _resolve(address: str) -> tuple[str, int]:
    """The number behind the name, looked up once: a name server that fails later does no harm to training."""
    host, port = split_address(address)
    return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]), port


async def _reaches(host: str, port: int) -> bool:
    """Whether the host answers, be it by refusing: whether the worker lives is what heartbeats tell."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return True
    except OSError:  # a TimeoutError is one too
        return False
    writer.close()
    return True
