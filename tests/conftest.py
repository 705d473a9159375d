"""One small dataset, built once per test process by the real pipeline, for every test that only reads."""

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pictures import write_class_folders

from pipelines.analysis.analyst import Analyst
from pipelines.build import build
from pipelines.config import BuildConfig
from pipelines.runner import parse_beam_options
from pipelines.values import InputRef, Location
from shards.manifest import Manifest, read_manifest
from shards.settings import validate

os.environ["SOURCE_DATE_EPOCH"] = "1700000000"  # equal builds are equal, whenever they are made


def make_config(path: Path | str, output: Path | str, /, **sections: Any) -> BuildConfig:
    """A build config from nested mappings."""
    source_values = {"path": str(path), **sections.pop("source", {})}
    return validate(BuildConfig, {"source": source_values, "output": str(output), **sections}, place="the test")


def make_ref(key: str, label: str = "", path: str = "", size: int = 0, **fields: Any) -> InputRef:
    """A ref to a whole file."""
    return InputRef(key, Location(path, size), labels=(label,) if label else ())._replace(**fields)


class InProcess(Executor):
    """Stands in for the analyst's process, so that a test process loads TensorFlow once and not for every build.

    The command-line tests run builds with the real one.
    """

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **named))
        except Exception as error:
            future.set_exception(error)
        return future


def run_build(config: BuildConfig, *arguments: str) -> Manifest:
    """Builds in this process, with Beam arguments if given."""
    options = parse_beam_options(arguments, ours=())
    return build(config, options=options, analyst=Analyst(InProcess()), overwrite=False, started=0)


@dataclass(frozen=True)
class Built:
    """A finished dataset and what it was made from."""

    source: Path
    root: Path
    manifest: Manifest


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Two classes of 20 pictures, 32x32 PNG, several shards, one reject."""
    base = tmp_path_factory.mktemp("built")
    source = write_class_folders(base / "raw", images=20)
    (source / "cat" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 not really")
    config = make_config(
        source,
        base / "dataset",
        name="animals",
        splits={"fractions": {"train": 0.7, "validation": 0.3}},
        image={"resize": "exact:32", "encode": {"format": "png"}},
        shards={"target_mb": 0.02},
        max_reject_fraction=0.05,
    )
    run_build(config)
    return Built(source, base / "dataset", read_manifest(base / "dataset"))


@pytest.fixture
def config_for(tmp_path: Path) -> Callable[..., BuildConfig]:
    """Makes configs whose output is in the test's own folder."""
    return lambda source, **sections: make_config(source, tmp_path / "dataset", **sections)
