"""Two workers in two network namespaces, between which the connection is cut: both notice, stop and say so."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crews import end, finish, last_step, start, wait_until, write_config
from trainer_data import random_pictures, write_dataset

from trainer.running.cluster import tf_config

pytestmark = pytest.mark.slow
HOSTS = ("10.213.17.1", "10.213.17.2")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def spaces() -> Iterator[tuple[str, str]]:
    """Two namespaces with a cable between them: the interface `cable` of each."""
    names = (f"shardsmith-{os.getpid()}-0", f"shardsmith-{os.getpid()}-1")
    try:
        for name in names:
            ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces need root on Linux: {getattr(error, 'stderr', None) or error}")
    try:
        ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        for name, host in zip(names, HOSTS, strict=True):
            ip("-n", name, "address", "add", f"{host}/24", "dev", "cable")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "cable", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def unplug(names: tuple[str, str]) -> None:
    """Both sides see that the cable is gone."""
    ip("-n", names[0], "link", "set", "cable", "down")


def silence(names: tuple[str, str]) -> None:
    """Packets vanish on their way, and neither side is told: as behind a switch that dies."""
    for name, host in zip(names, reversed(HOSTS), strict=True):
        ip("-n", name, "neigh", "replace", host, "lladdr", "02:00:00:00:00:99", "dev", "cable", "nud", "permanent")


@pytest.mark.parametrize("cut", [unplug, silence])
def test_both_stop_when_the_network_is_cut(
    cut: Callable[[tuple[str, str]], None], spaces: tuple[str, str], tmp_path: Path
) -> None:
    data = write_dataset(tmp_path / "data", {"train": random_pictures(32)})
    values = {"steps": 10**6, "evaluate_every_epochs": None}
    config = str(write_config(tmp_path / "c.yaml", data, tmp_path / "run", **values))
    addresses = [f"{host}:2222" for host in HOSTS]
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
        started = time.monotonic()
        for index, process in enumerate(processes):
            text = finish(process, code=75)
            seconds = time.monotonic() - started
            print(f"{cut.__name__}: worker {index} ended after {seconds:.1f} s")
            assert f"error: worker {1 - index} ({addresses[1 - index]}) was lost: it died, froze or was cut" in text
            assert "Traceback" not in text
            assert seconds < 60
    finally:
        end(*processes)
