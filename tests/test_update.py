"""Append and retry: new versions that hold what a fresh build would, made by opening only what is new or changed."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import InProcess, make_config
from light import LOCAL, break_files, files_of, hollow_out, images, run_append, run_build, run_retry
from pictures import encoded, picture, write_class_folders

from pipelines.analysis.analyst import Analyst
from pipelines.config import BuildConfig
from pipelines.inputs.spool import Spool
from pipelines.recipe import Recipe
from pipelines.runner import run_plan
from pipelines.update import publish
from pipelines.workspace.layout import BuildFolder, save_plan
from shards.errors import ShardsmithError, UsageError
from shards.example import decode_example
from shards.files import hash_file
from shards.manifest import read_manifest
from shards.records import read_records
from shards.verify import verify

SETTINGS: dict[str, Any] = {
    "splits": {"fractions": {"train": 0.7, "test": 0.3}},
    "image": {"resize": "exact:16", "encode": {"format": "png"}},
    "shards": {"target_mb": 0.006},
}


REAL = Analyst(InProcess())


def examples_of(root: Path) -> dict[str, dict[str, bytes]]:
    """The records of every split by their keys."""
    found: dict[str, dict[str, bytes]] = {}
    for split in read_manifest(root).splits:
        records = [record for shard in split.shards for _, record in read_records((root / shard.path).open("rb"))]
        found[split.name] = {decode_example(record)["key"][0].decode(): record for record in records}
        assert len(found[split.name]) == len(records) == split.records
    return found


def assert_fresh_content(config: BuildConfig, base: Path) -> None:
    """The dataset holds the very records that a fresh build of the same inputs makes, in the same splits."""
    fresh = run_build(config.model_copy(update={"output": str(base / "fresh")}))
    now = read_manifest(config.output)
    assert examples_of(Path(config.output)) == examples_of(base / "fresh")
    assert now.counts == fresh.counts
    assert verify(Path(config.output)) == []
    assert not (Path(config.output) / ".build").exists()
    shutil.rmtree(base / "fresh")


def assert_fresh(config: BuildConfig, base: Path) -> None:
    """The dataset equals what a fresh build of the same inputs makes, file by file."""
    fresh = config.model_copy(update={"output": str(base / "fresh")})
    run_build(fresh)
    assert files_of(Path(config.output)) == files_of(base / "fresh")
    assert verify(Path(config.output)) == []
    assert not (Path(config.output) / ".build").exists()
    shutil.rmtree(base / "fresh")


def file_identity(path: Path) -> tuple[int, int]:
    return path.stat().st_ino, path.stat().st_mtime_ns


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_class_folders(tmp_path / "raw", images=30)


def test_only_rejected_inputs_are_opened_and_the_result_is_that_of_a_fresh_build(source, tmp_path, capsys):
    broken = break_files(images(source)[3:50:15])
    config = make_config(source, tmp_path / "out", max_rejects=10, **SETTINGS)
    manifest = run_build(config, REAL)
    assert manifest.counts.rejected == {"truncated": 4}
    for path, content in broken.items():
        path.write_bytes(content)
    shutil.copytree(source, tmp_path / "good")  # copytree keeps times
    for path in images(source):
        if path not in broken:
            hollow_out(path)
    manifest = run_retry(config, REAL)
    assert (manifest.counts.listed, manifest.counts.written, manifest.counts.rejected) == (60, 60, {})
    assert manifest.version == 2
    told = capsys.readouterr().out
    assert "version 2: 0 inputs added, 0 removed, 4 changed; " in told
    assert "processed now: 4 inputs, 4 written, 0 rejected, with " in told
    assert f"next:    python -m shards verify {tmp_path}/out" in told
    shutil.rmtree(source)
    (tmp_path / "good").rename(source)
    assert_fresh_content(config, tmp_path)


def test_the_natural_flow_build_over_budget_mend_retry(source, tmp_path, capsys):
    one, two = break_files([images(source)[7]]), break_files([images(source)[40]])
    config = make_config(source, tmp_path / "out", **SETTINGS)
    with pytest.raises(ShardsmithError, match=r"mend these inputs and give the same command again"):
        run_build(config)
    for path, content in one.items():
        path.write_bytes(content)
    with pytest.raises(ShardsmithError, match=r"1 of 60 inputs were rejected") as caught:
        run_retry(config)
    assert f"the full list is in {tmp_path}/out/rejected" in str(caught.value)
    lines = [line for path in (tmp_path / "out" / "rejected").glob("*.jsonl") for line in path.open()]
    assert [json.loads(line)["key"] for line in lines] == [path.relative_to(source).as_posix() for path in two]
    for path in images(source):
        if path not in two:
            hollow_out(path)
    allowed = run_retry(config.model_copy(update={"max_rejects": 1}))
    assert (allowed.counts.written, allowed.counts.rejected) == (59, {"truncated": 1})
    assert "processed now: 1 inputs, 0 written, 1 rejected" in capsys.readouterr().out
    assert verify(tmp_path / "out") == []


@pytest.mark.parametrize("seed", range(3))
def test_whatever_breaks_and_is_mended_the_files_are_those_of_a_fresh_build(seed, tmp_path):
    """Files break, are mended, vanish and appear; without a resize their sizes move the shards' boundaries."""
    chance = random.Random(seed)
    source = write_class_folders(tmp_path / "raw", classes=("a", "b", "c"), images=25)
    settings = SETTINGS | {"image": {"encode": {"format": "original"}}, "shards": {"target_mb": 0.012}}
    config = make_config(source, tmp_path / "out", max_rejects=75, quarantine=True, **settings)
    broken = break_files(chance.sample(images(source), 20))
    before = run_build(config)
    for path in chance.sample(sorted(broken), chance.randint(0, 20)):
        path.write_bytes(broken[path])
    for path in chance.sample(images(source), 3):
        path.unlink()
    for path in chance.sample(images(source), 3):
        path.write_bytes(encoded(picture(chance.randrange(1000), size=(90, 70)), "png"))
    for number in range(chance.randint(0, 20)):
        (source / "b" / f"new{number}.png").write_bytes(encoded(picture(5000 + number, size=(60, 50)), "png"))
    after = run_retry(config)
    assert after.counts != before.counts
    assert_fresh_content(config, tmp_path)


