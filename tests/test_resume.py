"""A build may end at any moment: the same command goes on, and what it leaves is what an undisturbed build leaves.

Real processes are killed at moments that a seed chooses; SHARDSMITH_KILLS=30 asks for more of them. And inside of this
process every single change on the disk is, in turn, the first one that is not made any more.
"""

import io
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from conftest import make_config
from light import files_of, identities_of, images, run_append, run_build, run_retry
from pictures import encoded, picture, write_class_folders

from pipelines import pipeline
from pipelines.config import BuildConfig
from pipelines.pictures.process import Task, process_input
from pipelines.sources import partition_sources
from pipelines.workspace.layout import BuildFolder, load_plan, save_plan
from pipelines.workspace.lock import Holder, Run, announce, hold
from pipelines.writing import write
from pipelines.writing.donor import Earlier, rewrite_shard
from shards.errors import ShardsmithError, UsageError
from shards.files import is_temporary, naming_after
from shards.manifest import read_manifest
from shards.verify import verify

SETTINGS: dict[str, Any] = {
    "splits": {"fractions": {"train": 0.7, "test": 0.3}},
    "image": {"resize": "exact:16", "encode": {"format": "png"}},
    "shards": {"target_mb": 0.006},
}
ROOT = Path(__file__).parent.parent
KILLS = int(os.environ.get("SHARDSMITH_KILLS", "7"))
ARGUMENTS = (
    "--resize",
    "exact:24",
    "--set",
    "shards.count={train: 8, test: 2}",
    "--set",
    "splits.fractions={train: 0.8, test: 0.2}",
)
PARALLEL = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")


