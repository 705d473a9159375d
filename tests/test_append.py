"""Appends as a person makes them: weekly drops, lost mounts, second thoughts; and those who read meanwhile."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import make_config
from pictures import encoded, picture, write_class_folders
from test_update import (
    SETTINGS,
    assert_fresh_content,
    break_files,
    examples_of,
    file_identity,
    files_of,
    hollow_out,
    images,
    run_append,
    run_build,
    run_retry,
    shard_names,
)

from pipelines.__main__ import main
from pipelines.config import BuildConfig
from pipelines.workspace.layout import BuildFolder
from shards.errors import ShardsmithError, UsageError
from shards.files import hash_file
from shards.manifest import Manifest
from shards.records import read_records
from shards.settings import validate
from shards.verify import verify


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_class_folders(tmp_path / "raw", images=30)


def add_pictures(folder: Path, *names: str) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        (folder / name).write_bytes(encoded(picture(7000 + number + len(name), size=(50, 40)), "png"))
    return [folder / name for name in names]


def shards_of(root: Path) -> dict[str, tuple[tuple[int, int], str]]:
    return {name: (file_identity(root / name), hash_file(root / name)) for name in shard_names(root)}


def listed_shards(manifest: Manifest) -> set[str]:
    return {shard.path for split in manifest.splits for shard in split.shards}


def test_versions_in_a_row(source, tmp_path, capsys):
    """Add; then change, remove and add; then add again: each version opens only what is new to it."""
    out = tmp_path / "out"
    config = make_config(source, out, **SETTINGS)
    first = run_build(config)
    shutil.copytree(source, tmp_path / "good")
    for path in images(source):
        hollow_out(path)  # whoever opens one of these gets a reject
    before = shards_of(out)

    new = add_pictures(source / "dog", "new1.png", "new2.png", "new3.png", "new4.png", "new5.png")
    second = run_append(config)
    assert {name: each for name, each in shards_of(out).items() if name in before} == before
    assert second.retired == ()
    assert second.labels == first.labels == ("cat", "dog")
    assert [entry.model_dump(exclude={"fingerprint", "settings"}) for entry in second.history] == [
        {
            "version": 1, "command": "build", "when": "2023-11-14T22:13:20Z", "inputs": 60, "added": 60, "removed": 0,
            "changed": 0, "written": 60, "new_shards": len(before), "ended_shards": 0,
        },
        {
            "version": 2, "command": "append", "when": "2023-11-14T22:13:20Z", "inputs": 65, "added": 5, "removed": 0,
            "changed": 0, "written": 65, "new_shards": len(listed_shards(second)) - len(before), "ended_shards": 0,
        },
    ]  # fmt: skip

    before, known = shards_of(out), listed_shards(first) | listed_shards(second)
    (source / "cat" / "001.jpg").write_bytes(encoded(picture(4242)))
    (source / "cat" / "deep" / "003.png").unlink()
    add_pictures(source / "cat", "late.png")
    hollow_out(new[0])
    third = run_append(config)
    ended = listed_shards(second) - listed_shards(third)
    assert 1 <= len(ended) <= 2
    assert not (listed_shards(third) - listed_shards(second)) & known  # no name is used twice
    assert {entry.path for entry in third.retired if entry.path.endswith(".tfrecord")} == ended
    assert {name: each for name, each in shards_of(out).items() if name in before} == before  # the ended ones too
    assert (third.history[-1].added, third.history[-1].removed, third.history[-1].changed) == (1, 1, 1)
    assert "processed now: 2 inputs, 2 written, 0 rejected" in capsys.readouterr().out

    add_pictures(source / "cat", "last.png")
    fourth = run_append(config)
    assert ended.isdisjoint(shard_names(out))  # whoever read version 2 has had the time of version 3 to finish
    assert fourth.retired == ()
    assert fourth.version == 4
    assert len(fourth.history) == 4
    for path in images(tmp_path / "good"):
        shutil.copy2(path, source / path.relative_to(tmp_path / "good"))
    (source / "cat" / "001.jpg").write_bytes(encoded(picture(4242)))
    (source / "cat" / "deep" / "003.png").unlink()
    add_pictures(source / "dog", "new1.png", "new2.png", "new3.png", "new4.png", "new5.png")
    assert_fresh_content(config, tmp_path)


def test_an_interrupted_append_goes_on(source, tmp_path, capsys):
    config = make_config(source, tmp_path / "out", **SETTINGS)
    run_build(config)
    before = files_of(tmp_path / "out")
    new = add_pictures(source / "dog", "new1.png", "new2.png", "new3.png", "new4.png", "new5.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.build.commit", _stop)
        with pytest.raises(KeyboardInterrupt):
            run_append(config)
    # Nothing of the dataset itself has changed yet.
    assert {name: each for name, each in files_of(tmp_path / "out").items() if ".build" not in name} == before
    assert verify(tmp_path / "out") == []
    for path in new:
        hollow_out(path)
    capsys.readouterr()
    manifest = run_append(config)
    told = capsys.readouterr()
    assert f"going on with an unfinished build: {manifest.history[-1].new_shards} shards are written" in told.err
    assert "processed now: 0 inputs, 0 written, 0 rejected, with 0 records taken over unread" in told.out
    add_pictures(source / "dog", "new1.png", "new2.png", "new3.png", "new4.png", "new5.png")
    assert_fresh_content(config, tmp_path)


def _stop(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_lost_source_is_noticed_and_nothing_is_written(source, tmp_path):
    config = make_config(source, tmp_path / "out", **SETTINGS)
    run_build(config)
    before = {path: file_identity(path) for path in (tmp_path / "out").rglob("*")}
    shutil.rmtree(source / "dog")
    for run in (run_append, run_retry):
        with pytest.raises(ShardsmithError) as caught:
            run(config)
        assert str(caught.value).startswith(
            "30 of the 60 inputs of the dataset are no longer in the sources, "
            "such as dog/001.jpg, dog/002.jpg, dog/004.jpg; nothing was written. "
        )
        assert {path: file_identity(path) for path in (tmp_path / "out").rglob("*")} == before
    manifest = run_append(config, allow_removals=True)
    assert (manifest.counts.listed, manifest.history[-1].removed) == (30, 30)
    assert manifest.labels == ("cat", "dog")  # its id stays, for it may come back
    assert verify(tmp_path / "out") == []


def test_weekly_drops_whose_configs_name_only_what_is_new(source, tmp_path, capsys):
    """Inputs that are no longer listed stay, also in shards that are made again, and with all that is known of them."""
    out = tmp_path / "out"
    broken = break_files(images(source)[4:9:2])
    config = make_config(source, out, max_rejects=3, quarantine=True, **SETTINGS)
    first = run_build(config)
    before, rejects = examples_of(out), rejects_of(out)
    drop = tmp_path / "drop"
    add_pictures(drop / "cow", *(f"{number}.png" for number in range(5)))
    weekly = make_config(drop, out, max_rejects=3, quarantine=True, **SETTINGS)
    with pytest.raises(ShardsmithError, match=r"^60 of the 60 inputs of the dataset are no longer in the sources"):
        run_append(weekly)
    shutil.rmtree(source)
    second = run_append(weekly, keep_missing=True)
    assert second.labels == ("cat", "dog", "cow")
    assert (second.counts.listed, second.counts.rejected) == (65, {"truncated": 3})
    assert second.history[-1].ended_shards == 0
    # One that is known comes again, as another picture: its shard is made again with what it held.
    key = "cat/001.jpg"
    add_pictures(drop / "cat", "001.jpg")
    third = run_append(weekly, keep_missing=True)
    assert "version 3: 0 inputs added, 0 removed, 1 changed; 1 new shards, 1 ended, " in capsys.readouterr().out
    after = examples_of(out)
    assert {name: len(examples) for name, examples in after.items()} == {
        split.name: split.records for split in third.splits
    }
    for name, examples in before.items():
        same = {kept: record for kept, record in examples.items() if kept != key}
        assert {kept: after[name][kept] for kept in same} == same
    assert rejects_of(out) == rejects
    assert len(list((out / "rejected" / "quarantine").rglob("*"))) >= len(broken)
    assert third.counts == second.counts
    assert third.counts.model_dump(exclude={"sources", "listed", "written"}) == first.counts.model_dump(
        exclude={"sources", "listed", "written"}
    )
    assert verify(out) == []
    # What the config names has been taken up, and that is all that a build asks.
    capsys.readouterr()
    assert run_build(weekly).version == 3
    assert run_append(weekly, keep_missing=True).version == 3
    told = capsys.readouterr().out
    assert told.startswith(f"nothing to do: version 3 of {out} is complete (65 inputs), and what its sources list")
    assert "nothing to do: no input was added or changed; 3 are rejected: `python -m pipelines retry` tries" in told


def rejects_of(root: Path) -> list[str]:
    return sorted(line for path in (root / "rejected").glob("*.jsonl") for line in path.read_text().splitlines())


def sources_config(out: Path, *paths: Path) -> BuildConfig:
    sources = [{"name": path.name, "path": str(path)} for path in paths]
    return validate(BuildConfig, {"sources": sources, "output": str(out), **SETTINGS}, place="the test")


def test_sources_come_and_go_by_their_names(tmp_path):
    one, two, three = (write_class_folders(tmp_path / name, images=8) for name in ("one", "two", "three"))
    out = tmp_path / "out"
    run_build(sources_config(out, one, two))
    before = examples_of(out)
    second = run_append(sources_config(out, one, two, three))
    assert (second.history[-1].added, second.history[-1].removed, second.history[-1].changed) == (16, 0, 0)
    assert second.history[-1].settings["sources.2.name"] == ("not set", '"three"')
    assert_kept(before, examples_of(out))
    # Others are named in their place, and everything stays: also in the accounts.
    changed = two / "cat" / "001.jpg"
    changed.write_bytes(encoded(picture(99)))
    before = {name: {k: r for k, r in found.items() if "two/cat/001" not in k} for name, found in before.items()}
    third = run_append(sources_config(out, two), keep_missing=True)
    assert third.history[-1].changed == 1
    assert_kept(before, examples_of(out))
    assert third.counts == second.counts
    assert {each.source for each in third.counts.sources} == {"one", "two", "three"}
    assert verify(out) == []
    assert_fresh_content(sources_config(out, one, two, three), tmp_path)


def assert_kept(before: dict[str, dict[str, bytes]], after: dict[str, dict[str, bytes]]) -> None:
    for split, examples in before.items():
        assert {key: after[split][key] for key in examples} == examples


def test_the_source_moves_an_example_and_a_group_does_not(tmp_path):
    rows = {number: ["", f"g{number % 3}"] for number in range(12)}
    for number in rows:
        (tmp_path / f"{number}.png").write_bytes(encoded(picture(number), "png"))

    def save() -> None:
        lines = [f"{number}.png,x,{split},{group}\n" for number, (split, group) in rows.items()]
        (tmp_path / "list.csv").write_text("path,label,split,group\n" + "".join(lines))

    save()
    config = make_config(tmp_path / "list.csv", tmp_path / "data" / "out", **SETTINGS)
    run_build(config)
    before = splits_of(tmp_path / "data" / "out")
    assert len(set(before.values())) == 2
    moved = "train" if before["3.png"] == "test" else "test"
    other = next(group for group in ("g0", "g1", "g2") if before[f"{group[1]}.png"] != before["7.png"])
    rows[3][0] = moved
    rows[7][1] = other  # a group of the other split: adding or changing data never moves an example by itself
    save()
    manifest = run_append(config)
    assert (manifest.history[-1].added, manifest.history[-1].removed, manifest.history[-1].changed) == (0, 0, 2)
    assert splits_of(tmp_path / "data" / "out") == before | {"3.png": moved}
    assert verify(tmp_path / "data" / "out") == []


def splits_of(root: Path) -> dict[str, str]:
    return {key: split for split, examples in examples_of(root).items() for key in examples}


def test_a_key_that_comes_twice_is_in_the_dataset_once(tmp_path):
    for number in range(12):
        (tmp_path / f"{number}.png").write_bytes(encoded(picture(number), "png"))
    rows = [f"{number}.png,x,{number}\n" for number in range(12)]
    (tmp_path / "list.csv").write_text("path,label,id\n" + "".join(rows[:11]))
    config = make_config(tmp_path / "list.csv", tmp_path / "data" / "out", max_rejects=1, **SETTINGS)
    run_build(config)
    (tmp_path / "list.csv").write_text("path,label,id\n" + "".join(rows[:11]) + "11.png,x,4\n")
    manifest = run_append(config)
    assert manifest.counts.rejected == {"duplicate_key": 1}
    assert manifest.history[-1].added == 1
    assert_fresh_content(config, tmp_path)


def test_a_split_that_loses_all_its_inputs_keeps_its_names(tmp_path):
    for number in range(6):
        (tmp_path / f"{number}.png").write_bytes(encoded(picture(number), "png"))
    rows = [f"{number}.png,x,{'test' if number > 3 else 'train'}\n" for number in range(6)]
    out = tmp_path / "data" / "out"
    config = make_config(tmp_path / "list.csv", out, **SETTINGS)
    for lines in (rows, rows[:4], rows):
        (tmp_path / "list.csv").write_text("path,label,split\n" + "".join(lines))
        manifest = run_append(config, allow_removals=True) if (out / "manifest.json").exists() else run_build(config)
        assert verify(out) == []
        if len(lines) == 4:
            assert (manifest.split("test").records, manifest.split("test").shards) == (0, ())
            assert manifest.split("test").next_index > 0
            used = manifest.split("test").next_index
    assert manifest.split("test").shards[0].path == f"test/test-{used:05d}.tfrecord"


def test_readers_of_the_old_version_are_not_disturbed(source, tmp_path):
    """One is in the middle of a shard while the next version is made and put in place; one begins only then."""
    out = tmp_path / "out"
    config = make_config(source, out, **SETTINGS)
    old = run_build(config)
    expected = list(read_all(out, old))
    reader = read_all(out, old)
    read = [next(reader) for _ in range(7)]
    for path in images(source)[::11]:
        path.write_bytes(encoded(picture(1234)))
    add_pictures(source / "cat", "new.png")
    new = run_append(config)
    assert listed_shards(old) - listed_shards(new)
    assert read + list(reader) == expected
    assert list(read_all(out, old)) == expected
    assert list(read_all(out, new)) != expected
    # Version 3 no longer keeps what ended with version 2.
    add_pictures(source / "cat", "newer.png")
    third = run_append(config)
    assert list(read_all(out, new))[: new.splits[0].records]
    assert not any((out / entry.path).exists() for entry in new.retired)
    assert verify(out) == []
    assert third.version == 3


def read_all(root: Path, manifest: Manifest) -> Iterator[bytes]:
    for split in manifest.splits:
        for shard in split.shards:
            with (root / shard.path).open("rb") as stream:
                yield from (record for _, record in read_records(stream))


def test_what_can_be_appended_to(source, tmp_path):
    config = make_config(source, tmp_path / "out", **SETTINGS)
    with pytest.raises(UsageError, match=r"holds no dataset; build it first with `python -m pipelines build`"):
        run_append(config)
    BuildFolder(tmp_path / "out").prepare(anew=False)
    with pytest.raises(
        UsageError, match=r"holds an unfinished build; finish it first with `python -m pipelines build`"
    ):
        run_append(config)


def test_flags_are_those_of_a_command(capsys):
    with pytest.raises(SystemExit):
        main(["append", "--keep-missing", "--allow-removals"])
    assert "argument --allow-removals: not allowed with argument --keep-missing" in capsys.readouterr().err
    with pytest.raises(UsageError, match="unknown option '--keep-misssing'; did you mean --keep-missing?"):
        main(["append", "--keep-misssing", "--output", "x", "--source", "y"])
    with pytest.raises(UsageError, match="unknown option '--keep-missing'"):
        main(["build", "--keep-missing", "--output", "x", "--source", "y"])


@pytest.mark.parametrize(("find", "duplicates"), [("near", 1), ("exact", 0)])
def test_duplicates_of_what_is_no_longer_listed(find, duplicates, source, tmp_path):
    """Looks are known and compared; to prove that bytes are equal, both inputs would have to be there."""
    out = tmp_path / "out"
    settings = SETTINGS | {"dedupe": {"find": find, "distance": 0} if find == "near" else {"find": find}}
    first = run_build(make_config(source, out, **settings))
    drop = tmp_path / "drop" / "cat"
    drop.mkdir(parents=True)
    kept = next(key for examples in examples_of(out).values() for key in examples if key.endswith(".png"))
    shutil.copy(source / kept, drop / "copy.png")
    shutil.rmtree(source)
    manifest = run_append(make_config(drop.parent, out, **settings), keep_missing=True)
    assert manifest.counts.duplicates == first.counts.duplicates + duplicates
    assert manifest.counts.written == first.counts.written + 1 - duplicates
    assert verify(out) == []


def test_new_pictures_with_the_names_of_old_ones_do_not_take_their_places(source, tmp_path):
    """Cameras count from the start again each week."""
    config = make_config(source, tmp_path / "out", **SETTINGS)
    run_build(config)
    before = files_of(tmp_path / "out")
    for number, path in enumerate(images(source)):
        path.write_bytes(encoded(picture(500 + number, size=(50, 40)), "png"))
    with pytest.raises(ShardsmithError) as caught:
        run_append(config, keep_missing=True)
    assert str(caught.value).startswith("60 inputs have the keys of others among the 60 of the dataset, such as cat/")
    assert "give their source a name, which stands before its keys (--set source.name=week2)" in str(caught.value)
    assert files_of(tmp_path / "out") == before
    named = make_config(source, tmp_path / "out", source={"name": "week2"}, **SETTINGS)
    after = run_append(named, keep_missing=True)
    assert (after.counts.written, after.history[-1].added, after.history[-1].changed) == (120, 60, 0)
    assert verify(tmp_path / "out") == []


def test_what_is_kept_without_being_listed_is_not_confirmed_as_unchanged(source, tmp_path, capsys):
    config = make_config(source, tmp_path / "out", **SETTINGS)
    run_build(config)
    images(source)[3].unlink()
    run_append(config, keep_missing=True)
    assert "nothing to do: no input was added or changed\n" in capsys.readouterr().out
    with pytest.raises(UsageError, match="but its sources have changed since; take the changes up with"):
        run_build(config)


def test_a_count_of_shards_is_that_of_the_first_build(source, tmp_path):
    config = make_config(source, tmp_path / "out", **SETTINGS | {"shards": {"count": {"train": 5, "test": 2}}})
    assert {split.name: len(split.shards) for split in run_build(config).splits} == {"train": 5, "test": 2}
    added = {f"cat/new{number}.png" for number in range(4)}
    add_pictures(source / "cat", *(Path(key).name for key in added))
    after = run_append(config)
    new_splits = {split for key, split in splits_of(tmp_path / "out").items() if key in added}
    assert after.history[-1].new_shards == len(new_splits)
    assert after.counts.written == 64


def test_shards_that_ended_are_not_read_as_a_source(source, tmp_path):
    config = make_config(source, tmp_path / "out", **SETTINGS)
    run_build(config)
    images(source)[5].unlink()
    after = run_append(config)
    assert after.retired
    again = make_config(
        tmp_path / "out" / "*" / "*.tfrecord", tmp_path / "again", image={"encode": {"format": "original"}}
    )
    assert run_build(again).counts.written == 59


def test_a_dataset_is_overwritten_only_by_a_complete_one(source, tmp_path):
    out = tmp_path / "out"
    config = make_config(source, out, **SETTINGS)
    run_build(config)
    before = files_of(out)
    other = make_config(source, out, **SETTINGS | {"image": {"resize": "exact:24", "encode": {"format": "png"}}})
    broken = break_files(images(source)[:1])
    with pytest.raises(ShardsmithError) as caught:
        run_build(other, overwrite=True)
    assert str(caught.value).endswith(f"\n  the dataset in {out} is still what it was")
    assert {name: digest for name, digest in files_of(out).items() if not name.startswith(".build/")} == before
    assert verify(out) == []
    for path, content in broken.items():
        path.write_bytes(content)
    run_build(other, overwrite=True)
    run_build(other.model_copy(update={"output": str(tmp_path / "fresh")}))
    assert files_of(out) == files_of(tmp_path / "fresh")


def test_an_overwriting_that_is_cut_off_is_finished_by_whoever_comes_next(source, tmp_path, monkeypatch):
    out = tmp_path / "out"
    run_build(make_config(source, out, **SETTINGS))
    other = make_config(source, out, **SETTINGS | {"image": {"resize": "exact:24", "encode": {"format": "png"}}})
    replace, left = os.replace, [4]

    def stop_before_the_fifth(old, new):
        if Path(old).is_relative_to(out / ".build" / "next") and not Path(new).is_relative_to(out / ".build"):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
        replace(old, new)

    monkeypatch.setattr(os, "replace", stop_before_the_fifth)
    with pytest.raises(KeyboardInterrupt):
        run_build(other, overwrite=True)
    monkeypatch.undo()
    assert not (out / "manifest.json").exists()
    run_build(other)
    assert verify(out) == []
    run_build(other.model_copy(update={"output": str(tmp_path / "fresh")}))
    assert files_of(out) == files_of(tmp_path / "fresh")


def test_remains_without_a_manifest_are_told_from_other_things(source, tmp_path):
    config = make_config(source, tmp_path / "out", **SETTINGS)
    run_build(config)
    (tmp_path / "out" / "manifest.json").unlink()
    with pytest.raises(UsageError) as caught:
        run_build(config)
    assert str(caught.value) == (
        f"output {tmp_path}/out is not empty and holds what is left of a dataset without its manifest: "
        "restore that, or remove the directory; choose another --output"
    )
