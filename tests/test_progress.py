"""What a person sees while a build runs."""

import io
import time

from pictures import write_class_folders

from pipelines.runner import parse_beam_options, run_build
from pipelines.workspace.layout import BuildFolder
from pipelines.workspace.progress import Speed, Status, Watch, progress_line, show_progress


def test_lines_for_a_log():
    assert progress_line(Status(total=None, listed=1_234), 0) == "listing: 1,234 inputs so far"
    looking = "looking for duplicates: 1,000 inputs so far"
    assert progress_line(Status(total=None, listed=1_234, looked=1_000), 0) == looking
    assert progress_line(Status(total=12_000, done=1_200, rejected=3), 480) == (
        "building: 1,200/12,000 inputs (10 %), 3 rejected, 480 inputs/s, ETA 22 s"
    )
    assert progress_line(Status(total=10, done=10, rejected=1), 0) == "building: 10/10 inputs (100 %), 1 rejected"


def test_the_watch_adds_finished_and_running_shards(tmp_path, config_for):
    source = write_class_folders(tmp_path / "raw", images=10)
    config = config_for(source, shards={"count": 2}, splits={"fractions": {"train": 1.0}})
    folder = BuildFolder(tmp_path / "dataset")
    folder.prepare(anew=False)
    watch = Watch(folder)
    assert watch.status() == Status(total=None)
    folder.listing(0).write_text("12")
    folder.listing(1).write_text("")  # caught in the middle of a write
    folder.listing(2).write_text("3")
    assert watch.status() == Status(total=None, listed=15)
    folder.looking("one").write_text("4")
    folder.looking("other").write_text("5")
    assert watch.status() == Status(total=None, listed=15, looked=9)
    run_build(config, options=parse_beam_options([], ours=()))
    listed = [folder.listing(part).read_text().split()[0] for part in (0, 1)]
    assert listed == ["10", "10"]  # a partition for each class folder
    assert watch.status() == Status(total=20, done=20, listed=20)
    (folder.work / "progress" / "train-00007").write_text("5 2")  # a shard that is still being written
    (folder.work / "progress" / "train-00008").write_text("")
    assert watch.status() == Status(total=20, done=25, rejected=2, listed=20)
    (folder.work / "progress" / "train-00000").write_text("3 0")  # finished shards count by their receipt
    assert watch.status() == Status(total=20, done=25, rejected=2, listed=20)


def test_plain_lines_when_not_a_terminal(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.workspace.progress._POLL_SECONDS", 0.01)
    monkeypatch.setattr("pipelines.workspace.progress._LINE_SECONDS", 0.02)
    folder = BuildFolder(tmp_path / "dataset")
    folder.prepare(anew=False)
    stream = io.StringIO()
    with show_progress(folder, stream):
        deadline = time.monotonic() + 10
        while not stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.02)
    assert set(stream.getvalue().splitlines()) == {"listing: 0 inputs so far"}


def test_speed_is_measured_from_the_first_image(monkeypatch):
    clock = iter([100.0, 200.0, 205.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    speed = Speed()
    assert speed.update(0) == 0
    assert speed.update(10) == 0
    assert speed.update(60) == 10
