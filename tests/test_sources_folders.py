"""Folders of files: layouts, patterns, globs, and every odd thing that can stand in a folder."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import make_config, run_build
from pictures import encoded, picture

from pipelines.config import BuildConfig
from pipelines.demo import write_demo
from pipelines.pictures.process import Made, Refused, Task, process_input
from pipelines.reasons import Reason
from pipelines.sources import check_sources, list_partition, partition_sources
from pipelines.sources.folders import is_input
from pipelines.values import InputRef
from shards.errors import UsageError
from shards.example import decode_example
from shards.manifest import read_manifest
from shards.records import read_records
from shards.settings import load_settings

CONFIGS = Path(__file__).parent.parent / "configs"
JPEG = encoded(picture(1))


def write(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(JPEG)
    return root


def flat(root: Path | str, pattern: str, **sections: Any) -> BuildConfig:
    return make_config(root, "o", source={"label_pattern": pattern}, **sections)


def listed(config: BuildConfig) -> dict[str, InputRef]:
    check_sources(config)
    refs = [ref for part in partition_sources(config) for ref in list_partition(part, config)]
    assert len({ref.key for ref in refs}) == len(refs)
    return {ref.key: ref for ref in refs}


def refused(config: BuildConfig) -> str:
    with pytest.raises(UsageError) as caught:
        check_sources(config)
    return str(caught.value)


def test_a_pattern_gives_label_split_group_and_id(tmp_path):
    write(tmp_path, "2024/cat_train_s1_0007.jpg", "2024/dog_test_s2_0008.jpg", "2024/readme.jpg")
    pattern = r"(?P<label>[a-z]+)_(?P<split>[a-z]+)_(?P<group>s\d)_(?P<id>\d+)"
    refs = listed(flat(tmp_path, pattern))
    assert sorted(refs) == ["0007", "0008", "2024/readme.jpg"]
    assert refs["0007"][2:6] == (("cat",), (), "train", "s1")
    assert refs["0008"][2:6] == (("dog",), (), "test", "s2")
    assert refs["2024/readme.jpg"].fault == (
        Reason.NO_LABEL, "source.label_pattern does not match '2024/readme.jpg'",
    )  # fmt: skip


def test_a_pattern_sees_the_whole_path_below_the_source(tmp_path):
    write(tmp_path, "session 1/left/a.jpg", "session 2/right/b.jpg")
    refs = listed(flat(tmp_path, r"^(?P<group>[^/]+)/(?P<label>\w+)/"))
    assert {key: (ref.labels, ref.group) for key, ref in refs.items()} == {
        "session 1/left/a.jpg": (("left",), "session 1"),
        "session 2/right/b.jpg": (("right",), "session 2"),
    }


def test_a_group_of_the_pattern_that_took_no_part_gives_nothing(tmp_path):
    write(tmp_path, "cat-1.jpg", "cat-test-2.jpg", "-3.jpg")
    refs = listed(flat(tmp_path, r"^(?P<label>[a-z]*)-(?:(?P<split>test)-)?\d"))
    assert (refs["cat-1.jpg"].split, refs["cat-test-2.jpg"].split) == ("", "test")
    assert refs["-3.jpg"].fault == (Reason.NO_LABEL, "label is empty")


def test_a_split_that_nobody_knows_is_a_fault_of_its_file(tmp_path):
    write(tmp_path, "cat_train.jpg", "cat_trian.jpg")
    refs = listed(flat(tmp_path, r"(?P<label>[a-z]+)_(?P<split>[a-z]+)"))
    assert refs["cat_train.jpg"].fault is None
    assert refs["cat_trian.jpg"].fault == (
        Reason.UNKNOWN_SPLIT,
        "split 'trian' is not one of train, validation, test nor a usual name; if it is meant, add it to splits.given",
    )


def test_a_flat_folder_needs_a_label_or_none_at_all(tmp_path):
    write(tmp_path, "a.jpg", "deep/b.jpg")
    problem = (
        "a flat folder needs source.label_pattern, a regular expression with a group called label, "
        "such as (?P<label>[a-z]+)_\\d+; or labels.kind: none"
    )
    assert refused(make_config(tmp_path, "o", source={"layout": "flat"})) == problem
    assert refused(flat(tmp_path, "(?P<split>a)")) == problem
    refs = listed(make_config(tmp_path, "o", labels={"kind": "none"}))
    assert {key: (ref.labels, ref.fault) for key, ref in refs.items()} == {
        "a.jpg": ((), None), "deep/b.jpg": ((), None),
    }  # fmt: skip


def test_unlabelled_class_folders_keep_their_splits_when_asked(tmp_path):
    write(tmp_path, "train/x/a.jpg", "test/y/b.jpg", "test/c.jpg")
    refs = listed(make_config(tmp_path, "o", source={"layout": "split_class"}, labels={"kind": "none"}))
    assert {key: (ref.labels, ref.split) for key, ref in refs.items()} == {
        "train/x/a.jpg": ((), "train"), "test/y/b.jpg": ((), "test"), "test/c.jpg": ((), "test"),
    }  # fmt: skip


def test_a_pattern_is_refused_beside_class_folders(tmp_path):
    write(tmp_path, "cat/a.jpg")
    config = make_config(tmp_path, "o", source={"layout": "class", "label_pattern": "(?P<label>a)"})
    assert refused(config) == "source.label_pattern is for layout flat, not for class"
    with pytest.raises(UsageError, match="source.label_pattern: not a regular expression: missing \\)"):
        flat(tmp_path, "(?P<label>a")
    with pytest.raises(UsageError, match="group 'lable' is not known; groups are called label, split, group, id"):
        flat(tmp_path, "(?P<lable>a)")


def test_the_layout_is_seen_from_the_names_of_the_top_folders(tmp_path):
    write(tmp_path, "Train/cat/a.jpg", "val/cat/b.jpg", ".cache/x.jpg")
    assert {ref.split for ref in listed(make_config(tmp_path, "o")).values()} == {"Train", "val"}
    write(tmp_path, "cat/c.jpg")  # one that is no split: all are classes
    assert {ref.labels[0] for ref in listed(make_config(tmp_path, "o")).values()} == {"Train", "val", "cat"}


def test_a_split_folder_of_an_unknown_name_is_refused(tmp_path):
    write(tmp_path, "train/cat/a.jpg", "extra/cat/b.jpg")
    config = make_config(tmp_path, "o", source={"layout": "split_class"})
    assert refused(config) == (
        "split folder 'extra' is not one of train, validation, test nor a usual name; "
        "rename it, or add it to splits.given"
    )
    given = make_config(tmp_path, "o", source={"layout": "split_class"}, splits={"given": ["extra"]})
    assert {ref.split for ref in listed(given).values()} == {"train", "extra"}


def test_globs_filter_and_labels_stay_folders(tmp_path):
    write(tmp_path, "cat/train_1.png", "cat/test_1.png", "dog/deep/train_2.png", "dog/train_3.jpg", "loose.png")
    assert sorted(listed(make_config(f"{tmp_path}/**/*.png", "o"))) == [
        "cat/test_1.png", "cat/train_1.png", "dog/deep/train_2.png", "loose.png",
    ]  # fmt: skip
    refs = listed(make_config(f"{tmp_path}/*/train_*", "o"))
    assert {key: ref.labels for key, ref in refs.items()} == {
        "cat/train_1.png": ("cat",), "dog/train_3.jpg": ("dog",),
    }  # fmt: skip
    assert sorted(listed(flat(f"{tmp_path}/*/*_[13].*", "(?P<label>[a-z]+)_"))) == [
        "cat/test_1.png", "cat/train_1.png", "dog/train_3.jpg",
    ]  # fmt: skip


def test_a_folder_called_like_a_glob_is_that_folder(tmp_path, monkeypatch):
    write(tmp_path, "a[1]/cat/*.jpg", "a1/dog/b.jpg")
    assert sorted(listed(make_config(f"{tmp_path}/a[1]", "o"))) == ["cat/*.jpg"]
    monkeypatch.chdir(tmp_path)
    for path in ("a1", "./a1", "a1/", "a1//", f"{tmp_path}/a1/", "../" + tmp_path.name + "/a1"):
        assert sorted(listed(make_config(path, "o"))) == ["dog/b.jpg"]
    monkeypatch.chdir(tmp_path / "a1")
    assert sorted(listed(make_config(".", "o"))) == ["dog/b.jpg"]
    assert sorted(listed(make_config("*/*.jpg", "o"))) == ["dog/b.jpg"]


def test_hidden_files_and_folders_are_left_out(tmp_path):
    write(tmp_path, "cat/a.jpg", "cat/.a.jpg", "cat/..b.jpg", "cat/.ipynb_checkpoints/a.jpg", ".git/b.jpg")
    assert sorted(listed(make_config(tmp_path, "o"))) == ["cat/a.jpg"]
    assert is_input("cat/../../up.jpg", loose=False)  # in an archive: not hidden, and told as what it is


def test_folders_have_no_boxes_columns_or_targets(tmp_path):
    write(tmp_path, "cat/a.jpg")
    for what, sections in (
        ("boxes", {"boxes": {}}),
        ("columns", {"columns": {"age": {"type": "int"}}}),
        ("regression targets", {"labels": {"kind": "regression"}}),
    ):
        assert refused(make_config(tmp_path, "o", **sections)) == (
            f"source.path {tmp_path} is a folder, which has no {what}; use a listing"
        )


def changes(folder: Path) -> Iterator[Path]:
    """Files that are about to vanish, grow, be written again, or become something else."""
    for name in ("vanishes", "grows", "same_size", "becomes_pipe", "becomes_folder", "stays"):
        yield write(folder, f"{name}.jpg") / f"{name}.jpg"


def test_files_that_change_between_listing_and_reading(tmp_path):
    vanishes, grows, same_size, becomes_pipe, becomes_folder, _ = changes(tmp_path / "cat")
    config = make_config(tmp_path, "o")
    refs = listed(config)
    for path in (vanishes, becomes_pipe, becomes_folder):
        path.unlink()
    grows.write_bytes(JPEG + b"x")
    same_size.write_bytes(JPEG[:-1] + b"x")
    os.utime(same_size, ns=(0, same_size.stat().st_mtime_ns + 1))
    os.mkfifo(becomes_pipe)
    becomes_folder.mkdir()
    outcomes = {key[4:-4]: process_input(Task(ref, (0,)), config) for key, ref in refs.items()}
    assert isinstance(outcomes.pop("stays"), Made)
    told = {name: (out.reason, out.message) for name, out in outcomes.items() if isinstance(out, Refused)}
    assert told == {
        "vanishes": (Reason.UNREADABLE, "No such file or directory"),
        "grows": (
            Reason.CHANGED,
            f"the file had {len(JPEG)} bytes when it was listed and has {len(JPEG) + 1} now; build again",
        ),
        "same_size": (Reason.CHANGED, "the file was modified after it was listed; build again"),
        "becomes_pipe": (Reason.UNREADABLE, "is not a regular file"),
        "becomes_folder": (Reason.UNREADABLE, "is a folder"),
    }


_AS_NOBODY = """
import json, os, sys
from conftest import make_config
from pipelines.pictures.process import Task, process_input
from pipelines.sources import list_partition, partition_sources
from shards.errors import UsageError
os.setgid(65534)
os.setuid(65534)
config = make_config(sys.argv[1], "o")
refs = [ref for part in partition_sources(config) for ref in list_partition(part, config)]
outcomes = {ref.key: process_input(Task(ref, (0,)), config) for ref in refs}
told = {key: [out.reason, out.message] if hasattr(out, "reason") else "made" for key, out in outcomes.items()}
try:
    partition_sources(make_config(sys.argv[1] + "/shut", "o"))
