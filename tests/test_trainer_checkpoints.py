"""Checkpoints on disk: whole or not there, damage found, the best kept; and what is remembered between evaluations."""

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards_data import thorough
from trainer_data import make_config, random_rows, write_dataset

from shards.errors import ShardsmithError, UsageError
from trainer.learning.checkpoints import agree_on_checkpoint
from trainer.learning.progress import Best, Progress, check_metrics, is_exhausted, judge_progress
from trainer.learning.saved import (
    DamagedCheckpoint,
    amend,
    find_checkpoint,
    list_checkpoints,
    new_checkpoint,
    newest,
    prune,
    read_saved,
)
from trainer.reading.source import open_source
from trainer.running.cluster import Cluster


def save(output: Path, step: int, progress: Progress | None = None) -> Path:
    with new_checkpoint(output, step, progress or Progress()) as directory:
        (directory / "variables.index").write_bytes(b"index %d" % step)
        (directory / "variables.data-00000-of-00001").write_bytes(os.urandom(100))
    return output / f"checkpoints/step-{step}"


def steps(output: Path) -> list[int]:
    return [step for step, _ in list_checkpoints(output)]


def test_a_checkpoint_describes_itself(tmp_path: Path) -> None:
    progress = Progress(evaluated=7, best=Best("accuracy", 0.75, 5, 2), sums={"loss": 0.1}, skipped=((3, 6),))
    path = save(tmp_path, 7, progress)
    saved = read_saved(path)
    assert (saved.path, saved.step, saved.progress) == (path, 7, progress)
    assert sorted(file.name for file in path.iterdir()) == [
        "saved.json",
        "variables.data-00000-of-00001",
        "variables.index",
    ]