def test_shards_without_a_change_are_the_same_files(source, tmp_path, capsys):
    broken = break_files(images(source)[:1])
    config = make_config(source, tmp_path / "out", max_rejects=1, **SETTINGS)
    run_build(config)
    before = {path.name: file_identity(path) for path in (tmp_path / "out").rglob("*.tfrecord")}
    for path, content in broken.items():
        path.write_bytes(content)
    manifest = run_retry(config)
    after = {path.name: file_identity(path) for path in (tmp_path / "out").rglob("*.tfrecord")}
    assert len(before) > 5
    assert {name: after[name] for name in before} == before  # the one that ended stays for those who read it
    assert len(after) == len(before) + 1
    assert [entry.path.rpartition(".")[2] for entry in manifest.retired] == ["tfrecord", "idx"]
    assert "1 new shards, 1 ended" in capsys.readouterr().out


def test_a_file_that_was_replaced_by_one_of_the_same_size_is_read_again(source, tmp_path):
    config = make_config(source, tmp_path / "out", **SETTINGS | {"image": {"encode": {"format": "original"}}})
    one, two = source / "cat" / "one.bmp", source / "cat" / "two.bmp"
    one.write_bytes(encoded(picture(1), "bmp"))
    two.write_bytes(encoded(picture(2), "bmp"))
    run_build(config)
    one.write_bytes(two.read_bytes())
    run_retry(config)
    assert_fresh_content(config, tmp_path)


def test_the_other_input_of_a_key_takes_its_place(tmp_path):
    """Two rows give one id to two files of the same size; the first row goes, and with it its record."""
    for number in range(4):
        (tmp_path / f"{number}.bmp").write_bytes(encoded(picture(number), "bmp"))
    rows = [f"{number}.bmp,x,{max(number, 1)}\n" for number in range(4)]  # the first two share id 1
    (tmp_path / "list.csv").write_text("path,label,id\n" + "".join(rows))
    config = make_config(tmp_path / "list.csv", tmp_path / "data" / "out", max_rejects=1, image={"resize": "exact:8"})
    assert run_build(config).counts.rejected == {"duplicate_key": 1}
    (tmp_path / "list.csv").write_text("path,label,id\n" + "".join(rows[1:]))
    assert run_retry(config, allow_removals=True).counts.rejected == {}
    assert_fresh_content(config, tmp_path)