except UsageError as error:
    told["error"] = str(error)
print(json.dumps(told))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_what_may_not_be_read_is_a_reject():
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to others
        os.chmod(folder, 0o755)
        _check_unreadable(Path(folder))


def _check_unreadable(base: Path) -> None:
    root = write(base / "raw", "cat/open.jpg", "cat/closed.jpg", "cat/private/a.jpg", "shut/b.jpg")
    (root / "cat" / "closed.jpg").chmod(0)
    (root / "cat" / "private").chmod(0)
    (root / "shut").chmod(0)
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parent.parent)])
    done = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY, str(root)], capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "cat/open.jpg": "made",
        "cat/closed.jpg": ["unreadable", "Permission denied"],
        "cat/private": ["unreadable", "the folder cannot be listed: Permission denied"],
        "shut": ["unreadable", "the folder cannot be listed: Permission denied"],
        "error": f"{root}/shut cannot be listed: Permission denied",
    }


def hostile(folder: Path) -> None:
    """Every kind of name and thing that stands in folders, in one."""
    write(folder, "plain.jpg", "with space.jpg", "new\nline.jpg", "quote'\"\\.jpg", "no suffix", "x.jpg/inside.jpg")
    write(folder, "n" * 251 + ".jpg", unicodedata.normalize("NFC", "é.jpg"), unicodedata.normalize("NFD", "é.jpg"))
    with open(os.fsencode(folder) + b"/bad\xff.jpg", "wb") as stream:
        stream.write(JPEG)
    with open(os.fsencode(folder) + b"/bad\xfe.jpg", "wb") as stream:
        stream.write(b"no picture")
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "link.jpg").symlink_to("plain.jpg")
    (folder / "broken.jpg").symlink_to("nowhere")
    (folder / "loop.jpg").symlink_to("loop.jpg")
    (folder / "up").symlink_to("..")
    os.mkfifo(folder / "pipe.jpg")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket.jpg"))


