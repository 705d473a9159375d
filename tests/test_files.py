"""Files appear whole or not at all."""

import hashlib
import threading
from pathlib import Path

import pytest

from shards.files import hash_file, open_atomically, write_atomically


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fail_while_writing(path: Path, failure: BaseException) -> None:
    with open_atomically(path) as stream:
        stream.write(b"half of i")
        raise failure


def test_a_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    with open_atomically(tmp_path / "a.bin") as stream:
        stream.write(b"hel")
        assert not (tmp_path / "a.bin").exists()
        stream.write(b"lo")
    assert (tmp_path / "a.bin").read_bytes() == b"hello"
    assert names(tmp_path) == ["a.bin"]


def test_while_it_is_written_it_has_a_hidden_temporary_name(tmp_path: Path) -> None:
    with open_atomically(tmp_path / "a.bin"):
        (temporary,) = names(tmp_path)
    assert temporary.startswith(".a.bin.")
    assert temporary.endswith(".tmp")


@pytest.mark.parametrize("failure", [ValueError("bad picture"), OSError(28, "No space left"), KeyboardInterrupt()])
def test_a_failure_leaves_no_file(tmp_path: Path, failure: BaseException) -> None:
    with pytest.raises(type(failure)):
        fail_while_writing(tmp_path / "a.bin", failure)
    assert names(tmp_path) == []


def test_a_failure_leaves_the_old_content(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.bin", b"old")
    with pytest.raises(ValueError, match="bad picture"):
        fail_while_writing(tmp_path / "a.bin", ValueError("bad picture"))
    assert names(tmp_path) == ["a.bin"]
    assert (tmp_path / "a.bin").read_bytes() == b"old"


def test_the_old_content_stays_readable_until_the_end(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.bin", b"old")
    with open_atomically(tmp_path / "a.bin") as stream:
        stream.write(b"new")
        stream.flush()
        assert (tmp_path / "a.bin").read_bytes() == b"old"
    assert (tmp_path / "a.bin").read_bytes() == b"new"


def test_a_failing_rename_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a.bin").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "a.bin", b"new")
    assert names(tmp_path) == ["a.bin"]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "none" / "a.bin", b"x")


def test_the_failure_of_one_twin_does_not_touch_the_other(tmp_path: Path) -> None:
    with open_atomically(tmp_path / "a.bin") as first:
        with pytest.raises(ValueError, match="twin"):
            fail_while_writing(tmp_path / "a.bin", ValueError("twin"))
        first.write(b"first")
    assert (tmp_path / "a.bin").read_bytes() == b"first"


def test_writers_at_the_same_time_cannot_mix(tmp_path: Path) -> None:
    contents = [bytes([letter]) * 100_000 for letter in b"abcd"]
    threads = [threading.Thread(target=write_atomically, args=(tmp_path / "a.bin", content)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "a.bin").read_bytes() in contents
    assert names(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("content", [b"", b"abc", bytes(300_000)])
def test_hash_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    assert hash_file(tmp_path / "a.bin") == hashlib.sha256(content).hexdigest()
