"""Overlaps: what several sources name belongs to the first of them."""

from itertools import permutations

from conftest import make_ref

from pipelines.inputs.overlaps import mark_overlaps, place_of
from pipelines.values import Location


def test_the_first_source_keeps_the_input_whatever_the_order():
    refs = [make_ref(f"{source}/x", "a", "/x", 5, source=source) for source in (1, 0, 2)]
    for order in permutations(refs):
        marked = {ref.source: ref.fault for ref in mark_overlaps(order, ("a", "b", "c"))}
        told = ("listed_twice", "source 'a' names the same input; it is in the dataset once")
        assert marked == {0: None, 1: told, 2: told}


def test_rows_of_one_source_may_share_a_file():
    refs = [make_ref(key, "a", "/x", 5, source=1) for key in ("left", "right")]
    assert list(mark_overlaps(refs, ("a", "b"))) == refs


def test_a_place_is_a_file_and_an_offset(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    direct, linked = (make_ref("k", path=str(tmp_path / name), size=5) for name in ("x", "link"))
    assert place_of(direct) == place_of(linked)
    second = direct._replace(location=Location(str(tmp_path / "x"), 2, 3))
    assert place_of(second) != place_of(direct)
    assert place_of(make_ref("k", path="s3://b/x")) == "s3://b/x\0-1"
