"""The spool: any payloads come back exactly, a failure leaves nothing behind, and nothing runs or is written twice."""

from pathlib import Path

import numpy as np
import pytest
from conftest import make_ref
from hypothesis import given
from hypothesis import strategies as st

from pipelines.config import ImageConfig
from pipelines.inputs.spool import Spool, drop_stale, spool_path, write_spool
from pipelines.pictures.process import read_input
from pipelines.values import Fault, InputRef


def refs_with(payloads: list[bytes], spool: Spool):
    for number, payload in enumerate(payloads):
        yield InputRef(f"é {number}", spool.add(payload), labels=("cat",), columns=(1, 2.5, "x", (3, 4)))


@given(payloads=st.lists(st.binary(max_size=300), max_size=20), order=st.randoms(use_true_random=False))
def test_payloads_come_back_exactly_in_any_order(tmp_path_factory, payloads, order):
    path = tmp_path_factory.mktemp("spool") / "000000.bin"
    refs = list(write_spool(path, lambda spool: refs_with(payloads, spool)))
    assert [ref.key for ref in refs] == [f"é {number}" for number in range(len(payloads))]
    assert path.stat().st_size == sum(map(len, payloads))
    pairs = list(zip(refs, payloads, strict=True))
    order.shuffle(pairs)
    for ref, payload in pairs:
        assert read_input(ref.location, ImageConfig()) == payload
        assert (ref.labels, ref.columns) == (("cat",), (1, 2.5, "x", (3, 4)))


def test_arrays_are_measured_in_bytes(tmp_path):
    arrays = [np.arange(6, dtype="<u2").reshape(2, 3), np.ones((3, 1), np.float32)]
    path = tmp_path / "000000.bin"
    refs = list(write_spool(path, lambda spool: [InputRef("a", spool.add(array.data, form="x")) for array in arrays]))
    assert [(ref.location.offset, ref.location.size, ref.location.form) for ref in refs] == [
        (0, 12, "x"),
        (12, 12, "x"),
    ]
    assert path.read_bytes() == arrays[0].tobytes() + arrays[1].tobytes()


def test_faulty_refs_survive_too(tmp_path):
    faulty = make_ref("a", fault=Fault("bad_row", "label is empty"))
    assert list(write_spool(tmp_path / "000000.bin", lambda spool: [faulty])) == [faulty]


def test_the_second_call_reads_what_the_first_one_wrote(tmp_path):
    path, calls = tmp_path / "deep" / "000000.bin", []

    def once(spool: Spool):
        calls.append(1)
        return refs_with([b"a", b"b"], spool)

    first = list(write_spool(path, once))
    assert list(write_spool(path, once)) == first
    assert len(calls) == 1


def test_a_failure_midway_leaves_nothing_and_the_next_attempt_is_whole(tmp_path):
    path = tmp_path / "000000.bin"

    def broken(spool: Spool):
        yield from refs_with([b"a", b"b"], spool)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        list(write_spool(path, broken))
    assert list(tmp_path.iterdir()) == []
    assert len(list(write_spool(path, lambda spool: refs_with([b"cd"], spool)))) == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["000000.bin", "000000.refs"]


def test_payloads_without_refs_are_written_again(tmp_path):
    """What a worker leaves that was killed between the two names."""
    path = tmp_path / "000000.bin"
    path.write_bytes(b"half of something else")
    (ref,) = write_spool(path, lambda spool: refs_with([b"whole"], spool))
    assert (path.read_bytes(), read_input(ref.location, ImageConfig())) == (b"whole", b"whole")


def test_spools_of_other_things_are_dropped(tmp_path, monkeypatch):
    """Partitions have stamps: 0 is the same, 1 has changed, 2 is no more, 3 was never finished."""
    for number in range(3):
        list(write_spool(spool_path(tmp_path, number), lambda spool: refs_with([b"a"], spool), stamp=number))
    spool_path(tmp_path, 3).write_bytes(b"")
    drop_stale(tmp_path, {0: 0, 1: 11, 3: 3})
    assert [path.name for path in sorted(tmp_path.glob("*.refs"))] == ["000000.refs"]
    monkeypatch.setattr("pipelines.inputs.spool._BOOT", tmp_path / "not there")
    drop_stale(tmp_path, {0: 0})  # the machine has been started again
    assert list(tmp_path.glob("*.refs")) == []
    drop_stale(tmp_path / "nowhere", {})


def test_a_dry_run_counts_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spool = Spool("", None)
    locations = [spool.add(b"12345"), spool.add(bytearray(b"678"))]
    assert [(each.offset, each.size) for each in locations] == [(0, 5), (5, 3)]
    assert list(tmp_path.iterdir()) == []


def test_partitions_have_files_of_their_own():
    assert spool_path(Path("x"), 7) == Path("x/000007.bin")
