"""Decoder processes: what a picture does to its process costs that picture, and nothing else."""

import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import psutil
import pytest
from conftest import make_config, make_ref
from fake_decoder import PROJECT, install, marked
from pictures import encoded, picture, write_class_folders

from pipelines.config import BuildConfig
from pipelines.decoding import decoders
from pipelines.decoding.decoders import DecoderPool
from pipelines.pictures.process import Made, Outcome, Refused, Task, process_input
from pipelines.reasons import Reason
from pipelines.values import Fault
from shards.errors import ShardsmithError

LIMITS = {"max_seconds": 2, "max_memory_mb": 256}


EARLIER: set[int] = set()


@pytest.fixture
def own_children() -> Iterator[None]:
    """No child of an earlier test is used again, and none of this one is left."""
    stop_idle()
    # Beam does not always tear its workers down: their decoders go with the process, and do not count here.
    EARLIER.update(child.pid for child in psutil.Process().children())
    yield
    stop_idle()
    assert children() == []


def stop_idle() -> None:
    while not decoders._idle.empty():
        decoders._idle.get().stop()


@pytest.fixture
def fake(own_children: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", install(tmp_path / "fake"))


def children(of: int | None = None) -> list[psutil.Process]:
    found = psutil.Process(of).children()
    new = [child for child in found if child.pid not in EARLIER]
    return [child for child in new if "pipelines.decoding.decoder_process" in child.cmdline()]


def config_with(**image: object) -> BuildConfig:
    return make_config("raw", "out", image={"resize": "exact:16", **LIMITS, **image})


def task(number: int, mark: str = "") -> Task:
    data = encoded(picture(number))
    ref = make_ref(f"{number}.jpg", "a", size=len(data))
    return Task(ref, (0,), marked(data, mark) if mark else data)


def run(tasks: list[Task], config: BuildConfig, *, count: int = 1) -> list[Outcome]:
    with closing(DecoderPool(config, count)) as pool:
        return pool.submit(tasks).result()


def wait_until(holds: Callable[[], bool], *, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)


def test_outcomes_are_those_of_this_process(own_children: None) -> None:
    tasks = [task(number) for number in range(50)]
    tasks[7] = Task(tasks[7].ref._replace(fault=Fault(Reason.BAD_ROW, "no")), ())
    config = config_with()
    assert run(tasks, config) == [process_input(each, config) for each in tasks]


# What the fake does on purpose, and what the reject says of it.
DEATHS = {
    "abort": (Reason.DECODER_CRASHED, "the decoder's process ended by signal 6 (Aborted), twice"),
    "hang": (Reason.TIMED_OUT, "decoding took more than 2 s (image.max_seconds), twice"),
    "hog": (Reason.OUT_OF_MEMORY, "decoding took more than 256 MB (image.max_memory_mb), twice"),
    "killed": (
        Reason.OUT_OF_MEMORY,
        "the decoder's process was killed, probably by the system for lack of memory, twice",
    ),
    "bug": (Reason.DECODER_CRASHED, "unexpected KeyError: 'a bug'"),
}


@pytest.mark.parametrize(("mark", "place"), [*((mark, 5) for mark in DEATHS), ("abort", 0), ("abort", 9)])
def test_a_bad_picture_costs_one_reject_wherever_it_is(fake: None, mark: str, place: int) -> None:
    tasks, config = [task(number) for number in range(10)], config_with()
    expected: list[Outcome] = [process_input(each, config) for each in tasks]
    tasks[place] = task(place, mark)
    outcomes = run(tasks, config)
    refused = outcomes[place]
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.message) == DEATHS[mark]
    if mark != "bug":
        data = tasks[place].data or b""
        assert (refused.size, refused.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert outcomes[:place] + outcomes[place + 1 :] == expected[:place] + expected[place + 1 :]


def test_many_bad_pictures_in_one_group(fake: None) -> None:
    config = config_with()
    marks = ["abort", "abort", "", "bug", "", "hog"]
    outcomes = run([task(number, mark) for number, mark in enumerate(marks)], config)
    assert [o.reason if isinstance(o, Refused) else "" for o in outcomes] == [
        DEATHS[mark][0] if mark else "" for mark in marks
    ]


def test_a_crash_that_does_not_happen_again_costs_nothing(fake: None) -> None:
    config = config_with()
    outcomes = run([task(0), task(1, "once first"), task(2), task(3, "once second")], config)
    assert outcomes == [process_input(task(0), config), *outcomes[1:]]
    assert all(isinstance(outcome, Made) for outcome in outcomes)


def test_the_bytes_of_the_dead_are_kept_for_the_quarantine(fake: None, tmp_path: Path) -> None:
    bad = task(1, "abort")
    path = tmp_path / "bad.jpg"
    path.write_bytes(bad.data or b"")
    ref = make_ref("bad.jpg", "a", str(path), len(path.read_bytes()))
    config = make_config("raw", "out", image=LIMITS, quarantine=True)
    (refused,) = run([Task(ref, (0,))], config)
    assert isinstance(refused, Refused)
    assert refused.data == path.read_bytes()


SLOW_DISK = """
import sys
if "pipelines.decoding.decoder_process" in sys.orig_argv:
    import time
    import pipelines.pictures.process as process
    process.open_binary = lambda *arguments, **named: time.sleep(1000)
"""


def test_a_file_that_cannot_even_be_read_in_time_is_refused(
    own_children: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", install(tmp_path / "fake", SLOW_DISK))
    (tmp_path / "a.jpg").write_bytes(encoded(picture(1)))
    ref = make_ref("a.jpg", "a", str(tmp_path / "a.jpg"), len(encoded(picture(1))))
    (refused,) = run([Task(ref, (0,))], config_with(max_seconds=0.5))
    assert refused == Refused("timed_out", "decoding took more than 0.5 s (image.max_seconds), twice")


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(*chunks: bytes, side: int = 10, pixels: bytes = b"") -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    pixels = pixels or zlib.compress(bytes(side * (side + 1)))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@cache
def bomb() -> bytes:
    """A zlib stream of one gigabyte."""
    packer, zeros = zlib.compressobj(9), bytes(1_000_000)
    return b"".join(packer.compress(zeros) for _ in range(1000)) + packer.flush()


def gif(frames: int) -> bytes:
    head = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + bytes(6)
    frame = b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\0"
    return head + frame * frames + b";"


BOMBS: dict[str, tuple[Callable[[], bytes], Reason, str]] = {
    "40 gigapixels": (
        lambda: png(side=200_000, pixels=zlib.compress(b"")),
        Reason.TOO_MANY_PIXELS,
        "picture has 40000.0 megapixels (200000x200000), image.max_megapixels is 100",
    ),
    "frames": (
        lambda: gif(10_000),
        Reason.TOO_MANY_FRAMES,
        "animation has 1001 or more frames, image.max_frames is 1000",
    ),
    "zTXt": (
        lambda: png(chunk(b"zTXt", b"Comment\0\0" + bomb())),
        Reason.DECODE_FAILED,
        "PNG chunk b'zTXt' unpacks to more than 8000000 bytes",
    ),
    "iTXt": (
        lambda: png(chunk(b"iTXt", b"Comment\0\1\0en\0\0" + bomb())),
        Reason.DECODE_FAILED,
        "PNG chunk b'iTXt' unpacks to more than 8000000 bytes",
    ),
    "iCCP": (
        lambda: png(chunk(b"iCCP", b"sRGB\0\0" + bomb())),
        Reason.DECODE_FAILED,
        "PNG chunk b'iCCP' unpacks to more than 8000000 bytes",
    ),
    "IDAT": (
        lambda: png(pixels=bomb()),
        Reason.DECODE_FAILED,
        "PNG unpacks to more than the 180 bytes that its pixels need",
    ),
}


def peak_memory(process: psutil.Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def test_a_bomb_costs_one_reject_and_no_memory(own_children: None) -> None:
    config = config_with()
    good = [png(), gif(2), png(chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(7_000_000))))]
    files = [*good, *(make() for make, _, _ in BOMBS.values())]
    with closing(DecoderPool(config, 1)) as pool:
        pool.submit([task(0)]).result()
        (child,) = children()
        before = peak_memory(child)
        tasks = [Task(make_ref("a", "b", size=len(data)), (0,), data) for data in files]
        outcomes = pool.submit(tasks).result()
        assert children() == [child]
        assert peak_memory(child) < before + 60_000_000
    assert all(isinstance(outcome, Made) for outcome in outcomes[: len(good)])
    refused = [(each.reason, each.message) for each in outcomes[len(good) :] if isinstance(each, Refused)]
    assert refused == [(reason, message) for _, reason, message in BOMBS.values()]


@pytest.mark.parametrize("when", ["idle", "receiving"])
def test_a_child_that_is_killed_from_outside_is_replaced(own_children: None, when: str) -> None:
    config = config_with()
    big = task(1, "x" * (20_000_000 if when == "receiving" else 10))  # more than any pipe holds
    with closing(DecoderPool(config, 1)) as pool:
        before = pool.submit([task(0)]).result()
        (child,) = children()
        child.send_signal(signal.SIGSTOP if when == "receiving" else signal.SIGKILL)
        future = pool.submit([big])
        if when == "receiving":
            time.sleep(0.2)
            child.kill()
        assert future.result() == [process_input(big, config)]
        assert before == [process_input(task(0), config)]
        assert [new.pid for new in children()] != [child.pid]


def test_a_child_that_cannot_end_itself_is_ended(own_children: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "_GRACE_SECONDS", 0.1)
    config = config_with(max_seconds=0.5)
    with closing(DecoderPool(config, 1)) as pool:
        pool.submit([task(0)]).result()
        (child,) = children()
        child.suspend()
        assert pool.submit([task(1)]).result() == [process_input(task(1), config)]
        assert not child.is_running()


def test_a_child_that_cannot_start_is_no_pictures_fault(
    own_children: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = 'import os, sys\nif "pipelines.decoding.decoder_process" in sys.orig_argv: os._exit(7)'
    monkeypatch.setenv("PYTHONPATH", install(tmp_path / "fake", program))
    with closing(DecoderPool(config_with(), 1)) as pool:
        for _ in range(2):
            with pytest.raises(ShardsmithError) as caught:
                pool.submit([task(0)]).result()
            assert str(caught.value) == (
                f"a decoder process did not start (exit code 7); is shardsmith installed for {sys.executable}?"
            )


def test_children_are_used_again_and_told_the_new_config(own_children: None) -> None:
    small, large = config_with(resize="exact:8"), config_with(resize="exact:24")
    assert run([task(0)], small) == [process_input(task(0), small)]
    first = [child.pid for child in children()]
    assert run([task(0)], large) == [process_input(task(0), large)]
    assert [child.pid for child in children()] == first


def test_children_that_were_started_ahead_are_the_first_to_be_used(own_children: None) -> None:
    decoders.start_ahead(2)
    wait_until(lambda: len(children()) == 2)  # a process has no command line for a moment
    ahead = {child.pid for child in children()}
    decoders.start_ahead(2)  # they are there already
    run([task(0)], config_with(), count=2)
    assert {child.pid for child in children()} == ahead


def test_closing_waits_for_what_runs_and_drops_the_rest(own_children: None) -> None:
    config = config_with(resize="exact:600")
    pool = DecoderPool(config, 1)
    futures = [pool.submit([task(number) for number in range(20)]) for _ in range(30)]
    futures[0].result()
    pool.close()
    assert futures[-1].cancelled()
    assert all(future.cancelled() or len(future.result()) == 20 for future in futures)


def test_deaths_leak_nothing(fake: None) -> None:
    config = config_with()
    with closing(DecoderPool(config, 1)) as pool:
        pool.submit([task(0)]).result()
        before = len(os.listdir("/proc/self/fd"))
        for number in range(2):
            pool.submit([task(number, "abort")]).result()
        assert len(os.listdir("/proc/self/fd")) == before
        assert len([child for child in psutil.Process().children() if child.pid not in EARLIER]) == 1  # no zombies


WORKER = """
import sys, time
sys.path.insert(0, "tests")
from test_decoders import config_with, task
from pipelines.decoding.decoders import DecoderPool
pool = DecoderPool(config_with(), 2)
pool.submit([task(0)]).result()
running = pool.submit([task(1, sys.argv[1])])
print("ready", flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize(("mark", "end"), [("x", signal.SIGKILL), ("hang", signal.SIGKILL), ("x", signal.SIGINT)])
def test_children_go_with_their_worker(fake: None, mark: str, end: signal.Signals) -> None:
    command = [sys.executable, "-c", WORKER, mark]
    worker = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert worker.stdout
    assert worker.stdout.readline() == b"ready\n"
    orphans = children(worker.pid)
    assert len(orphans) == 2
    worker.send_signal(end)
    worker.communicate(timeout=30)
    wait_until(lambda: not any(orphan.is_running() for orphan in orphans))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_class_folders(tmp_path_factory.mktemp("source") / "raw", images=20)


def build(source: Path, output: Path, *arguments: str, **environment: str) -> str:
    command = [sys.executable, "-m", "pipelines", "build", "--source", str(source), "--output", str(output)]
    settings = [f"image.{name}={value}" for name, value in LIMITS.items()]
    arguments = ("--resize", "exact:24", *arguments, *(part for text in settings for part in ("--set", text)))
    result = subprocess.run(
        [*command, *arguments], cwd=PROJECT, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def shard_hashes(output: Path) -> dict[str, str]:
    manifest = json.loads((output / "manifest.json").read_text())
    return {shard["path"]: shard["sha256"] for split in manifest["splits"] for shard in split["shards"]}


def test_a_build_loses_the_bad_pictures_and_nothing_else(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "clean", PYTHONPATH=str(PROJECT))
    bad = {f"cat/{mark}.jpg": mark for mark in ("abort", "hang", "hog")}
    for number, (name, mark) in enumerate(bad.items()):
        (source / name).write_bytes(marked(encoded(picture(number)), mark))
    environment = {"PYTHONPATH": install(tmp_path / "fake"), "SHARDSMITH_TEST": tmp_path.name}
    printed = build(
        source, tmp_path / "dataset", "--set", "max_rejects=3", "--set", "max_reject_fraction=1", **environment
    )
    rejects = [
        json.loads(line)
        for path in (tmp_path / "dataset" / "rejected").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert {each["key"]: (each["reason"], each["message"]) for each in rejects} == {
        name: DEATHS[mark] for name, mark in bad.items()
    }
    assert "43 " in printed
    assert "1 decoder_crashed, 1 out_of_memory, 1 timed_out" in printed
    assert shard_hashes(tmp_path / "dataset") == shard_hashes(tmp_path / "clean")
    assert [process for process in psutil.process_iter() if belongs_to(process, tmp_path.name)] == []


def belongs_to(process: psutil.Process, name: str) -> bool:
    try:
        return process.environ().get("SHARDSMITH_TEST") == name
    except psutil.Error:
        return False
