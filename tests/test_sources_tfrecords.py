"""TFRecord sources: where the payloads lie, which features become what, and what becomes of damaged files."""

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_config, run_build
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encoded, picture

from pipelines.config import BuildConfig, ImageConfig
from pipelines.pictures.forms import to_row
from pipelines.pictures.process import read_input
from pipelines.reasons import Reason
from pipelines.sources import check_sources, list_partition, partition_sources, resolve
from pipelines.values import InputRef
from shards.errors import UsageError
from shards.example import decode_example, encode_example
from shards.records import frame, read_records

JPEG = encoded(picture(1))
EXAMPLES: list[dict[str, Any]] = [
    {"image/encoded": JPEG + bytes([n]), "image/class/label": [n], "image/filename": b"%d.jpg" % n} for n in range(3)
]


def write_records(path: Path, examples: list[dict[str, Any]] | list[bytes]) -> Path:
    data = b"".join(frame(each if isinstance(each, bytes) else encode_example(each)) for each in examples)
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return path


def config_of(path: Path | str, **sections: Any) -> BuildConfig:
    return make_config(path, "out", **sections)


def list_refs(config: BuildConfig, spool: Path | str = "") -> list[InputRef]:
    return [ref for part in partition_sources(config) for ref in list_partition(part, config, str(spool))]


def faults(config: BuildConfig, spool: Path | str = "") -> dict[str, tuple[str, str] | None]:
    refs = list_refs(config, spool)
    assert len({ref.key for ref in refs}) == len(refs)
    return {ref.key: ref.fault for ref in refs}


def content(ref: InputRef) -> bytes:
    return read_input(ref.location, ImageConfig())


@pytest.mark.parametrize(
    ("name", "in_place"),
    [("a.tfrecord", True), ("a.tfrecords", True), ("a.tfrecord-00000-of-00001", True), ("a.tfrecord.gz", False)],
)
def test_the_usual_features_are_found_and_pictures_read_in_place(tmp_path, name, in_place):
    config = config_of(write_records(tmp_path / name, EXAMPLES))
    check_sources(config)
    refs = list_refs(config, tmp_path / "spool")
    assert [(ref.key, ref.labels, ref.fault) for ref in refs] == [(f"a/{n}", (str(n),), None) for n in range(3)]
    assert [content(ref) for ref in refs] == [example["image/encoded"] for example in EXAMPLES]
    assert [ref.location.path == str(tmp_path / name) for ref in refs] == [in_place] * 3
    assert [part.spooled for part in partition_sources(config)] == [not in_place]


def test_gzip_is_seen_by_its_bytes(tmp_path):
    path = write_records(tmp_path / "a.tfrecord.gz", EXAMPLES).rename(tmp_path / "a.tfrecord")
    refs = list_refs(config_of(path), tmp_path / "spool")
    assert [content(ref) for ref in refs] == [example["image/encoded"] for example in EXAMPLES]
    write_records(tmp_path / "0.tfrecord", EXAMPLES)  # the first says that all are plain
    message = "it is compressed, but neither its name nor the source's first file says so; add .gz to its name"
    found = faults(config_of(f"{tmp_path}/*.tfrecord"))
    assert found == {"0/0": None, "0/1": None, "0/2": None, "a.tfrecord": (Reason.UNREADABLE, message)}


def test_fields_map_features_to_roles_and_columns(tmp_path):
    example = {
        "jpg": JPEG, "uid": b"k", "kinds": [b"cat", b"dog"], "fold": b"test", "age": [3], "tags": [b"x", "é".encode()],
        "mask": b"\x89PNG", "who": b"g1",
    }  # fmt: skip
    config = config_of(
        write_records(tmp_path / "a.tfrecord", [example]),
        source={
            "fields": {"image": "jpg", "id": "uid", "label": "kinds", "split": "fold", "group": "who", "words": "tags"}
        },
        labels={"kind": "multi"},
        columns={"age": {"type": "int"}, "words": {"type": "text", "list": True}},
    )
    check_sources(config)
    (ref,) = list_refs(config)
    assert (ref.key, ref.labels, ref.split, ref.group) == ("k", ("cat", "dog"), "test", "g1")
    assert ref.columns == (3, ("x", "é"))
    assert content(ref) == JPEG


