"""Pictures and pages of results: readable for 2 and for 200 classes, and harmless whatever labels and keys hold."""

import base64
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from trainer_data import encode, make_config, random_pictures, write_dataset

from shards.errors import ShardsmithError
from shards.samples import Sample
from trainer.judging.figures import draw_confusion, draw_reliability, figures_of
from trainer.judging.files import write_evaluation
from trainer.judging.judges import MultiJudge, Seen, SingleJudge
from trainer.judging.mistakes import mistake_lines, read_samples, render_mistakes
from trainer.judging.results import Classified, Measured, TargetError
from trainer.judging.tally import Mistake
from trainer.reading.source import open_source
from trainer.running.report import write_images

NASTY = '<script>alert("x")</script>&'


def classified(classes: int, *, names: tuple[str, ...] = (), worst: int = 0, examples: int = 2000) -> Classified:
    generator = np.random.default_rng(5)
    judge = SingleJudge(labels=names or tuple(f"class number {n}" for n in range(classes)), worst=worst)
    targets = generator.integers(0, classes, examples)
    outputs = (generator.normal(size=(examples, classes)) + 4 * np.eye(classes)[targets]).astype(np.float32)
    return judge.summarise(judge.count(Seen(0, outputs, targets, np.arange(examples))), split="test", step=7)


