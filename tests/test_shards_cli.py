"""`python -m shards`: what it prints, what it returns, and what it does without."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from PIL import Image
from shards_data import change_manifest, features, flip_bit, png, write_dataset, write_records

from shards import __main__ as command_line
from shards.errors import ShardsmithError, UsageError, run
from shards.example import Value, decode_example, encode_example
from shards.manifest import FeatureEntry, FileEntry, read_manifest
from shards.samples import Sample, make_sample
from shards.sheet import write_sheet

ROOT = Path(__file__).parent.parent
FIRST = "train/train-00000.tfrecord"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "flowers")
    return tmp_path / "flowers"


def call(*arguments: object) -> int:
    """Runs a command in this process the way `python -m shards` does."""
    return run(lambda: command_line.main([str(argument) for argument in arguments]))


def shell(*arguments: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shards", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_verify_says_that_a_dataset_is_good(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("verify", dataset) == 0
    output = capsys.readouterr()
    assert output.out.splitlines() == [
        "good: 7 records in 4 shards (0.0 MB), every checksum, index and count holds",
        f"next: python -m shards inspect {dataset} --show 32",
        f"  or: python -m trainer train CONFIG --dataset {dataset}",
    ]
    assert output.err == ""


LEVELS = {
    "--fast": "sizes and indexes hold; no other file was read: run without --fast",
    "--decode": "every checksum, index and count holds, every picture can be decoded",
}


@pytest.mark.parametrize(("option", "holds"), LEVELS.items())
def test_verify_says_what_was_checked(
    dataset: Path, option: str, holds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("verify", dataset, option) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"good: 7 records in 4 shards (0.0 MB), {holds}"


def test_verify_finds_what_its_level_can_find(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip_bit(dataset / FIRST, 8 * 20)
    assert call("verify", dataset, "--fast") == 0
    assert call("verify", dataset) == 1
    capsys.readouterr()
    (dataset / FIRST).unlink()
    assert call("verify", dataset, "--fast") == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{FIRST}: the shard is missing",
        f"damaged: 1 problem in {dataset}; mend it with `python -m pipelines repair CONFIG`",
    ]


def test_verify_cannot_decode_what_it_does_not_read(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        call("verify", dataset, "--fast", "--decode")
    assert caught.value.code == 2
    assert "argument --decode: not allowed with argument --fast" in capsys.readouterr().err


def test_verify_uses_all_cores_for_much_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    much, little = 10**9, 10**8
    assert [command_line.choose_processes(much, level) for level in ("fast", "full", "decode")] == [1, 6, 6]
    assert [command_line.choose_processes(little, level) for level in ("fast", "full", "decode")] == [1, 1, 6]


def test_verify_of_no_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("verify", tmp_path / "none") == 1
    assert capsys.readouterr().err == f"error: no dataset at {tmp_path}/none: there is no such directory\n"


@pytest.mark.parametrize("processes", [1, 2])
def test_verify_ends_cleanly_when_interrupted(dataset: Path, processes: int) -> None:
    size = 50_000_000_000  # half a minute of hashing, and no byte on the disk
    files = []
    for name in ("one", "two"):
        with (dataset / name).open("wb") as stream:
            stream.truncate(size)
        files.append(FileEntry(path=name, bytes=size, sha256="0"))
    change_manifest(dataset, files=(*read_manifest(dataset).files, *files))
    command = [sys.executable, "-m", "shards", "verify", str(dataset), "--processes", str(processes)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True, start_new_session=True
    ) as process:
        wait_until_reading(process.pid, [dataset / "one", dataset / "two"])
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        out, err = process.communicate()
    assert (process.returncode, out, err) == (1, "", "error: interrupted\n")
    deadline = time.monotonic() + 20
    while running := processes_of_group(process.pid):  # Python's own helper process sees a little later that we ended
        assert time.monotonic() < deadline, running
        time.sleep(0.05)


def processes_of_group(group: int) -> list[psutil.Process]:
    """Those that run; one that ended may still wait for whoever adopted it."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def wait_until_reading(pid: int, paths: list[Path]) -> None:
    """Waits until a process or one of its children has one of the files open."""
    parent = psutil.Process(pid)
    while True:
        for each in [parent, *parent.children(recursive=True)]:
            with suppress(psutil.Error):
                if any(Path(file.path) in paths for file in each.open_files()):
                    return
        time.sleep(0.05)


def test_verify_names_the_damage_and_fails(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip_bit(dataset / FIRST, 8 * 20)
    assert call("verify", dataset) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{FIRST}: record 0 at byte 0: data fails its checksum",
        f"damaged: 1 problem in {dataset}; mend it with `python -m pipelines repair CONFIG`",
    ]


