"""Workers meet over TCP before TensorFlow starts: all cards reach all, and who is missed is named."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from shards.errors import RestartMe
from trainer.running.cluster import Cluster
from trainer.running.meeting import meet
from trainer.running.workers import free_ports


def clusters(count: int) -> list[Cluster]:
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(count))
    return [Cluster(count, index, addresses) for index in range(count)]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_all_cards_reach_all(count: int) -> None:
    crew = clusters(count)
    with ThreadPoolExecutor(count) as pool:
        found = list(pool.map(lambda each: meet(each, f"card {each.index} ✓" * 9999, seconds=60), crew))
    assert found == [[f"card {index} ✓" * 9999 for index in range(count)]] * count


def test_who_comes_late_is_waited_for() -> None:
    first, second = clusters(2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet, first, "a", seconds=60)
        assert not threading.Event().wait(0.5)
        assert not waiting.done()
        assert meet(second, "b", seconds=60) == ["a", "b"]
        assert waiting.result() == ["a", "b"]


def test_who_does_not_come_is_named() -> None:
    crew = clusters(3)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(meet, each, "", seconds=1.5) for each in crew[:2]]
    for future in both:
        text = str(future.exception())
        assert isinstance(future.exception(), RestartMe)
        assert f"not all workers have come within 1.5 s: worker 2 ({crew[2].addresses[2]}): Connection refused" in text
        assert "worker 0 (" not in text
        assert "worker 1 (" not in text
        assert text.endswith(
            "check the addresses in TF_CONFIG and the firewall; --wait-for-workers SECONDS waits longer"
        )


def test_an_unknown_host_is_named() -> None:
    cluster = Cluster(2, 0, (clusters(1)[0].addresses[0], "no-such-host.invalid:1"))
    with pytest.raises(RestartMe, match=r"worker 1 \(no-such-host.invalid:1\): .*[Nn]ame"):
        meet(cluster, "", seconds=2)


@pytest.fixture
def stranger() -> Iterator[str]:
    """A program that answers in another language, as TensorFlow's server of an old run does."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                client.sendall(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\n")
                client.close()

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def test_an_old_run_at_the_address_is_told(stranger: str) -> None:
    cluster = Cluster(2, 0, (clusters(1)[0].addresses[0], stranger))
    with pytest.raises(RestartMe, match="something answers there that is not a starting worker; an old run may be"):
        meet(cluster, "", seconds=1)


def test_a_taken_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RestartMe, match=f"worker 0 cannot listen at {address}: Address already in use; end the"):
            meet(Cluster(2, 0, (address, "127.0.0.1:1")), "", seconds=1)


def test_strangers_do_not_count() -> None:
    first, second = clusters(2)
    host, port = first.addresses[0].split(":")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet, first, "a", seconds=60)
        for words in (b"GET / HTTP/1.1\r\n\r\n", b'{"worker": "x"}\n', b"[1]\n", b""):
            while True:
                try:
                    with socket.create_connection((host, int(port))) as visit:
                        visit.sendall(words)
                    break
                except ConnectionRefusedError:
                    continue
        assert not waiting.done()
        assert meet(second, "b", seconds=60) == ["a", "b"]
        assert waiting.result() == ["a", "b"]
