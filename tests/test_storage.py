"""Local files: globs, walks, links and everything that only looks like a file. `test_remote` has the object stores."""

import glob
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.inputs.storage import (
    FileStat,
    exists,
    file_stat,
    find_files,
    glob_matcher,
    glob_root,
    is_folder,
    is_glob,
    join_path,
    open_binary,
    open_text,
    subfolders,
    walk_files,
)
from shards.errors import UsageError

NAMES = [
    "a.jpg", "b.jpg", "ab.png", ".hidden.jpg", "one/a.jpg", "one/two/a.jpg", "one/two/three/b.png", "one/.h/a.jpg",
    ".h/a.jpg", "a[1]/a.jpg", "a[1]/b-c.jpg", "a1/x^y.jpg", "a-z/]!.jpg", "with space/new\nline.jpg", "ä/é.jpg",
    "{x}/$.jpg", "a\\b/a|b&&c.jpg",
]  # fmt: skip


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for name in NAMES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


def found(path: str) -> list[str]:
    return [file.path for file in find_files(path)]


def expected(path: str) -> list[str]:
    """What the standard library's glob finds, which walks folder by folder and not with one pattern."""
    return sorted({name for name in glob.glob(path, recursive=True) if os.path.isfile(name)})


pieces = st.sampled_from([
    "a", "b", ".", "*", "?", "[ab1]", "[!a]", "[a-c]", "[]!]", "[z-a]", "[!z-a]", "[", "]", "!", "-", "^", "\\", "|",
    "&&", "1", "jpg", "one", "two", "é", "\n", " ", "h", "$", "{x}",
])  # fmt: skip
names = st.one_of(st.just("**"), st.just("*"), st.just("*.jpg"), st.lists(pieces, min_size=1, max_size=5).map("".join))


@given(parts=st.lists(names, min_size=1, max_size=4))
def test_globs_find_what_the_standard_library_finds(tree, parts):
    pattern = "/".join(part for part in parts if part not in (".", ".."))
    path = f"{tree}/{pattern or '*'}"
    if is_glob(path) and not exists(path):
        assert found(path) == expected(path)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.jpg", ["a.jpg", "b.jpg"]),
        ("one/**/*.jpg", ["one/a.jpg", "one/two/a.jpg"]),
        ("**/b.*", ["b.jpg", "one/two/three/b.png"]),
        ("one/**", ["one/a.jpg", "one/two/a.jpg", "one/two/three/b.png"]),
        ("a[[]1]/*", ["a[1]/a.jpg", "a[1]/b-c.jpg"]),
        ("a[1]/*", ["a1/x^y.jpg"]),
        (".h*/*", [".h/a.jpg"]),
        ("*/new?line.jpg", ["with space/new\nline.jpg"]),
        ("ä/e\N{COMBINING ACUTE ACCENT}*", ["ä/é.jpg"]),
        ("*.gif", []),
        ("no/*.jpg", []),
    ],
)  # fmt: skip
def test_globs(tree, monkeypatch, pattern, names):
    assert found(f"{tree}/{pattern}") == [f"{tree}/{name}" for name in names]
    monkeypatch.chdir(tree)
    assert found(pattern) == names
    assert found(f"./{pattern}") == [f"./{name}" for name in names]


def test_a_path_that_exists_is_no_glob(tree):
    assert found(f"{tree}/a[1]/a.jpg") == [f"{tree}/a[1]/a.jpg"]


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("a*", "."), ("./a*", "."), ("x/a*", "x"), ("x/y?/z", "x"), ("/a*", "/"), ("/x//[ab]", "/x"),
        ("s3://bucket/*.csv", "s3://bucket"), ("gs://bucket/a/b*/**", "gs://bucket/a"), ("~/*.jpg", "~"),
    ],
)  # fmt: skip
def test_the_root_of_a_glob_ends_before_the_first_wildcard(path, root):
    assert glob_root(path) == root


def test_a_star_stays_inside_one_name():
    matches = glob_matcher("photos/*/train_*.png")
    assert matches("cat/train_1.png")
    assert not matches("cat/deep/train_1.png")
    assert not matches("cat/train_1.png.txt")
    assert not matches("cat/train_a/b.png")


