"""Spare copies: the same files give the same bytes, damage is not handed out, and manifests restore each other."""

import os
import shutil
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.finish.spare import is_spared, read_spare, restore_manifest, write_spare
from shards.errors import ShardsmithError
from shards.files import hash_file
from shards.manifest import SPARE, read_manifest


def test_a_dataset_has_a_copy_of_every_small_file(built):
    listed = {entry.path for entry in built.manifest.files}
    with zipfile.ZipFile(built.root / SPARE) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert names == sorted(names)
        for name in names:
            assert archive.read(name) == (built.root / name).read_bytes()
    assert {"schema.pbtxt", "report.html", "state/plan.json", "state/recipe.json"} < set(names)
    assert any(name.startswith("transform_fn/") for name in names)
    assert any(name.startswith("state/receipts/") for name in names)
    assert any(name.startswith("rejected/") for name in names)
    assert {name.rpartition("/")[0] for name in listed - set(names)} == {"", "state/facts"}
    assert (built.root / "state" / "manifest.json").read_bytes() == (built.root / "manifest.json").read_bytes()


@pytest.mark.parametrize(
    "name",
    [
        "train/train-00000.tfrecord", "train/train-00000.idx", "state/facts/train-00000.arrow",
        "state/seen/train-00000.arrow", "state/local.json", "state/manifest.json", "manifest.json", "spare.zip",
        "rejected/quarantine/ab/abcd", ".build/next/schema.pbtxt",
    ],
)  # fmt: skip
def test_what_has_no_copy(name):
    assert not is_spared(name)


def test_times_and_the_order_of_names_do_not_show(tmp_path):
    names = ["b.json", "state/a.json", "a.json"]
    (tmp_path / "state").mkdir()
    for name in names:
        (tmp_path / name).write_text(name)
    write_spare(tmp_path, names, tmp_path / "one.zip")
    for name in names:
        os.utime(tmp_path / name, (0, 0))
        (tmp_path / name).chmod(0o600)
    write_spare(tmp_path, reversed(names), tmp_path / "two.zip")
    assert hash_file(tmp_path / "one.zip") == hash_file(tmp_path / "two.zip")
    # Stored as they are: these very bytes on every machine, whatever compresses there.
    golden = "b1d51fde549d02501e5571db9bde8f3f3f7b849479e6251a49c732f82792f8ba"
    assert hash_file(tmp_path / "one.zip") == golden


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("archive")
    for name in ("a.json", "b.json"):
        (root / name).write_text(f"the content of {name}")
    write_spare(root, ["a.json", "b.json"], root / SPARE)
    return root


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_to_the_archive_is_handed_out_or_raises(data, archive, tmp_path):
    content = bytearray((archive / SPARE).read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[place:]
    (tmp_path / SPARE).write_bytes(content)
    whole = {name: f"the content of {name}".encode() for name in ("a.json", "b.json")}
    assert dict(read_spare(tmp_path, whole)).items() <= whole.items()


def test_no_archive_and_no_such_file(archive, tmp_path):
    assert list(read_spare(tmp_path, ["a.json"])) == []
    assert list(read_spare(archive, ["c.json", "b.json"])) == [("b.json", b"the content of b.json")]


@pytest.mark.parametrize("name", ["manifest.json", "state/manifest.json"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff\xfe", b"[]", b'{"format_version": 99}'])
def test_manifests_restore_each_other(name, content, built, tmp_path):
    root = copy_manifests(built.root, tmp_path)
    if content is None:
        (root / name).unlink()
    else:
        (root / name).write_bytes(content)
    assert restore_manifest(root) == (built.manifest, [name])
    assert (root / name).read_bytes() == (built.root / "manifest.json").read_bytes()
    assert restore_manifest(root) == (built.manifest, [])


def copy_manifests(old: Path, new: Path) -> Path:
    (new / "state").mkdir()
    for name in ("manifest.json", "state/manifest.json"):
        shutil.copy(old / name, new / name)
    return new


def test_a_manifest_that_is_only_spelled_otherwise_needs_no_other(built, tmp_path):
    root = copy_manifests(built.root, tmp_path)
    (root / "state" / "manifest.json").unlink()
    text = (root / "manifest.json").read_text()
    (root / "manifest.json").write_text(text.replace("\n ", "\n\t", 1))
    assert restore_manifest(root) == (built.manifest, ["manifest.json", "state/manifest.json"])
    assert (root / "manifest.json").read_text() == text
    assert read_manifest(root) == built.manifest


def test_two_damaged_manifests_are_an_error(built, tmp_path):
    root = copy_manifests(built.root, tmp_path)
    (root / "manifest.json").write_text("{")
    (root / "state" / "manifest.json").write_text((built.root / "manifest.json").read_text().replace("cat", "cow"))
    with pytest.raises(ShardsmithError) as caught:
        restore_manifest(root)
    assert str(caught.value) == (
        f"{root}/manifest.json is damaged: not JSON: Expecting property name enclosed in double quotes: "
        f"line 1 column 2 (char 1), and {root}/state/manifest.json is damaged: its content does not match its own "
        "sha256: nothing says any more what the dataset was; "
        "restore one of the two from a backup, or build again with --overwrite"
    )
