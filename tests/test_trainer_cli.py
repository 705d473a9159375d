"""What a person meets on the command line: help without TensorFlow, errors that say what to do, exit codes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from trainer_data import make_config, random_pictures, write_dataset

from trainer.__main__ import main
from trainer.running.cluster import EXAMPLE, Cluster, read_cluster, tf_config

FORBIDDEN = ("apache_beam", "tensorflow_transform", "pipelines")
PICTURES = random_pictures(30)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    splits = {"train": PICTURES[:24], "validation": PICTURES[24:], "empty": []}
    return write_dataset(tmp_path_factory.mktemp("data"), splits)


@pytest.fixture
def config(dataset: Path, tmp_path: Path) -> str:
    values = make_config(dataset, tmp_path / "run", model={"arguments": {"width": 2}}).model_dump(mode="json")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    return str(tmp_path / "config.yaml")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> str:
    assert main(arguments) == code
    return capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["train"], ["evaluate"], ["export"], ["predict"], ["order"]])
def test_help_is_quick_and_clean(command: list[str]) -> None:
    block = "import sys; sys.modules.update(dict.fromkeys(['tensorflow', 'keras', *sys.argv.pop().split()]))"
    program = f"{block}; from trainer.__main__ import main; main(sys.argv[1:])"
    arguments = [sys.executable, "-c", program, *command, "--help", " ".join(FORBIDDEN)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage: python -m trainer" in done.stdout
    assert done.stderr == ""


def test_trainer_needs_neither_beam_nor_the_build() -> None:
    block = f"import sys; sys.modules.update(dict.fromkeys({FORBIDDEN}))"
    program = (
        f"{block}; import trainer.learning.loop, trainer.serving.export, trainer.serving.predict, trainer.__main__"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("assignments", "code", "message"),
    [
        (["dataset=nowhere"], 1, "no dataset at nowhere: there is no such directory"),
        (
            ["splits.train=test"],
            2,
            "no split 'test' to train; it has train, validation, empty; choose one with",
        ),
        (["splits.evaluate=empty"], 1, "split 'empty' of "),
        (["global_batch=26"], 2, "split 'train' has 24 examples, fewer than one global batch of 26"),
        (["global_batch=7"], 2, "global batch 7 is not divisible by 2 lanes"),
        (["modle.name=x"], 2, "unknown key 'modle'; did you mean 'model'?"),
        (["steps"], 2, "--set needs key=value, got 'steps'"),
        (["model.name=nothing"], 2, "model.name: 'nothing' is not known"),
    ],
)
def test_refusals(
    config: str, capsys: pytest.CaptureFixture[str], assignments: list[str], code: int, message: str
) -> None:
    flags = [part for assignment in assignments for part in ("--set", assignment)]
    assert message in refused(capsys, "train", config, *flags, code=code)


def test_missing_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot read config no.yaml" in refused(capsys, "train", "no.yaml", code=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": ("a",)}, "has 1 class(es); training needs at least 2"),
        ({"transform": False}, "has no transform_fn: it is incomplete"),
        ({"features": {"label": "int64"}}, "has no feature 'image', only label"),
        ({"features": {"image": "bytes", "label": "float"}}, "feature 'label' of"),
    ],
)
def test_unfit_datasets(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], message: str
) -> None:
    other = write_dataset(tmp_path / "data", {"train": [(data, 0) for data, _ in PICTURES]}, **changes)
    assert message in refused(capsys, "train", config, "--dataset", str(other), code=1)


def test_unknown_size(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_dataset(tmp_path / "data", {"train": PICTURES}, resize={"mode": "none"})
    text = refused(capsys, "train", config, "--dataset", str(other), code=2)
    assert "model.image_size is not set" in text
    assert "--set model.image_size=224" in text


def test_incomplete_and_newer_datasets(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no manifest" in refused(capsys, "train", config, "--dataset", str(tmp_path), code=1)
    (tmp_path / "manifest.json").write_text('{"format_version": 99}')
    assert "format version 99" in refused(capsys, "train", config, "--dataset", str(tmp_path), code=1)


def test_lanes_that_workers_cannot_share(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = refused(capsys, "train", config, "--local-workers", "3", code=2)
    assert "2 lanes cannot be dealt evenly to 3 workers" in text


def test_strategy_for_one_process(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config(["127.0.0.1:1", "127.0.0.1:2"], 0))
    text = refused(capsys, "train", config, "--set", "strategy=one_device", code=2)
    assert "strategy one_device is for one process, but TF_CONFIG has 2" in text
    text = refused(capsys, "train", config, "--local-workers", "2", code=2)
    assert "--local-workers starts its own cluster, but TF_CONFIG names one" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting property name"),
        ('{"task": {}}', "'cluster' is missing"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}', "task worker 1 is not in the cl"),
        ('{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}', "job 'ps' has no part in synchronous"),
        ('{"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}', "address 'a' is not host:port"),
        ("[1]", "cannot be used"),
    ],
)
def test_unusable_tf_config(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    error = refused(capsys, "train", config, code=2)
    assert message in error
    assert EXAMPLE in error


def test_clusters() -> None:
    assert read_cluster({}) == read_cluster({"TF_CONFIG": "{}"}) == Cluster(workers=1, index=0)
    assert read_cluster({"TF_CONFIG": tf_config(["a:1", "b:1"], 1)}) == Cluster(2, 1, ("a:1", "b:1"))
    chief = {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}}
    with_chief = read_cluster({"TF_CONFIG": json.dumps(chief)})
    assert with_chief == Cluster(2, 1, ("a:1", "b:1"), chiefs=1)
    assert [with_chief.index_of(job, 0) for job in ("chief", "worker")] == [0, 1]
    assert Cluster().is_chief


def test_whole_story(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", config, "--set", "steps=2"]) == 0
    said = capsys.readouterr().out
    assert "training small_cnn on 24 pictures of 8x8 in 3 classes, 2 steps of 6" in said
    assert f"made     {tmp_path}/run/checkpoints/step-2" in said
    assert f"next     python -m trainer export {config} --set steps=2" in said
    assert main(["train", config, "--set", "steps=2"]) == 0
    assert "finished already, at step 2" in capsys.readouterr().out
    assert main(["evaluate", config, "--split", "train"]) == 0
    assert "24" in capsys.readouterr().out
    assert json.loads((tmp_path / "run/evaluation-train.json").read_text())["examples"] == 24
    assert main(["export", config]) == 0
    assert f"predict FILE... --model {tmp_path}/run/export" in capsys.readouterr().out
    _predict(tmp_path, capsys)


def _predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, out = tmp_path / "good.png", tmp_path / "bad.png", tmp_path / "out.jsonl"
    good.write_bytes(PICTURES[0][0])
    bad.write_bytes(b"nothing")
    model = ["--model", str(tmp_path / "run/export")]
    assert main(["predict", str(good), *model]) == 0
    assert "probability" in capsys.readouterr().out
    assert main(["predict", str(good), str(bad), *model, "--jsonl", str(out)]) == 1
    assert f"error: {bad} cannot be decoded" in capsys.readouterr().err
    first, second = map(json.loads, out.read_text().splitlines())
    assert first["label"] in "abc"
    assert sum(first["probabilities"].values()) == pytest.approx(1, abs=1e-4)
    assert second.keys() == {"file", "error"}


def test_predict_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = refused(capsys, "predict", "a.png", "--model", str(tmp_path), code=2)
    assert "no exported model at" in text
