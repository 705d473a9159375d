"""Faults of the machine amid a build: told clearly, nothing looks complete, and the same command goes on."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_config, make_ref
from light import files_of, images, run_append, run_build
from pictures import encoded, picture, write_class_folders

from pipelines.config import BuildConfig
from pipelines.values import InputRef, Location
from pipelines.workspace.failures import describe_problem, explain_failures, find_problem
from pipelines.workspace.layout import BuildFolder
from pipelines.writing import write
from pipelines.writing.lost import check_still_there, find_loss
from shards.errors import ShardsmithError
from shards.manifest import read_manifest
from shards.verify import verify

SETTINGS: dict[str, Any] = {
    "splits": {"fractions": {"train": 0.7, "test": 0.3}},
    "image": {"resize": "exact:16", "encode": {"format": "png"}},
    "shards": {"target_mb": 0.006},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_class_folders(tmp_path_factory.mktemp("faults") / "raw", images=30)


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory):
    """The files of a build that nothing disturbs."""
    out = tmp_path_factory.mktemp("expected") / "out"
    run_build(make_config(source, out, **SETTINGS))
    return files_of(out)


class Disk:
    """Stands in for a disk that is full after some bytes; as a real one, it takes part of the last write."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._open = Path.open

    def open(self, path: Path, mode: str = "r", *arguments: object, **named: object) -> object:
        stream = self._open(path, mode, *arguments, **named)
        return _Limited(stream, self) if mode == "wb" else stream


class _Limited:
    def __init__(self, stream, disk: Disk) -> None:
        self._stream, self._disk = stream, disk

    def write(self, data: bytes) -> int:
        size = memoryview(data).nbytes
        taken = min(size, self._disk.room)
        self._disk.room -= taken
        self._stream.write(bytes(data)[:taken])
        if taken < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return size

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    disk = Disk(room)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", lambda path, *rest, **named: disk.open(path, *rest, **named))
        yield


def assert_unfinished(out: Path) -> None:
    """Nothing looks complete, no half of a file has a name, and every receipt is that of a whole shard."""
    assert not (out / "manifest.json").exists()
    with pytest.raises(ShardsmithError):
        read_manifest(out)
    assert list(out.rglob("*.tmp")) == []


@pytest.mark.parametrize("room", [50, 2_000, 9_000, 30_000, 60_000])
def test_a_full_disk_stops_the_build_and_with_room_it_goes_on(room, source, expected, tmp_path, capsys):
    config = make_config(source, tmp_path / "out", **SETTINGS)
    with pytest.raises(ShardsmithError) as caught, full_disk(room):
        run_build(config)
    assert str(caught.value) == (
        f"the build stopped: No space left on device; output {tmp_path}/out is incomplete; "
        "free some space and give the same command again: it goes on"
    )
    assert caught.value.exit_code == 1
    assert_unfinished(tmp_path / "out")
    run_build(config)
    assert files_of(tmp_path / "out") == expected
    if room > 20_000:
        assert "going on with an unfinished build" in capsys.readouterr().err


def test_a_disk_that_fills_up_during_an_append_leaves_the_dataset_as_it_was(source, tmp_path):
    shutil.copytree(source, tmp_path / "raw")
    config = make_config(tmp_path / "raw", tmp_path / "out", **SETTINGS)
    run_build(config)
    before = files_of(tmp_path / "out")
    (tmp_path / "raw" / "cat" / "new.png").write_bytes(encoded(picture(77), "png"))
    with pytest.raises(ShardsmithError) as caught, full_disk(4_000):
        run_append(config)
    assert str(caught.value) == (
        f"the build stopped: No space left on device; the dataset in {tmp_path}/out is still what it was; "
        "free some space and give the same command again: it goes on"
    )
    now = files_of(tmp_path / "out")
    assert {name: now[name] for name in before} == before
    assert verify(tmp_path / "out") == []
    assert run_append(config).history[-1].added == 1
    assert verify(tmp_path / "out") == []


