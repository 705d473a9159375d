"""The parts of `benchmarks input` that could quietly measure something else."""

import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainer_data import random_pictures, write_dataset

from benchmarks.__main__ import main
from benchmarks.input import BARE, OURS, PLAIN, Contestant, Turn, case_rows, commands, find_peers, write_tars
from benchmarks.input_contestants import make_config, ours, plain, read_examples, read_pictures, tfds
from benchmarks.input_peers import draw_window, make_cut, taking
from shards.errors import ShardsmithError, UsageError

PICTURES = random_pictures(24, size=(16, 16), kind="JPEG")
SIZES = {"side": 12, "batch": 16, "window": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    write_dataset(folder / "data", {"train": PICTURES}, resize={"mode": "exact", "size": 16})
    return folder


def test_all_see_the_same_pictures(folder: Path) -> None:
    assert list(read_examples(folder / "data")) == [(label, data) for data, label in PICTURES]
    assert read_pictures(folder / "data", limit=5) == [data for data, _ in PICTURES[:5]]
    write_tars(folder)
    found = {}
    for path in (folder / "tars").iterdir():
        with tarfile.open(path) as tar:
            found |= {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    assert [found[f"{number:07}.jpg"] for number in range(24)] == [data for data, _ in PICTURES]
    assert [int(found[f"{number:07}.cls"]) for number in range(24)] == [label for _, label in PICTURES]


@pytest.mark.parametrize("case", ["crop", "resized"])
@pytest.mark.parametrize("contestant", [ours, plain])
def test_contestants_give_batches_of_one_kind(folder: Path, contestant: Any, case: str) -> None:
    batch = next(contestant(make_config(folder / "data", case, **SIZES)))
    assert batch["image"].shape == (16, 12, 12, 3)
    assert batch["image"].dtype.name == "uint8"
    assert sorted(set(batch["label"].numpy())) == [0, 1, 2]


@pytest.mark.parametrize("case", ["crop", "resized"])
def test_tfds_reads_what_the_build_wrote(built: Any, case: str) -> None:
    batch = next(tfds(make_config(built.root, case, side=24, batch=16, window=16)))
    assert batch["image"].shape == (16, 24, 24, 3)
    assert batch["image"].dtype.name == "uint8"


@pytest.mark.parametrize("case", ["crop", "resized"])
def test_peers_cut_parts_of_the_picture(case: str) -> None:
    pixels = make_cut(case, 12)(PICTURES[2][0])
    assert pixels.shape == (12, 12, 3)
    assert pixels.dtype == np.uint8
    assert pixels.mean() > 140, "the third class is bright"


def test_windows_of_peers_are_inside() -> None:
    for _ in range(200):
        top, left, height, width = draw_window(20, 30)
        assert 0 <= top <= 20 - height
        assert 0 <= left <= 30 - width
        assert height * width >= 40


def test_taking_goes_on_with_one_iterator() -> None:
    numbers = iter(range(10))
    take = taking(numbers)
    take(3)
    take(4)
    assert next(numbers) == 7


ECHO = "import sys; print('hello'); print('ready', flush=True); [print(float(n), flush=True) for n in sys.stdin]"


def test_contestants_are_asked_and_ended() -> None:
    contestant = Contestant([sys.executable, "-c", ECHO])
    turn = contestant.take(7)
    contestant.close()
    assert turn.seconds == 7
    assert turn.cpu_seconds >= 0


def test_a_contestant_that_fails_says_why() -> None:
    with pytest.raises(ShardsmithError, match=r"ended early:\n.*no such thing"):
        Contestant([sys.executable, "-c", "import sys; sys.exit('no such thing')"])


@pytest.mark.slow
def test_the_bare_decoder_serves(folder: Path) -> None:
    command = dict(commands("crop", folder, {}))[BARE]
    contestant = Contestant(command)
    assert contestant.take(1).seconds > 0
    contestant.close()


def test_ratios_are_taken_inside_rounds() -> None:
    rounds = [
        {OURS: Turn(1, 2), PLAIN: Turn(2, 2), BARE: Turn(0.5, 1)},
        {OURS: Turn(10, 2), PLAIN: Turn(10, 3), BARE: Turn(9, 1)},
        {OURS: Turn(4, 2), PLAIN: Turn(6, 4), BARE: Turn(4, 1)},
    ]
    rows = {row.name: row for row in case_rows("crop", rounds, records=100)}
    assert rows["input.crop.vs_plain"].value == 1.5
    assert rows["input.crop.vs_plain_cpu"].value == 1.5
    assert rows["input.crop.vs_bare"].value == 0.9
    assert rows["input.crop.vs_bare"].ok
    assert rows["input.crop.rate.ours"].value == 25
    resized = {row.name: row for row in case_rows("resized", rounds, records=100)}
    assert resized["input.resized.vs_bare"].target is None


def test_peers_that_are_not_installed_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert find_peers(None) == {}, "torch and grain do not belong into this environment"
    said = capsys.readouterr().err
    assert "webdataset is left out: ModuleNotFoundError: No module named 'torch'" in said
    assert "grain is left out: ModuleNotFoundError: No module named 'grain'" in said
    with pytest.raises(UsageError, match="--peers-python nowhere/python: No such file or directory"):
        find_peers(Path("nowhere/python"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rounds", "0"], "--rounds 0: at least 1 is needed"),
        (["--images", "100"], "--images 100: at least 128, one batch, are needed"),
        (["--records", "5"], "--records 5: at least 128, one batch, are needed"),
    ],
)
def test_mistakes(flags: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        main(["input", str(tmp_path), *flags])