def test_verify_counts_problems(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (dataset / "schema.pbtxt").unlink()
    (dataset / FIRST).unlink()
    assert call("verify", dataset, "--processes", 2) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{FIRST}: the shard is missing",
        "schema.pbtxt: the file is missing",
        f"damaged: 2 problems in {dataset}; mend it with `python -m pipelines repair CONFIG`",
    ]


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_what_is_not_a_dataset_is_refused(tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(command, tmp_path) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == (
        f"error: no manifest: {tmp_path} is not a complete dataset; build it with `python -m pipelines build`\n"
    )


def test_verify_refuses_no_processes(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("verify", dataset, "--processes", 0) == 2
    assert capsys.readouterr().err == "error: --processes 0 must be at least 1\n"


def test_inspect_prints_what_the_dataset_holds(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("inspect", dataset, "--records", 2) == 0
    size = len(png((0, 99, 7)))
    train, test = (f"{split.bytes / 1e6:.1f}" for split in read_manifest(dataset).splits)
    assert capsys.readouterr().out.splitlines() == [
        "flowers: 7 examples of 3 classes, 2 inputs rejected",
        f"  train                 5 records      3 shards          {train} MB",
        f"  test                  2 records      1 shards          {test} MB",
        "classes:",
        "  daisy                    train 2  test 1",
        "  löwenzahn                train 2  test 0",
        "  玫瑰                       train 1  test 1",
        "features:",
        "  image        bytes  the image",
        "  label        int64  the label",
        "  label_name   bytes  the label_name",
        "  key          bytes  the key",
        "  height       int64  the height",
        "  width        int64  the width",
        "  weight       float  the weight",
        "first records of train:",
        f"  height=4  image=<{size} bytes>  key='photos/00.png'  label=0  label_name='daisy'  weight=0.0  width=6",
        f"  height=4  image=<{size} bytes>  key='photos/01.png'  label=1  label_name='löwenzahn'  weight=0.5  width=6",
    ]


def test_inspect_shows_the_split_that_was_asked_for(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("inspect", dataset, "--split", "test", "--records", 1) == 0
    assert "first records of test:\n  height=4" in capsys.readouterr().out


def test_inspect_starts_with_the_first_split_that_has_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(tmp_path, {"train": (0,), "test": (1,)})
    assert call("inspect", tmp_path) == 0
    assert "first records of test:\n" in capsys.readouterr().out


def test_inspect_reads_on_in_the_next_shard(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("inspect", dataset, "--records", 100) == 0
    records = capsys.readouterr().out.partition("first records of train:\n")[2].splitlines()
    assert [line.partition("key='")[2][:13] for line in records] == [f"photos/{n:02}.png" for n in range(5)]


def test_inspect_of_a_dataset_without_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dataset(tmp_path, {"train": (0,)})
    assert call("inspect", tmp_path) == 1
    assert capsys.readouterr().err == f"error: no split of {tmp_path} has any records\n"


def test_inspect_lists_only_the_first_classes(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_manifest(dataset, labels=tuple(f"class {n}" for n in range(25)))
    assert call("inspect", dataset, "--records", 0) == 0
    output = capsys.readouterr().out
    assert "  class 19 " in output
    assert "  class 20 " not in output
    assert "  and 5 more\n" in output


USAGE = {
    "unknown split": (["--split", "validation"], "the dataset has no split 'validation'; it has train, test"),
    "negative records": (["--records", "-1"], "--records -1 and --show 0 must not be negative"),
    "negative show": (["--show", "-2"], "--records 3 and --show -2 must not be negative"),
}


@pytest.mark.parametrize(("arguments", "message"), USAGE.values(), ids=USAGE)
def test_inspect_refuses_impossible_requests(
    dataset: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("inspect", dataset, *arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == f"error: {message}\n"


def test_inspect_of_a_damaged_shard_points_to_verify(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip_bit(dataset / FIRST, 8 * 20)
    assert call("inspect", dataset) == 1
    assert capsys.readouterr().err == (
        f"error: {FIRST}: record 0 at byte 0: data fails its checksum; `python -m shards verify` lists all damage\n"
    )


def test_a_contact_sheet_shows_each_picture(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet = tmp_path / "sheet.png"
    assert call("inspect", dataset, "--show", 4, "--sheet", sheet) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"wrote 4 pictures of train to {sheet}"
    with Image.open(sheet) as picture:
        assert picture.format == "PNG"
        assert picture.size == (4 * 128, 128 + 16)
        assert [picture.getpixel((64 + 128 * n, 64)) for n in range(4)] == [(n * 40, 99, 7) for n in range(4)]
        assert picture.getpixel((1, 1)) == (255, 255, 255)


def test_a_contact_sheet_shows_at_most_what_there_is(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("inspect", dataset, "--show", 1000, "--sheet", tmp_path / "sheet.png") == 0
    assert f"wrote 5 pictures of train to {tmp_path}/sheet.png" in capsys.readouterr().out


@pytest.mark.parametrize(("pictures", "size"), [(1, (128, 144)), (8, (1024, 144)), (9, (1024, 288)), (17, (1024, 432))])
def test_a_contact_sheet_has_rows_of_eight(tmp_path: Path, pictures: int, size: tuple[int, int]) -> None:
    write_sheet([Sample("玫瑰 with a very long name", image=png((1, 2, 3)))] * pictures, tmp_path / "sheet")
    with Image.open(tmp_path / "sheet") as picture:
        assert picture.size == size


def test_a_contact_sheet_keeps_ratios_and_marks_what_it_cannot_read(tmp_path: Path) -> None:
    samples = [Sample("wide", image=png((0, 0, 255), (200, 100))), Sample("broken", image=b"no picture"), Sample("")]
    write_sheet(samples, tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as picture:
        assert picture.getpixel((64, 64)) == (0, 0, 255)
        assert picture.getpixel((64, 20)) == (255, 255, 255)  # above the wide picture
        assert picture.getpixel((128 + 64, 64)) == (255, 0, 0)
        assert picture.getpixel((256 + 64, 64)) == (255, 0, 0)


def test_a_contact_sheet_shows_boxes(tmp_path: Path) -> None:
    boxes = ((0.0, 0.0, 1.0, 1.0), (0.25, 0.5, 0.75, 1.0))
    write_sheet([Sample("", image=png((0, 0, 0), (120, 60)), boxes=boxes)], tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as picture:  # the picture is at 4..124, 34..94
        pink = [point for point in ((4, 34), (123, 93), (64, 49), (63, 60), (90, 78)) if sum(picture.getpixel(point))]
        assert pink == [(4, 34), (123, 93), (64, 49), (90, 78)]


LABELLED: dict[str, tuple[dict[str, Value], str]] = {
    "single": ({"label_name": [b"daisy"]}, "daisy"),
    "multi": ({"label_name": [b"daisy", "löwe".encode()]}, "daisy, löwe"),
    "multi without any": ({"label_name": []}, ""),
    "regression": ({"target": [0.1, -2.0]}, "0.1, -2.0"),
    "none": ({}, "photos/a.png"),
}


@pytest.mark.parametrize(("values", "caption"), LABELLED.values(), ids=LABELLED)
def test_the_caption_is_the_label_or_else_the_key(values: dict[str, Value], caption: str) -> None:
    example = decode_example(encode_example({"key": b"photos/a.png", "image": b"x", **values}))
    assert make_sample(example).caption == caption


def make_rows(dataset: Path) -> None:
    """Makes it a dataset of 20 features per record, with targets."""
    records = [encode_example({"features": [n + 0.1] * 20, "target": [n / 2], "key": b"%d" % n}) for n in range(3)]
    write_records(dataset / FIRST, records)
    entries = (
        FeatureEntry(name="features", type="float", description="the row", length=20),
        FeatureEntry(name="target", type="float", description="the target"),
        FeatureEntry(name="key", type="bytes", description="the key"),
    )
    change_manifest(dataset, features=entries, label_kind="regression", labels=())


def test_rows_of_features_are_shown_in_part(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_rows(dataset)
    assert call("inspect", dataset, "--records", 1) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "flowers: 7 examples with a target, 2 inputs rejected"
    assert "classes:" not in lines
    assert lines[-1] == f"  features={','.join(['0.1'] * 12)},... (20 values)  key='0'  target=0.0"


def test_a_contact_sheet_of_rows_is_refused(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_rows(dataset)
    assert call("inspect", dataset, "--show", 3) == 2
    assert capsys.readouterr().err == f"error: {dataset} holds rows of features and no pictures; leave out --show\n"


def test_inspect_counts_boxes(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = read_manifest(dataset)
    boxes = FeatureEntry(name="boxes", type="float", description="the boxes", length=None, per="box")
    counts = manifest.counts.model_copy(update={"boxes_kept": 1200, "boxes_dropped": 3})
    change_manifest(dataset, features=(*manifest.features, boxes), counts=counts)
    assert call("inspect", dataset, "--records", 0) == 0
    assert "boxes: 1,200, and 3 dropped\n" in capsys.readouterr().out


def test_a_contact_sheet_needs_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dataset(tmp_path, {"train": (1,), "test": (0,)})
    assert call("inspect", tmp_path, "--split", "test", "--show", 3, "--sheet", tmp_path / "sheet.png") == 1
    assert capsys.readouterr().err == "error: split 'test' has no pictures to show; choose another with --split\n"
    assert not (tmp_path / "sheet.png").exists()


def test_a_contact_sheet_needs_records_with_pictures(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = features(0)
    del example["image"], example["weight"]
    write_records(dataset / FIRST, [encode_example(example)])
    assert call("inspect", dataset, "--show", 1) == 1
    assert capsys.readouterr().err == (
        "error: a record has no image to show; `python -m shards verify` lists all damage\n"
    )


def test_a_contact_sheet_that_cannot_be_written(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("inspect", dataset, "--show", 1, "--sheet", dataset / "none" / "sheet.png") == 2
    message = f"error: --sheet {dataset}/none/sheet.png cannot be written: No such file or directory\n"
    assert capsys.readouterr().err == message


def test_values_are_shown_as_text_only_if_they_are(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example: dict[str, Value] = {"a": [b"x", b"y"], "b": b"\x00\x01", "c": "ü".encode() * 60, "d": [], "e": b"\xff"}
    example["f"] = [-1, 2]
    write_records(dataset / FIRST, [encode_example(example)])
    assert call("inspect", dataset, "--records", 1) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "  a='x','y'  b=<2 bytes>  c=<120 bytes>  d=  e='\\\\xff'  f=-1,2"
    )


def test_help_names_commands_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["verify", "--help"], ["inspect", "--help"]):
        with pytest.raises(SystemExit) as caught:
            command_line.main(arguments)
        assert caught.value.code == 0
    output = capsys.readouterr().out
    assert "verify|inspect" in output
    assert "Exit codes: 0 good, 1 damaged or not a dataset, 2 bad usage." in output
    assert "--processes N" in output
    assert "--fast" in output
    assert "--decode" in output
    assert "--sheet PNG" in output


@pytest.mark.parametrize("arguments", [[], ["check"], ["verify"], ["inspect", "x", "--rec", "3"], ["verify", "x", "y"]])
def test_bad_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command_line.main(arguments)
    assert caught.value.code == 2
    assert "usage: python -m shards" in capsys.readouterr().err


def test_from_a_shell(dataset: Path) -> None:
    good = shell("verify", dataset)
    assert (good.returncode, good.stdout.splitlines()[0][:28], good.stderr) == (0, "good: 7 records in 4 shards ", "")
    flip_bit(dataset / FIRST, 8 * 20)
    damaged = shell("verify", dataset)
    assert damaged.returncode == 1
    assert damaged.stdout.startswith(f"{FIRST}: record 0 at byte 0: data fails its checksum\n")
    usage = shell("inspect", dataset, "--records", "-1")
    assert (usage.returncode, usage.stdout, usage.stderr) == (
        2,
        "",
        "error: --records -1 and --show 0 must not be negative\n",
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_early_causes_no_traceback(dataset: Path, unbuffered: str) -> None:
    command = [sys.executable, "-m", "shards", "inspect", str(dataset)]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # long before Python has started
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_neither_command_loads_beam_or_tensorflow(dataset: Path, tmp_path: Path) -> None:
    program = f"""
import sys
from shards.__main__ import main
assert main(["verify", {str(dataset)!r}]) == 0
assert main(["inspect", {str(dataset)!r}, "--show", "2", "--sheet", {str(tmp_path / "s.png")!r}]) == 0
heavy = ("tensorflow", "apache_beam", "tensorflow_transform", "keras", "google.protobuf", "pyarrow", "cv2")
print("loaded:", [name for name in heavy if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout.splitlines()[-1] == "loaded: []"


def test_run_turns_a_users_mistake_into_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(error: BaseException) -> int:
        raise error

    assert run(lambda: 0) == 0
    assert run(lambda: fail(ShardsmithError("disk full; free some"))) == 1
    assert run(lambda: fail(UsageError("no such key"))) == 2
    assert run(lambda: fail(KeyboardInterrupt())) == 1
    assert capsys.readouterr().err == "error: disk full; free some\nerror: no such key\nerror: interrupted\n"
    with pytest.raises(KeyError):
        run(lambda: fail(KeyError("a bug")))
