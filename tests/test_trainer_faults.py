"""Real workers that die, freeze, are cut off or asked to stop: the others say so, and nothing saved is lost."""

import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from crews import (
    alive,
    children,
    cluster_environments,
    digest,
    end,
    finish,
    last_step,
    metrics,
    start,
    start_hasty,
    start_saboteur,
    wait_for_death,
    wait_until,
    write_config,
)
from trainer_data import random_pictures, write_dataset

from trainer.running.cluster import tf_config
from trainer.running.workers import newest_step

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
KILLS = int(os.environ.get("SHARDSMITH_TEST_KILLS", "3"))
LONG = 10**6  # steps; more than any test waits for
LOST = (
    "was lost: it died, froze or was cut off; see its log. "
    "Restart all workers with the same command to resume from the last checkpoint"
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pictures = random_pictures(45)
    return write_dataset(tmp_path_factory.mktemp("data"), {"train": pictures[:32], "validation": pictures[32:]})


@pytest.mark.parametrize(
    ("place", "nth", "victim", "harm", "values"),
    [
        ("trainer.learning.step:Stepper.run", 4, 1, "SIGKILL", {"steps": LONG}),
        ("trainer.learning.step:Stepper.run", 4, 0, "SIGSTOP", {"steps": LONG}),
        ("trainer.learning.state:build_state", 1, 0, "SIGKILL", {"steps": LONG}),
        (
            "trainer.learning.checkpoints:Checkpoints.save",
            2,
            1,
            "SIGSTOP",
            {"steps": LONG, "checkpoint__every_steps": 1},
        ),
        ("trainer.judging.evaluate:Evaluator.evaluate", 1, 1, "SIGKILL", {"steps": LONG, "evaluate_every_epochs": 1}),
        ("trainer.running.strategy:Workplace.wait_for_all", 1, 0, "SIGKILL", {"steps": 2}),
    ],
)
def test_the_other_worker_stops_and_says_why(
    place: str, nth: int, victim: int, harm: str, values: dict[str, Any], dataset: Path, tmp_path: Path
) -> None:
    values = {"evaluate_every_epochs": None} | values
    config = str(write_config(tmp_path / "c.yaml", dataset, tmp_path / "run", **values))
    environments = cluster_environments(2)
    lost = start_saboteur(place, nth, harm, "train", config, environment=environments[victim])
    other = start("train", config, environment=environments[1 - victim])
    try:
        while "sabotage" not in (line := lost.stdout.readline()):
            assert line, "the saboteur ended before its time"
        struck = time.monotonic()
        text = finish(other, code=75)
        seconds = time.monotonic() - struck
    finally:
        end(lost, other)
    print(f"{place} {harm} of worker {victim}: the other ended after {seconds:.1f} s")
    assert text.count("error: ") == 1
    assert "Traceback" not in text
    [told] = [line for line in text.splitlines() if line.startswith("error: ")]
    assert told.endswith(LOST), text
    assert told.startswith(f"error: worker {victim} (127.0.0.1:"), text
    assert seconds < 60


def test_a_worker_that_never_comes_is_named(dataset: Path, tmp_path: Path) -> None:
    config = str(write_config(tmp_path / "c.yaml", dataset, tmp_path / "run"))
    environment = {"TF_CONFIG": tf_config(["127.0.0.1:1", "127.0.0.1:2"], 1)}
    text = finish(start("train", config, "--wait-for-workers", "2", environment=environment), code=75)
    assert "error: not all workers have come within 2 s: worker 0 (127.0.0.1:1): " in text
    assert "check the addresses in TF_CONFIG and the firewall; --wait-for-workers SECONDS waits longer" in text


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_dies_while_the_cluster_forms_leaves_nobody_waiting(
    victim: int, dataset: Path, tmp_path: Path
) -> None:
    config = str(write_config(tmp_path / "c.yaml", dataset, tmp_path / "run"))
    environments = cluster_environments(2)
    place = "trainer.running.peers:open_workplace"
    lost = start_saboteur(place, 1, "SIGKILL", "train", config, environment=environments[victim])
    other = start_hasty("train", config, environment=environments[1 - victim])
    try:
        # TensorFlow waits in C++ and lets Python do nothing, not even say a word.
        finish(other, code=-signal.SIGALRM)
    finally:
        end(lost, other)
    assert lost.returncode == -signal.SIGKILL


def test_a_worker_with_another_config_is_refused(dataset: Path, tmp_path: Path) -> None:
    processes = []
    for index, environment in enumerate(cluster_environments(2)):
        config = write_config(
            tmp_path / f"{index}.yaml", dataset, tmp_path / "run", optimizer={"learning_rate": (0.003, 0.01)[index]}
        )
        processes.append(start("train", str(config), environment=environment))
    texts = [finish(process, code=2) for process in processes]
    expected = (
        "error: the workers do not match: worker 1 has optimizer.learning_rate 0.01, worker 0 0.003; "
        "start all workers with the same config and flags\n"
    )
    assert all(text.endswith(expected) for text in texts), texts
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("stopped", [[1], [0, 1]])
def test_preemption_saves_the_step_that_was_trained(stopped: list[int], dataset: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    config = str(write_config(tmp_path / "c.yaml", dataset, output, steps=LONG, evaluate_every_epochs=None))
    processes = [start("train", config, environment=environment) for environment in cluster_environments(2)]
    try:
        wait_until(lambda: last_step(output) >= 3, processes[0])
        for index in stopped:
            processes[index].send_signal(signal.SIGTERM)
        texts = [finish(process, code=75) for process in processes]
    finally:
        end(*processes)
    step = last_step(output)
    assert newest_step(output) == step
    assert all(f"error: stopped on request; saved step {step}, and the same command resumes there" in t for t in texts)
    assert ["SIGTERM: saving after this step; a second signal ends at once" in text for text in texts] == [
        index in stopped for index in (0, 1)
    ]
    assert [row["step"] for row in metrics(output)] == list(range(1, step + 1))


def test_preemption_cuts_an_evaluation_short(dataset: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    values = {"steps": 4, "splits__evaluate": "train", "evaluation__batch": 1, "checkpoint__every_steps": 3}
    config = str(write_config(tmp_path / "c.yaml", dataset, output, **values))
    first, second = cluster_environments(2)
    chief = start("train", config, environment=first)
    place = "trainer.judging.evaluate:Evaluator._look"
    preempted = start_saboteur(place, 1, "SIGTERM", "train", config, environment=second)
    try:
        texts = [finish(process, code=75) for process in (chief, preempted)]
    finally:
        end(chief, preempted)
    assert all("error: stopped on request; saved step 4, and the same command resumes there" in text for text in texts)
    assert len(metrics(output)) == 4
    assert newest_step(output) == 4
    finish(start("train", config))
    assert [row.get("examples") for row in metrics(output)] == [None] * 4 + [32], "what was cut short is made up for"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_to_the_supervisor_saves(number: int, code: int, dataset: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    config = str(write_config(tmp_path / "c.yaml", dataset, output, steps=LONG, evaluate_every_epochs=None))
    process = start("train", config, "--local-workers", "2")
    workers = children(process.pid, count=2)
    wait_until(lambda: last_step(output) >= 3, process)
    process.send_signal(number)
    text = finish(process, code=code)
    step = newest_step(output)
    assert step == last_step(output) >= 3
    assert text.endswith(f"error: stopped on request; the same command goes on from step {step}\n")
    wait_for_death(workers)
    lone = start("train", config, "--set", f"steps={step + 2}")
    assert f"trained  steps {step + 1} to {step + 2} in" in finish(lone)


def test_a_signal_while_starting_ends_at_once(dataset: Path, tmp_path: Path) -> None:
    config = str(write_config(tmp_path / "c.yaml", dataset, tmp_path / "run", steps=LONG))
    process = start("train", config, environment=cluster_environments(2)[0])
    assert "training small_cnn" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    text = finish(process, code=75)
    assert text.endswith("error: stopped on request; there was nothing to save, and the same command starts again\n")


def test_no_worker_outlives_its_supervisor(dataset: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    config = str(write_config(tmp_path / "c.yaml", dataset, output, steps=LONG))
    process = start("train", config, "--local-workers", "2")
    workers = children(process.pid, count=2)
    wait_until(lambda: last_step(output) >= 1, process)
    process.kill()
    process.communicate()
    wait_for_death(workers)


def _harm_at_random(process: Any, output: Path, *, kills: int, seed: int) -> list[str]:
    """Kills or freezes one of two workers at random moments, in start-up or in training; returns what was done."""
    generator, done, known = random.Random(seed), [], set[int]()
    while len(done) < kills:
        pids = wait_until(partial(_new_workers, process.pid, known), process)
        index, harm = generator.randrange(2), generator.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
        if generator.random() < 0.7:
            wait_until(partial(_has_come_to, last_step(output) + generator.randrange(1, 100), pids, output), process)
        time.sleep(generator.uniform(0, 2))
        known |= set(pids)
        if all(map(alive, pids)):
            os.kill(pids[index], harm)
            done.append(f"{harm.name} of worker {index} at step {last_step(output)}")
    return done


def _new_workers(supervisor: int, known: set[int]) -> list[int]:
    """Both workers of a new start, in their order; nothing before it."""
    found = sorted(pid for pid in children(supervisor, count=0) if pid not in known)
    return found if len(found) == 2 else []


def _has_come_to(step: int, pids: list[int], output: Path) -> bool:
    return last_step(output) >= step or not all(map(alive, pids))


@pytest.mark.timeout(900 + 180 * KILLS)
def test_killed_at_random_moments_it_ends_as_if_undisturbed(dataset: Path, tmp_path: Path) -> None:
    steps = 150 * (KILLS + 1)
    values = {"steps": steps, "deterministic": True, "checkpoint__every_steps": 10, "evaluate_every_epochs": None}
    model = {"arguments": {"width": 2}, "dropout": 0.3}
    calm = write_config(tmp_path / "calm.yaml", dataset, tmp_path / "calm", **values, model=model)
    wild = write_config(tmp_path / "wild.yaml", dataset, tmp_path / "wild", **values, model=model)
    expected = digest(finish(start("train", str(calm), "--local-workers", "2"), patience=60 * (KILLS + 5)))
    # More often in a row than a run is restarted without a new checkpoint by default.
    process = start("train", str(wild), "--local-workers", "2", "--max-restarts", str(KILLS))
    done = _harm_at_random(process, tmp_path / "wild", kills=KILLS, seed=5)
    text = finish(process, patience=60 * (KILLS + 5))
    print(*done, sep="\n")
    assert text.count("workers start again") == KILLS
    assert digest(text) == expected
    assert [row["step"] for row in metrics(tmp_path / "wild")] == list(range(1, steps + 1))
    losses = [[row["loss"] for row in metrics(tmp_path / name)] for name in ("calm", "wild")]
    assert losses[0] == losses[1]
