"""Repair: whatever is flipped, cut off or deleted comes back byte for byte, and only what is needed is opened."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from conftest import make_config
from light import LOCAL, break_files, files_of, hollow_out, images, run_append, run_build
from pictures import encoded, picture, write_class_folders

from pipelines.compact import compact
from pipelines.config import BuildConfig
from pipelines.repair import repair
from pipelines.values import PlannedShard
from pipelines.workspace.layout import BuildFolder
from pipelines.writing.seen import KEY, read_seen, to_text
from shards.errors import ShardsmithError, UsageError
from shards.files import hash_file
from shards.manifest import read_manifest
from shards.records import read_index
from shards.verify import verify

ROOT = Path(__file__).parent.parent
SETTINGS = {
    "splits": {"fractions": {"train": 0.7, "test": 0.3}},
    "image": {"resize": "exact:16", "encode": {"format": "png"}},
    "shards": {"target_mb": 0.006},
    "max_rejects": 5,
    "quarantine": True,
}


@dataclass(frozen=True)
class Place:
    """A dataset in a test's own folder, with the source that it was made from."""

    source: Path
    root: Path
    config: BuildConfig
    before: dict[str, str]

    @property
    def folder(self) -> BuildFolder:
        return BuildFolder(self.root)

    @property
    def shards(self) -> list[PlannedShard]:
        manifest = read_manifest(self.root)
        names = [(split.name, Path(shard.path).stem) for split in manifest.splits for shard in split.shards]
        return [PlannedShard(-1, split, int(name.rpartition("-")[2])) for split, name in names]

    def keys(self, shard: PlannedShard) -> list[str]:
        return [to_text(key) for key in read_seen(self.folder.seen(shard))[KEY].to_pylist()]

    def repair(self) -> None:
        repair(self.config, options=LOCAL)

    def assert_whole(self) -> None:
        assert files_of(self.root) == self.before
        assert verify(self.root) == []
        assert not self.folder.work.exists()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two generations of shards, three rejects, and a shard of the version before."""
    base = tmp_path_factory.mktemp("original")
    source = write_class_folders(base / "raw", images=25)
    break_files(images(source)[3:50:20])
    config = make_config(source, base / "out", **SETTINGS)
    run_build(config)
    images(source)[10].unlink()
    for number in range(10):
        (source / "cow").mkdir(exist_ok=True)
        (source / "cow" / f"{number}.png").write_bytes(encoded(picture(number), "png"))
    manifest = run_append(config)
    assert manifest.version == 2
    assert manifest.counts.rejected == {"truncated": 3}
    assert len(manifest.retired) == 2
    assert verify(base / "out") == []
    return base


@pytest.fixture
def place(original: Path, tmp_path: Path) -> Place:
    shutil.copytree(original, tmp_path / "base")  # with the times of files
    source, root = tmp_path / "base" / "raw", tmp_path / "base" / "out"
    return Place(source, root, make_config(source, root, **SETTINGS), files_of(root))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 4
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


DAMAGES = [flip, cut, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_file_that_needs_no_source_comes_back(damage, place):
    shutil.rmtree(place.source)
    names = [name for name in place.before if not needs_source(name)]
    assert len(names) > 30
    for name in names:
        damage(place.root / name)
        place.repair()
        place.assert_whole()


def needs_source(name: str) -> bool:
    return name.endswith(".tfrecord") or name.startswith(("state/facts/", "state/seen/", "rejected/quarantine/"))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("what", ["shard", "facts", "seen"])
def test_a_file_of_a_shard_comes_back_and_only_inputs_of_that_shard_are_opened(what, damage, place):
    shard = place.shards[1]
    mine = place.keys(shard)
    for path in images(place.source):
        if path.relative_to(place.source).as_posix() not in mine:
            hollow_out(path)
    damage(getattr(place.folder, what)(shard))
    place.repair()
    place.assert_whole()


@pytest.mark.parametrize("what", ["shard", "index", "facts", "seen", "receipt"])
def test_all_shards_at_once(what, place, capsys):
    for number, shard in enumerate(place.shards):
        DAMAGES[number % 3](getattr(place.folder, what)(shard))
    place.repair()
    place.assert_whole()
    told = capsys.readouterr().out
    assert f"good: every file of {place.root} is again what it was\n" in told


def test_only_the_input_of_the_damaged_record_is_opened(place, capsys):
    shard = place.shards[0]
    damaged = damage_record(place, shard, 3)
    for path in images(place.source):
        if path.relative_to(place.source).as_posix() != damaged:
            hollow_out(path)
    place.repair()
    place.assert_whole()
    told = capsys.readouterr().out
    name = f"{shard.name}.tfrecord"
    assert told.startswith(f"damaged or missing in {place.root}:\n  {name}: record 3 at byte ")
    assert f"repaired:\n  {name}: from 1 input, and 7 records that are left\n" in told


def damage_record(place: Place, shard: PlannedShard, number: int) -> str:
    """Flips a bit of a record and returns its key."""
    offset, size = read_index(place.folder.index(shard))[number]
    path = place.folder.shard(shard)
    content = bytearray(path.read_bytes())
    content[offset + size // 2] ^= 1
    path.write_bytes(content)
    return record_keys(place, shard)[number]


def record_keys(place: Place, shard: PlannedShard) -> list[str]:
    rows = read_seen(place.folder.seen(shard)).to_pylist()
    return [to_text(row[KEY]) for row in rows if not row["reason"]]


def test_quarantined_bytes_come_back_from_their_inputs_alone(place):
    kept = sorted((place.root / "rejected" / "quarantine").rglob("*/*"))
    assert len(kept) == 3
    for path, damage in zip(kept, DAMAGES, strict=True):
        damage(path)
    broken = {image for image in images(place.source) if hash_file(image) in {path.name for path in kept}}
    assert len(broken) == 3
    for path in images(place.source):
        if path not in broken:
            hollow_out(path)
    place.repair()
    place.assert_whole()


def test_inputs_that_are_gone_matter_only_if_their_records_are_damaged(place):
    shard = place.shards[0]
    needed = damage_record(place, shard, 2)
    for path in images(place.source):
        if path.relative_to(place.source).as_posix() != needed:
            path.unlink()
    place.repair()
    place.assert_whole()


def test_what_is_lost_is_named_and_the_rest_is_repaired_and_append_goes_on_without_it(place, capsys):
    first, second = place.shards[0], place.shards[1]
    gone, bad = damage_record(place, first, 2), damage_record(place, first, 5)
    damage_record(place, second, 1)
    (place.source / gone).unlink()
    hollow_out(place.source / bad)
    with pytest.raises(ShardsmithError) as caught:
        place.repair()
    not_known = f"file starts with {bytes(8)}, which is not JPEG, PNG, BMP, GIF or WebP"
    assert str(caught.value) == (
        f"1 file of {place.root} could not be repaired:\n"
        f"  {first.name}.tfrecord: inputs that it needs are not what they were:\n"
        + "".join(f"    {line}\n" for line in sorted([f"{gone} is gone", f"{bad} is now unknown_format: {not_known}"]))
        + "    restore these inputs and repair again, or make a version without them with `python -m pipelines append`"
    )
    assert f"  {second.name}.tfrecord: from 1 input, and" in capsys.readouterr().out
    assert {problem.path for problem in verify(place.root)} == {f"{first.name}.tfrecord"}
    (place.source / bad).unlink()
    assert run_append(place.config).history[-1].removed == 2
    assert verify(place.root) == []


def test_a_folder_of_a_split_and_the_manifest_at_once(place, capsys):
    shutil.rmtree(place.root / "test")
    flip(place.root / "manifest.json")
    flip(place.root / "schema.pbtxt")
    (place.root / "train" / "train-00003.tfrecord").unlink()
    place.repair()
    place.assert_whole()
    told = capsys.readouterr().out
    assert "  manifest.json: from the other one\n" in told
    assert "  schema.pbtxt: from spare.zip\n" in told


def test_nothing_damaged(place, capsys):
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in place.root.rglob("*")}
    shutil.rmtree(place.source)
    place.repair()
    assert capsys.readouterr().out == f"nothing to repair: every file of {place.root} is what it was\n"
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in place.root.rglob("*")} == before


def test_the_whole_state_comes_back(place, capsys):
    shutil.rmtree(place.root / "state")
    place.repair()
    place.assert_whole()
    told = capsys.readouterr().out
    assert "  state/manifest.json: from the other one\n" in told
    assert "  state/seen/sources.json: from the sources\n" in told
    assert "  state/receipts/train-00000.json: from spare.zip\n" in told
    assert "  state/facts/train-00000.arrow: from 8 inputs\n" in told


def test_what_was_only_in_the_state_and_in_the_spare_is_lost(place):
    shutil.rmtree(place.root / "state")
    (place.root / "spare.zip").unlink()
    with pytest.raises(ShardsmithError) as caught:
        place.repair()
    assert str(caught.value) == (
        f"3 files of {place.root} could not be repaired:\n"
        "  spare.zip: held a copy of state/plan.json, which is damaged too; "
        "restore it from a backup, or build again with --overwrite\n"
        "  state/plan.json, state/recipe.json: has no good copy in spare.zip; "
        "restore it from a backup, or build again with --overwrite"
    )
    lost = {"spare.zip", "state/plan.json", "state/recipe.json"}
    assert files_of(place.root) == {name: sha256 for name, sha256 in place.before.items() if name not in lost}


def test_a_copy_that_is_damaged_with_its_file_is_no_help(place):
    content = bytearray((place.root / "spare.zip").read_bytes())
    content[content.index((place.root / "schema.pbtxt").read_bytes()) + 9] ^= 1
    (place.root / "spare.zip").write_bytes(content)
    flip(place.root / "schema.pbtxt")
    flip(place.root / "features.json")
    with pytest.raises(ShardsmithError) as caught:
        place.repair()
    assert str(caught.value).startswith(f"2 files of {place.root} could not be repaired:\n  spare.zip: held a copy of ")
    assert "\n  schema.pbtxt: has no good copy in spare.zip; restore it from a backup, or build" in str(caught.value)
    assert {problem.path for problem in verify(place.root)} == {"spare.zip", "schema.pbtxt"}


def test_both_manifests_are_lost(place):
    flip(place.root / "manifest.json")
    (place.root / "state" / "manifest.json").unlink()
    with pytest.raises(ShardsmithError) as caught:
        place.repair()
    assert str(caught.value).startswith(f"{place.root}/manifest.json ")
    assert str(caught.value).endswith(
        f", and {place.root}/state/manifest.json is missing: nothing says any more what the dataset was; "
        "restore one of the two from a backup, or build again with --overwrite"
    )
    (place.root / "manifest.json").unlink()
    with pytest.raises(UsageError) as refused:
        place.repair()
    assert str(refused.value) == (
        f"output {place.root} holds no dataset: there is neither manifest.json nor its copy state/manifest.json; "
        "build it with `python -m pipelines build`"
    )


@pytest.mark.parametrize("number", [0, 2, 3])  # the last was made by the append, the one before from an older one
def test_a_shard_of_which_nothing_is_left_is_found_by_the_range_of_its_hashes(number, place):
    shard = [each for each in place.shards if each.split == "train"][number]
    for path in place.folder.shard_files(shard):
        path.unlink(missing_ok=True)
    place.repair()
    place.assert_whole()


def test_a_shard_is_repaired_in_a_copy_that_does_not_know_its_inputs(place):
    shutil.rmtree(place.root / "state" / "seen")
    (place.root / "state" / "local.json").unlink()
    flip(place.folder.shard(place.shards[0]))
    place.repair()
    assert verify(place.root) == []
    assert files_of(place.root) == {name: sha for name, sha in place.before.items() if not is_local(name)}


def is_local(name: str) -> bool:
    return name == "state/local.json" or name.startswith("state/seen/")


def test_sources_that_are_gone_altogether(place):
    damaged = damage_record(place, place.shards[0], 0)
    shutil.rmtree(place.source)
    with pytest.raises(ShardsmithError) as caught:
        place.repair()
    assert f".tfrecord: source.path {place.source} does not exist\n    {damaged} is gone\n    restore" in str(
        caught.value
    )


def test_an_input_that_was_only_touched_gives_what_it_gave(place):
    damage_record(place, place.shards[0], 4)
    for path in images(place.source):
        os.utime(path)
    place.repair()
    place.assert_whole()


def test_an_input_that_was_replaced_by_another_is_named(place):
    damaged = damage_record(place, place.shards[0], 4)
    (place.source / damaged).write_bytes(encoded(picture(77), "png"))
    with pytest.raises(ShardsmithError) as caught:
        place.repair()
    assert f"inputs that it needs are not what they were:\n    {damaged} has changed\n" in str(caught.value)


def test_an_input_that_now_has_a_label_of_its_own_is_named(place):
    damaged = damage_record(place, place.shards[0], 4)
    listing = place.source.with_name("list.csv")
    rows = [(path.relative_to(place.source).as_posix(), path.parent.name) for path in images(place.source)]
    listing.write_text("path,label\n" + "".join(f"{name},{'yak' if name == damaged else 'cat'}\n" for name, _ in rows))
    config = make_config(listing, place.root, **SETTINGS | {"source": {"root": str(place.source)}})
    with pytest.raises(ShardsmithError) as caught:
        repair(config, options=LOCAL)
    assert f"    {damaged} is now bad_row: label 'yak' is none of the dataset's\n" in str(caught.value)


def test_a_good_file_in_the_place_of_another(place):
    first, second = place.shards[:2]
    shutil.copy(place.folder.shard(first), place.folder.shard(second))
    place.repair()
    place.assert_whole()


def test_strangers_are_named_and_temporaries_removed(place):
    (place.root / "notes.txt").write_text("mine")
    temporary = place.root / "train" / f".train-00009.tfrecord.{'0' * 32}.tmp"
    temporary.write_text("")
    with pytest.raises(ShardsmithError) as caught:
        place.repair()
    assert str(caught.value) == (
        f"1 file of {place.root} could not be repaired:\n  notes.txt: is no file of this dataset: move it away"
    )
    (place.root / "notes.txt").unlink()
    place.assert_whole()


def test_a_shard_of_the_version_before_is_let_go_with_the_next(place):
    flip(place.root / "train" / "train-00002.tfrecord")
    with pytest.raises(ShardsmithError) as caught:
        place.repair()
    assert str(caught.value).endswith(
        "train/train-00002.tfrecord: is of the version before, of which nothing is made again; "
        "the next version does without it"
    )


def test_other_settings_are_refused_and_other_packages_are_tried(place, monkeypatch):
    other = place.config.model_copy(update={"name": "pets"})
    with pytest.raises(UsageError) as caught:
        repair(other, options=LOCAL)
    assert str(caught.value) == (
        f'name is "pets", but {place.root} was built with "dataset"; repair it with the settings of the build'
    )
    monkeypatch.setattr("pipelines.recipe.version", lambda name: "99.0")
    flip(place.folder.shard(place.shards[0]))
    place.repair()
    place.assert_whole()


def test_an_unfinished_build_is_refused(place):
    place.folder.reopen()
    with pytest.raises(UsageError) as caught:
        place.repair()
    assert str(caught.value) == (
        f"output {place.root} holds an unfinished build; finish it with `python -m pipelines build`"
    )


def test_a_repair_may_be_cut_off_anywhere(place, monkeypatch):
    shard = place.shards[0]
    steps = 0
    while True:
        for path in (place.root / "manifest.json", place.root / "spare.zip", place.folder.shard(shard)):
            flip(path)
        place.folder.facts(shard).unlink()
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", interrupt_after(steps, place.folder.work))
            try:
                place.repair()
                break
            except KeyboardInterrupt:
                steps += 1
        place.repair()
        place.assert_whole()
    place.assert_whole()
    assert steps == 4


def interrupt_after(steps: int, work: Path) -> Callable[[Path, Path], None]:
    """Replaces files, until so many of the dataset's own have been."""
    replace, left = os.replace, [steps]

    def interrupted(old: Path, new: Path) -> None:
        if not Path(new).is_relative_to(work):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
        replace(old, new)

    return interrupted


