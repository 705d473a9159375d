"""The analyst's process: it works, it is gone afterwards, and its death is explained."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import make_config

from pipelines.analysis.analyst import Analysis, start_analyst
from pipelines.values import Content
from shards.errors import ShardsmithError
from shards.files import hash_file


def test_the_end_does_not_wait_for_tensorflow_to_load():
    with start_analyst():
        (child,) = multiprocessing.active_children()
    child.join(10)
    assert not child.is_alive()


def test_the_death_of_the_process_is_explained(tmp_path):
    with start_analyst() as analyst:
        (child,) = multiprocessing.active_children()
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(ShardsmithError, match="tf.Transform's process died, probably for lack of memory"):
            analyst.run(Analysis([], tmp_path, [], make_config("raw", "out"), Content(), {}))


def hashes(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): hash_file(path) for path in root.rglob("*") if path.is_file()}


def test_its_dataset_is_that_of_a_build_in_one_process_to_the_last_byte(built, tmp_path):
    command = [
        "build", "--source", built.source, "--output", tmp_path / "again", "--resize", "exact:32",
        "--set", "name=animals", "--set", "splits.fractions={train: 0.7, validation: 0.3}",
        "--set", "image.encode.format=png", "--set", "shards.target_mb=0.02", "--set", "max_reject_fraction=0.05",
        "--direct_running_mode=multi_processing", "--direct_num_workers=2",
    ]  # fmt: skip
    subprocess.run([sys.executable, "-m", "pipelines", *map(str, command)], check=True, capture_output=True)
    written = hashes(tmp_path / "again")
    assert {name for name, digest in hashes(built.root).items() if written.get(name) != digest} == set()
    assert written.keys() == hashes(built.root).keys()
    assert {"manifest.json", "transform_fn/saved_model.pb"} <= written.keys()
