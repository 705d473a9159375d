"""Workers in network namespaces of their own, whose connections are cut: all notice, stop and say so."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from crews import end, finish, last_step, start, wait_until, write_config
from trainer_data import random_pictures, write_dataset

from trainer.running.cluster import tf_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
HOSTS = ("10.213.17.1", "10.213.17.2", "10.213.17.3")
Spaces = list[str]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def spaces() -> Iterator[Spaces]:
    """Three namespaces, the interface `cable` of each plugged into a switch in a fourth."""
    names = [f"shardsmith-{os.getpid()}-{number}" for number in range(len(HOSTS))]
    switch = f"shardsmith-{os.getpid()}-switch"
    try:
        ip("netns", "add", switch)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces need root on Linux: {getattr(error, 'stderr', None) or error}")
    try:
        ip("-n", switch, "link", "add", "name", "hub", "type", "bridge")
        ip("-n", switch, "link", "set", "hub", "up")
        for number, (name, host) in enumerate(zip(names, HOSTS, strict=True)):
            _plug_in(name, host, switch, port=f"port{number}")
        yield names
    finally:
        for name in [*names, switch]:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _plug_in(name: str, host: str, switch: str, *, port: str) -> None:
    ip("netns", "add", name)
    ip("link", "add", "cable", "netns", name, "type", "veth", "peer", "name", port, "netns", switch)
    ip("-n", switch, "link", "set", port, "master", "hub")
    ip("-n", switch, "link", "set", port, "up")
    ip("-n", name, "address", "add", f"{host}/24", "dev", "cable")
    ip("-n", name, "link", "set", "lo", "up")
    ip("-n", name, "link", "set", "cable", "up")


def unplug(spaces: Spaces) -> None:
    """Worker 0 sees that its cable is gone, worker 1 sees nothing."""
    ip("-n", spaces[0], "link", "set", "cable", "down")


def silence(spaces: Spaces, *, workers: tuple[int, int] = (0, 1)) -> None:
    """Packets between two workers vanish on their way, and neither is told: as behind a switch that dies."""
    for here, there in (workers, reversed(workers)):
        wrong = ["lladdr", "02:00:00:00:00:99", "dev", "cable", "nud", "permanent"]
        ip("-n", spaces[here], "neigh", "replace", HOSTS[there], *wrong)


def all_stop(cut: Callable[[Spaces], None], spaces: Spaces, tmp_path: Path) -> list[str]:
    """Trains with a worker in each namespace until the cut; what each says before it ends with 75."""
    data = write_dataset(tmp_path / "data", {"train": random_pictures(36)})
    values = {"steps": 10**6, "evaluate_every_epochs": None, "global_batch": 12, "input": {"lanes": 6}}
    config = str(write_config(tmp_path / "c.yaml", data, tmp_path / "run", **values))
    addresses = [f"{host}:2222" for host, _ in zip(HOSTS, spaces, strict=False)]
    processes = [
        start(
            "train",
            config,
            environment={"TF_CONFIG": tf_config(addresses, index)},
            prefix=["ip", "netns", "exec", name],
        )
        for index, name in enumerate(spaces)
    ]
    try:
        wait_until(lambda: last_step(tmp_path / "run") >= 3, processes[0])
        cut(spaces)
        started, texts = time.monotonic(), []
        for process in processes:
            texts.append(finish(process, code=75))
            seconds = time.monotonic() - started
            print(f"worker {len(texts) - 1} ended after {seconds:.1f} s")
            assert seconds < 60
            assert "Traceback" not in texts[-1]
    finally:
        end(*processes)
    return texts


def lost(worker: int) -> str:
    return f"error: worker {worker} ({HOSTS[worker]}:2222) was lost: it died, froze or was cut off; see its log."


@pytest.mark.parametrize("cut", [unplug, silence])
def test_both_stop_when_the_network_is_cut(cut: Callable[[Spaces], None], spaces: Spaces, tmp_path: Path) -> None:
    texts = all_stop(cut, spaces[:2], tmp_path)
    assert lost(1) in texts[0]
    assert lost(0) in texts[1]


def test_all_stop_when_two_cannot_reach_each_other(spaces: Spaces, tmp_path: Path) -> None:
    # Both still reach worker 0, so that its heartbeats know of nothing.
    texts = all_stop(partial(silence, workers=(1, 2)), spaces, tmp_path)
    assert lost(2) in texts[1] or lost(1) in texts[2]
    assert all("was lost: it died, froze or was cut off" in text for text in texts)