def test_command_line(place):
    def run(*more: str) -> subprocess.CompletedProcess[str]:
        sets = ["splits.fractions={train: 0.7, test: 0.3}", "image.encode.format=png", "shards.target_mb=0.006"]
        command = [sys.executable, "-m", "pipelines", "repair", "--source", str(place.source), "--resize", "exact:16"]
        command += ["--output", str(place.root), *(word for each in sets for word in ("--set", each)), *more]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=250)

    (place.root / "schema.pbtxt").unlink()
    damaged = damage_record(place, place.shards[0], 4)
    whole = (place.source / damaged).read_bytes()
    (place.source / damaged).unlink()
    done = run()
    assert done.returncode == 1
    assert "repaired:\n  schema.pbtxt: from spare.zip\n" in done.stdout
    assert f"error: 1 file of {place.root} could not be repaired:\n" in done.stderr
    assert f"    {damaged} is gone\n" in done.stderr
    assert "Traceback" not in done.stderr
    (place.source / damaged).write_bytes(whole)
    done = run("--direct_running_mode=multi_processing", "--direct_num_workers=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(
        f"good: every file of {place.root} is again what it was\nnext: python -m shards verify {place.root}\n"
    )
    place.assert_whole()


@pytest.mark.parametrize("what", ["shard", "seen", "rejects"])
def test_duplicates_are_found_again(what, tmp_path):
    source = write_class_folders(tmp_path / "raw", images=12)
    for path in images(source)[::4]:
        shutil.copy(path, path.with_name(f"copy-{path.name}"))
    config = make_config(source, tmp_path / "out", **SETTINGS | {"dedupe": "exact"})
    manifest = run_build(config)
    assert manifest.counts.duplicates == 6
    before = files_of(tmp_path / "out")
    assert "duplicates.jsonl" in before
    folder = BuildFolder(tmp_path / "out")
    shard = next(each for each in Place(source, folder.root, config, {}).shards if folder.rejects(each).exists())
    getattr(folder, what)(shard).unlink()
    (folder.root / "spare.zip").unlink()
    repair(config, options=LOCAL)
    assert files_of(tmp_path / "out") == before