def test_a_new_class_comes_behind_the_others_and_moves_no_id(source, tmp_path, capsys):
    config = make_config(source, tmp_path / "out", **SETTINGS)
    run_build(config)
    before = {name: hash_file(tmp_path / "out" / name) for name in shard_names(tmp_path / "out")}
    for path in images(source):
        hollow_out(path)
    (source / "cow").mkdir()
    (source / "cow" / "1.png").write_bytes(encoded(picture(9), "png"))
    manifest = run_append(config)
    assert manifest.labels == ("cat", "dog", "cow")
    assert {name: hash_file(tmp_path / "out" / name) for name in before} == before
    assert "version 2: 1 inputs added, 0 removed, 0 changed; 1 new shards, 0 ended" in capsys.readouterr().out
    assert verify(tmp_path / "out") == []


def shard_names(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.glob("*/*.tfrecord"))


def test_nothing_to_do_changes_nothing(source, tmp_path, capsys):
    config = make_config(source, tmp_path / "out", max_rejects=1, **SETTINGS)
    run_build(config)
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in (tmp_path / "out").rglob("*")}
    run_retry(config)
    told = capsys.readouterr().out
    assert "nothing to do: no input is rejected, and none was added, changed or removed\n" in told
    assert told.endswith(f"the dataset in {tmp_path}/out is still what it was: version 1\n")
    after = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in (tmp_path / "out").rglob("*")}
    assert after == before
    break_files(images(source)[:1])
    run_retry(config)
    run_retry(config)
    assert "1 inputs are still rejected, and nothing else has changed; see" in capsys.readouterr().out


def test_a_finished_dataset_gives_way_to_a_complete_one_only(source, tmp_path):
    config = make_config(source, tmp_path / "out", **SETTINGS)
    run_build(config)
    before = files_of(tmp_path / "out")
    broken = break_files(images(source)[:2])
    with pytest.raises(ShardsmithError) as caught:
        run_retry(config)
    assert str(caught.value).startswith("2 of 60 inputs were rejected (3.33%), max_reject_fraction allows 0.00%: ")
    assert str(caught.value).endswith(f"\n  the dataset in {tmp_path}/out is still what it was")
    assert verify(tmp_path / "out") == []
    for path, content in broken.items():
        path.write_bytes(content)
    run_retry(config)
    after = files_of(tmp_path / "out")
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {name for name in changed if "state/seen" in name or name == "state/local.json"}
    assert verify(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"image": {"resize": "exact:17", "encode": {"format": "png"}}},
            "image.resize.size is 17, but {out} was built with 16; "
            "use the settings of the build, or build again with --overwrite",
        ),
        ({"splits": {"fractions": {"train": 1.0}}}, "splits.fractions.test is not set, but {out} was built with 0.3; "),
        (
            {"image": SETTINGS["image"] | {"max_megapixels": 1}},
            "image.max_megapixels is 1.0, but {out} was built with ",
        ),
        ({"name": "pets"}, 'name is "pets", but {out} was built with "dataset"; '),
    ],
)
def test_other_settings_are_refused(change, message, source, tmp_path):
    out = tmp_path / "out"
    run_stub(make_config(source, out, **SETTINGS))
    with pytest.raises(UsageError) as caught:
        run_retry(make_config(source, out, **SETTINGS | change))
    assert str(caught.value).startswith(message.format(out=out))


def run_stub(config: BuildConfig) -> None:
    """Leaves what a build leaves that was cut off before its first shard."""
    folder = BuildFolder(Path(config.output))
    folder.prepare(anew=False)
    Recipe.of(config).save(folder.recipe)
    save_plan(run_plan(config, options=LOCAL), folder.plan)


def test_other_packages_are_refused(source, tmp_path, monkeypatch):
    config = make_config(source, tmp_path / "out", **SETTINGS)
    run_stub(config)
    monkeypatch.setattr("pipelines.recipe.version", lambda name: "99.0")
    with pytest.raises(
        UsageError, match=r"was built with opencv-python-headless .*, here is 99.0, which may write other"
    ):
        run_retry(config)


