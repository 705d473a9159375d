"""One input in, one record out: reading what was listed and nothing else, and whatever the bytes are, an outcome."""

import os
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from conftest import make_config, make_ref
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pictures import encoded, picture

from pipelines.config import ImageConfig
from pipelines.decoding.decoders import DecoderPool
from pipelines.pictures.process import Made, Refused, Task, process_input, read_input
from pipelines.reasons import Reason, RejectedImage
from pipelines.values import Fault, Location
from shards.example import decode_example

IMAGE = ImageConfig()


def listed(path: Path) -> Location:
    """The location of a file as a listing gives it."""
    found = path.stat()
    return Location(str(path), found.st_size, modified=found.st_mtime_ns)


def refusal(location: Location, image: ImageConfig = IMAGE) -> tuple[Reason, str]:
    with pytest.raises(RejectedImage) as caught:
        read_input(location, image)
    return caught.value.reason, caught.value.message


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"0123456789")
    return path


def test_a_file_is_read_as_it_was_listed(file: Path) -> None:
    assert read_input(listed(file), IMAGE) == b"0123456789"
    assert read_input(listed(file)._replace(modified=0), IMAGE) == b"0123456789"


def test_a_file_of_another_size_has_changed(file: Path) -> None:
    location = listed(file)
    file.write_bytes(b"012345678901")
    changed = (Reason.CHANGED, "the file had 10 bytes when it was listed and has 12 now; build again")
    assert refusal(location) == changed
    unknown = (Reason.CHANGED, "the file has not the 10 bytes that were listed; build again")
    assert refusal(location._replace(modified=0)) == unknown
    file.write_bytes(b"0")
    assert refusal(location._replace(modified=0)) == unknown


def test_a_file_of_another_time_has_changed(file: Path) -> None:
    location = listed(file)
    file.write_bytes(b"9876543210")
    os.utime(file, ns=(0, location.modified + 1))
    assert refusal(location) == (Reason.CHANGED, "the file was modified after it was listed; build again")
    assert read_input(location._replace(modified=0), IMAGE) == b"9876543210"


def test_a_file_that_vanished_is_unreadable(file: Path) -> None:
    location = listed(file)
    file.unlink()
    assert refusal(location) == (Reason.UNREADABLE, "No such file or directory")
    file.mkdir()
    assert refusal(location) == (Reason.UNREADABLE, "is a folder")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    missing = Location(str(tmp_path / "missing"), 2_000_000)  # opened, it would be unreadable
    message = "file has 2.0 MB, image.max_file_mb is 1.5"
    assert refusal(missing, ImageConfig(max_file_mb=1.5)) == (Reason.FILE_TOO_LARGE, message)


def test_a_part_of_a_file(file: Path) -> None:
    assert read_input(Location(str(file), 3, offset=0), IMAGE) == b"012"
    assert read_input(Location(str(file), 3, offset=7), IMAGE) == b"789"
    assert read_input(Location(str(file), 0, offset=10), IMAGE) == b""


@pytest.mark.parametrize(("offset", "missing"), [(8, 1), (10, 3), (1000, 3)])
def test_a_part_beyond_the_end_has_changed(file: Path, offset: int, missing: int) -> None:
    location = Location(str(file), 3, offset=offset)
    assert refusal(location) == (Reason.CHANGED, f"{file} ends {missing} bytes early; did it change?")


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def packed(path: Path, data: bytes) -> Location:
    path.write_bytes(b"head" + data + b"tail")
    return Location(str(path), len(data), offset=4, coding="deflate")


def test_deflated_bytes_are_inflated(file: Path) -> None:
    assert read_input(packed(file, deflated(b"abc" * 999)), IMAGE) == b"abc" * 999


def test_damaged_deflate_is_unreadable(file: Path) -> None:
    whole = deflated(bytes(range(256)) * 9)
    reason, message = refusal(packed(file, b"\xff" + whole))
    assert reason is Reason.UNREADABLE
    assert message.startswith("the archive's compressed bytes are damaged: Error -3 ")
    assert refusal(packed(file, whole[:-9])) == (Reason.UNREADABLE, "the archive's compressed bytes end early")


def test_a_deflate_bomb_is_inflated_no_further_than_allowed(file: Path) -> None:
    location = packed(file, deflated(bytes(50_000_000)))
    message = "file has 1.0 MB, image.max_file_mb is 1"
    assert refusal(location, ImageConfig(max_file_mb=1)) == (Reason.FILE_TOO_LARGE, message)


def test_a_fault_is_passed_on_and_nothing_is_opened() -> None:
    ref = make_ref("a", path="nowhere", size=7, fault=Fault(Reason.BAD_ROW, "no path"))
    assert process_input(Task(ref, ()), make_config("raw", "out")) == Refused("bad_row", "no path")


def test_a_record_holds_what_is_known(file: Path) -> None:
    file.write_bytes(encoded(picture(3)))
    config = make_config("raw", "out", image={"resize": "exact:8x6"}, columns={"age": {"type": "int"}})
    ref = make_ref("a/b.jpg", "cat", str(file), file.stat().st_size, columns=(5,))
    made = process_input(Task(ref, (4,)), config)
    assert isinstance(made, Made)
    assert (made.format, made.sides, made.truncated) == ("jpeg", (6, 8), False)
    example = decode_example(made.record)
    assert {name: example[name] for name in ("key", "label", "label_name", "age", "height", "width")} == {
        "key": [b"a/b.jpg"],
        "label": [4],
        "label_name": [b"cat"],
        "age": [5],
        "height": [6],
        "width": [8],
    }


def test_a_kept_truncated_picture_is_counted(file: Path) -> None:
    data = encoded(picture(3, size=(200, 150)))
    ref = make_ref("a.jpg", "cat", str(file), len(data) - 300)
    file.write_bytes(data[:-300])
    made = process_input(Task(ref, (0,)), make_config("raw", "out", image={"truncated": "keep"}))
    assert isinstance(made, Made)
    assert made.truncated
    refused = process_input(Task(ref, (0,)), make_config("raw", "out"))
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.message) == ("truncated", "jpeg: Premature end of JPEG file")


FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
ORIGINALS = {form: encoded(picture(5, size=(24, 16)), form) for form in FORMATS}


@pytest.fixture(scope="module")
def pool() -> Iterator[DecoderPool]:
    image = {"resize": "border:8", "truncated": "keep", "max_megapixels": 10}
    with closing(DecoderPool(make_config("raw", "out", image=image), 1)) as pool:
        yield pool


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    data = bytearray(ORIGINALS[draw(st.sampled_from(FORMATS))])
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 5))] = draw(st.binary(max_size=5))
    return bytes(data[: draw(st.integers(1, len(data)))] if draw(st.booleans()) else data)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(mutations(), min_size=20, max_size=20))
def test_whatever_the_bytes_are_there_is_an_outcome(pool: DecoderPool, files: list[bytes]) -> None:
    outcomes = pool.submit([Task(make_ref("a", "b", size=len(data)), (0,), data) for data in files]).result()
    assert len(outcomes) == len(files)
    for outcome in outcomes:
        if isinstance(outcome, Refused):
            assert outcome.reason in set(Reason)
            assert outcome.reason not in (Reason.DECODER_CRASHED, Reason.TIMED_OUT, Reason.OUT_OF_MEMORY), outcome
        else:
            assert outcome.sides == (8, 8)
