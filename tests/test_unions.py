"""Disjoint sets."""

from hypothesis import given
from hypothesis import strategies as st

from pipelines.dedupe.unions import Unions

NUMBERS = st.integers(0, 12)


def test_tying_tells_whether_there_were_two():
    unions = Unions[str]()
    assert unions.tie("a", "b")
    assert unions.tie("b", "c")
    assert not unions.tie("a", "c")
    assert unions.find("c") == unions.find("a") != unions.find("d") == "d"
    assert [sorted(each) for each in unions.sets()] == [["a", "b", "c"]]


@given(st.lists(st.tuples(NUMBERS, NUMBERS)))
def test_sets_are_the_connected_components(pairs):
    unions = Unions[int]()
    for one, other in pairs:
        unions.tie(one, other)
    expected: list[set[int]] = []
    for one, other in pairs:
        touched = [each for each in expected if each & {one, other}]
        expected = [each for each in expected if not each & {one, other}] + [set().union({one, other}, *touched)]
    assert sorted(map(sorted, unions.sets())) == sorted(map(sorted, expected))
