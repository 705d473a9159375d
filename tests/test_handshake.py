"""What workers tell each other at the start: each kind of difference is named, with its remedy."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainer_data import make_config, random_pictures, write_dataset

from shards.errors import UsageError
from trainer.reading.source import open_source
from trainer.running import handshake
from trainer.running.cluster import Cluster
from trainer.running.handshake import Card, check_cards, code_digest, make_card

TWO = Cluster(workers=2, index=0, addresses=("a:1", "b:1"))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pictures = random_pictures(18)
    return write_dataset(tmp_path_factory.mktemp("data"), {"train": pictures[:12], "validation": pictures[12:]})


def card(dataset: Path, *, cluster: Cluster = TWO, flags: dict[str, Any] | None = None, **values: Any) -> Card:
    config = make_config(dataset, **values)
    splits = ["train", "validation"]
    return make_card(config, open_source(config), cluster, splits=splits, flags=flags or {"--record-keys": False})


def refusal(*cards: Card) -> str:
    with pytest.raises(UsageError) as caught:
        check_cards([json.dumps(each) for each in cards])
    return str(caught.value)


def test_equal_cards_pass(dataset: Path) -> None:
    mine = card(dataset)
    check_cards([json.dumps(mine)])
    check_cards([json.dumps(mine)] * 3)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"optimizer__learning_rate": 0.01}, "worker 1 has optimizer.learning_rate 0.01, worker 0 0.001"),
        ({"steps": 5}, "worker 1 has steps 5, worker 0 4"),
        ({"log_every": 7}, "worker 1 has log_every 7, worker 0 50"),
        ({"checkpoint__every_steps": 2}, "worker 1 has checkpoint.every_steps 2, worker 0 null"),
        ({"evaluate_every_epochs": None}, "worker 1 has evaluate_every_epochs null, worker 0 1"),
        ({"model": {"arguments": {"width": 2}}}, "worker 1 has model.arguments.width 2, worker 0 nothing"),
        ({"flags": {"--record-keys": True}}, "worker 1 has --record-keys true, worker 0 false"),
    ],
)
def test_other_settings_are_refused(values: dict[str, Any], told: str, dataset: Path) -> None:
    text = refusal(card(dataset), card(dataset, **values))
    assert text.startswith("the workers do not match: ")
    assert told in text
    assert text.endswith("; start all workers with the same config and flags")


def test_places_may_differ(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(dataset)
    here, there = card(dataset), card(tmp_path / "elsewhere", output="other", input__prefetch=9, input__cache="memory")
    check_cards([json.dumps(here), json.dumps(there)])


def test_another_dataset_is_refused(dataset: Path, tmp_path: Path) -> None:
    pictures = random_pictures(19)
    other = write_dataset(tmp_path / "data", {"train": pictures[:12], "validation": pictures[13:]})
    assert refusal(card(dataset), card(other)) == (
        "the workers do not match: worker 1 reads other data in split 'validation' than worker 0; "
        "give all workers the same dataset"
    )


def test_other_software_is_refused(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = card(dataset)
    monkeypatch.setattr(handshake, "tf", SimpleNamespace(__version__="2.20.0"))
    monkeypatch.setattr(handshake, "np", SimpleNamespace(__version__="1.0"))
    text = refusal(mine, mine, card(dataset))
    assert "worker 2 has TensorFlow 2.20.0, worker 0 2." in text
    assert "worker 2 has NumPy 1.0, worker 0 " in text
    assert text.endswith("; install the same versions on all of them")


def test_another_cluster_is_refused(dataset: Path) -> None:
    other = Cluster(workers=2, index=1, addresses=("a:1", "c:1"))
    assert refusal(card(dataset), card(dataset, cluster=other)) == (
        "the workers do not match: worker 1 has addresses a:1, c:1, worker 0 a:1, b:1; "
        "give all workers the same addresses in TF_CONFIG"
    )


def test_many_differences_are_cut_short(dataset: Path) -> None:
    values = {"seed": 1, "steps": 9, "log_every": 2, "global_batch": 4, "deterministic": True, "input__lanes": 4}
    text = refusal(card(dataset), card(dataset, **values, flags={"--record-keys": True}))
    assert text.count("worker 1 has") == 5
    assert "; and 2 more; start all" in text


def test_the_code_shows_in_the_card(tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    (package / "inner" / "a.py").write_text("x = 1\n")
    (package / "notes.txt").write_text("no code")
    before = code_digest(package)
    (package / "notes.txt").write_text("other notes")
    assert code_digest(package) == before
    (package / "inner" / "a.py").write_text("x = 2\n")
    assert code_digest(package) != before
    (package / "inner" / "a.py").write_text("x = 1\n")
    (package / "inner" / "a.py").rename(package / "inner" / "b.py")
    assert code_digest(package) != before


def test_the_code_of_a_users_model_is_in_the_card(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    cards = []
    for width in (1, 2):
        (tmp_path / "mynet.py").write_text(f"WIDTH = {width}\n")
        cards.append(card(dataset, model__name="mynet:build"))
    assert "worker 1 has the code of mynet " in refusal(*cards)
