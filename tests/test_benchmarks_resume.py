"""`benchmarks resume` runs for real, at a tiny size; speed is never asserted."""

from pathlib import Path

import pytest
from pictures import encoded, picture

from benchmarks import resume
from benchmarks.__main__ import main
from shards.errors import ShardsmithError
from shards.verify import verify


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.jpg").write_bytes(encoded(picture(1, size=(90, 70)), "jpeg"))
    return tmp_path / "photos"


def test_all_rows_are_measured(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(photos), "--records", "6400", "--rounds", "1", "--json"]) == 0
    out = capsys.readouterr().out
    for name in ("seek.at_1_percent", "seek.at_99_percent", "seek.late_vs_early", "replay.at_99_percent"):
        assert f'"name": "resume.{name}"' in out


def test_the_dataset_is_a_good_one(photos: Path, tmp_path: Path) -> None:
    resume.write_dataset(tmp_path / "data", [resume.make_small(str(photos / "a.jpg"))], records=50)
    assert verify(tmp_path / "data") == []
    assert resume.open_source(tmp_path / "data").split("train").records == 50


def test_another_batch_is_not_measured(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resume.write_dataset(tmp_path / "data", [resume.make_small(str(photos / "a.jpg"))], records=6400)
    monkeypatch.setattr(resume, "global_batch", lambda *arguments, **named: [1, 2, 3])
    with pytest.raises(ShardsmithError, match="step 1 began with other records than the order says"):
        resume.measure_seeks(tmp_path / "data", rounds=1)


@pytest.mark.parametrize(("flag", "value"), [("--records", "6399"), ("--rounds", "0")])
def test_too_little_to_measure(photos: Path, flag: str, value: str) -> None:
    with pytest.raises(ShardsmithError, match=f"{flag} {value}: at least"):
        main(["resume", str(photos), flag, value])