def test_nothing_is_seen_of_a_save_that_fails(tmp_path: Path) -> None:
    kept = save(tmp_path, 3)

    def fail() -> None:
        with new_checkpoint(tmp_path, 4, Progress()) as directory:
            (directory / "variables.index").write_bytes(b"half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert list((tmp_path / "checkpoints").iterdir()) == [kept]


def test_what_a_kill_left_behind_is_not_a_checkpoint_and_goes(tmp_path: Path) -> None:
    save(tmp_path, 3)
    left = tmp_path / "checkpoints/.step-4.0123.tmp"
    left.mkdir()
    assert steps(tmp_path) == [3]
    prune(tmp_path, step=3, keep=1, best=None)
    assert not left.exists()


def test_a_step_that_is_saved_again_replaces_the_first(tmp_path: Path) -> None:
    save(tmp_path, 3, Progress(restarts=1))
    (tmp_path / "checkpoints/step-3/variables.index").unlink()
    save(tmp_path, 3, Progress(restarts=2))
    assert read_saved(tmp_path / "checkpoints/step-3").progress.restarts == 2
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-3"]


def test_progress_can_be_amended(tmp_path: Path) -> None:
    path = save(tmp_path, 3)
    amend(tmp_path, 3, Progress(evaluated=3))
    assert read_saved(path).progress == Progress(evaluated=3)


def change(path: Path, **values: Any) -> None:
    saved = json.loads((path / "saved.json").read_text())
    (path / "saved.json").write_text(json.dumps(saved | values))


def flip(path: Path) -> None:
    data = bytearray((path / "variables.index").read_bytes())
    data[3] ^= 1
    (path / "variables.index").write_bytes(data)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing file": (lambda path: (path / "variables.index").unlink(), "variables.index: No such file or directory"),
    "cut off": (
        lambda path: os.truncate(path / "variables.index", 3),
        "variables.index has 3 bytes, saved.json says 7",
    ),
    "one bit": (flip, "variables.index is not what was written: its sha256 differs"),
    "no list": (lambda path: (path / "saved.json").unlink(), "saved.json: No such file or directory"),
    "half a list": (lambda path: os.truncate(path / "saved.json", 20), "saved.json cannot be used: "),
    "not a list": (lambda path: (path / "saved.json").write_text("[]"), "saved.json cannot be used: "),
    "other format": (lambda path: change(path, format=9), "format 9 is of another release, this one reads 1"),
    "other progress": (lambda path: change(path, progress={"x": 1}), "unknown state 'x': it is from another release"),
    "bad progress": (lambda path: change(path, progress={"best": {"y": 1}}), "saved.json cannot be used: "),
    "a file": (lambda path: (shutil.rmtree(path), path.touch()), "saved.json: Not a directory"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_skipped_with_a_warning(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage, message = DAMAGE[kind]
    sound, torn = save(tmp_path, 1), save(tmp_path, 2)
    damage(torn)
    with pytest.raises(DamagedCheckpoint, match=message):
        read_saved(torn)
    found = newest(tmp_path)
    assert found is not None
    assert found.path == sound
    warning = capsys.readouterr().err
    assert warning.startswith(f"warning: checkpoint {torn} is damaged and left out: ")
    assert message in warning
    damage(sound)
    with pytest.raises(ShardsmithError, match=r"no checkpoint in .*checkpoints is sound; remove that directory"):
        newest(tmp_path)


def test_no_checkpoint_is_no_damage(tmp_path: Path) -> None:
    assert newest(tmp_path) is None


@thorough
@given(st.lists(st.integers(0, 200), unique=True, min_size=1, max_size=8), st.integers(1, 4), st.integers(0, 200))
def test_the_newest_and_the_best_are_kept(saved: list[int], keep: int, best: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for step in saved:
            (Path(folder) / f"checkpoints/step-{step}").mkdir(parents=True)
        latest = sorted(saved)[len(saved) // 2]  # what is newer was left by a run that found it damaged
        prune(Path(folder), step=latest, keep=keep, best=best)
        past = sorted(step for step in saved if step <= latest)
        expected = {step for step in saved if step > latest} | set(past[-keep:]) | ({best} & set(saved))
        assert steps(Path(folder)) == sorted(expected, reverse=True)


def test_checkpoints_by_name(tmp_path: Path) -> None:
    config = make_config("data", tmp_path)
    with pytest.raises(ShardsmithError, match="has no checkpoint; train first"):
        find_checkpoint(config, None)
    first = save(tmp_path, 5)
    with pytest.raises(UsageError, match="no checkpoint is the best one yet: nothing was evaluated"):
        find_checkpoint(config, "best")
    last = save(tmp_path, 10, Progress(best=Best("accuracy", 0.5, 5)))
    assert find_checkpoint(config, None) == find_checkpoint(config, "newest") == str(last)
    assert find_checkpoint(config, "best") == find_checkpoint(config, "5") == str(first)
    assert find_checkpoint(config, str(first)) == str(first)
    with pytest.raises(UsageError, match=r"no checkpoint at .*step-7: give newest, best, a step, or a path such as"):
        find_checkpoint(config, "7")
    flip(first)
    with pytest.raises(ShardsmithError, match=r"step-5 is damaged: variables.index is not what .*; give another one"):
        find_checkpoint(config, "best")
    shutil.rmtree(first)
    with pytest.raises(UsageError, match=r"the best checkpoint, .*step-5, was not kept; set checkpoint.best"):
        find_checkpoint(config, "best")


def test_an_older_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/checkpoint").touch()
    with pytest.raises(UsageError, match="holds a run of an older shardsmith, whose checkpoints this one cannot read"):
        newest(tmp_path)


bests = st.builds(Best, st.text(), st.floats(allow_nan=False), st.integers(0), st.integers(0))
numbers = st.integers(0, 10**9)


@thorough
@given(
    st.builds(
        Progress,
        numbers,
        st.none() | bests,
        st.none() | bests,
        st.dictionaries(st.text(), st.floats(allow_nan=False)),
        st.lists(st.tuples(numbers, numbers)).map(tuple),
        numbers,
    )
)
def test_progress_survives_json(progress: Progress) -> None:
    assert Progress.from_dict(json.loads(json.dumps(progress.as_dict()))) == progress


def follow(values: list[float], **settings: Any) -> tuple[Progress, bool]:
    config = make_config("data", **settings)
    progress = Progress()
    for number, value in enumerate(values):
        metrics = {"accuracy": value, "loss": -value}
        progress = judge_progress(progress, metrics, (number + 1) * 10, config)
    return progress, is_exhausted(progress, config)


def test_the_best_is_the_highest_accuracy_or_the_lowest_loss() -> None:
    progress, _ = follow([0.5, 0.7, 0.7, 0.6])
    assert progress.best == Best("accuracy", 0.7, 20, since=2)
    assert progress.evaluated == 40
    progress, _ = follow([0.5, 0.7, 0.6], checkpoint={"metric": "loss"})
    assert progress.best == Best("loss", -0.7, 20, since=1)


def test_a_value_that_is_no_number_is_no_best() -> None:
    progress, _ = follow([float("nan"), 0.5, float("nan")])
    assert progress.best == Best("accuracy", 0.5, 20, since=1)


@pytest.mark.parametrize(
    ("values", "settings", "over"),
    [
        ([0.5, 0.4, 0.3], {"patience": 3}, False),
        ([0.5, 0.4, 0.3, 0.5], {"patience": 3}, True),
        ([0.5, 0.4, 0.3, 0.6], {"patience": 3}, False),
        ([0.5, 0.52, 0.54, 0.56], {"patience": 3, "min_delta": 0.1}, True),
        ([0.5, 0.52, 0.61, 0.56], {"patience": 3, "min_delta": 0.1}, False),
        ([0.5, 0.4, 0.3, 0.2], {}, False),
    ],
)
def test_early_stopping(values: list[float], settings: dict[str, Any], over: bool) -> None:
    assert follow(values, early_stopping=settings)[1] is over


def test_another_metric_starts_again() -> None:
    progress, _ = follow([0.5, 0.4])
    config = make_config("data", early_stopping={"metric": "loss", "patience": 1})
    progress = judge_progress(progress, {"accuracy": 0.1, "loss": 3.0}, 30, config)
    assert progress.stopping == Best("loss", 3.0, 30)


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        ("single", "accuracy, macro_f1, ece, loss"),
        ("multi", "f1, precision, recall, macro_f1, map, exact_match, loss"),
        ("regression", "mae, rmse, r2, loss"),
    ],
)
@pytest.mark.parametrize("setting", ["checkpoint", "early_stopping"])
def test_metrics_that_do_not_exist(setting: str, kind: str, known: str, tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, {"train": random_rows(4, kind=kind)}, kind=kind)
    config = make_config(dataset, **{setting: {"metric": "beauty"}})
    with pytest.raises(UsageError, match=f"{setting}.metric: an evaluation has no 'beauty'; choose one of {known}"):
        check_metrics(config, open_source(config))
    check_metrics(make_config(dataset, **{setting: {"metric": known.split(", ")[0]}}), open_source(config))


@dataclass(frozen=True)
class Place:
    """A worker that meets another one in the same process: all that agreeing needs of a workplace."""

    cluster: Cluster
    table: list[str]
    barrier: threading.Barrier

    def gather_texts(self, text: str) -> list[str]:
        self.table[self.cluster.index] = text
        self.barrier.wait(10)
        found = list(self.table)
        self.barrier.wait(10)
        return found


def agree(choose: Callable[[], str], *outputs: Path) -> list[Any]:
    """What each worker comes to, one for each output directory."""
    table, barrier = [""] * len(outputs), threading.Barrier(len(outputs))

    def meet(index: int) -> Any:
        place: Any = Place(Cluster(len(outputs), index), table, barrier)
        try:
            return agree_on_checkpoint(place, outputs[index], choose)
        except ShardsmithError as error:
            return str(error)

    with ThreadPoolExecutor(len(outputs)) as pool:
        return list(pool.map(meet, range(len(outputs))))


def test_workers_agree_wherever_they_have_the_output(tmp_path: Path) -> None:
    path = save(tmp_path / "here", 4)
    (tmp_path / "there").symlink_to(tmp_path / "here")
    outputs = tmp_path / "here", tmp_path / "there"
    assert agree(lambda: str(path), *outputs) == [str(path), str(tmp_path / "there/checkpoints/step-4")]
    assert agree(lambda: "", *outputs) == ["", ""]


def test_a_worker_that_sees_another_output_is_found(tmp_path: Path) -> None:
    path = save(tmp_path / "here", 4)
    (tmp_path / "empty").mkdir()
    texts = agree(lambda: str(path), tmp_path / "here", tmp_path / "empty")
    assert texts[0].startswith("worker 1 does not see the checkpoint ")
    assert (
        "that worker 0 goes on from (saved.json: No such file or directory); all workers must see the same" in texts[0]
    )
    save(tmp_path / "other", 4)
    texts = agree(lambda: str(path), tmp_path / "here", tmp_path / "other")
    assert [text.split(" the checkpoint")[0] for text in texts] == ["worker 1 does not see"] * 2


def test_the_chief_tells_the_others_what_is_wrong(tmp_path: Path) -> None:
    def refuse() -> str:
        raise ShardsmithError("no checkpoint is sound")

    assert agree(refuse, tmp_path, tmp_path) == ["no checkpoint is sound"] * 2