@pytest.mark.parametrize("what", ["shard", "seen"])
def test_inputs_that_are_copied_before_they_are_read(what, tmp_path):
    pictures = np.random.default_rng(3).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
    (tmp_path / "raw").mkdir()
    np.savez_compressed(tmp_path / "raw" / "set.npz", data=pictures, labels=np.arange(30) % 2)
    config = make_config(tmp_path / "raw" / "set.npz", tmp_path / "out", shards={"count": 2})
    run_build(config)
    before = files_of(tmp_path / "out")
    cut(getattr(BuildFolder(tmp_path / "out"), what)(PlannedShard(-1, "train", 1)))
    repair(config, options=LOCAL)
    assert files_of(tmp_path / "out") == before


def test_a_folder_in_the_place_of_a_file(place):
    (place.root / "schema.pbtxt").unlink()
    (place.root / "schema.pbtxt").mkdir()
    with pytest.raises(ShardsmithError) as caught:
        place.repair()
    assert str(caught.value) == (
        f"the repair stopped: Is a directory: {place.root}/schema.pbtxt; mend that and repair again"
    )
    (place.root / "schema.pbtxt").rmdir()
    place.repair()
    place.assert_whole()


def test_another_input_of_the_same_key_that_came_since_does_not_matter(tmp_path):
    for number in range(6):
        (tmp_path / f"{number}.bmp").write_bytes(encoded(picture(number), "bmp"))
    rows = [f"{number}.bmp,x,{number}\n" for number in range(5)]
    (tmp_path / "list.csv").write_text("path,label,id\n" + "".join(rows))
    config = make_config(tmp_path / "list.csv", tmp_path / "data" / "out", image={"resize": "exact:8"})
    run_build(config)
    before = files_of(tmp_path / "data" / "out")
    (tmp_path / "list.csv").write_text("path,label,id\n" + "".join([*rows, "5.bmp,x,3\n"]))
    for path in (tmp_path / "data" / "out" / "state" / "receipts").iterdir():
        path.unlink()
    (tmp_path / "data" / "out" / "spare.zip").unlink()
    repair(config, options=LOCAL)
    assert files_of(tmp_path / "data" / "out") == before


