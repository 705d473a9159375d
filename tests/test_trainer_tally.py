"""Counts and the metrics made of them: equal to scikit-learn's, and however batches are dealt out and merged."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from trainer.judging import judges
from trainer.judging.judges import Judge, MultiJudge, RegressionJudge, Seen, SingleJudge
from trainer.judging.labels import LabelCount
from trainer.judging.multiset import Multiset, merge_multisets, score_keys
from trainer.judging.results import BETTER, Classified, Evaluation, Labelled, Measured
from trainer.judging.tally import NOTHING, Mistake, Tally, merge, pack, unpack

CLASSES = tuple("abcdefgh")
SINGLE, MULTI, REGRESSION = SingleJudge(labels=CLASSES), MultiJudge(labels=CLASSES[:4]), RegressionJudge(length=3)
BATCH = 16


def example_outputs(judge: Judge, count: int, seed: int = 3) -> tuple[Any, Any]:
    """Outputs that know something about the targets; classes a and b never occur, nor is b given; label d is rare."""
    generator = np.random.default_rng(seed)
    if isinstance(judge, SingleJudge):
        targets = generator.integers(2, 8, count)
        outputs = generator.normal(size=(count, 8)) * 2 + 2 * np.eye(8)[targets] - 50 * np.eye(8)[1]
    elif isinstance(judge, MultiJudge):
        targets = (generator.random((count, 4)) < [0.5, 0.3, 0.6, 0.02]).astype(np.float32)
        outputs = np.round(generator.normal(size=(count, 4)) + targets, 1)  # rounded, so that scores tie
    else:
        targets = generator.normal(size=(count, 3)) * [1, 10, 100] + [0, 5000, -3]
        outputs = targets + generator.normal(size=(count, 3)) * [0.1, 8, 200]
    return outputs.astype(np.float32), targets.astype(np.float32 if targets.ndim == 2 else np.int64)


def tallies_of(judge: Judge, outputs: Any, targets: Any) -> list[Tally]:
    starts = range(0, len(outputs), BATCH)
    parts = [slice(start, start + BATCH) for start in starts]
    ordinals = np.arange(len(outputs))
    return [judge.count(Seen(n, outputs[p], targets[p], ordinals[p])) for n, p in enumerate(parts)]


def judged(judge: Judge, count: int = 1003) -> tuple[Any, Any, Any]:
    outputs, targets = example_outputs(judge, count)
    tally = judge.merge(tallies_of(judge, outputs, targets))
    return outputs, targets, judge.summarise(tally, split="test", step=7)


@pytest.fixture(scope="module")
def single() -> tuple[Any, Any, Classified]:
    return judged(SINGLE)


def probabilities(outputs: Any) -> Any:
    exponents = np.exp(outputs.astype(np.float64))
    return exponents / exponents.sum(axis=1, keepdims=True)


def test_classes_agree_with_scikit_learn(single: tuple[Any, Any, Classified]) -> None:
    outputs, targets, result = single
    said = outputs.argmax(axis=1)
    assert result.correct == int((said == targets).sum())
    assert result.accuracy == sk.accuracy_score(targets, said)
    assert result.metrics["top5_accuracy"] == sk.top_k_accuracy_score(targets, outputs, k=5, labels=range(8))
    expected = sk.precision_recall_fscore_support(targets, said, labels=range(8), zero_division=0)
    for name, values in zip(("precision", "recall", "f1", "examples"), expected, strict=True):
        np.testing.assert_allclose([getattr(each, name) for each in result.classes], values)
    for mean in ("macro", "weighted"):
        *expected, _ = sk.precision_recall_fscore_support(targets, said, average=mean, zero_division=0)
        assert list(result.details()[mean].values()) == pytest.approx(expected)
    assert result.loss == pytest.approx(sk.log_loss(targets, probabilities(outputs), labels=range(8)), rel=1e-12)


def test_confusions_agree_with_scikit_learn(single: tuple[Any, Any, Classified]) -> None:
    outputs, targets, result = single
    matrix = np.zeros((8, 8), int)
    for cell in result.confusions:
        matrix[CLASSES.index(cell.true), CLASSES.index(cell.given)] = cell.examples
    np.testing.assert_array_equal(matrix, sk.confusion_matrix(targets, outputs.argmax(axis=1), labels=range(8)))
    assert all(cell.examples for cell in result.confusions)


def test_calibration_by_hand(single: tuple[Any, Any, Classified]) -> None:
    outputs, targets, result = single
    sure, right = probabilities(outputs).max(axis=1), outputs.argmax(axis=1) == targets
    ece = 0.0
    for number, each in enumerate(result.bins):
        chosen = (sure > number / 15) & (sure <= (number + 1) / 15)
        assert (each.examples, each.correct) == (chosen.sum(), right[chosen].sum())
        assert each.confidence == pytest.approx(sure[chosen].sum())
        if chosen.any():
            ece += chosen.mean() * abs(right[chosen].mean() - sure[chosen].mean())
    assert sum(each.examples for each in result.bins) == 1003
    assert result.metrics["ece"] == pytest.approx(ece)
    assert ece > 0.01, "this model is not well calibrated"


def test_few_classes_have_no_top_five() -> None:
    judge = SingleJudge(labels=("no", "yes"))
    seen = Seen(0, np.array([[2, 1], [0, 3]], np.float32), np.array([0, 0]), np.arange(2))
    result = judge.summarise(judge.count(seen), split="test", step=7)
    assert list(result.metrics) == ["accuracy", "macro_f1", "ece"]


def test_equal_scores_rank_as_in_argmax() -> None:
    seen = Seen(0, np.zeros((8, 8), np.float32), np.arange(8), np.arange(8))
    result = SINGLE.summarise(SINGLE.count(seen), split="test", step=7)
    assert result.correct == 1
    assert result.among_top == 5


def test_labels_agree_with_scikit_learn() -> None:
    outputs, targets, result = judged(MULTI)
    said = (outputs > 0).astype(int)
    expected = sk.precision_recall_fscore_support(targets, said, zero_division=0)
    for name, values in zip(("precision", "recall", "f1", "examples"), expected, strict=True):
        np.testing.assert_allclose([getattr(each, name) for each in result.labels], values)
    ranked = [each.average_precision for each in result.labels]
    np.testing.assert_allclose(ranked, sk.average_precision_score(targets, outputs, average=None), rtol=1e-12)
    micro = sk.precision_recall_fscore_support(targets, said, average="micro")
    assert [result.metrics[name] for name in ("precision", "recall", "f1")] == pytest.approx(micro[:3])
    assert result.metrics["macro_f1"] == pytest.approx(sk.f1_score(targets, said, average="macro"))
    assert result.metrics["map"] == pytest.approx(sk.average_precision_score(targets, outputs, average="macro"))
    assert result.metrics["exact_match"] == sk.accuracy_score(targets, said)
    losses = [sk.log_loss(targets[:, n], 1 / (1 + np.exp(-outputs[:, n].astype(float)))) for n in range(4)]
    assert result.loss == pytest.approx(np.mean(losses), rel=1e-12)
    assert result.rounded_bits == 0


def test_a_label_that_no_example_has_has_no_average_precision() -> None:
    seen = Seen(0, np.ones((2, 4), np.float32), np.array([[1, 0, 1, 1]] * 2, np.float32), np.arange(2))
    result = MULTI.summarise(MULTI.count(seen), split="test", step=7)
    assert [each.average_precision for each in result.labels] == [1, None, 1, 1]
    assert result.metrics["map"] == 1
    assert result.table()[2] == ["b", "0", "2", "0", "0.0000", "0.0000", "0.0000", "-"]
    assert "average_precision" not in result.as_dict()["labels"][1]


def test_numbers_agree_with_scikit_learn() -> None:
    outputs, targets, result = judged(REGRESSION)
    outputs, targets = outputs.astype(np.float64), targets.astype(np.float64)
    each = np.array([[one.mae, one.rmse, one.r2] for one in result.targets])
    np.testing.assert_allclose(each[:, 0], sk.mean_absolute_error(targets, outputs, multioutput="raw_values"))
    np.testing.assert_allclose(each[:, 1], sk.root_mean_squared_error(targets, outputs, multioutput="raw_values"))
    np.testing.assert_allclose(each[:, 2], sk.r2_score(targets, outputs, multioutput="raw_values"))
    assert result.metrics["mae"] == pytest.approx(sk.mean_absolute_error(targets, outputs))
    assert result.metrics["rmse"] == pytest.approx(math.sqrt(sk.mean_squared_error(targets, outputs)))
    assert result.metrics["r2"] == pytest.approx(sk.r2_score(targets, outputs))
    assert result.loss == pytest.approx(sk.mean_squared_error(targets, outputs))


@pytest.mark.parametrize(("off", "r2"), [(0.0, 1.0), (0.5, 0.0)])
def test_r2_of_numbers_that_are_all_the_same(off: float, r2: float) -> None:
    seen = Seen(0, np.full((4, 3), 2 + off, np.float32), np.full((4, 3), 2, np.float32), np.arange(4))
    result = REGRESSION.summarise(REGRESSION.count(seen), split="test", step=7)
    assert {each.r2 for each in result.targets} == {r2}


@pytest.mark.parametrize("judge", [SINGLE, MULTI, REGRESSION])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_dealing_gives_the_same_bits(judge: Judge, data: st.DataObject) -> None:
    judge = type(judge)(**vars(judge) | {"worst": 7})
    tallies = tallies_of(judge, *example_outputs(judge, 200))
    owner = data.draw(st.lists(st.integers(0, 2), min_size=len(tallies), max_size=len(tallies)))
    merged = [judge.merge([NOTHING, *(t for t, who in zip(tallies, owner, strict=True) if who == n)]) for n in range(3)]
    again = judge.merge([unpack(pack(tally)) for tally in data.draw(st.permutations(merged))])
    facts = {"split": "test", "step": 7}
    assert judge.summarise(again, **facts) == judge.summarise(judge.merge(tallies), **facts)


CODES = st.lists(st.integers(0, 300), max_size=60)


@given(parts=st.lists(CODES, min_size=1, max_size=4), limit=st.integers(2, 40))
def test_rounding_does_not_depend_on_the_parts(parts: list[list[int]], limit: int) -> None:
    whole = merge_multisets([Multiset.of(np.array([code for part in parts for code in part], np.int64))], limit=limit)
    rounded = [merge_multisets([Multiset.of(np.array(part, np.int64))], limit=limit) for part in parts]
    merged = merge_multisets(rounded, limit=limit)
    assert (merged.codes.tolist(), merged.counts.tolist()) == (whole.codes.tolist(), whole.counts.tolist())
    assert merged.dropped == whole.dropped
    assert len(whole.codes) <= limit
    assert whole.total == sum(map(len, parts))
    exact = {code >> whole.dropped << whole.dropped for part in parts for code in part}
    assert whole.codes.tolist() == sorted(exact)


def test_too_many_scores_are_rounded_as_little_as_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs, targets, exact = judged(MULTI)
    monkeypatch.setattr(MultiJudge, "most_codes", 150)
    *_, result = judged(MULTI)
    assert result.rounded_bits > 0
    for label, each in enumerate(result.labels):
        keys = score_keys(outputs[:, label]) >> np.uint32(result.rounded_bits)
        expected = sk.average_precision_score(targets[:, label], keys)
        assert each.average_precision == pytest.approx(expected, rel=1e-12)
    assert [each.f1 for each in result.labels] == [each.f1 for each in exact.labels]


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2))
def test_keys_order_as_scores_do(scores: list[float]) -> None:
    values = np.array(scores, np.float32)
    keys = score_keys(values)
    for a, b in zip(range(len(values)), range(1, len(values)), strict=False):
        assert (keys[a] < keys[b], keys[a] == keys[b]) == (values[a] < values[b], values[a] == values[b])


def test_the_worst_mistakes_are_kept() -> None:
    judge = SingleJudge(labels=CLASSES, worst=5)
    outputs, targets = example_outputs(judge, 300)
    found = judge.merge(tallies_of(judge, outputs, targets)).worst
    chances, said = probabilities(outputs), outputs.argmax(axis=1)
    losses = -np.log(chances[np.arange(300), targets])
    wrong = [n for n in np.argsort(-losses) if said[n] != targets[n]][:5]
    assert [mistake.ordinal for mistake in found] == wrong
    for mistake, n in zip(found, wrong, strict=True):
        assert mistake.loss == pytest.approx(losses[n])
        assert (mistake.about["true"], mistake.about["given"]) == (CLASSES[targets[n]], CLASSES[said[n]])
        assert mistake.about["probability"] == pytest.approx(chances[n].max())


def test_mistakes_with_labels_and_numbers() -> None:
    judge = MultiJudge(labels=CLASSES[:4], worst=9)
    outputs = np.array([[3, -3, 3, -3], [3, -3, -3, -3]], np.float32)
    seen = Seen(2, outputs, np.array([[1, 0, 1, 0], [0, 1, 0, 0]], np.float32), np.array([8, 9]))
    [mistake] = judge.count(seen).worst
    assert (mistake.ordinal, mistake.about["true"], mistake.about["given"]) == (9, ["b"], ["a"])
    assert mistake.about["probabilities"] == pytest.approx({"a": 1 / (1 + math.exp(-3)), "b": 1 / (1 + math.exp(3))})
    off = Seen(
        0, np.array([[1, 2, 3], [1, 2, 9]], np.float32), np.array([[1, 2, 3], [1, 2, 3]], np.float32), seen.ordinals
    )
    [mistake] = RegressionJudge(length=3, worst=9).count(off).worst
    assert (mistake.ordinal, mistake.loss, mistake.about) == (9, 12, {"true": [1, 2, 3], "given": [1, 2, 9]})


def test_a_loss_that_is_no_number_is_the_worst_and_null() -> None:
    judge = SingleJudge(labels=("a", "b"), worst=1)
    outputs = np.array([[0, 90], [np.nan, 1], [5, 1]], np.float32)
    tally = judge.count(Seen(0, outputs, np.array([0, 1, 0]), np.arange(3)))
    assert tally.worst[0].ordinal == 1
    result = judge.summarise(tally, split="test", step=7)
    assert json.loads(json.dumps(result.as_dict(), allow_nan=False))["loss"] is None
    assert result.examples == 3


def test_merging_keeps_only_the_worst() -> None:
    some = [Tally({}, {n: np.zeros(1)}, worst=(Mistake(float(n % 3), n, {}),)) for n in range(6)]
    assert [(m.loss, m.ordinal) for m in merge(some, worst=3).worst] == [(2, 2), (2, 5), (1, 1)]


def test_tables_of_many_classes_show_the_worst() -> None:
    names = tuple(f"class {n}" for n in range(50))
    counts = (LabelCount(name, 10, 10, n % 10) for n, name in enumerate(names[:49]))
    classes = (*counts, LabelCount("never", 0, 0, 0))
    result = Classified(split="test", step=7, examples=490, loss=1.0, classes=classes)
    rows = result.table()[1:]
    assert (len(rows), result.left_out) == (20, 30)
    assert [row[0] for row in rows[:6]] == ["class 0", "class 10", "class 20", "class 30", "class 40", "class 1"]
    assert rows[0] == ["class 0", "10", "10", "0", "0.0000", "0.0000", "0.0000"]
    few = Labelled(split="test", step=7, examples=490, loss=1.0, exact=1, labels=classes[:20])
    assert ([row[0] for row in few.table()[1:]], few.left_out) == (list(names[:20]), 0)


@pytest.mark.parametrize("judge", [SINGLE, MULTI, REGRESSION])
def test_results_are_plain_and_every_metric_has_a_direction(judge: Judge) -> None:
    result: Evaluation = judged(judge, 100)[2]
    plain = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert (plain["split"], plain["step"], plain["examples"], plain["skipped"]) == ("test", 7, 100, 0)
    assert plain["loss"] == result.loss
    assert result.metrics.items() <= plain.items()
    assert result.metrics.keys() | {"loss"} <= BETTER.keys()
    assert "mistakes" not in plain


def test_skipped_records_are_told() -> None:
    result = Measured(split="test", step=7, examples=4, loss=0.5, targets=(), skipped=2)
    assert result.counted == "4 examples, 2 skipped as damaged"


def test_codes_of_classes_are_never_rounded() -> None:
    assert SingleJudge.most_codes is None
    assert MultiJudge.most_codes == judges.SCORES