def test_raised_caps_are_taken_up(source, tmp_path):
    (source / "cat" / "large.png").write_bytes(encoded(picture(7, size=(300, 200)), "png"))
    low = SETTINGS | {"image": SETTINGS["image"] | {"max_megapixels": 0.05}}
    manifest = run_build(make_config(source, tmp_path / "out", max_rejects=3, **low))
    assert manifest.counts.rejected == {"too_many_pixels": 1}
    high = make_config(source, tmp_path / "out", **SETTINGS | {"image": SETTINGS["image"] | {"max_megapixels": 1}})
    after = run_retry(high)
    assert after.settings["image"]["max_megapixels"] == 1
    assert after.history[-1].settings == {"image.max_megapixels": ("0.05", "1.0")}
    assert_fresh_content(high, tmp_path)


def test_outputs_without_a_dataset_are_refused(source, tmp_path):
    with pytest.raises(UsageError) as caught:
        run_retry(make_config(source, tmp_path / "out"))
    assert str(caught.value) == (
        f"output {tmp_path}/out holds nothing to retry; build it first with `python -m pipelines build`"
    )
    assert not (tmp_path / "out").exists()


def test_a_build_that_was_cut_off_goes_on(source, tmp_path, capsys):
    config = make_config(source, tmp_path / "out", **SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.build.commit", _stop)
        with pytest.raises(KeyboardInterrupt):
            run_build(config)
    folder = BuildFolder(tmp_path / "out")
    receipts = sorted((folder.state / "receipts").iterdir())
    for receipt in receipts[:3]:  # as if the last three had not been written yet
        receipt.unlink()
    shutil.rmtree(folder.state / "facts")
    (folder.state / "facts").mkdir()
    run_retry(config)
    assert_fresh(config, tmp_path)


def _stop(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_spooled_inputs_are_known_by_their_bytes(tmp_path):
    """A spooled copy has no time of modification; its hash stands for it."""
    with (tmp_path / "spool").open("wb") as stream:
        spool = Spool("p", stream)
        first, same, other = spool.add(b"aaaa"), spool.add(b"aaaa"), spool.add(b"aaab")
    assert first.content == same.content != other.content
    assert Spool("", None).add(b"aaaa").content == 0


@pytest.fixture(scope="module")
def replacement(tmp_path_factory):
    """A finished dataset with a finished next one, not yet announced; and what it must become."""
    base = tmp_path_factory.mktemp("replacement")
    raw = write_class_folders(base / "raw", images=12)
    config = make_config(raw, base / "out", max_rejects=1, **SETTINGS)
    broken = break_files(images(raw)[:1])
    run_build(config)
    for path, content in broken.items():
        path.write_bytes(content)
    (raw / "cow").mkdir()
    (raw / "cow" / "1.png").write_bytes(encoded(picture(9), "png"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BuildFolder, "publish_next", _stop)
        with pytest.raises(KeyboardInterrupt):
            run_retry(config)
    shutil.copytree(base / "out", base / "cut")
    run_retry(config)
    return config, base / "cut", files_of(base / "out")


def test_a_replacement_may_be_cut_off_anywhere(replacement, tmp_path):
    _, cut, expected = replacement
    out = tmp_path / "out"
    new = steps = 0
    while True:
        shutil.copytree(cut, out)
        folder = BuildFolder(out)
        with pytest.MonkeyPatch.context() as patch:
            left = Countdown(steps)
            patch.setattr(Path, "unlink", left.before(Path.unlink))
            patch.setattr(os, "replace", left.before(os.replace))
            patch.setattr(shutil, "rmtree", left.before(shutil.rmtree))
            try:
                publish(folder, read_manifest(folder.next.root))
            except KeyboardInterrupt:
                finished = False
            else:
                finished = True
        # Whichever manifest is in place, every shard that it names is there and whole: its readers see no change.
        new += read_manifest(out).version == 2
        damage = [problem for problem in verify(out) if problem.path.endswith((".tfrecord", ".idx"))]
        assert {problem.message for problem in damage} <= {"is not in the manifest"}
        if finished:
            break
        if folder.ready.exists():
            folder.finish_publishing()
            assert files_of(out) == expected
        shutil.rmtree(out)
        steps += 1
    assert files_of(out) == expected
    assert not folder.work.exists()
    assert steps > 15
    assert 0 < new < steps


class Countdown:
    """Interrupts before the n-th call of what it wraps."""

    def __init__(self, left: int) -> None:
        self.left = left

    def before(self, function):
        def call(*arguments, **named):
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            return function(*arguments, **named)

        return call


def test_build_and_retry_finish_an_announced_replacement_first(replacement, tmp_path):
    config, cut, expected = replacement
    for run in (run_build, run_retry):
        out = tmp_path / run.__name__
        shutil.copytree(cut, out)
        folder = BuildFolder(out)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BuildFolder, "finish_publishing", lambda self: None)
            publish(folder, read_manifest(folder.next.root))
        assert folder.ready.exists()
        here = config.model_copy(update={"output": str(out)})
        run(here)
        assert files_of(out) == expected


def test_rows_of_arrays_columns_and_boxes_are_taken_over(tmp_path):
    """What a record's accounts say besides its bytes survives: boxes, formats, sizes, columns."""
    rows = []
    for number in range(12):
        (tmp_path / f"{number}.png").write_bytes(encoded(picture(number, size=(30 + number, 20)), "png"))
        boxes = [[12, 5, 20, 15], [0, 1, 4, 9]]
        rows.append({"path": f"{number}.png", "label": "ab"[number % 2], "boxes": boxes, "age": number, "city": "né"})
    rows[5]["age"] = "old"
    listing = tmp_path / "list.jsonl"

    def save() -> None:
        listing.write_text("".join(json.dumps(row) + "\n" for row in rows))

    save()
    config = make_config(
        listing, tmp_path / "data" / "out", max_rejects=1, boxes={"min_visible": 0.5},
        columns={"age": {"type": "int", "scale": "z_score"}, "city": {"type": "text"}},
        image={"resize": "center_crop:16"}, shards={"count": 1}, splits={"fractions": {"train": 1.0}},
    )  # fmt: skip
    assert run_build(config).counts.rejected == {"bad_row": 1}
    rows[5]["age"] = 5
    save()
    manifest = run_retry(config)
    assert manifest.counts.rejected == {}
    assert 0 < manifest.counts.boxes_dropped < 24 == manifest.counts.boxes_dropped + manifest.counts.boxes_kept
    assert_fresh_content(config, tmp_path)


def test_spooled_arrays_are_spooled_again_and_only_what_changed_is_processed(tmp_path, capsys):
    pictures = np.random.default_rng(3).random((30, 8, 8, 3), dtype=np.float32)
    labels = np.arange(30) % 2
    good = pictures[7].copy()
    pictures[7, 0, 0, 0] = np.nan
    (tmp_path / "raw").mkdir()
    np.savez_compressed(tmp_path / "raw" / "set.npz", data=pictures, labels=labels)
    config = make_config(tmp_path / "raw" / "set.npz", tmp_path / "out", max_rejects=1, shards={"count": 2})
    assert run_build(config).counts.rejected == {"bad_values": 1}
    pictures[7] = good
    np.savez_compressed(tmp_path / "raw" / "set.npz", data=pictures, labels=labels)
    manifest = run_retry(config)
    assert (manifest.counts.written, manifest.counts.rejected) == (30, {})
    assert "processed now: 1 inputs, 1 written, 0 rejected" in capsys.readouterr().out
    assert_fresh_content(config, tmp_path)


def test_spooled_rows_whose_values_change_are_not_taken_over(tmp_path, capsys):
    rows = np.random.default_rng(4).random((30, 5), dtype=np.float32)
    (tmp_path / "raw").mkdir()
    config = make_config(tmp_path / "raw" / "set.npz", tmp_path / "out", shards={"count": 2})
    np.savez_compressed(tmp_path / "raw" / "set.npz", data=rows, labels=np.arange(30) % 2)
    run_build(config)
    rows[3] = 1 - rows[3]  # as many bytes as before
    np.savez_compressed(tmp_path / "raw" / "set.npz", data=rows, labels=np.arange(30) % 2)
    run_retry(config)
    assert "processed now: 1 inputs, 1 written, 0 rejected" in capsys.readouterr().out
    assert_fresh_content(config, tmp_path)
