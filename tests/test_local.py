"""The list of machine-local files: what it says, and that no bit of it or of what it lists can flip unseen."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards_data import flip_bit, thorough

from shards.local import LOCAL, check_local, local_files, write_local
from shards.manifest import digest

ONE, TWO = "state/seen/test-00000.arrow", "state/seen/train-00000.arrow"


def write_seen(root: Path) -> None:
    (root / "state/seen").mkdir(parents=True)
    (root / TWO).write_bytes(b"mtimes of train")
    (root / ONE).write_bytes(b"mtimes of test")
    write_local(root, (root / "state/seen").iterdir())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_seen(tmp_path)
    return tmp_path


def messages(root: Path, *, fast: bool = False) -> list[str]:
    return [str(problem) for problem in check_local(root, fast=fast)]


def test_the_list_holds_a_checksum_of_each_file_and_its_own(root: Path) -> None:
    files = {
        ONE: hashlib.sha256(b"mtimes of test").hexdigest(),
        TWO: hashlib.sha256(b"mtimes of train").hexdigest(),
    }
    values = json.loads((root / LOCAL).read_text())
    assert list(values["files"].items()) == list(files.items())
    assert values == {"files": files, "sha256": digest({"files": files})}


def test_what_was_listed_is_good(root: Path) -> None:
    assert messages(root) == []
    assert list(local_files(root)) == [ONE, TWO]


def test_a_dataset_that_was_copied_without_them_is_good(root: Path) -> None:
    shutil.rmtree(root / "state")
    assert messages(root) == []


def test_a_list_is_replaced(root: Path) -> None:
    (root / ONE).unlink()
    (root / TWO).write_bytes(b"later")
    write_local(root, [root / TWO])
    assert messages(root) == []


def test_the_same_list_is_not_written_again(root: Path) -> None:
    before = (root / LOCAL).stat()
    write_local(root, [root / TWO, root / ONE])
    assert (root / LOCAL).stat() == before


def test_a_missing_list_is_found(root: Path) -> None:
    (root / LOCAL).unlink()
    assert messages(root) == [f"{LOCAL}: the file is missing, though there are files in state/seen"]


@pytest.mark.parametrize("fast", [False, True])
def test_a_missing_file_is_found(root: Path, fast: bool) -> None:
    (root / ONE).unlink()
    assert messages(root, fast=fast) == [f"{ONE}: the file is missing"]


@pytest.mark.parametrize("fast", [False, True])
def test_a_stranger_is_found(root: Path, fast: bool) -> None:
    (root / "state/seen/deep").mkdir()
    (root / "state/seen/deep/x.arrow").write_bytes(b"")
    assert messages(root, fast=fast) == ["state/seen/deep/x.arrow: is not in state/local.json"]


def test_a_file_or_list_that_cannot_be_read_is_found(root: Path) -> None:
    (root / ONE).unlink()
    (root / ONE).mkdir()
    assert messages(root) == [f"{ONE}: cannot be read: Is a directory"]
    (root / LOCAL).unlink()
    (root / LOCAL).mkdir()
    assert messages(root) == [f"{LOCAL}: cannot be read: Is a directory"]


def test_only_a_full_check_reads_the_files(root: Path) -> None:
    flip_bit(root / ONE, 5)
    assert messages(root, fast=True) == []
    assert messages(root) == [f"{ONE}: sha256 differs from that in state/local.json"]


DAMAGED = {
    "no text": (b"\xff", "not a list of files: 'utf-8' codec"),
    "no JSON": (b"{", "not a list of files: Expecting property name"),
    "no object": (b"[]", "not a list of files: list indices must be integers"),
    "no checksum": (b'{"files": {}}', "not a list of files: 'sha256'"),
    "no files": (b'{"sha256": ""}', "not a list of files: 'files'"),
    "wrong checksum": (b'{\n "files": {},\n "sha256": "0"\n}\n', "its content does not match its own sha256"),
}


@pytest.mark.parametrize(("content", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_list_is_found(root: Path, content: bytes, message: str) -> None:
    (root / LOCAL).write_bytes(content)
    (found,) = messages(root, fast=True)
    assert found.startswith(f"{LOCAL}: is damaged: {message}")


def test_a_list_in_other_words_is_found(root: Path) -> None:
    (root / LOCAL).write_text(json.dumps(json.loads((root / LOCAL).read_text())))
    assert messages(root) == [f"{LOCAL}: is damaged: its content does not match its own sha256"]


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("untouched")
    write_seen(directory)
    return directory


@thorough
@given(st.sampled_from([LOCAL, ONE, TWO]), st.integers(0))
def test_any_flipped_bit_is_found(untouched: Path, path: str, bit: int) -> None:
    content = (untouched / path).read_bytes()
    flip_bit(untouched / path, bit)
    try:
        assert [problem.path for problem in check_local(untouched)] == [path]
    finally:
        (untouched / path).write_bytes(content)