def test_one_label_of_several_is_not_cut_at_a_separator(tmp_path):
    path = write_records(tmp_path / "a.tfrecord", [{"image": JPEG, "label": b"a|b"}, {"image": JPEG, "label": []}])
    refs = list_refs(config_of(path, labels={"kind": "multi"}))
    assert [ref.labels for ref in refs] == [("a|b",), ()]


def test_several_labels_need_the_kind_multi(tmp_path):
    path = write_records(tmp_path / "a.tfrecord", [{"image": JPEG, "label": [1, 2]}])
    problem = "label holds [1, 2]; for several labels per input set labels.kind to multi"
    assert faults(config_of(path)) == {"a/0": (Reason.BAD_ROW, problem)}


def test_regression_targets(tmp_path):
    path = write_records(tmp_path / "a.tfrecord", [{"image": JPEG, "target": [0.5, 2.0]}])
    (ref,) = list_refs(config_of(path, labels={"kind": "regression", "length": 2}))
    assert ref.target == (0.5, 2.0)


@pytest.mark.parametrize(
    ("features", "fields", "form"),
    [
        ({"boxes": [0.0, 0.25, 0.5, 1.0, 0.5, 0.5, 1.0, 1.0]}, {}, "xyxy"),
        ({"b": [0.25, 0.0, 1.0, 0.5, 0.5, 0.5, 1.0, 1.0]}, {"boxes": "b"}, "yxyx"),
        ({f"image/object/bbox/{side}": values for side, values in
          {"xmin": [0.0, 0.5], "ymin": [0.25, 0.5], "xmax": [0.5, 1.0], "ymax": [1.0, 1.0]}.items()}, {}, "xyxy"),
        ({f"o/{side}": values for side, values in
          {"xmin": [0.0, 0.5], "ymin": [0.25, 0.5], "xmax": [0.5, 1.0], "ymax": [1.0, 1.0]}.items()},
         {"boxes": "o"}, "yxyx"),
    ],
)  # fmt: skip
def test_boxes_flat_or_by_side(tmp_path, features, fields, form):
    example = {"image": JPEG, "label": [1], "names": [b"a", b"b"], **features}
    config = config_of(
        write_records(tmp_path / "a.tfrecord", [example]),
        source={"fields": fields},
        boxes={"format": form, "unit": "fraction"},
        columns={"names": {"type": "text", "per": "box"}},
    )
    check_sources(config)
    (ref,) = list_refs(config)
    assert (ref.fault, ref.boxes, ref.columns) == (None, ((0, 0.25, 0.5, 1), (0.5, 0.5, 1, 1)), (("a", "b"),))


def test_sides_of_different_lengths_are_a_fault(tmp_path):
    sides = {"xmin": [0.0], "ymin": [0.0], "xmax": [1.0], "ymax": [1.0, 1.0]}
    example = {"image": JPEG, "label": [1]} | {f"image/object/bbox/{side}": each for side, each in sides.items()}
    config = config_of(write_records(tmp_path / "a.tfrecord", [example]), boxes={"unit": "fraction"})
    message = "box 2 holds [None, None, None, 1.0], which is not four numbers"
    assert faults(config) == {"a/0": (Reason.BAD_ROW, message)}


