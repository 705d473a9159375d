"""Archives: which members become refs, where their bytes are, and what becomes of hostile ones."""

import io
import json
import stat
import struct
import tarfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
from conftest import make_config, run_build
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encoded, picture, write_class_folders

from pipelines.config import BuildConfig, ImageConfig
from pipelines.pictures.process import read_input
from pipelines.reasons import Reason
from pipelines.sources import check_sources, list_partition, partition_sources
from pipelines.sources.zips import zip_members
from pipelines.values import InputRef
from pipelines.writing.write import mark_duplicates
from shards.errors import UsageError
from shards.example import decode_example
from shards.records import read_records
from shards.settings import load_settings

Files = list[tuple[str, bytes]]
CONFIGS = Path(__file__).parent.parent / "configs"
JPEG = encoded(picture(1))
MODES = {"plain.tar": "w", "a.tar.gz": "w:gz", "a.tgz": "w:gz", "a.tar.bz2": "w:bz2", "a.tar.xz": "w:xz"}
SAMPLES: Files = [
    ("0001.cls", b"3\n"),
    ("0001.jpg", JPEG),
    ("0002.png", encoded(picture(2), "png")),
    ("0002.cls", b"cat"),
    ("deep.dir/0003.jpg", JPEG + b"3"),
    ("deep.dir/0003.json", b'{"label": "dog", "split": "test", "group": "g", "age": 4}'),
]
CLASSES: Files = [("./cat/1.jpg", JPEG), ("./cat/deep/v1.2.jpg", JPEG + b"2"), ("./dog/3.jpg", JPEG + b"3")]


def write_tar(path: Path, files: Files, *, mode: str = "w", extra: list[tarfile.TarInfo] | None = None) -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in files:
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
        for header in extra or []:
            archive.addfile(header)
    return path


