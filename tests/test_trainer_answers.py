"""What a served model answers about each kind of label."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.learning.task import MultiLabel, Regression, SingleLabel, Task
from trainer.serving.answers import ManyLabels, Numbers, OneClass, find_answers, make_answers

ONE, MANY, NUMBERS = OneClass(("a", "b", "c")), ManyLabels(("a", "b", "c")), Numbers()


@pytest.mark.parametrize("task", [SingleLabel(("a", "b", "c")), MultiLabel(("a", "b", "c")), Regression(2)])
def test_served_names_are_told_rightly(task: Task) -> None:
    answers = make_answers(task)
    served = answers.serve(tf.ones([4, task.outputs]))
    assert tuple(served) == answers.served
    assert all(value.shape[0] == 4 for value in served.values())
    assert find_answers(served) is type(answers)


def test_unknown_outputs_have_no_answers() -> None:
    assert find_answers({"logits"}) is None


def first(served: dict[str, tf.Tensor]) -> dict[str, object]:
    return {name: value.numpy()[0] for name, value in served.items()}


def test_answers() -> None:
    answer = ONE.answer(first(ONE.serve(tf.constant([[0.0, 3.0, 0.0]]))))
    assert answer["label"] == "b"
    assert answer["probability"] == answer["probabilities"]["b"] == pytest.approx(np.exp(3) / (np.exp(3) + 2), abs=1e-6)
    assert ONE.summary(answer) == {"class": "b", "probability": "0.9094"}
    answer = MANY.answer(first(MANY.serve(tf.constant([[1.0, -1.0, 2.0]]))))
    assert answer == {"labels": ["a", "c"], "probabilities": {"a": 0.731059, "b": 0.268941, "c": 0.880797}}
    assert MANY.summary(answer) == {"labels": "a 0.7311, c 0.8808"}
    assert MANY.summary({"labels": [], "probabilities": {"a": 0.1}}) == {"labels": "-"}
    answer = NUMBERS.answer(first(NUMBERS.serve(tf.constant([[0.1, -2.0]]))))
    assert answer == {"prediction": [0.1, -2.0]}
    assert NUMBERS.summary(answer) == {"prediction": "0.1, -2"}
