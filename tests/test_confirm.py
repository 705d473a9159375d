"""A finished build that is given again: proved to be up to date from metadata, without Beam, and nothing is touched."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_config
from light import files_of, identities_of, images, run_build
from pictures import encoded, picture, write_class_folders

from pipelines.config import BuildConfig
from pipelines.versions.confirm import confirm_finished
from pipelines.versions.scan import load_scan, scan_sources
from pipelines.workspace.layout import BuildFolder
from pipelines.workspace.lock import announce, hold
from shards.errors import ShardsmithError, UsageError

ROOT = Path(__file__).parent.parent
SETTINGS: dict[str, Any] = {"image": {"resize": "exact:16"}, "splits": {"fractions": {"train": 1.0}}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    base = tmp_path_factory.mktemp("finished")
    source = write_class_folders(base / "raw", images=10)
    run_build(make_config(source, base / "out", **SETTINGS))
    return base


@pytest.fixture
def config(finished: Path, tmp_path: Path) -> BuildConfig:
    """A copy of source and dataset, with all times."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return make_config(tmp_path / "raw", tmp_path / "out", **SETTINGS)


def test_nothing_new_is_proved_and_touches_nothing(config, tmp_path, capsys):
    before = identities_of(tmp_path)
    assert confirm_finished(config).version == 1
    assert capsys.readouterr() == (
        f"nothing to do: version 1 of {tmp_path}/out is complete (20 inputs), and what its sources list "
        "and its settings are unchanged\n",
        "",
    )
    assert run_build(config).version == 1  # the library says the same
    assert identities_of(tmp_path) == before


def touch(source: Path) -> None:
    os.utime(images(source)[3], ns=(1, 1))


def add(source: Path) -> None:
    (source / "cat" / "new.png").write_bytes(encoded(picture(99), "png"))


def remove(source: Path) -> None:
    images(source)[3].unlink()


def rename(source: Path) -> None:
    images(source)[3].rename(source / "cat" / "other.jpg")


def add_class(source: Path) -> None:
    (source / "dog").rename(source / "wolf")


@pytest.mark.parametrize("change", [touch, add, remove, rename, add_class])
def test_changed_sources_are_noticed(change, config, tmp_path):
    change(tmp_path / "raw")
    before = identities_of(tmp_path)
    with pytest.raises(UsageError) as caught:
        confirm_finished(config)
    assert str(caught.value) == (
        f"output {tmp_path}/out already holds a finished dataset, but its sources have changed since; take the changes "
        "up with `python -m pipelines append`, choose another --output, or pass --overwrite"
    )
    assert identities_of(tmp_path) == before


def test_other_settings_are_noticed(config, tmp_path):
    other = make_config(tmp_path / "raw", tmp_path / "out", **SETTINGS | {"image": {"resize": "exact:17"}})
    with pytest.raises(UsageError) as caught:
        confirm_finished(other)
    assert str(caught.value) == (
        f"output {tmp_path}/out already holds a finished dataset, but image.resize.size was 16 and is 17; "
        "choose another --output, or pass --overwrite"
    )


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize("name", ["train/train-00000.tfrecord", "train/train-00000.idx", "schema.pbtxt"])
@pytest.mark.parametrize("damage", [cut, Path.unlink])
def test_a_damaged_dataset_is_not_confirmed(name, damage, config, tmp_path):
    damage(tmp_path / "out" / name)
    with pytest.raises(ShardsmithError) as caught:
        confirm_finished(config)
    assert str(caught.value).startswith(f"output {tmp_path}/out already holds a finished dataset, but {name}: ")
    assert str(caught.value).endswith("; mend it with `python -m pipelines repair`")
    assert caught.value.exit_code == 1


def test_a_copy_without_times_says_so(config, tmp_path):
    shutil.rmtree(tmp_path / "out" / "state" / "seen")
    with pytest.raises(UsageError, match="which does not know its sources: copied without .*state/seen"):
        confirm_finished(config)


def test_a_lost_source_is_not_confirmed(config, tmp_path):
    shutil.rmtree(tmp_path / "raw")
    with pytest.raises(UsageError, match="source.path .*/raw does not exist"):
        confirm_finished(config)


def test_who_is_at_work_there_comes_first(config, tmp_path):
    code = (
        "import sys; from pathlib import Path; from pipelines.workspace.lock import hold; "
        "context = hold(Path(sys.argv[1]), 'append'); context.__enter__(); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "out")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        with pytest.raises(ShardsmithError) as caught:
            confirm_finished(config)
        process.kill()
    assert str(caught.value) == (
        f"output {tmp_path}/out is held by a command that has only just begun or is about to end; "
        "wait for it, or choose another --output"
    )


def test_remains_behind_the_manifest_are_cleared_away(config, tmp_path, capsys):
    """A build that was killed when all was done but the clearing away."""
    expected = files_of(tmp_path / "out")
    with hold(tmp_path / "out", "build"):
        announce(tmp_path / "out")
        shutil.copytree(tmp_path / "out" / ".build", tmp_path / "kept")
    shutil.copytree(tmp_path / "kept", tmp_path / "out" / ".build", dirs_exist_ok=True)
    confirm_finished(config)
    assert files_of(tmp_path / "out") == expected
    assert not (tmp_path / "out" / ".build").exists()


def test_a_begun_append_is_not_cleared_away(config, tmp_path):
    staged = BuildFolder(tmp_path / "out").next.state / "recipe.json"
    staged.parent.mkdir(parents=True)
    staged.write_text("{}")
    confirm_finished(config)
    assert staged.exists()


def test_the_command_loads_neither_beam_nor_tensorflow(config, tmp_path):
    """And starts no process that could."""
    settings = {"source": {"path": str(tmp_path / "raw")}, "output": str(tmp_path / "out"), **SETTINGS}
    (tmp_path / "config.yaml").write_text(json.dumps(settings))
    program = (
        "import subprocess, sys; sys.modules.update(apache_beam=None, tensorflow=None); subprocess.Popen = None; "
        "from pipelines.__main__ import main; sys.exit(main(['build', sys.argv[1]]))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "config.yaml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"nothing to do: version 1 of {tmp_path}/out is complete (20 inputs), and ")


def test_the_number_of_a_build_is_that_of_a_scan(tmp_path, monkeypatch):
    """Whatever the kind of source; what is spooled is known by its file, a function by its arguments."""
    rows = np.random.default_rng(4).random((8, 5), dtype=np.float32)
    np.savez_compressed(tmp_path / "packed.npz", data=rows, labels=np.arange(8) % 2)
    np.savez(tmp_path / "plain.npz", data=rows, labels=np.arange(8) % 2)
    config = make_config(
        tmp_path / "packed.npz", tmp_path / "a" / "out", shards={"count": 1}, splits={"fractions": {"train": 1.0}}
    )
    run_build(config)
    number = load_scan(BuildFolder(Path(config.output)))
    assert number == scan_sources(config)
    os.utime(tmp_path / "packed.npz", ns=(1, 1))
    assert number != scan_sources(config)
    plain = config.model_copy(update={"source": config.source.model_copy(update={"path": str(tmp_path / "plain.npz")})})
    first = scan_sources(plain)
    assert first == scan_sources(plain)
    os.utime(tmp_path / "plain.npz", ns=(1, 1))
    assert first != scan_sources(plain)
