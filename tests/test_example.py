"""The hand-written Example codec, held against tf.train.Example in both directions."""

import math
import random
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st
from shards_data import features, thorough

from shards.example import Values, decode_example, encode_example

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
int64s = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(width=32, allow_nan=False)
values = st.one_of(
    st.lists(st.binary(max_size=40), max_size=5), st.lists(int64s, max_size=5), st.lists(floats, max_size=5)
)
examples = st.dictionaries(names, values, max_size=6)


def as_dict(message: Any) -> dict[str, Values]:
    """What TensorFlow's message holds."""
    found: dict[str, Values] = {}
    for name, feature in message.features.feature.items():
        kind = feature.WhichOneof("kind")
        found[name] = list(getattr(feature, kind).value) if kind else []
    return found


def as_message(content: dict[str, Values]) -> Any:
    """The content in TensorFlow's message."""
    message = tf.train.Example()
    for name, items in content.items():
        feature = message.features.feature[name]
        if items:
            kind = {bytes: "bytes_list", int: "int64_list", float: "float_list"}[type(items[0])]
            getattr(feature, kind).value.extend(items)
    return message


def parse(data: bytes) -> dict[str, Values] | None:
    """What TensorFlow reads from the bytes, or None if it refuses them."""
    try:
        return as_dict(tf.train.Example.FromString(data))
    except DecodeError:
        return None


def exactly(content: dict[str, Values]) -> str:
    """The content such that 1, 1.0 and True, or 0.0 and -0.0, are not the same, but a NaN is the same as itself."""
    return repr(sorted(content.items()))


def test_bytes_of_a_small_example() -> None:
    # Example.features(1) { Features.feature(1) { key(1): "n"  value(2): Feature.int64_list(3) { value(1): [3, -1] } } }
    expected = "0a16 0a14 0a016e 120f 1a0d 0a0b 03 ffffffffffffffffff01"
    assert encode_example({"n": [3, -1]}).hex() == bytes.fromhex(expected).hex()


def test_bytes_of_each_kind() -> None:
    assert encode_example({}) == bytes.fromhex("0a00")
    assert encode_example({"b": b"xy"}) == bytes.fromhex("0a0d 0a0b 0a0162 1206 0a04 0a027879")
    assert encode_example({"f": [1.5]}) == bytes.fromhex("0a0f 0a0d 0a0166 1208 1206 0a04 0000c03f")
    assert encode_example({"e": []}) == bytes.fromhex("0a07 0a05 0a0165 1200")


@thorough
@given(examples)
def test_tensorflow_reads_what_we_encode(content: dict[str, Values]) -> None:
    data = encode_example(content)
    message = tf.train.Example.FromString(data)
    assert exactly(as_dict(message)) == exactly(content)
    assert len(message.SerializeToString()) == len(data)  # nothing in it that TensorFlow does not know


@thorough
@given(examples)
def test_we_read_what_tensorflow_serialises(content: dict[str, Values]) -> None:
    assert exactly(decode_example(as_message(content).SerializeToString())) == exactly(content)


@thorough
@given(examples)
def test_round_trip(content: dict[str, Values]) -> None:
    assert exactly(decode_example(encode_example(content))) == exactly(content)


@thorough
@given(examples, st.randoms(use_true_random=False))
def test_bytes_do_not_depend_on_the_order_of_the_mapping(content: dict[str, Values], generator: random.Random) -> None:
    shuffled = list(content.items())
    generator.shuffle(shuffled)
    assert encode_example(dict(shuffled)) == encode_example(content)


def test_types_of_values_come_back() -> None:
    content = decode_example(encode_example({"b": b"\xff", "i": [True, -5], "f": [0.1]}))
    assert exactly(content) == "[('b', [b'\\xff']), ('f', [0.10000000149011612]), ('i', [1, -5])]"


def test_special_floats() -> None:
    content = decode_example(encode_example({"f": [math.inf, -0.0, math.nan]}))
    assert exactly(content) == "[('f', [inf, -0.0, nan])]"


def test_numpy_integers_stay_integers() -> None:
    assert exactly(decode_example(encode_example({"n": np.array([3, -4])}))) == "[('n', [3, -4])]"  # type: ignore[dict-item]


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30])
def test_an_integer_that_does_not_fit_is_refused_not_wrapped(number: int) -> None:
    with pytest.raises(ValueError, match="feature 'stars' does not fit in its type: int too big to convert"):
        encode_example({"stars": [number]})


def test_a_float_that_does_not_fit_is_refused_not_infinite() -> None:
    with pytest.raises(ValueError, match="feature 'mass' does not fit in its type: float too large"):
        encode_example({"mass": [1e39]})


def test_integers_do_not_swallow_fractions() -> None:
    with pytest.raises(TypeError):
        encode_example({"n": [1, 2.5]})


def test_numbers_that_are_not_packed_are_read() -> None:
    # Feature "n" with two unpacked int64s, 5 and -1, and feature "f" with one unpacked float, 1.5.
    ints = "0a14 0a016e 120f 1a0d 0805 08ffffffffffffffffff01"
    lone_float = "0a0c 0a0166 1207 1205 0d0000c03f"
    data = bytes.fromhex("0a24" + ints + lone_float)
    assert parse(data) == {"n": [5, -1], "f": [1.5]}
    assert decode_example(data) == {"n": [5, -1], "f": [1.5]}