def test_a_build_of_hostile_paths_accounts_for_each(tmp_path):
    hostile(tmp_path / "raw" / "cat")
    write(tmp_path / "raw", "loose.jpg")
    config = make_config(tmp_path / "raw", tmp_path / "out", splits={"fractions": {"train": 1}}, max_reject_fraction=1)
    made = run_build(config)
    rejects = [
        json.loads(line)
        for path in (tmp_path / "out" / "rejected").glob("*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert {reject["key"]: reject["reason"] for reject in rejects} == {
        "cat/bad\\xfe.jpg": "unknown_format",
        "cat/é.jpg": "duplicate_key",
        "cat/empty.jpg": "empty_file",
        "cat/broken.jpg": "unreadable",
        "cat/loop.jpg": "unreadable",
        "cat/pipe.jpg": "unreadable",
        "cat/socket.jpg": "unreadable",
        "loose.jpg": "no_label",
    }
    assert sorted(keys(tmp_path / "out")) == sorted([
        "cat/plain.jpg", "cat/with space.jpg", "cat/new\nline.jpg", "cat/quote'\"\\.jpg", "cat/no suffix",
        "cat/link.jpg", "cat/x.jpg/inside.jpg", f"cat/{'n' * 251}.jpg", "cat/é.jpg", "cat/bad\\xff.jpg",
    ])  # fmt: skip
    assert (made.counts.listed, made.counts.written, len(rejects)) == (18, 10, 8)


def keys(dataset: Path) -> Iterator[str]:
    for shard in (shard for split in read_manifest(dataset).splits for shard in split.shards):
        with open(dataset / shard.path, "rb") as stream:
            yield from (decode_example(record)["key"][0].decode() for _, record in read_records(stream))


def test_the_shipped_configs_list_what_they_say(tmp_path, monkeypatch):
    write_demo(tmp_path / "out" / "demo" / "raw")
    monkeypatch.chdir(tmp_path)
    flat_refs, glob_refs = (
        listed(load_settings(BuildConfig, str(CONFIGS / name), {})) for name in ("flat.yaml", "glob.yaml")
    )
    assert Counter(ref.fault and ref.fault.reason for ref in flat_refs.values()) == {None: 1797, Reason.NO_LABEL: 5}
    assert flat_refs["0007"].labels == ("7",)
    assert Counter(ref.fault for ref in glob_refs.values()) == {None: 1198}
    shutil.copytree("out/demo/raw", "out/demo/split/train")
    shutil.copytree("out/demo/raw/7", "out/demo/split/val/7")
    split_refs = listed(load_settings(BuildConfig, str(CONFIGS / "split_folders.yaml"), {}))
    assert Counter(ref.split for ref in split_refs.values()) == {"train": 1802, "val": 179}
