"""The watch over connections: silence is a loss, a refusal is not, and a short silence is not."""

import socket
import threading

import pytest

from trainer.running import links
from trainer.running.cluster import Cluster
from trainer.running.links import watched_links
from trainer.running.workers import free_ports


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("PERIOD_SECONDS", 0.02), ("ANSWER_SECONDS", 0.2), ("LOST_SECONDS", 0.3)):
        monkeypatch.setattr(links, name, seconds)


def watch(address: str, *, seconds: float) -> list[int]:
    """Whom a watch loses within some time; it ends with the first."""
    lost: list[int] = []
    happened = threading.Event()
    cluster = Cluster(2, 0, ("127.0.0.1:1", address))
    with watched_links(cluster, lambda peer: (lost.append(peer), happened.set())):
        happened.wait(seconds)
    return lost


def silent_address() -> tuple[socket.socket, str]:
    """A listener whose queue is full: connections to it are never answered, as by a host that was cut off."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    for _ in range(3):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
        FILLERS.append(filler)
    return listener, f"127.0.0.1:{listener.getsockname()[1]}"


FILLERS: list[socket.socket] = []


def test_silence_is_a_loss() -> None:
    listener, address = silent_address()
    with listener:
        assert watch(address, seconds=30) == [1]


def test_an_answer_or_a_refusal_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listener:
        assert watch(f"127.0.0.1:{listener.getsockname()[1]}", seconds=2) == []
    assert watch(f"127.0.0.1:{free_ports(1)[0]}", seconds=2) == []


def test_nobody_is_lost_after_the_end() -> None:
    listener, address = silent_address()
    lost: list[int] = []
    with listener:
        with watched_links(Cluster(2, 0, ("127.0.0.1:1", address)), lost.append):
            pass
        assert not threading.Event().wait(1.5)
    assert lost == []


def test_a_lone_process_watches_nobody() -> None:
    with watched_links(Cluster(), lambda peer: pytest.fail(f"lost {peer}")):
        pass