def test_unknown_fields_are_skipped() -> None:
    # Before the features: field 9 as varint, field 10 as 64 bits, field 11 as 32 bits, field 12 as bytes.
    unknown = bytes.fromhex("48 ac02 51 0102030405060708 5d 01020304 62 03 616263")
    assert decode_example(unknown + encode_example({"n": [1]})) == {"n": [1]}


BROKEN = {
    "text": (b"hello, world", "no field can have number 0|unknown wire type|longer than its message|out of range"),
    "cut": (encode_example({"n": [1, 2, 3]})[:-1], "a field is longer than its message"),
    "endless number": (b"\x0a" + b"\xff" * 20, "a number is longer than 5 bytes"),
    "tag in six bytes": (b"\x8a\x80\x80\x80\x80\x00\x00", "a number is longer than 5 bytes"),
    "length in six bytes": (b"\x0a\x80\x80\x80\x80\x80\x00", "a number is longer than 5 bytes"),
    "value in eleven bytes": (
        bytes.fromhex("0a17 0a15 0a016e 1210 1a0e 0a0c ffffffffffffffffffff0100"),
        "a number is longer than 10 bytes",
    ),
    "number that ends with the data": (b"\x0a\x85", "index out of range"),
    "huge length": (b"\x0a\xff\xff\xff\xff\x7f", "a field is longer than its message"),
    "field number 0": (b"\x02\x00", "no field can have number 0"),
    "field number 2^29": (b"\x82\x80\x80\x80\x10\x00", "no field can have number 536870912"),
    "group": (b"\x0b\x0c", "unknown wire type 3"),
    "name that is not UTF-8": (bytes.fromhex("0a05 0a03 0a01ff"), "'utf-8' codec can't decode byte 0xff"),
    "three bytes of a float": (bytes.fromhex("0a0e 0a0c 0a0166 1207 1205 0a03 000000"), "unpack requires a buffer"),
    "number that runs out of its list": (
        bytes.fromhex("0a0e 0a0c 0a016e 1207 1a05 0a0180 1003"),
        "a number is longer than its list",
    ),
    "two lists": (bytes.fromhex("0a0d 0a0b 0a016e 1206 1a00 1a02 0801"), "feature 'n' has several lists"),
    "two features": (bytes.fromhex("0a0d 0a0b 0a016e 1202 1a00 1202 1a00"), "an entry is not a name and a feature"),
    "more than a feature": (bytes.fromhex("0a09 0a07 0a016e 1200 1801"), "an entry is not a name and a feature"),
}


@pytest.mark.parametrize(("data", "message"), BROKEN.values(), ids=BROKEN)
def test_what_is_not_an_example_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"not a tf.train.Example: .*({message})"):
        decode_example(data)


def agree_or_refuse(data: bytes) -> None:
    """We may refuse what TensorFlow accepts, but what we accept TensorFlow accepts too, and reads the same."""
    try:
        ours = decode_example(data)
    except ValueError:
        return
    theirs = parse(data)
    assert theirs is not None
    assert exactly(ours) == exactly(theirs)


@thorough
@given(st.binary(max_size=60))
@example(b"")
def test_random_bytes_never_surprise(data: bytes) -> None:
    agree_or_refuse(data)


@thorough
@given(examples, st.data())
def test_damaged_examples_never_surprise(content: dict[str, Values], draw: st.DataObject) -> None:
    data = bytearray(encode_example(content))
    for _ in range(draw.draw(st.integers(1, 4))):
        position = draw.draw(st.integers(0, len(data) - 1))
        data[position] = draw.draw(st.integers(0, 255))
    agree_or_refuse(bytes(data))


@thorough
@given(examples, examples, st.data())
def test_spliced_examples_never_surprise(
    first: dict[str, Values], second: dict[str, Values], draw: st.DataObject
) -> None:
    a, b = encode_example(first), encode_example(second)
    agree_or_refuse(a[draw.draw(st.integers(0, len(a))) :] + b[: draw.draw(st.integers(0, len(b)))])


def test_garbage_costs_neither_time_nor_memory() -> None:
    # The bytes that open, nest or prolong most, many times over.
    pieces = [b"\x0a", b"\xff", b"\x80", b"\x0a\x00", b"\x0a\x02\x0a\x00", b"\x08\x01", b"\x0a\xff\xff\xff\xff\x07"]
    tracemalloc.start()
    begin = time.monotonic()
    for piece in pieces:
        try:
            decode_example(piece * (100_000 // len(piece)))
        except ValueError:
            continue
    seconds, (_, peak) = time.monotonic() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 20  # under tracemalloc and on a busy machine; it takes half a second
    assert peak < 40_000_000


def test_a_dataset_record_is_read_by_tensorflows_parser() -> None:
    record = encode_example(features(1))
    parsed = tf.io.parse_single_example(
        record,
        {
            "image": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
            "label_name": tf.io.FixedLenFeature([], tf.string),
            "weight": tf.io.FixedLenFeature([], tf.float32),
        },
    )
    assert parsed["image"].numpy().startswith(b"\x89PNG")
    assert parsed["label"].numpy() == 1
    assert parsed["label_name"].numpy().decode() == "löwenzahn"
    assert parsed["weight"].numpy() == 0.5