@pytest.mark.parametrize(
    ("root", "path", "joined"),
    [
        ("/data", "a/b.jpg", "/data/a/b.jpg"),
        ("/data", "../b.jpg", "/b.jpg"),
        ("/data", "/else/b.jpg", "/else/b.jpg"),
        (".", "a.jpg", "a.jpg"),
        ("gs://bucket/lists", "../b c.jpg", "gs://bucket/b c.jpg"),
        ("gs://bucket/lists", "/local/b.jpg", "/local/b.jpg"),
        ("/data", "s3://bucket/x/./b.jpg", "s3://bucket/x/b.jpg"),
        ("gs://bucket", "s3://other/b.jpg", "s3://other/b.jpg"),
    ],
)
def test_paths_are_joined_to_their_root(root, path, joined):
    assert join_path(root, path) == joined


def test_a_walk_goes_everywhere_once_and_stats_links(tmp_path):
    folder = tmp_path / "x.jpg"
    folder.mkdir()
    (folder / "real.jpg").write_bytes(b"12345")
    (folder / "link.jpg").symlink_to("real.jpg")
    (folder / "broken.jpg").symlink_to("nowhere")
    (folder / "itself.jpg").symlink_to("itself.jpg")
    (folder / "up").symlink_to("..")
    os.mkfifo(folder / "pipe.jpg")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket.jpg"))
        files = {Path(file.path).name: (file.size, file.problem) for file in walk_files(str(tmp_path))}
    assert files == {
        "real.jpg": (5, ""),
        "link.jpg": (5, ""),
        "broken.jpg": (0, "No such file or directory"),
        "itself.jpg": (0, "Too many levels of symbolic links"),
        "pipe.jpg": (0, "is not a regular file"),
        "socket.jpg": (0, "is not a regular file"),
    }
    assert list(walk_files(str(tmp_path), deep=False)) == []


def test_folders_deeper_than_a_path_can_say_are_one_problem(tmp_path):
    """Made step by step, from inside: no path can name the deepest."""
    start = os.open(".", os.O_RDONLY)
    try:
        os.chdir(tmp_path)
        for _ in range(20):
            os.mkdir("d" * 250)
            os.chdir("d" * 250)
        Path("lost.jpg").write_bytes(b"x")
    finally:
        os.fchdir(start)
        os.close(start)
    (tmp_path / "near.jpg").write_bytes(b"x")
    near, deep = sorted(walk_files(str(tmp_path)), key=lambda file: len(file.path))
    assert near.path == f"{tmp_path}/near.jpg"
    assert deep.problem == "the folder cannot be listed: File name too long"
    assert deep.is_folder_problem


def test_what_a_stat_says(tmp_path):
    (tmp_path / "a").write_bytes(b"123")
    assert file_stat(f"{tmp_path}/a") == FileStat(f"{tmp_path}/a", 3, (tmp_path / "a").stat().st_mtime_ns)
    assert file_stat(str(tmp_path)).problem == "is a folder"
    assert file_stat(f"{tmp_path}/a/b").problem == "Not a directory"
    assert file_stat("a\0b").problem == "embedded null byte"
    assert file_stat(f"{tmp_path}/{'n' * 256}").problem == "File name too long"
    assert file_stat("~/nothing").problem == "No such file or directory"  # only shells know what ~ is


def test_subfolders_leave_out_hidden_ones_and_links_that_lead_nowhere(tmp_path):
    for name in ("b", "a", ".git"):
        (tmp_path / name).mkdir()
    (tmp_path / "linked").symlink_to("a")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_bytes(b"")
    assert subfolders(str(tmp_path)) == ["a", "b", "linked"]
    with pytest.raises(UsageError, match="/none cannot be listed: No such file or directory"):
        subfolders(f"{tmp_path}/none")


def test_opening_never_waits_for_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, problem in ((tmp_path / "pipe", "is not a regular file"), (tmp_path, "is a folder")):
        with pytest.raises(OSError, match=problem):
            open_binary(str(path))
    with pytest.raises(FileNotFoundError):
        open_binary(f"{tmp_path}/none")
    assert is_folder(str(tmp_path))
    assert not is_folder(f"{tmp_path}/pipe")


def test_text_has_no_byte_order_mark_and_keeps_its_line_ends(tmp_path):
    (tmp_path / "list.csv").write_bytes("\ufeffpath,label\r\nä,b\n".encode())
    with open_text(f"{tmp_path}/list.csv") as text:
        assert text.read() == "path,label\r\nä,b\n"