def start(source: Path, out: Path, *arguments: str, command: str = "build") -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "pipelines", command, "--source", str(source), "--output", str(out), *ARGUMENTS]
    pipe = subprocess.PIPE
    return subprocess.Popen([*line, *arguments], cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def finish(source: Path, out: Path, *arguments: str, command: str = "build") -> tuple[str, str]:
    process = start(source, out, *arguments, command=command)
    said = process.communicate(timeout=250)
    assert process.returncode == 0, said[1]
    return said


def receipts_in(out: Path) -> int:
    return sum(1 for _ in out.glob("state/receipts/*.json"))


def has(pattern: str) -> Callable[[Path, int], bool]:
    return lambda out, since: any(is_newer(path, since) for path in out.glob(pattern))


def is_newer(path: Path, since: int) -> bool:
    try:
        return path.stat().st_mtime_ns > since
    except FileNotFoundError:
        return False


# What is to be seen in the output when the moment has come; `since` is when the run has announced itself.
PHASES: dict[str, Callable[[Path, int], bool]] = {
    "at the start": lambda out, since: True,
    "listing": has(".build/listing/*"),
    "planned": has("state/plan.json"),
    "inside a shard": has("t*/.*.tmp"),
    "a shard is written": has("state/receipts/*.json"),
    "all are written": lambda out, since: has("state/plan.json")(out, since) and all_written(BuildFolder(out)),
    "analysing": has(".build/tmp*"),
    "at commit": has("schema.pbtxt"),
    "behind the manifest": has("manifest.json"),
}


LATE = ("at commit", "behind the manifest")  # soon all is over


def all_written(folder: BuildFolder) -> bool:
    return folder.plan.exists() and receipts_in(folder.root) == len(load_plan(folder.plan).shards)


def is_holder(process: subprocess.Popen[str], out: Path) -> bool:
    run = Run.find(out)
    holder = run.announced and Holder.load(run.announced)
    return bool(holder and holder.pid == process.pid)


def cut_off(process: subprocess.Popen[str], out: Path, phase: str, delay: float, send: int) -> str:
    """Ends the process some time after a phase has begun; returns what it said. All its children end too."""
    while process.poll() is None and not is_holder(process, out):
        time.sleep(0.002)
    since, moments = time.time_ns(), list(PHASES.values())[list(PHASES).index(phase) :]  # or later: it may be over
    while process.poll() is None and not any(has_come(out, since) for has_come in moments):
        time.sleep(0.002)
    time.sleep(delay)
    children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.send_signal(send)
    said = process.communicate(timeout=60)[1]
    assert psutil.wait_procs(children, timeout=60)[1] == [], "children outlive their parent"
    return said


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return write_class_folders(tmp_path_factory.mktemp("resume") / "raw", images=60)


@pytest.fixture(scope="module")
def expected(raw, tmp_path_factory):
    """Every file, TensorFlow's too, of a build that nobody disturbs."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    finish(raw, out)
    assert len(read_manifest(out).splits[0].shards) > 5
    return files_of(out)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(-(-KILLS // 7)))
def test_a_build_that_is_killed_again_and_again_leaves_what_one_build_leaves(seed, raw, expected, tmp_path):
    chance, out = random.Random(seed), tmp_path / "out"
    phases = sorted(chance.sample(list(PHASES), 7), key=list(PHASES).index)
    ends = []
    for phase in phases:
        process = start(raw, out, *(PARALLEL if chance.random() < 0.2 else ()))
        send = signal.SIGINT if chance.random() < 0.15 else signal.SIGKILL
        said = cut_off(process, out, phase, chance.uniform(0, 0.01 if phase in LATE else 0.2), send)
        if send == signal.SIGINT and process.returncode == 1:
            told = f"error: interrupted; the same command goes on with the shards that are written in {out}\n"
            assert said.endswith(told)
        ends.append(process.returncode)
        if (out / "manifest.json").exists():
            assert [problem for problem in verify(out) if not problem.path.startswith(".build")] == []
    assert sum(code != 0 for code in ends) >= 6, f"too few were cut off: {ends} in {phases}"
    finish(raw, out)
    assert files_of(out) == expected


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_append_goes_on_and_the_dataset_is_whole_all_the_time(raw, tmp_path):
    source, out = tmp_path / "raw", tmp_path / "out"
    shutil.copytree(raw, source)
    finish(source, out)
    for number in range(40):
        (source / "cat" / f"new{number}.png").write_bytes(encoded(picture(500 + number), "png"))
    images(source)[3].unlink()
    shutil.copytree(out, tmp_path / "other")
    finish(source, tmp_path / "other", command="append")
    process = start(source, out, command="append")
    cut_off(process, out / ".build" / "next", "a shard is written", 0.0, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert verify(out) == []
    assert read_manifest(out).version == 1
    said = finish(source, out, command="append")
    assert "taking over from a run that ended early: append, process " in said[1]
    assert files_of(out) == files_of(tmp_path / "other")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_that_outlive_their_driver_name_no_more_files(tmp_path):
    """Beam's workers write on when their driver is killed; from the moment a new run holds the output, in vain."""
    source, out = write_large(tmp_path / "raw"), tmp_path / "out"
    process = start(source, out, *PARALLEL)
    while not receipts_in(out):
        assert process.poll() is None
        time.sleep(0.002)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    with hold(out, "build"):
        announce(out)
        named = set(out.rglob("*"))
        assert psutil.wait_procs(workers, timeout=60)[1] == []
        assert {path for path in out.rglob("*") if not is_temporary(path.name)} <= named
    finish(source, out)
    assert verify(out) == []


def write_large(root: Path) -> Path:
    for label in ("cat", "dog"):
        (root / label).mkdir(parents=True)
        for number in range(100):
            (root / label / f"{number}.jpg").write_bytes(encoded(picture(number, size=(900, 700))))
    return root


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_that_is_killed_ends_the_build_and_the_same_command_goes_on(raw, expected, tmp_path):
    out = tmp_path / "out"
    process = start(raw, out, *PARALLEL)
    while not (out / "state" / "plan.json").exists():
        assert process.poll() is None
        time.sleep(0.002)
    children = psutil.Process(process.pid).children(recursive=True)
    workers = [
        child for child in children if child.cmdline()[1:3] == ["-m", "apache_beam.runners.worker.sdk_worker_main"]
    ]
    assert len(workers) == 2
    workers[0].kill()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert said.endswith(
        "error: a worker process was killed, probably for lack of memory; "
        "give the same command again, perhaps with fewer workers: it goes on\n"
    )
    assert psutil.wait_procs(children, timeout=60)[1] == []
    assert not (out / "manifest.json").exists()
    finish(raw, out)
    assert files_of(out) == expected


class Killed(BaseException):
    """The moment at which a process would have been killed."""


class Cut:
    """Lets some changes of the disk happen, and none after them: not even those that clean up."""

    CHANGES = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "link", "utime")

    def __init__(self, left: int) -> None:
        self.left = left

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in self.CHANGES:
                patch.setattr(os, name, self._before(getattr(os, name)))
            patch.setattr(io, "open", self._open)  # which is what Path.open calls
            yield

    def _step(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1

    def _before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self._step()
            return function(*arguments, **named)

        return call

    def _open(self, path: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if set(mode) & set("wax+"):
            self._step()
        return open(path, mode, *arguments, **named)


class Inline:
    """Decodes in this process."""

    count = 1

    def __init__(self, config: BuildConfig) -> None:
        self._config = config

    def submit(self, tasks: Sequence[Task], /) -> Any:
        outcomes = [process_input(task, self._config) for task in tasks]
        return type("Done", (), {"result": lambda self: outcomes})()


class Recorded:
    """What a job has carried to its shards, to be written again without Beam, some two hundred times."""

    def __init__(self, config: BuildConfig) -> None:
        self._calls: list[tuple[Any, Any]] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pipeline, "write_shard", self._record)
            run_build(config)
        self._plan = load_plan(BuildFolder(Path(config.output)).plan)

    def _record(self, shard: Any, refs: Any, **named: Any) -> Any:
        self._calls.append((shard, list(refs)))
        return write.write_shard(shard, self._calls[-1][1], **named)

    def run(self, config: BuildConfig, *, earlier: Earlier, **_: Any) -> Any:
        """Stands in for `runner.run_build`: the same functions in the same order."""
        folder, run = BuildFolder(Path(config.output)), Run.find(Path(config.output))
        for part in partition_sources(config):
            list(pipeline.list_refs(part, config, str(folder.spool), run))
        with naming_after(run.check):
            save_plan(self._plan, folder.plan)
            for shard, refs in self._calls:
                named = {"plan": self._plan, "config": config, "decoders": Inline(config), "watch": lambda *_: None}
                if earlier.begun:
                    rewrite_shard(shard, refs, begun=earlier.begun, past=None, **named)
                else:
                    write.write_shard(shard, refs, **named)
        return self._plan


def test_a_build_may_be_cut_off_before_any_change_on_the_disk(tmp_path, monkeypatch, capsys):
    source = write_class_folders(tmp_path / "raw", images=8)
    (source / "cat" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    settings = SETTINGS | {"max_rejects": 1, "shards": {"count": {"train": 2, "test": 1}}, "quarantine": True}
    recorded = Recorded(make_config(source, tmp_path / "expected", **settings))
    expected = files_of(tmp_path / "expected")
    monkeypatch.setattr("pipelines.build.run_build", recorded.run)
    out, steps, resumed = tmp_path / "out", 0, 0
    config = make_config(source, out, **settings)
    while True:
        try:
            with Cut(steps).at_work():
                run_build(config)
            break
        except Killed:
            pass
        if (out / "manifest.json").exists():
            assert verify(out) == [], steps
        run_build(config)
        resumed += "going on with an unfinished build" in capsys.readouterr().err
        assert files_of(out) == expected, steps
        shutil.rmtree(out)
        steps += 1
    assert files_of(out) == expected
    assert steps > 120
    assert resumed > 80


def test_an_append_may_be_cut_off_anywhere(tmp_path):
    source = write_class_folders(tmp_path / "raw", images=12)
    config = make_config(source, tmp_path / "out", **SETTINGS)
    run_build(config)
    for number in range(5):
        (source / "dog" / f"new{number}.png").write_bytes(encoded(picture(70 + number), "png"))
    images(source)[2].unlink()
    shutil.copytree(tmp_path / "out", tmp_path / "before")
    whole = Cut(1_000_000)
    with whole.at_work():
        run_append(config)
    expected, steps = files_of(tmp_path / "out"), 1_000_000 - whole.left
    for cut in random.Random(5).sample(range(steps), 12):
        shutil.rmtree(tmp_path / "out")
        shutil.copytree(tmp_path / "before", tmp_path / "out")
        with pytest.raises((Killed, RuntimeError)), Cut(cut).at_work():  # Beam wraps what a step raises
            run_append(config)
        damage = [each for each in verify(tmp_path / "out") if each.path.endswith((".tfrecord", ".idx"))]
        assert {problem.message for problem in damage} <= {"is not in the manifest"}, cut
        run_append(config)
        assert files_of(tmp_path / "out") == expected, cut


def interrupted_build(config: BuildConfig) -> BuildFolder:
    """All shards are written, and nothing is committed."""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.build.commit", stop)
        with pytest.raises(KeyboardInterrupt):
            run_build(config)
    return BuildFolder(Path(config.output))


def shards_of(out: Path) -> dict[str, tuple[int, int]]:
    return {name: each for name, each in identities_of(out).items() if name.endswith(".tfrecord")}


def test_only_shards_whose_inputs_changed_are_written_again(tmp_path, capsys):
    source = write_class_folders(tmp_path / "raw", images=30)
    config = make_config(source, tmp_path / "out", **SETTINGS)
    folder = interrupted_build(config)
    before = shards_of(folder.root)
    images(source)[7].write_bytes(encoded(picture(4711), "png"))
    manifest = run_build(config)
    after = shards_of(folder.root)
    said = capsys.readouterr()
    assert f"going on with an unfinished build: {len(before)} shards are written" in said.err
    assert "processed now: 1 inputs, 1 written, 0 rejected\n" in said.out
    kept = (
        f"shards: {len(before) - 1} kept, 1 written now (1 of them again: their inputs, rejects or label ids changed)"
    )
    assert kept in said.out
    assert sum(before[name] == after[name] for name in before) == len(before) - 1 == len(after) - 1
    assert_fresh(config, tmp_path)
    assert manifest.version == 1


def assert_fresh(config: BuildConfig, base: Path) -> None:
    fresh = config.model_copy(update={"output": str(base / "fresh")})
    run_build(fresh)
    assert files_of(Path(config.output)) == files_of(base / "fresh")


def test_a_new_class_moves_ids_and_only_the_shards_that_hold_them_are_written_again(tmp_path, capsys):
    """A class that sorts first moves all ids, one that sorts last none."""
    for name, seed in (("b", 0), ("c", 40)):
        (tmp_path / "raw" / name).mkdir(parents=True)
        for number in range(3 if name == "c" else 40):
            (tmp_path / "raw" / name / f"{number}.png").write_bytes(encoded(picture(seed + number), "png"))
    config = make_config(tmp_path / "raw", tmp_path / "out", **SETTINGS)
    folder = interrupted_build(config)
    before = shards_of(folder.root)
    receipts = {path.stem: path.read_text() for path in (folder.state / "receipts").iterdir()}
    holding_c = {name for name, text in receipts.items() if '"c"' in text}
    assert 0 < len(holding_c) < len(receipts)
    (tmp_path / "raw" / "bb").mkdir()
    (tmp_path / "raw" / "bb" / "1.png").write_bytes(encoded(picture(99), "png"))
    run_build(config)
    after = shards_of(folder.root)
    changed = {Path(name).stem for name in before if after.get(name) != before[name]}
    holding_new = {path.stem for path in (folder.state / "receipts").iterdir() if '"bb"' in path.read_text()}
    assert changed == holding_c | holding_new
    assert len(holding_new) == 1
    assert_fresh(config, tmp_path)


def test_other_settings_start_over_and_say_why(tmp_path, capsys):
    source = write_class_folders(tmp_path / "raw", images=10)
    interrupted_build(make_config(source, tmp_path / "out", **SETTINGS))
    other = make_config(source, tmp_path / "out", **SETTINGS | {"image": {"resize": "exact:12"}})
    run_build(other)
    said = capsys.readouterr().err
    assert "an unfinished build is here, but " in said
    assert "image.resize.size was 16 and is 12" in said
    assert ": starting over\n" in said
    assert_fresh(other, tmp_path)


def test_rejects_are_tried_again_under_a_raised_cap_even_if_that_is_cut_off(tmp_path, capsys):
    source = write_class_folders(tmp_path / "raw", images=10)
    (source / "cat" / "large.png").write_bytes(encoded(picture(7, size=(300, 200)), "png"))
    low = SETTINGS | {"image": SETTINGS["image"] | {"max_megapixels": 0.05}}
    with pytest.raises(ShardsmithError, match="too_many_pixels"):
        run_build(make_config(source, tmp_path / "out", **low))
    high = make_config(source, tmp_path / "out", **SETTINGS | {"image": SETTINGS["image"] | {"max_megapixels": 1}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.build.write_shards", lambda *_, **__: sys.exit("cut off"))
        with pytest.raises(SystemExit):
            run_build(high)
    assert run_build(high).counts.rejected == {}
    assert_fresh(high, tmp_path)


def test_a_spool_is_used_again_unless_its_source_has_changed(tmp_path, monkeypatch):
    rows = np.random.default_rng(4).random((30, 5), dtype=np.float32)
    (tmp_path / "raw").mkdir()
    path = tmp_path / "raw" / "set.npz"
    config = make_config(path, tmp_path / "out", shards={"count": 2})
    np.savez_compressed(path, data=rows, labels=np.arange(30) % 2)
    folder = interrupted_build(config)
    (spool,) = folder.spool.glob("*.bin")
    first = spool.stat().st_ino
    interrupted_build(config)
    assert spool.stat().st_ino == first
    rows[3] = 1 - rows[3]
    np.savez_compressed(path, data=rows, labels=np.arange(30) % 2)
    interrupted_build(config)
    second = spool.stat().st_ino
    assert second != first
    (tmp_path / "boot").write_text("the machine was started again")
    monkeypatch.setattr("pipelines.inputs.spool._BOOT", tmp_path / "boot")
    interrupted_build(config)
    assert spool.stat().st_ino != second  # what was not yet on the disk may be lost
    run_build(config)
    assert_fresh(config, tmp_path)


GENERATOR = """
calls = []
def items(count=6, first=0):
    calls.append(count)
    for number in range(first, first + count):
        yield [float(number), 1.0], number % 2
"""


def test_a_generator_is_called_again_only_for_other_arguments(tmp_path, monkeypatch):
    """What it gave once is what the build is made of, even if it would give something else now."""
    (tmp_path / "my_numbers.py").write_text(GENERATOR)
    monkeypatch.syspath_prepend(tmp_path)
    import my_numbers

    def config(**arguments: int) -> BuildConfig:
        source = {"arguments": arguments}
        return make_config("my_numbers:items", tmp_path / "out", source=source, splits={"fractions": {"train": 1.0}})

    interrupted_build(config(count=6))
    calls = len(my_numbers.calls)
    interrupted_build(config(count=6))
    assert len(my_numbers.calls) == calls
    assert run_build(config(count=8)).counts.written == 8
    assert len(my_numbers.calls) > calls


def test_scratch_of_ended_runs_is_swept_before_anything_is_written(tmp_path):
    config = make_config(write_class_folders(tmp_path / "raw", images=10), tmp_path / "out", **SETTINGS)
    folder = interrupted_build(config)
    half = f".train-00000.tfrecord.{'0' * 32}.tmp"
    for place in (folder.root / "train", folder.state / "receipts", folder.state / "facts", folder.work):
        (place / half).write_bytes(b"half")
    (folder.work / "tmpabc" / "deep").mkdir(parents=True)
    left = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "pipelines.build.write_shards", lambda *_, **__: left.extend(folder.root.rglob("*")) or sys.exit()
        )
        with pytest.raises(SystemExit):
            run_build(config)
    assert left
    assert [path for path in left if is_temporary(path.name) or "tmpabc" in str(path)] == []
    run_build(config)
    assert_fresh(config, tmp_path)


def test_retry_of_an_interrupted_build_is_remembered(tmp_path):
    """A retry that is cut off has not yet tried everything again: whoever goes on does."""
    source = write_class_folders(tmp_path / "raw", images=10)
    config = make_config(source, tmp_path / "out", **SETTINGS)
    folder = interrupted_build(config)
    assert not folder.again.exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.build.write_shards", lambda *_, **__: sys.exit("cut off"))
        with pytest.raises(SystemExit):
            run_retry(config)
    assert folder.again.exists()
    run_build(config)
    assert_fresh(config, tmp_path)


def test_an_output_of_something_else_is_left_alone(tmp_path):
    source = write_class_folders(tmp_path / "raw", images=3)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="is not empty and not a dataset; choose another --output"):
        run_build(make_config(source, tmp_path / "out"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]