def write_zip(path: Path, files: Files, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files:
            archive.writestr(name, data)
    return path


def write_archive(path: Path, files: Files) -> Path:
    return write_zip(path, files) if path.suffix == ".zip" else write_tar(path, files, mode=MODES[path.name])


def config_of(path: Path | str, *, labels: str = "single", **fields: Any) -> BuildConfig:
    sections = {name: fields.pop(name) for name in ("columns", "boxes", "image") if name in fields}
    return make_config(path, "out", source=fields, labels={"kind": labels}, **sections)


def list_refs(config: BuildConfig, spool: Path | str = "") -> list[InputRef]:
    return [ref for part in partition_sources(config) for ref in list_partition(part, config, str(spool))]


def by_key(config: BuildConfig, spool: Path | str = "") -> dict[str, InputRef]:
    refs = list_refs(config, spool)
    assert len({ref.key for ref in refs}) == len(refs)
    return {ref.key: ref for ref in refs}


def faults(config: BuildConfig, spool: Path | str = "") -> dict[str, tuple[str, str] | None]:
    return {key: ref.fault for key, ref in by_key(config, spool).items()}


def content(ref: InputRef) -> bytes:
    return read_input(ref.location, ImageConfig())


@pytest.mark.parametrize("name", [*MODES, "a.zip"])
def test_samples_are_read_from_every_container(tmp_path, name):
    config = config_of(write_archive(tmp_path / name, SAMPLES))
    check_sources(config)
    refs = by_key(config, tmp_path / "spool")
    assert {key: (ref.labels, ref.split, ref.group, ref.fault) for key, ref in refs.items()} == {
        "0001.jpg": (("3",), "", "", None),
        "0002.png": (("cat",), "", "", None),
        "deep.dir/0003.jpg": (("dog",), "test", "g", None),
    }
    assert {key: content(ref) for key, ref in refs.items()} == {k: v for k, v in SAMPLES if k[-3:] in ("jpg", "png")}
    in_place = name in ("plain.tar", "a.zip")
    assert all((ref.location.path == str(tmp_path / name)) == in_place for ref in refs.values())


@pytest.mark.parametrize("name", [*MODES, "a.zip"])
def test_class_folders_in_every_container(tmp_path, name):
    refs = by_key(config_of(write_archive(tmp_path / name, CLASSES)), tmp_path / "spool")
    assert {key: (ref.labels, ref.fault) for key, ref in refs.items()} == {
        "cat/1.jpg": (("cat",), None),
        "cat/deep/v1.2.jpg": (("cat",), None),
        "dog/3.jpg": (("dog",), None),
    }
    assert {f"./{key}": content(ref) for key, ref in refs.items()} == dict(CLASSES)


def test_other_layouts(tmp_path):
    files = [("train/cat/1.jpg", JPEG), ("val/dog/2.jpg", JPEG), ("val/lost.jpg", JPEG), ("val/dog/notes.txt", b"x")]
    path = write_tar(tmp_path / "a.tar", files)
    refs = by_key(config_of(path))
    assert {key: (ref.split, ref.labels, ref.fault) for key, ref in refs.items()} == {
        "train/cat/1.jpg": ("train", ("cat",), None),
        "val/dog/2.jpg": ("val", ("dog",), None),
        "val/lost.jpg": ("", (), (Reason.NO_LABEL, "the file lies in no class folder")),
    }
    refs = by_key(config_of(path, layout="class"))
    assert {ref.labels for ref in refs.values()} == {("train",), ("val",)}
    refs = by_key(config_of(path, label_pattern=r"/(?P<label>\w+)/(?P<id>\d)"))
    assert {key: ref.labels for key, ref in refs.items()} == {"1": ("cat",), "2": ("dog",), "val/lost.jpg": ()}
    assert refs["val/lost.jpg"].fault == (Reason.NO_LABEL, "source.label_pattern does not match 'val/lost.jpg'")
    assert {ref.labels for ref in by_key(config_of(path, labels="none")).values()} == {()}


def test_columns_boxes_and_named_fields_come_from_sidecars(tmp_path):
    record = {"uid": "a", "kind": "cat", "age": 3, "boxes": [[0, 0, 5, 5], [1, 1, 2, 2]]}
    files = [
        ("x/1.left.png", JPEG),
        ("x/1.jpg", JPEG),
        ("x/1.json", json.dumps(record).encode()),
        ("x/1.txt", "a köttur".encode()),
    ]
    config = config_of(
        write_tar(tmp_path / "a.tar", files),
        fields={"label": "kind", "id": "uid", "caption": "txt", "image": "left.png"},
        columns={"age": {"type": "int"}, "caption": {"type": "text"}},
        boxes={},
    )
    check_sources(config)
    (ref,) = list_refs(config)
    assert (ref.key, ref.labels, ref.columns) == ("a", ("cat",), (3, "a köttur"))
    assert ref.boxes == ((0, 0, 5, 5), (1, 1, 2, 2))
    assert ref.location.offset == 512


def test_a_glob_or_folder_of_archives_keeps_keys_apart(tmp_path):
    (tmp_path / "in" / "sub").mkdir(parents=True)
    for name in ("s-0.tar", "s-1.tar.gz", "sub/s-2.tar"):
        write_tar(tmp_path / "in" / name, SAMPLES[:2], mode="w:gz" if name.endswith("gz") else "w")
    assert sorted(by_key(config_of(f"{tmp_path}/in/s-*.tar"))) == ["s-0/0001.jpg"]
    assert sorted(by_key(config_of(f"{tmp_path}/in/**/s-*.tar"))) == ["s-0/0001.jpg", "sub/s-2/0001.jpg"]
    folder = config_of(tmp_path / "in", kind="tar")
    check_sources(folder)
    assert [part.path.rpartition("/")[2] for part in partition_sources(folder)] == ["s-0.tar", "s-1.tar.gz", "s-2.tar"]
    assert sorted(by_key(folder)) == ["s-0/0001.jpg", "s-1/0001.jpg", "sub/s-2/0001.jpg"]


def test_what_is_wrong_with_a_sample_is_its_own_fault(tmp_path):
    files = [
        ("ok.jpg", JPEG), ("ok.cls", b"1"),
        ("bare.jpg", JPEG),
        ("film.mp4", b"x"), ("film.cls", b"1"),
        ("bad.jpg", JPEG), ("bad.json", b"{"),
        ("deepest.jpg", JPEG), ("deepest.json", b"[" * 100_000),
        ("latin.jpg", JPEG), ("latin.cls", b"\xff"),
        ("huge.jpg", JPEG), ("huge.txt", b"x" * 4_000_001),
        ("twice.jpg", JPEG), ("twice.cls", b"1"), ("twice.jpg", JPEG + b"2"),
        ("README.md", b"x"), ("LICENSE", b"x"), ("._ok.jpg", b"x"), ("__info__.json", b"{}"),
    ]  # fmt: skip
    for path in (write_tar(tmp_path / "a.tar", files), write_tar(tmp_path / "a.tgz", files, mode="w:gz")):
        refs = list_refs(config_of(path))
        assert {ref.key: ref.fault for ref in refs if ref.key != "twice.jpg"} == {
            "ok.jpg": None,
            "bare.jpg": (Reason.NO_LABEL, "label is empty"),
            "film": (Reason.BAD_ROW, "the sample has no picture, only mp4, cls; its members must stand together"),
            "bad.jpg": (
                Reason.BAD_ROW,
                "bad.json is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
            ),
            "deepest.jpg": next(ref.fault for ref in refs if ref.key == "deepest.jpg"),
            "latin.jpg": (Reason.BAD_ROW, "latin.cls is not UTF-8 text"),
            "huge.jpg": (Reason.BAD_ROW, "huge.txt has more than 4 MB"),
        }
        deepest = next(ref.fault for ref in refs if ref.key == "deepest.jpg")
        assert deepest is not None
        assert deepest.message.startswith("deepest.json is not JSON: ")
        assert [(ref.fault, ref.labels) for ref in refs if ref.key == "twice.jpg"] == [
            ((Reason.DUPLICATE_KEY, "the archive has two members of this name; the first is used"), ()),
            (None, ("1",)),
        ]


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.type, header.linkname = kind, target
    return header


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_hostile_members_of_a_tar_cost_one_reject_each(tmp_path, mode):
    files = [
        ("cat/good.jpg", JPEG), ("cat/../../up.jpg", JPEG), ("/etc/cat/abs.jpg", JPEG), ("C:/cat/drive.jpg", JPEG),
        (b"cat/bad\xff.jpg".decode("utf-8", "surrogateescape"), JPEG), ("cat/empty.jpg", b""),
    ]  # fmt: skip
    extra = [
        special("cat/soft.jpg", tarfile.SYMTYPE, "/etc/passwd"),
        special("cat/hard.jpg", tarfile.LNKTYPE, "cat/good.jpg"),
        special("cat/null.jpg", tarfile.CHRTYPE),
        special("cat/pipe.jpg", tarfile.FIFOTYPE),
        special("cat/folder.jpg", tarfile.DIRTYPE),
    ]
    path = write_tar(tmp_path / ("a.tar" if mode == "w" else "a.tgz"), files, mode=mode, extra=extra)
    bad, regular = Reason.BAD_MEMBER, "only regular files are read"
    config = config_of(path)
    check_sources(config)
    assert faults(config) == {
        "cat/good.jpg": None,
        f"{path.name}: cat/../../up.jpg": (bad, "its name leads out of the archive"),
        f"{path.name}: /etc/cat/abs.jpg": (bad, "its name is absolute"),
        "C:/cat/drive.jpg": (bad, "its name is absolute"),
        "cat/bad\\xff.jpg": None,
        "cat/empty.jpg": None,  # process.py says empty_file
        "cat/soft.jpg": (bad, f"it is a symbolic link to '/etc/passwd'; {regular}"),
        "cat/hard.jpg": (bad, f"it is a hard link to 'cat/good.jpg'; {regular}"),
        "cat/null.jpg": (bad, f"it is a device or a pipe; {regular}"),
        "cat/pipe.jpg": (bad, f"it is a device or a pipe; {regular}"),
    }
    assert not (tmp_path.parent / "up.jpg").exists()


def test_sparse_members_are_refused(tmp_path):
    header = tarfile.TarInfo("cat/sparse.jpg")
    header.size = 512
    header.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,512",
                          "GNU.sparse.size": "9999"}  # fmt: skip
    path = write_tar(tmp_path / "a.tar", CLASSES)
    with tarfile.open(path, "a", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(header, io.BytesIO(b"x" * 512))
    fault = faults(config_of(path))["cat/sparse.jpg"]
    assert fault == (Reason.BAD_MEMBER, "it is a sparse file, which is not stored in one piece")


@pytest.mark.parametrize("name", ["plain.tar", "a.tgz", "a.zip"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_of_two_members_of_one_name_the_first_is_used(tmp_path, name):
    files = [("cat/1.jpg", JPEG + b"longer"), ("cat/2.jpg", JPEG), ("cat/1.jpg", JPEG)]
    refs = list_refs(config_of(write_archive(tmp_path / name, files)), tmp_path / "spool")
    same = sorted((ref for ref in refs if ref.key == "cat/1.jpg"), key=lambda ref: ref.location.offset)
    first, second = mark_duplicates(same)
    assert (first.fault, content(first)) == (None, JPEG + b"longer")
    assert second.fault == (Reason.DUPLICATE_KEY, "another input has the same key; give each row an id of its own")


def test_members_too_large_to_spool_are_rejects(tmp_path):
    files = [("cat/big.jpg", b"\0" * 3_000_000), ("cat/ok.jpg", JPEG)]
    path = write_tar(tmp_path / "a.tar.gz", files, mode="w:gz")
    refs = by_key(config_of(path, image={"max_file_mb": 2}), tmp_path / "spool")
    assert refs["cat/big.jpg"].fault == (Reason.FILE_TOO_LARGE, "file has 3.0 MB, image.max_file_mb is 2")
    assert content(refs["cat/ok.jpg"]) == JPEG
    assert (tmp_path / "spool" / "000000.bin").stat().st_size == len(JPEG)


@pytest.mark.parametrize("name", [*MODES, "a.zip"])
@pytest.mark.parametrize("files", [SAMPLES, CLASSES])
def test_archives_cut_off_anywhere_are_never_silent(tmp_path, name, files):
    path = write_archive(tmp_path / name, files)
    whole, everything = path.read_bytes(), faults(config_of(path))
    end = len(whole) if name != "plain.tar" else whole.rstrip(b"\0").__len__() // 512 * 512 + 512
    for size in sorted({0, 1, 511, 512, 513, *range(100, end, max(1, end // 40)), end - 1, end}):
        if size >= len(whole):
            continue
        path.write_bytes(whole[:size])
        try:
            found = faults(config_of(path))
        except UsageError as error:
            assert "cannot be read as" in str(error)  # noqa: PT017
            continue
        broken = {key: fault for key, fault in found.items() if fault}
        assert broken, size
        assert {fault[0] for fault in broken.values()} <= {Reason.UNREADABLE, Reason.BAD_ROW, Reason.NO_LABEL}
        assert path.name in broken
        assert broken[path.name][1].startswith("the archive is damaged or cut off: ")
        assert {key for key, fault in found.items() if not fault} <= set(everything)


def test_a_cut_tar_lists_what_it_has(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("cat/1.jpg", JPEG), ("cat/2.jpg", JPEG)])
    path.write_bytes(path.read_bytes()[: 2 * 512 + len(JPEG) + 511])
    message = "the archive is damaged or cut off: it ends inside of 'cat/2.jpg'"
    assert faults(config_of(path)) == {"cat/1.jpg": None, "a.tar": (Reason.UNREADABLE, message)}


def test_a_damaged_header_is_not_taken_for_the_end(tmp_path):
    path = write_tar(tmp_path / "a.tar", CLASSES)
    data = bytearray(path.read_bytes())
    second = 512 + -(-len(JPEG) // 512) * 512
    data[second + 5] ^= 1
    path.write_bytes(data)
    message = f"the archive is damaged or cut off: bad checksum at byte {second}"
    assert faults(config_of(path)) == {"cat/1.jpg": None, "a.tar": (Reason.UNREADABLE, message)}


def test_headers_that_would_fill_the_memory_or_never_end(tmp_path):
    for size, kind in ((2**33, tarfile.XHDTYPE), (2**33, tarfile.GNUTYPE_LONGNAME), (-512, tarfile.REGTYPE)):
        header = special("cat/x.jpg", kind)
        block = bytearray(header.tobuf(tarfile.GNU_FORMAT))
        block[124:136] = bytes([0x80 if size > 0 else 0xFF]) + (size % 2**88).to_bytes(11, "big")
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        path = write_tar(tmp_path / "a.tar", CLASSES[:1])
        at = 512 + -(-len(JPEG) // 512) * 512
        path.write_bytes(path.read_bytes()[:at] + block + b"\0" * 4096)
        assert faults(config_of(path)) == {
            "cat/1.jpg": None,
            "a.tar": (
                Reason.UNREADABLE,
                f"the archive is damaged or cut off: a header says that it has {size} bytes",
            ),
        }


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.zip"])
@pytest.mark.parametrize("data", [b"", b"not an archive", b"\x1f\x8bnot gzip either", JPEG, b"x" * 100_000])
def test_what_is_no_archive_is_refused_before_work_starts(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UsageError, match=rf"source.path .*{name} cannot be read as (tar|zip): the archive is damaged"):
        check_sources(config_of(path))


@pytest.mark.parametrize("name", ["plain.tar", "a.tgz", "a.zip"])
def test_an_empty_archive_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match="holds no files; the archive is empty"):
        check_sources(config_of(write_archive(tmp_path / name, [])))


def test_a_bad_archive_among_good_ones_is_one_reject(tmp_path):
    write_tar(tmp_path / "s-0.tar", CLASSES)
    write_tar(tmp_path / "s-1.tar", [])
    (tmp_path / "s-2.tar").write_bytes(b"x" * 1024)
    found = faults(config_of(f"{tmp_path}/s-*.tar"))
    assert sorted(found) == ["s-0/cat/1.jpg", "s-0/cat/deep/v1.2.jpg", "s-0/dog/3.jpg", "s-2.tar"]
    message = "the archive is damaged or cut off: invalid header at byte 0"
    assert found["s-2.tar"] == (Reason.UNREADABLE, message)


@pytest.mark.parametrize(
    ("files", "settings_", "message"),
    [
        (
            SAMPLES,
            {"columns": {"height_m": {"type": "float"}}},
            "has no field 'height_m'; it has age, cls, group, label",
        ),
        (SAMPLES, {"boxes": {}}, "has no field 'boxes'"),
        (SAMPLES, {"fields": {"label": "species"}}, "has no field 'species'"),
        (CLASSES, {"boxes": {}}, "is an archive of class layout, which has no boxes"),
        (CLASSES, {"labels": "regression"}, "is an archive of class layout, which has no regression targets"),
        (CLASSES, {"layout": "flat"}, "a flat archive needs source.label_pattern"),
        (
            CLASSES,
            {"layout": "class", "label_pattern": "(?P<label>.)"},
            "label_pattern is for layout flat, not for class",
        ),
    ],
)
def test_archives_that_cannot_give_what_is_asked(tmp_path, files, settings_, message):
    with pytest.raises(UsageError, match=message):
        check_sources(config_of(write_tar(tmp_path / "a.tar", files), **settings_))


def test_a_folder_has_no_samples(tmp_path):
    with pytest.raises(UsageError, match="source.layout webdataset is for archives"):
        check_sources(config_of(write_class_folders(tmp_path / "raw", images=1), layout="webdataset"))


# Zip


def test_hostile_members_of_a_zip_cost_one_reject_each(tmp_path):
    path = tmp_path / "a.zip"
    link = zipfile.ZipInfo("cat/soft.jpg")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    windows = zipfile.ZipInfo("cat/win.jpg")
    windows.create_system = 0
    with zipfile.ZipFile(path, "w") as archive:
        for name in (
            "cat/good.jpg",
            "cat/../../up.jpg",
            "/abs/cat.jpg",
            "cat/folder.jpg/",
            "cat/secret.jpg",
            "cat/nul_.jpg",
        ):
            archive.writestr(name, JPEG if not name.endswith("/") else b"")
        archive.writestr(link, b"/etc/passwd")
        archive.writestr(windows, JPEG)
        archive.writestr("cat/lz.jpg", JPEG, zipfile.ZIP_LZMA)
        archive.writestr("cat/bz.jpg", JPEG, zipfile.ZIP_BZIP2)
        archive.writestr("cat/bad_.jpg", JPEG)
        archive.writestr("cat/köter.jpg", JPEG)
    data = path.read_bytes().replace(b"cat/win.jpg", b"cat\\win.jpg").replace(b"cat/bad_.jpg", b"cat/bad\x81.jpg")
    data = _with_flag(data.replace(b"cat/nul_.jpg", b"cat/nul\0.jpg"), b"cat/secret.jpg", 1)
    path.write_bytes(data)
    bad = Reason.BAD_MEMBER
    found = faults(config_of(path))
    assert found == {
        "cat/good.jpg": None,
        "a.zip: cat/../../up.jpg": (bad, "its name leads out of the archive"),
        "a.zip: /abs/cat.jpg": (bad, "its name is absolute"),
        "cat/secret.jpg": (bad, "it is encrypted"),
        "cat/nul\0.jpg": (bad, "its name has a null byte"),
        "cat/soft.jpg": (bad, "it is a symbolic link; only regular files are read"),
        "cat/win.jpg": None,
        "cat/lz.jpg": (bad, "its compression method is 14; only stored and deflated members are read"),
        "cat/bz.jpg": (bad, "its compression method is 12; only stored and deflated members are read"),
        "cat/badü.jpg": None,  # code page 437, as the standard says
        "cat/köter.jpg": None,
    }


def _with_flag(data: bytes, name: bytes, flag: int) -> bytes:
    at = data.rfind(name) - 46 + 8
    return data[:at] + struct.pack("<H", struct.unpack_from("<H", data, at)[0] | flag) + data[at + 2 :]


def test_a_zip_bomb_costs_one_reject(tmp_path):
    path = write_zip(tmp_path / "a.zip", [("cat/bomb.jpg", b"\0" * 50_000_000), ("cat/1.jpg", JPEG)])
    config = config_of(path, image={"max_file_mb": 1})
    bomb = by_key(config)["cat/bomb.jpg"]
    assert (bomb.fault, bomb.location.coding, bomb.location.size < 60_000) == (None, "deflate", True)
    with pytest.raises(Exception, match="file_too_large: file has 1.0 MB, image.max_file_mb is 1"):
        read_input(bomb.location, config.image)


def test_a_zip_directory_that_lies(tmp_path):
    path = write_zip(tmp_path / "a.zip", [("cat/1.jpg", JPEG), ("cat/2.jpg", JPEG)])
    data = bytearray(path.read_bytes())
    struct.pack_into("<L", data, data.rfind(b"cat/2.jpg") - 4, 2**31)  # where the member is
    path.write_bytes(data)
    message = "the archive is damaged: its bytes are not where the directory says"
    assert faults(config_of(path)) == {"cat/1.jpg": None, "cat/2.jpg": (Reason.UNREADABLE, message)}
    struct.pack_into("<H", data, len(data) - 12, 3)  # how many members there are
    path.write_bytes(data)
    message = "the archive is damaged or cut off: its directory has 2 members and says 3"
    assert faults(config_of(path))["a.zip"] == (Reason.UNREADABLE, message)


@given(
    st.lists(st.tuples(st.text("abc/ö.", min_size=1, max_size=9), st.binary(max_size=99), st.booleans()), max_size=6),
    st.binary(max_size=40),
    st.binary(max_size=40),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_the_walk_sees_what_zipfile_wrote(tmp_path_factory, files, before, comment, wide):
    path = tmp_path_factory.getbasetemp() / "walk.zip"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.comment = comment
        for name, data, deflated in files:
            method = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            with archive.open(info, "w", force_zip64=wide) as member:
                member.write(data)
    path.write_bytes(before + stream.getvalue())
    with zipfile.ZipFile(path) as archive:
        expected = [archive.read(info) for info in archive.infolist() if not info.is_dir()]
    assert [member.read(1000) for member in zip_members(str(path))] == expected


def test_zip64_directories(tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)  # sizes and offsets go to the extra fields
    path = write_zip(tmp_path / "a.zip", [("cat/1.jpg", JPEG), ("cat/2.jpg", JPEG + b"2"), ("cat/3.jpg", JPEG)])
    assert b"PK\6\6" in path.read_bytes()
    refs = by_key(config_of(path))
    assert {key: content(ref) for key, ref in refs.items()} == {
        "cat/1.jpg": JPEG, "cat/2.jpg": JPEG + b"2", "cat/3.jpg": JPEG,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["plain.tar", "a.tgz", "a.zip"])
def test_memory_does_not_grow_with_the_members(tmp_path, name):
    def peak(count: int) -> int:
        config = config_of(write_archive(tmp_path / name, [(f"cat/{n}.jpg", b"x") for n in range(count)]))
        (part,) = partition_sources(config)
        tracemalloc.start()
        try:
            assert sum(1 for _ in list_partition(part, config)) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(2500) < peak(250) + 100_000  # a list of members would be megabytes


def test_the_webdataset_config_reads_such_shards(tmp_path, monkeypatch):
    (tmp_path / "shards").mkdir()
    fields = {"category": "cat", "width_px": 40}
    files = [("000001.jpg", JPEG), ("000001.json", json.dumps(fields).encode()), ("000001.txt", b"a cat")]
    write_tar(tmp_path / "shards" / "train-00.tar", files)
    monkeypatch.chdir(tmp_path)
    config = load_settings(BuildConfig, CONFIGS / "webdataset.yaml", {})
    check_sources(config)
    (ref,) = list_refs(config)
    assert (ref.key, ref.labels, ref.columns) == ("train-00/000001.jpg", ("cat",), ("a cat", 40))


# Whole builds


def records_of(root: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(root.rglob("*.tfrecord")):
        with path.open("rb") as stream:
            found += [decode_example(data) for _, data in read_records(stream)]
    return found


@pytest.mark.parametrize("name", ["plain.tar", "a.tar.gz", "a.zip"])
def test_an_archive_builds_the_same_records_as_its_files(tmp_path, built, name):
    source = built.source
    files = [(p.relative_to(source).as_posix(), p.read_bytes()) for p in sorted(source.rglob("*")) if p.is_file()]
    config = make_config(
        write_archive(tmp_path / name, files),
        tmp_path / "dataset",
        name="animals",
        splits={"fractions": {"train": 0.7, "validation": 0.3}},
        image={"resize": "exact:32", "encode": {"format": "png"}},
        shards={"target_mb": 0.02},
        max_reject_fraction=0.05,
    )
    run_build(config)
    records = records_of(tmp_path / "dataset")
    assert len(records) == 40
    assert records == records_of(built.root)
    assert not (tmp_path / "dataset" / ".build").exists()