@contextmanager
def mounted(place: Path, size: str) -> Iterator[bool]:
    """A small filesystem of its own, if this machine lets us; else tells that there is none."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "shardsmith-test", str(place)]
    try:
        is_mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", str(place)], check=True)


def test_a_really_full_disk_and_a_really_read_only_one(source, expected, tmp_path):
    """On a filesystem of its own where mounting is allowed; else the double and a refusing folder must do."""
    with mounted(tmp_path / "disk", "80k") as is_real:
        out = tmp_path / "disk" / "out"
        config = make_config(source, out, **SETTINGS)
        with pytest.raises(ShardsmithError, match="No space left on device.*; free some space and give the same"):
            run_limited(config, is_real, 30_000)
        assert_unfinished(out)
        grow = ["mount", "-o", "remount,ro,size=8m", str(tmp_path / "disk")]
        with read_only(out, grow if is_real else []), pytest.raises(ShardsmithError) as caught:
            run_build(config)
        assert caught.value.exit_code == 1
        assert str(caught.value).startswith("the build stopped: Read-only file system: ")
        assert str(caught.value).endswith(
            f"; output {out} is incomplete; make it writable and give the same command again: it goes on"
        )
        if is_real:
            subprocess.run(["mount", "-o", "remount,rw", str(tmp_path / "disk")], check=True)
        run_build(config)
        assert files_of(out) == expected


def run_limited(config: BuildConfig, is_real: bool, room: int) -> None:
    if is_real:
        run_build(config)
    else:
        with full_disk(room):
            run_build(config)


@contextmanager
def read_only(out: Path, remount: list[str]) -> Iterator[None]:
    """The output on a filesystem that takes no writes."""
    if remount:
        subprocess.run(remount, check=True)
        yield
        return

    def refuse(path: Path, mode: str = "r", *_: object, **__: object) -> object:
        if "w" in mode:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, mode, *_, **__)

    real = Path.open
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        yield


def during_shard(number: int, action: Callable[[], object]) -> Callable[..., object]:
    """`write_shard` that does something first when it is called for the n-th time."""
    calls = iter(range(1000))

    def write_shard(*arguments: object, **named: object) -> object:
        if next(calls) == number:
            action()
        return write.write_shard(*arguments, **named)

    return write_shard


@contextmanager
def writing_by(write_shard: Callable[..., object]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.pipeline.write_shard", write_shard)
        yield


def test_an_output_that_vanishes_stops_the_build(source, expected, tmp_path):
    config = make_config(source, tmp_path / "out", **SETTINGS)
    away = during_shard(3, lambda: (tmp_path / "out").rename(tmp_path / "away"))
    with writing_by(away), pytest.raises(ShardsmithError) as caught:
        run_build(config)
    assert str(caught.value) == (
        f"output {tmp_path}/out is gone; bring it back and give the same command again: it goes on"
    )
    assert not (tmp_path / "out").exists()
    (tmp_path / "away").rename(tmp_path / "out")
    assert_unfinished(tmp_path / "out")
    run_build(config)
    assert files_of(tmp_path / "out") == expected


@pytest.mark.parametrize("loss", ["gone", "empty", "one folder"])
def test_a_lost_source_is_no_heap_of_rejects(loss, source, expected, tmp_path):
    """Even a budget that allows everything does not make a dataset of what was left."""
    raw, away = tmp_path / "raw", tmp_path / "away"
    shutil.copytree(source, raw)
    config = make_config(raw, tmp_path / "out", max_reject_fraction=1.0, **SETTINGS)
    lost = raw / "cat" if loss == "one folder" else raw

    def lose() -> None:
        lost.rename(away)
        if loss == "empty":  # as a mount point is when its disk is gone
            lost.mkdir()

    with writing_by(during_shard(2, lose)), pytest.raises(ShardsmithError) as caught:
        run_build(config)
    problem = "is empty" if loss == "empty" else "cannot be read (No such file or directory)"
    assert str(caught.value).startswith(f"source {raw} is gone: {lost}")
    assert str(caught.value).endswith(
        f" {problem}, though its inputs have been listed; bring it back and give the same command again: it goes on"
    )
    assert_unfinished(tmp_path / "out")
    shutil.rmtree(lost, ignore_errors=True)
    away.rename(lost)
    run_build(config)
    assert files_of(tmp_path / "out") == expected


def test_one_file_that_is_lost_is_one_reject(source, tmp_path):
    shutil.copytree(source, tmp_path / "raw")
    config = make_config(tmp_path / "raw", tmp_path / "out", max_rejects=1, **SETTINGS)
    with writing_by(during_shard(0, images(tmp_path / "raw")[4].unlink)):
        assert run_build(config).counts.rejected == {"unreadable": 1}


def test_an_archive_that_is_lost_takes_all_its_inputs_along(tmp_path):
    """Whatever its kind: a file that holds many inputs is more than one reject."""
    (tmp_path / "raw").mkdir()
    for name in ("a", "b"):
        np.save(tmp_path / "raw" / f"{name}.npy", np.zeros((3, 8, 8, 3), np.uint8))
    config = make_config(f"{tmp_path}/raw/*.npy", tmp_path / "out", labels={"kind": "none"})
    inside = InputRef("a/0", Location(f"{tmp_path}/raw/a.npy", 10, 128))
    check_still_there(inside, config)
    (tmp_path / "raw" / "a.npy").unlink()
    with pytest.raises(ShardsmithError, match=r"is gone: .*/raw/a.npy cannot be read \(No such file or directory\)"):
        check_still_there(inside, config)


def test_what_never_was_there_is_not_lost(tmp_path):
    """A listing may name folders that do not exist: those rows are bad, the source is not."""
    (tmp_path / "list.csv").write_text("path,label\nnowhere/1.jpg,a\n")
    config = make_config(tmp_path / "list.csv", tmp_path / "out")
    missing = make_ref("1", path=f"{tmp_path}/nowhere/1.jpg", fault=("unreadable", "No such file or directory"))
    check_still_there(missing, config)
    (tmp_path / "list.csv").unlink()
    with pytest.raises(ShardsmithError, match="is gone: .*list.csv cannot be read"):
        check_still_there(missing, config)


def test_a_folder_that_may_not_be_listed_any_more_is_lost(tmp_path, monkeypatch):
    (tmp_path / "x").write_text("x")
    assert find_loss(str(tmp_path)) == find_loss(str(tmp_path / "x")) == ""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    assert find_loss(str(tmp_path)) == "cannot be read (Permission denied)"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "Disk quota exceeded; {left}; free some space and {again}"),
        (
            PermissionError(errno.EACCES, "Permission denied", "x"),
            "Permission denied: 'x'; {left}; allow that and {again}",
        ),
        (OSError(errno.EIO, "Input/output error"), "Input/output error; {left}; mend that and {again}"),
        (
            RuntimeError("Traceback ...\nNotADirectoryError: [Errno 20] Not a directory: 'y' [while running 'a']"),
            "Not a directory: 'y'; {left}; mend that and {again}",
        ),
        (
            RuntimeError("tf: No space left on device [op]"),
            "No space left on device; {left}; free some space and {again}",
        ),
    ],
)
def test_what_the_system_refuses_is_told_in_full(error, told, tmp_path):
    left, again = f"output {tmp_path} is incomplete", "give the same command again: it goes on"
    with pytest.raises(ShardsmithError) as caught, explain_failures(make_config("raw", tmp_path)):
        raise error
    assert str(caught.value) == "the build stopped: " + told.format(left=left, again=again)


def test_bugs_keep_their_traceback(tmp_path):
    assert find_problem(KeyError("x")) is None
    assert find_problem(OSError("no number")) is None
    with pytest.raises(KeyError), explain_failures(make_config("raw", tmp_path)):
        raise KeyError("x")
    staged = BuildFolder(tmp_path).next
    assert f"the dataset in {tmp_path} is still what it was" in describe_problem(errno.EIO, "x", staged)