def test_features_are_rows_in_place_if_they_lie_in_one_piece(tmp_path):
    row = [0.1, -2.5, 3e38]
    unpacked = b"".join(b"\x0d" + struct.pack("<f", value) for value in row)
    feature = b"\x12" + bytes([len(unpacked)]) + unpacked
    entry = b"\x0a\x08features\x12" + bytes([len(feature)]) + feature
    label = encode_example({"label": [1]})[2:]
    in_pieces = label + b"\x0a" + bytes([len(entry)]) + entry
    examples = [
        encode_example({"features": row, "label": [0]}),
        b"\x0a" + bytes([len(in_pieces)]) + in_pieces,
        encode_example({"features": [7, -1, 2**40], "label": [2]}),
    ]
    path = write_records(tmp_path / "a.tfrecord", examples)
    refs = list_refs(config_of(path), tmp_path / "spool")
    assert [ref.fault for ref in refs] == [None] * 3
    assert [ref.location.form for ref in refs] == ["<f4:3", "<f4:3", "<i8:3"]
    assert [ref.location.path == str(path) for ref in refs] == [True, False, False]
    rows = [to_row(content(ref), ref.location.form).tolist() for ref in refs]
    assert rows == [np.float32(row).tolist()] * 2 + [[7, -1, 2**40]]


def test_what_is_wrong_with_a_record_is_its_own_fault(tmp_path):
    good = encode_example({"image": JPEG, "label": [1]})
    damaged = bytearray(frame(good))
    damaged[40] ^= 1
    others: list[Any] = [
        good,
        b"\xff\xff garbage",
        {"label": [1], "other": [2]},
        {"image": [JPEG, JPEG], "label": [1]},
        {"image": [3], "label": [1]},
        {"image": JPEG},
        {"image": bytes(4_000_000), "label": [1]},
        good,
    ]
    path = write_records(tmp_path / "a.tfrecord", others)
    path.write_bytes(bytes(damaged) + path.read_bytes())
    found = faults(config_of(path, image={"max_file_mb": 2}))
    message = found["a/4"][1]
    assert message.startswith("record 4: feature 'image' holds [b'")
    assert message.endswith("..., which is not one picture")
    assert found == {
        "a/0": (Reason.UNREADABLE, "record 0: its data fail their checksum"),
        "a/1": None,
        "a/2": (Reason.BAD_ROW, "record 2: its 10 bytes are not a tf.train.Example"),
        "a/3": (Reason.BAD_ROW, "record 3: feature 'image' is missing; it has label, other"),
        "a/4": (Reason.BAD_ROW, message),
        "a/5": (Reason.BAD_ROW, "record 5: feature 'image' holds [3], which is not one picture"),
        "a/6": (Reason.NO_LABEL, "label is empty"),
        "a/7": (Reason.FILE_TOO_LARGE, "record 7: it has 4.0 MB, which image.max_file_mb does not allow"),
        "a/8": None,
    }


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz"])
def test_a_file_cut_off_anywhere_lists_the_whole_records_and_one_fault(tmp_path, name):
    noise = np.random.default_rng(0)  # which no compression makes smaller
    examples = [{"image": noise.bytes(2000), "label": [n]} for n in range(4)]
    path = write_records(tmp_path / name, examples)
    whole = path.read_bytes()
    ends = np.cumsum([len(frame(encode_example(example))) for example in examples]).tolist()
    for size in [*range(ends[0] + 100, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:size])
        found = list(faults(config_of(path)).values())
        assert found[-1] is not None
        assert found[-1][0] == Reason.UNREADABLE
        assert found[:-1] == [None] * (len(found) - 1)
        compressed = 50 if name.endswith(".gz") else 0  # a header, and marks between the blocks
        complete = [sum(end <= size - extra for end in ends) for extra in (0, compressed)]
        assert complete[1] <= len(found) - 1 <= len(ends)
        assert compressed or len(found) - 1 == complete[0]


def test_a_broken_length_ends_the_listing_in_words(tmp_path):
    path = write_records(tmp_path / "a.tfrecord", EXAMPLES)
    data = bytearray(path.read_bytes())
    data[len(frame(encode_example(EXAMPLES[0])))] ^= 1
    path.write_bytes(data)
    message = "record 1: its length fails its checksum, so nothing from here on can be read"
    assert faults(config_of(path)) == {"a/0": None, "a/1": (Reason.UNREADABLE, message)}


