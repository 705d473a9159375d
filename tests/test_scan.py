"""The scan of canonical records: what it takes, it takes as the decoder does; what it does not, it leaves alone."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards_data import FEATURES, features, thorough

from shards.example import Value, Values, decode_example, encode_example
from shards.manifest import FeatureEntry
from shards.rules import check_values
from shards.scan import Scanner

ENTRIES = [FeatureEntry(name=name, type=kind, description="") for name, kind in FEATURES.items()]  # type: ignore[arg-type]
WANTED = ["label_name"]
BLOBS = {"image", "key"}


def scanner(*more: FeatureEntry) -> Scanner:
    return Scanner([*ENTRIES, *more], check_values, wanted=WANTED)


def without_blobs(record: bytes) -> dict[str, Values]:
    return {name: values for name, values in decode_example(record).items() if name not in BLOBS}


def test_a_canonical_record_is_read_except_for_blobs_that_nobody_wants() -> None:
    scan = scanner()
    for number in (0, 1, 0):
        assert scan.scan(encode_example(features(number))) == {
            "height": [4],
            "label": [number],
            "label_name": [["daisy", "löwenzahn"][number].encode()],
            "weight": [number / 2],
            "width": [6],
        }


def test_a_wanted_blob_is_read() -> None:
    example = Scanner(ENTRIES, check_values, wanted=["image"]).scan(encode_example(features(3)))
    assert example is not None
    assert example["image"] == [features(3)["image"]]


@pytest.mark.parametrize("size", [0, 1, 100, 115, 116, 117, 118, 119, 120, 121, 122, 123, 124, 125, 126, 127, 128, 129])
@pytest.mark.parametrize("scale", [1, 128, 128 * 128])
def test_blobs_of_every_length_of_length_are_recognised(size: int, scale: int) -> None:
    assert scanner().scan(encode_example(features(0, image=bytes(size * scale), key=bytes(size)))) is not None


def test_lists_of_any_length_are_read_each_time() -> None:
    boxes = FeatureEntry(name="boxes", type="float", description="", length=None)
    scan = scanner(boxes)
    for sides in ([], [0.5] * 4, [0.25] * 400):
        example = scan.scan(encode_example(features(0, boxes=sides)))
        assert example is not None
        assert example["boxes"] == sides


NOT_CANONICAL: dict[str, bytes] = {
    "nothing": b"",
    "no example": b"hello",
    "a feature more": encode_example(features(0, extra=[1])),
    "a feature less": encode_example({name: value for name, value in features(0).items() if name != "width"}),
    "an empty feature": encode_example(features(0, height=[])),
    "an empty blob list": encode_example(features(0, image=[])),
    "two blobs": encode_example(features(0, image=[b"a", b"b"])),
    "numbers for a blob": encode_example(features(0, key=[1, 2])),
    "another type": encode_example(features(0, height=[4.0])),
    "two values": encode_example(features(0, height=[4, 4])),
    "a byte more": encode_example(features(0)) + b"\x00",
    "a byte less": encode_example(features(0))[:-1],
    "twice": encode_example(features(0)) * 2,
}


@pytest.mark.parametrize("record", NOT_CANONICAL.values(), ids=NOT_CANONICAL)
def test_what_is_not_canonical_or_not_promised_is_left_to_the_decoder(record: bytes) -> None:
    assert scanner().scan(record) is None


examples = st.fixed_dictionaries(
    {
        "image": st.binary(max_size=300),
        "key": st.binary(max_size=20),
        "label_name": st.binary(max_size=9),
        "label": st.integers(-(2**63), 2**63 - 1).map(lambda value: [value]),
        "height": st.integers(0, 300).map(lambda value: [value]),
        "width": st.just([6]),
        "weight": st.floats(width=32, allow_nan=False).map(lambda value: [value]),
    }
)


@thorough
@given(examples)
def test_every_promised_record_is_taken_as_the_decoder_takes_it(example: dict[str, Value]) -> None:
    record = encode_example(example)
    assert scanner().scan(record) == without_blobs(record)


@thorough
@given(examples, st.data())
def test_a_changed_record_is_left_alone_or_taken_as_the_decoder_takes_it(
    example: dict[str, Any], draw: st.DataObject
) -> None:
    record = bytearray(encode_example(example))
    scan = scanner()
    scan.scan(bytes(record))
    for _ in range(draw.draw(st.integers(1, 3))):
        record[draw.draw(st.integers(0, len(record) - 1))] = draw.draw(st.integers(0, 255))
    found = scan.scan(bytes(record))
    if found is not None:
        decoded = decode_example(bytes(record))
        assert decoded.keys() == FEATURES.keys()
        for entry in ENTRIES:
            check_values(entry, decoded[entry.name])
        assert not [name for name in found if not _same(found[name], decoded[name])]


def _same(one: Values, other: Values) -> bool:
    return one == other or all(
        isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)
        for a, b in zip(one, other, strict=True)
    )
