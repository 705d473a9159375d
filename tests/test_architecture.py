"""Who may import whom, tried in a fresh interpreter in which the forbidden packages cannot be imported."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("pipelines", "shards", "trainer")

# Runs in a fresh interpreter. Its arguments: the packages to block and the modules to import, separated by commas.
PROGRAM = """
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if any(f"{name}.".startswith(f"{package}.") for package in blocked):
            raise ImportError(f"{name} is forbidden here")

blocked, modules = (argument.split(",") for argument in sys.argv[1:])
sys.meta_path.insert(0, Blocker())
for module in modules:
    importlib.import_module(module)
print("loaded", *sys.modules)
"""

NO_BEAM = {"apache_beam", "tensorflow_transform", "tfx_bsl"}
NO_TENSORFLOW = {"keras", "tensorflow", "tensorflow_transform", "tfx_bsl"}
TRANSFORM = "pipelines.analysis.transform"


def modules(package: str) -> list[str]:
    """Every module of a package, by name."""
    found = [module_name(path) for path in sources(package)]
    assert len(found) >= 10, f"{package} seems to be elsewhere"
    return found


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def import_without(blocked: set[str], wanted: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, ",".join(sorted(blocked)), ",".join(wanted)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def loaded_without(blocked: set[str], wanted: list[str]) -> set[str]:
    """Imports the modules with some packages blocked, and returns all modules that this loaded."""
    result = import_without(blocked, wanted)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("blocked", ["shards", "numpy", "shards.records", "google_crc32c"])
def test_the_blocker_blocks(blocked: str) -> None:
    # Otherwise the tests below could not fail.
    result = import_without({"tensorflow", blocked}, ["shards.settings", "shards.records"])
    assert result.returncode == 1
    assert f"ImportError: {blocked} is forbidden here" in result.stderr


def test_the_blocker_blocks_nothing_else() -> None:
    loaded = loaded_without({"tensorflow", "num", "shards.record"}, ["shards.records"])
    assert {"shards.records", "numpy"} <= loaded


def test_shards_imports_neither_beam_nor_tensorflow_nor_its_neighbours() -> None:
    heavy = {"cv2", "google.protobuf", "pyarrow", "pipelines", "trainer", "tensorflow_metadata"}
    loaded = loaded_without(NO_BEAM | NO_TENSORFLOW | heavy, modules("shards"))
    assert "shards.verify" in loaded


def test_trainer_imports_neither_beam_nor_transform_nor_pipelines() -> None:
    loaded = loaded_without(NO_BEAM | {"pipelines", "pyarrow", "tensorflow_metadata"}, modules("trainer"))
    assert {"trainer.learning.loop", "tensorflow"} <= loaded


def test_pipelines_imports_neither_tensorflow_nor_trainer_outside_of_transform() -> None:
    wanted = modules("pipelines")
    wanted.remove(TRANSFORM)
    loaded = loaded_without(NO_TENSORFLOW | {"trainer"}, wanted)
    assert {"pipelines.pipeline", "pipelines.finish.commit", "apache_beam"} <= loaded


def test_transform_is_the_module_that_needs_tensorflow() -> None:
    result = import_without(NO_TENSORFLOW, [TRANSFORM])
    assert result.returncode == 1
    assert "ImportError: tensorflow is forbidden here" in result.stderr


def test_help_does_not_wait_for_tensorflow() -> None:
    loaded = loaded_without({"pipelines"}, ["shards.__main__", "trainer.__main__"])
    assert "tensorflow" not in loaded


def sources(*packages: str) -> list[Path]:
    found = {package: sorted((ROOT / package).rglob("*.py")) for package in packages}
    assert all(found.values()), "a package without sources would pass every test"
    return [path for paths in found.values() for path in paths]


@cache
def imports(path: Path) -> frozenset[str]:
    """The dotted names that a file imports, anywhere in it."""
    return frozenset(_imports(ast.parse(path.read_text(encoding="utf-8"), str(path))))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports would hide from this test"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers(package: str, *places: str) -> list[str]:
    """The files in the places that import the package or something in it."""
    return [
        path.relative_to(ROOT).as_posix()
        for path in sources(*places)
        if any(name == package or name.startswith(f"{package}.") for name in imports(path))
    ]


def test_the_scan_sees_every_way_to_import() -> None:
    program = (
        "import a.b\nfrom c import d\ndef f():\n    try:\n        from e.f import g as h\n    except ImportError: ...\n"
    )
    assert set(_imports(ast.parse(program))) == {"a.b", "c", "c.d", "e.f", "e.f.g"}


@pytest.mark.parametrize("package", ["tensorflow_transform", "tfx_bsl"])
def test_one_file_imports_transform(package: str) -> None:
    assert importers(package, *PACKAGES) == ["pipelines/analysis/transform.py"]


def test_in_pipelines_only_transform_imports_tensorflow() -> None:
    assert importers("tensorflow", "pipelines", "shards") == ["pipelines/analysis/transform.py"]


@pytest.mark.parametrize(
    ("package", "places"),
    [
        ("absl", ["pipelines", "shards", "trainer", "benchmarks"]),
        ("trainer", ["pipelines", "shards"]),
        ("pipelines", ["trainer", "shards"]),
        ("apache_beam", ["trainer", "shards"]),
        ("tests", ["pipelines", "shards", "trainer"]),
    ],
)
def test_nobody_imports(package: str, places: list[str]) -> None:
    assert importers(package, *[place for place in places if (ROOT / place).is_dir()]) == []


# The packages and modules of `pipelines` from the ground up: each imports only from its own floor and those below.
FLOORS = (
    ("reasons", "values", "config", "recipe"),
    ("inputs",),
    ("pictures",),
    ("sources",),
    ("decoding",),
    ("planning",),
    ("workspace",),
    ("writing",),
    ("dedupe",),
    ("versions",),
    ("pipeline", "runner"),
    ("analysis",),
    ("finish",),
    ("mending",),
    ("build", "update", "compact", "repair", "demo"),
    ("__main__",),
)
FLOOR = {f"pipelines.{name}": number for number, names in enumerate(FLOORS) for name in names}


def floor(name: str) -> int:
    return FLOOR[".".join(name.split(".")[:2])]


def test_pipelines_is_built_floor_by_floor() -> None:
    upward = [
        (module_name(path), name)
        for path in sources("pipelines")
        for name in imports(path)
        if name.startswith("pipelines.") and floor(name) > floor(module_name(path))
    ]
    assert upward == []


# What the base install and the extras of setup.py bring, under the names they are imported by.
BASE = {"PIL", "google_crc32c", "numpy", "pydantic", "rich", "yaml"}
INSTALLED = {
    "shards": BASE,
    "trainer": BASE | {"keras", "tensorflow"},
    "pipelines": BASE
    | {"apache_beam", "cv2", "google", "pyarrow", "simplejpeg", "sklearn", "tensorflow", "tensorflow_metadata"}
    | {"tensorflow_transform", "tfx_bsl"},
}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_its_extra_installs(package: str) -> None:
    imported = {name.partition(".")[0] for path in sources(package) for name in imports(path)}
    assert imported - set(sys.stdlib_module_names) - INSTALLED[package] <= {package, "shards"}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_says_what_it_is_for(package: str) -> None:
    assert import_module(package).__doc__
    for path in sources(package):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path