@given(st.binary(max_size=300), st.integers(0, 400))
@settings(max_examples=100, deadline=None)
def test_noise_never_stops_a_listing(tmp_path_factory, noise, place):
    path = write_records(tmp_path_factory.getbasetemp() / "noise.tfrecord", EXAMPLES[:2])
    data = path.read_bytes()
    at = len(frame(encode_example(EXAMPLES[0]))) + place
    path.write_bytes(data[:at] + noise + data[at + len(noise) :])
    found = list(faults(config_of(path)).values())
    assert found[0] is None
    assert all(fault is None or fault[0] in (Reason.UNREADABLE, Reason.BAD_ROW) for fault in found)


@pytest.mark.parametrize(
    ("examples", "sections", "message"),
    [
        ([], {}, "has no feature 'image' or 'features'; it has no records"),
        ([b"not an example"], {}, "cannot be read as TFRecord: record 0: its 14 bytes are not a tf.train.Example"),
        ([{"jpg": JPEG, "label": [1]}], {},
         r"has no feature 'image' or 'features'; it has jpg, label; if it is called otherwise, say so with "
         r"source.fields: {image: its name}"),
        ([{"image": JPEG}], {"source": {"fields": {"image": "jpeg"}}}, "has no feature 'jpeg'; it has image"),
        ([{"image": JPEG, "klass": [1]}], {},
         r"has no field 'label'; it has image, klass; .* source.fields: {label: its name}"),
        ([{"image": JPEG, "label": [1]}], {"columns": {"age": {"type": "int"}}}, "has no field 'age'"),
        ([{"image": JPEG, "label": [1]}], {"boxes": {}}, "has no field 'boxes'"),
    ],
)  # fmt: skip
def test_files_that_cannot_give_what_is_asked(tmp_path, examples, sections, message):
    with pytest.raises(UsageError, match=message):
        check_sources(config_of(write_records(tmp_path / "a.tfrecord", examples), **sections))


@pytest.mark.parametrize("data", [b"no records at all", b"\x1f\x8bno gzip", b"\0" * 100])
def test_what_is_no_tfrecord_is_refused_before_work_starts(tmp_path, data):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"source.path .*a.tfrecord cannot be read as TFRecord: record 0: "):
        check_sources(config_of(path))


def test_globs_and_folders_of_files(tmp_path):
    for name in ("t.tfrecord-00000-of-00002", "t.tfrecord-00001-of-00002"):
        write_records(tmp_path / name, EXAMPLES[:1])
    (tmp_path / "notes.txt").write_text("x")
    for config in (config_of(f"{tmp_path}/t.tfrecord-*"), config_of(tmp_path, source={"kind": "tfrecord"})):
        check_sources(config)
        assert resolve(config.all_sources[0]).kind == "tfrecord"
        assert len(partition_sources(config)) == 2
    found = list_refs(config_of(f"{tmp_path}/t.tfrecord-*", source={"fields": {"id": "image/filename"}}))
    assert [ref.key for ref in found] == ["0.jpg", "0.jpg"]  # one of them becomes duplicate_key


def records_of(root: Path) -> dict[bytes, dict[str, Any]]:
    found = {}
    for path in sorted(root.rglob("*.tfrecord")):
        with path.open("rb") as stream:
            for _, data in read_records(stream):
                example = decode_example(data)
                found[example["key"][0]] = example
    return found


def test_a_dataset_of_ours_is_sharded_anew(tmp_path, built):
    config = make_config(
        f"{built.root}/*/*.tfrecord",
        tmp_path / "again",
        name="again",
        splits={"fractions": {"train": 0.5, "test": 0.5}, "salt": "other"},
        image={"encode": {"format": "original"}},
        shards={"count": {"train": 3, "test": 1}},
    )
    manifest = run_build(config)
    assert {split.name: len(split.shards) for split in manifest.splits} == {"train": 3, "test": 1}
    before, after = records_of(built.root), records_of(tmp_path / "again")
    assert len(before) == 40
    assert after == before  # keys, labels, label names and the very bytes of the pictures