def test_inputs_that_came_since_do_not_matter(place):
    for name in ("new.png", "other.png"):
        (place.source / "cat" / name).write_bytes(encoded(picture(99), "png"))
    for number, shard in enumerate(place.shards):
        (place.folder.seen if number % 2 else place.folder.shard)(shard).unlink()
    damaged_seen = [each for number, each in enumerate(place.shards) if number % 2]
    place.repair()
    assert verify(place.root) == []
    assert damaged_seen
    assert files_of(place.root) == place.before


@pytest.mark.parametrize("what", ["shard", "facts", "seen", "receipt"])
def test_after_compact(what, place):
    config = make_config(place.source, place.root, **SETTINGS | {"shards": {"target_mb": 1}})
    manifest = compact(config, options=LOCAL, started=0)
    assert manifest.history[-1].command == "compact"
    merged = Place(place.source, place.root, config, files_of(place.root))
    DAMAGES[len(what) % 2](getattr(place.folder, what)(merged.shards[0]))
    merged.repair()
    merged.assert_whole()


def test_inputs_that_were_carried_over_are_needed_only_for_their_own_records(place):
    shard = place.shards[1]
    keys = record_keys(place, shard)
    (place.source / keys[0]).unlink()
    (place.source / keys[1]).write_bytes(encoded(picture(55), "png"))
    manifest = run_append(place.config, keep_missing=True)
    assert (manifest.history[-1].removed, manifest.history[-1].changed) == (0, 1)
    carried = Place(place.source, place.root, place.config, files_of(place.root))
    shard = next(each for each in carried.shards if keys[0] in record_keys(carried, each))
    rows = record_keys(carried, shard)
    damage_record(carried, shard, rows.index(keys[1]))
    carried.repair()
    carried.assert_whole()
    damage_record(carried, shard, rows.index(keys[0]))
    with pytest.raises(ShardsmithError) as caught:
        carried.repair()
    assert f"\n    {keys[0]} is gone\n    restore these inputs" in str(caught.value)