def pixels(png: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


@pytest.mark.parametrize(("classes", "cell"), [(2, 56), (10, 56), (25, 36), (60, 24), (200, 14)])
def test_confusion_has_room_for_every_class(classes: int, cell: int) -> None:
    picture = pixels(draw_confusion(classified(classes)))
    assert classes * cell < min(picture.shape[:2]) < classes * cell + 420
    assert draw_confusion(classified(classes)) == draw_confusion(classified(classes)), "equal results, equal bytes"


def test_confusion_colours_tell_right_from_wrong() -> None:
    names = ("cat", "dog")
    judge = SingleJudge(labels=names)
    outputs = np.array([[9, 0]] * 4 + [[0, 9]] * 3 + [[9, 0]], np.float32)  # the last is a dog taken for a cat
    result = judge.summarise(
        judge.count(Seen(0, outputs, np.array([0] * 4 + [1] * 4), np.arange(8))), split="test", step=7
    )
    picture = pixels(draw_confusion(result))
    bottom = picture.shape[0] - 12
    left = next(x for x in range(picture.shape[1]) if (picture[bottom - 50, x] == [228, 231, 236]).all())
    colours = {
        (true, given): picture[bottom - 112 + 56 * true + 6, left + 56 * given + 6]
        for true in range(2)
        for given in range(2)
    }
    assert colours[0, 1].tolist() == [255, 255, 255]
    for at in ((0, 0), (1, 1)):
        assert colours[at][2] > colours[at][0], "right answers are blue"
    assert colours[1, 0][0] > colours[1, 0][2] + 50, "mistakes are red"
    assert colours[0, 0].sum() < colours[1, 1].sum(), "the larger the share, the darker"


def test_many_classes_show_those_with_the_most_mistakes() -> None:
    result = classified(300, examples=3000)
    picture = pixels(draw_confusion(result))
    assert 200 * 14 < min(picture.shape[:2]) < 200 * 14 + 420


def test_labels_of_any_script_and_length() -> None:
    assert draw_confusion(classified(3, names=("苹果", "Ł" * 90, "")))
    assert draw_confusion(classified(3, names=("x" * 90, "two\nlines", "ä")))


def test_reliability_shows_bars_only_where_there_are_examples() -> None:
    sure = SingleJudge(labels=("a", "b"))
    outputs = np.array([[99, 0]] * 4, np.float32)
    right, wrong = (
        sure.summarise(sure.count(Seen(0, outputs, np.full(4, label), np.arange(4))), split="test", step=7)
        for label in (0, 1)
    )
    dark = [(pixels(draw_reliability(result)) == [21, 94, 117]).all(axis=2).sum() for result in (right, wrong)]
    assert dark[0] > 5000, "a bar from 0 to 1"
    assert dark[1] < 200, "no right answer, no bar"


def test_only_classes_have_figures() -> None:
    assert list(figures_of(classified(3))) == ["confusion", "reliability"]
    assert figures_of(Measured(split="test", step=7, examples=4, loss=0.5, targets=(TargetError(1, 1, 0),))) == {}


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.sources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_a_page_shows_pictures_and_escapes_words() -> None:
    large = encode(np.random.default_rng(1).integers(0, 255, (400, 500, 3)), "JPEG")
    small = encode(np.zeros((8, 8, 3)))
    result = classified(3, names=("a", NASTY, "c"), worst=4)
    samples = [Sample(caption="", key=NASTY + str(n), image=data) for n, data in enumerate((large, small, b"bad", b""))]
    page = Page(text := render_mistakes(result, samples))
    assert "script" not in page.tags
    assert page.tags.count("figure") == 4
    assert all(source.startswith("data:image/") for source in page.sources)
    shown = [base64.b64decode(source.partition("base64,")[2]) for source in page.sources]
    assert Image.open(io.BytesIO(shown[0])).size == (192, 154)
    assert shown[1:] == [small], "a small picture is shown as it is stored"
    assert "the picture cannot be decoded" in page.words
    assert NASTY + "0" in page.words
    assert NASTY in page.words
    assert re.findall(r"https?://|<script", text) == []
    assert len(text) < 60_000


def test_a_page_without_mistakes() -> None:
    assert "No mistakes." in render_mistakes(classified(3), [])


def test_lines_are_json_even_of_losses_that_are_no_numbers() -> None:
    mistakes = [Mistake(float("nan"), 3, {"true": "a", "given": "b", "probability": 0.5})]
    line = mistake_lines(mistakes, [Sample(caption="", key="test/ä")])
    assert json.loads(line) == {"key": "test/ä", "true": "a", "given": "b", "probability": 0.5, "loss": None}
    assert "ä" in line


def test_labels_and_numbers_in_words() -> None:
    judge = MultiJudge(labels=("a", "b"), worst=2)
    seen = Seen(0, np.array([[1, 1], [-1, -1]], np.float32), np.array([[1, 0], [1, 0]], np.float32), np.arange(2))
    result = judge.summarise(judge.count(seen), split="test", step=7)
    words = Page(render_mistakes(result, [Sample(caption="", key=str(n)) for n in range(2)])).words
    assert "a, b" in words
    assert "no label" in words
    about = {"true": [1.0] * 9, "given": [0.123456789]}
    off = Measured(split="t", step=1, examples=1, loss=1.0, targets=(), mistakes=(Mistake(1.0, 0, about),))
    words = Page(render_mistakes(off, [Sample(caption="", key="k")])).words
    assert "1, 1, 1, 1, 1, 1, 1, 1, ..." in words
    assert "0.12346" in words


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data"), {"test": random_pictures(30)}, transform=True)


def test_samples_are_those_of_the_ordinals(dataset: Path) -> None:
    split = open_source(make_config(dataset)).split("test")
    samples = read_samples(split, [29, 0, 7])
    assert [sample.key for sample in samples] == ["test/29", "test/0", "test/7"]
    assert [sample.image for sample in samples] == [random_pictures(30)[n][0] for n in (29, 0, 7)]


def test_files_of_an_evaluation(dataset: Path, tmp_path: Path) -> None:
    split = open_source(make_config(dataset)).split("test")
    result = classified(3, worst=3, examples=30)
    paths = write_evaluation(tmp_path, result, split, figures=figures_of(result))
    names = ["mistakes.jsonl", "mistakes.html", "confusion.png", "reliability.png"]
    assert paths == [tmp_path / "evaluation-test.json", *(tmp_path / "evaluation-test" / name for name in names)]
    assert json.loads(paths[0].read_text())["accuracy"] == result.accuracy
    lines = [json.loads(line) for line in paths[1].read_text().splitlines()]
    assert [line["key"] for line in lines] == [f"test/{mistake.ordinal}" for mistake in result.mistakes]
    (tmp_path / "file").write_text("")
    with pytest.raises(ShardsmithError, match="output .*file cannot be written: Not a directory"):
        write_evaluation(tmp_path / "file", result, split, figures={})


def test_tensorboard_gets_the_pictures(tmp_path: Path) -> None:
    figures = figures_of(classified(3))
    write_images(tmp_path, "test", figures, step=7)
    [path] = (tmp_path / "tensorboard").iterdir()
    events = [tf.compat.v1.Event.FromString(data.numpy()) for data in tf.data.TFRecordDataset(str(path))]
    values = [(event.step, value) for event in events for value in event.summary.value]
    assert [(step, value.tag) for step, value in values] == [(7, "test/confusion"), (7, "test/reliability")]
    for _, value in values:
        assert value.metadata.plugin_data.plugin_name == "images"
        assert value.metadata.data_class == 3
        width, height, png = tf.make_ndarray(value.tensor).tolist()
        assert png == figures[value.tag.removeprefix("test/")]
        assert Image.open(io.BytesIO(png)).size == (int(width), int(height))
