"""Functions as sources: what they may yield, what becomes of what they should not, and how they fail."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import make_config, run_build
from pictures import encoded, picture

from pipelines.config import BuildConfig, ImageConfig
from pipelines.pictures.process import read_input
from pipelines.reasons import Reason
from pipelines.sources import check_sources, list_partition, partition_sources
from pipelines.sources.generators import find_function
from pipelines.values import InputRef
from shards.errors import ShardsmithError, UsageError
from shards.records import read_records

PROJECT = Path(__file__).parent.parent
MODULE = """
import numpy as np

items = []

def given():
    return items

def returns(value):
    return value

def features(samples=10, size=100):
    rng = np.random.default_rng(7)
    for _ in range(samples):
        yield rng.random(size).astype(np.float32), rng.integers(0, 2).astype(np.int32)

def breaks(after, *, label="cat"):
    for number in range(after):
        yield {"image": b"x", "label": label}
    raise ValueError("the disk\\nis gone")

class Pets:
    @staticmethod
    def all():
        yield {"image": b"x", "label": "cat"}

number = 7
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    """A module `user_data` in the current directory, which is not on the path yet."""
    (tmp_path / "user_data.py").write_text(MODULE)
    (tmp_path / "broken_data.py").write_text("import user_data\n1 / 0\n")
    (tmp_path / "needy_data.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    yield
    for name in ("user_data", "broken_data", "needy_data"):
        sys.modules.pop(name, None)


def python(path: str, arguments: dict | None = None, **sections) -> BuildConfig:
    source = {"kind": "python", "arguments": arguments or {}} | sections.pop("source", {})
    return make_config(path, "out", source=source, **sections)


def refs_of(config: BuildConfig, spool: str = "spool") -> list[InputRef]:
    check_sources(config)
    (part,) = partition_sources(config)
    return list(list_partition(part, config, spool))


def given(*items: object, **sections) -> list[InputRef]:
    """The refs of a function that gives these items."""
    find_function("user_data:given")
    sys.modules["user_data"].items = items
    return refs_of(python("user_data:given", **sections))


def payload(ref: InputRef) -> bytes:
    return read_input(ref.location, ImageConfig())


def test_every_form_of_payload():
    grey, colour = np.arange(12, dtype=np.uint8).reshape(3, 4), np.zeros((2, 2, 3), np.float32)
    refs = given(
        {"image": b"encoded", "label": "cat"},
        {"image": grey, "label": 1},
        {"image": colour, "label": np.int64(2)},
        {"image": grey.T, "label": np.array([3])},  # not contiguous; a label as an array of one
        (b"encoded", "dog"),
        (grey, b"dog"),
    )
    assert [ref.fault for ref in refs] == [None] * 6
    assert [ref.key for ref in refs] == [f"{number:08d}" for number in range(6)]
    assert [ref.labels for ref in refs] == [("cat",), ("1",), ("2",), ("3",), ("dog",), ("dog",)]
    assert [ref.location.form for ref in refs] == ["", "|u1:3,4", "<f4:2,2,3", "|u1:4,3", "", "|u1:3,4"]
    expected = [b"encoded", grey.tobytes(), colour.tobytes(), grey.T.tobytes(), b"encoded", grey.tobytes()]
    assert [payload(ref) for ref in refs] == expected


def test_rows_of_features_as_in_the_articles():
    refs = refs_of(python("user_data:features", {"samples": 3}))
    assert [ref.location.form for ref in refs] == ["<f4:100"] * 3
    assert {label for ref in refs for label in ref.labels} <= {"0", "1"}
    first = np.frombuffer(payload(refs[0]), np.float32)
    assert (first == np.random.default_rng(7).random(100).astype(np.float32)).all()


def test_features_by_name_as_arrays_and_lists():
    items = [{"features": [1.5, 2.0], "label": 0}, {"data": np.array([1, 2]), "label": 1}, ([3.0, 4.0], 1)]
    refs = given(*items, {"features": np.array([5.0]), "label": 0})
    assert [(ref.location.form, ref.fault) for ref in refs] == [
        ("<f8:2", None), ("<i8:2", None), ("<f8:2", None), ("<f8:1", None),
    ]  # fmt: skip


def test_tensors():
    class Tensor:
        def __init__(self, value: object) -> None:
            self.value = value

        def numpy(self) -> object:
            return self.value

    image, label = Tensor(np.zeros((2, 2), np.uint8)), Tensor(np.int64(5))
    pair, named = given((image, label), {"image": Tensor(b"encoded"), "label": label, "id": Tensor(b"key")})
    assert (pair.location.form, pair.labels) == ("|u1:2,2", ("5",))
    assert (named.key, payload(named), named.labels) == ("key", b"encoded", ("5",))


def test_paths_lead_to_the_files_themselves(tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.jpg").write_bytes(b"12345")
    first, second, missing = given(
        {"image": "pictures/a.jpg", "label": 1}, (tmp_path / "pictures/a.jpg", 1), {"path": "no.jpg", "label": 1}
    )
    assert (first.key, payload(first), first.location.is_whole_file) == ("pictures/a.jpg", b"12345", True)
    assert (missing.key, missing.fault) == ("no.jpg", (Reason.UNREADABLE, "No such file or directory"))
    assert os.path.samefile(second.location.path, first.location.path)
    assert Path("spool/000000.bin").stat().st_size == 0


def test_ids_splits_groups_columns_and_fields():
    item = {"jpeg": b"x", "y": "cat", "id": 7, "split": "test", "group": "g", "age": np.int32(3), "tags": ["a", "b"]}
    (ref,) = given(
        item,
        columns={"age": {"type": "int"}, "tags": {"type": "text", "list": True}},
        source={"fields": {"image": "jpeg", "label": "y"}, "name": "mine"},
    )
    assert (ref.key, ref.labels, ref.split, ref.group, ref.columns) == (
        "mine/7",
        ("cat",),
        "test",
        "g",
        (3, ("a", "b")),
    )
    assert ref.fault is None


WORDS = "; yield a dict such as {'image': ..., 'label': ...}, or (image, label)"


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (7, "the item is a int" + WORDS),
        (None, "the item is a NoneType" + WORDS),
        (b"x", "the item is a bytes" + WORDS),
        ((1, 2, 3), "the item is a tuple of 3" + WORDS),
        ({"label": "cat"}, "image is empty"),
        ({"image": None, "label": "cat"}, "image is empty"),
        ({"image": 7, "label": "cat"},
         "image holds a int, which is neither the bytes of a file nor an array nor a path"),
        ({"image": np.zeros((4, 2, 2, 3), np.uint8), "label": 1},
         "inputs of shape (4, 2, 2, 3) are neither pictures (height, width[, channels]) nor rows of features"),
        ({"image": np.zeros((2, 2), np.int64), "label": 1},
         "pictures of int64 are not read; they must be uint8, or float from 0 to 1"),
        ({"image": np.frombuffer(b"\xff\xd8\xff", np.uint8), "label": 1},
         "image is an array of one dimension; give an encoded picture as bytes, and rows as features"),
        ({"features": ["a", "b"], "label": 1}, "rows of <U1 are not features; they must be numbers"),
        ({"features": [1.0, [2.0]], "label": 1}, "features holds a list that is not a row of numbers"),
        ({"features": [], "label": 1}, "rows of no numbers are not features"),
        ({"image": b"x", "label": "\ud800"}, "'\\ud800' cannot be written as UTF-8"),
    ],
)  # fmt: skip
def test_an_item_that_cannot_be_used_is_a_fault(item, problem):
    faulty, good = given(item, {"image": b"x", "label": "cat"})
    assert (faulty.key, faulty.fault) == ("user_data:given item 0", (Reason.BAD_ROW, problem))
    assert (good.key, good.fault) == ("00000001", None)


def test_a_missing_label_is_a_fault_under_the_running_number():
    (ref,) = given({"image": b"x"})
    assert (ref.key, ref.fault) == ("00000000", (Reason.NO_LABEL, "label is empty"))


@pytest.mark.parametrize(
    ("path", "arguments", "problem"),
    [
        ("user_data", {}, "source.path user_data is not of the form module:function, as in my_data:examples"),
        ("no_such_module:f", {},
         "source.path no_such_module:f: no module called 'no_such_module', "
         "neither in the current directory nor installed"),
        ("needy_data:f", {},
         "source.path needy_data:f: no module called 'a_package_that_is_not_there', "
         "neither in the current directory nor installed"),
        ("broken_data:f", {}, "source.path broken_data:f cannot be imported: ZeroDivisionError: division by zero"),
        ("user_data:nothing", {}, "source.path user_data:nothing: module 'user_data' has no attribute 'nothing'"),
        ("user_data:number", {}, "source.path user_data:number is a int, not a function"),
        ("user_data:breaks", {},
         "source.arguments do not fit user_data:breaks(after, *, label='cat'): missing a required argument: 'after'"),
        ("user_data:breaks", {"after": 1, "lable": "x"},
         "source.arguments do not fit user_data:breaks(after, *, label='cat'): "
         "got an unexpected keyword argument 'lable'"),
    ],
)  # fmt: skip
def test_what_cannot_be_called_is_refused_before_work(path, arguments, problem):
    with pytest.raises(UsageError) as caught:
        check_sources(python(path, arguments))
    assert str(caught.value) == problem


def test_static_methods_are_functions_too():
    assert [ref.labels for ref in refs_of(python("user_data:Pets.all"))] == [("cat",)]


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_function_that_fails_midway_leaves_nothing(after, tmp_path):
    config = python("user_data:breaks", {"after": after})
    for _ in range(2):  # nor does a second attempt find anything
        with pytest.raises(ShardsmithError) as caught:
            refs_of(config, str(tmp_path / "spool"))
        assert caught.value.exit_code == 1
        assert str(caught.value) == (
            f"source.path user_data:breaks failed after {after} items with ValueError: the disk "
            "(user_data.py line 20); what it had given is not used"
        )
        assert list((tmp_path / "spool").iterdir()) == []


def test_what_cannot_be_iterated():
    with pytest.raises(ShardsmithError, match="failed after 0 items with TypeError: 'int' object is not iterable"):
        refs_of(python("user_data:returns", {"value": 7}))


def test_a_dry_run_writes_nothing(tmp_path):
    before = sorted(tmp_path.iterdir())
    refs = refs_of(python("user_data:features"), spool="")
    assert [(ref.location.offset, ref.location.size) for ref in refs] == [(400 * number, 400) for number in range(10)]
    assert [each for each in sorted(tmp_path.iterdir()) if each.name != "__pycache__"] == before


MEMORY = """
import sys
from pipelines.sources import list_partition, partition_sources
from pipelines.config import BuildConfig

def peak():
    status = open("/proc/self/status").read()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024

config = BuildConfig(source={"path": "large_data:pictures", "kind": "python"}, output="out")
(part,) = partition_sources(config)
before = peak()
total = sum(ref.location.size for ref in list_partition(part, config, "spool"))
print(total, peak() - before)
"""


def test_four_hundred_megabytes_pass_through_in_a_few(tmp_path):
    # Not ru_maxrss: it counts what the parent had when it forked.
    (tmp_path / "large_data.py").write_text(
        "def pictures():\n"
        "    for number in range(400):\n"
        "        yield {'image': bytes([number % 256]) * 1_000_000, 'label': 1}\n"
    )
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    total, grown = map(int, done.stdout.split())
    assert total == 400_000_000 == (tmp_path / "spool" / "000000.bin").stat().st_size
    assert grown < 40


def test_a_build_on_workers_in_other_processes(tmp_path):
    (tmp_path / "digits.py").write_text(
        "import numpy as np\n"
        "def arrays(count, fail=False):\n"
        "    for number in range(count):\n"
        "        yield np.full((8, 8), number, np.uint8), number % 2\n"
        "    assert not fail, 'asked to'\n"
    )
    command = [
        sys.executable, "-m", "pipelines", "build", "--source", "digits:arrays",
        "--set", "source.arguments={count: 20}", "--set", "splits.fractions={train: 1}",
        "--set", "image.encode.format=png", "--output", "out",
        "--direct_running_mode=multi_processing", "--direct_num_workers=2",
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "out" / ".build").exists()
    with (tmp_path / "out" / "train" / "train-00000.tfrecord").open("rb") as shard:
        assert len(list(read_records(shard))) == 20
    options = ["--source", "digits:arrays", "--set", "source.arguments={count: 20, fail: true}", *command[-2:]]
    failing = [sys.executable, "-m", "pipelines", "plan", *options]
    done = subprocess.run(failing, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "error: source.path digits:arrays failed after 20 items with AssertionError: asked to (digits.py line 5); "
        "what it had given is not used"
    )


def test_a_build_whose_function_fails_looks_like_no_dataset(tmp_path):
    with pytest.raises(ShardsmithError, match="user_data:breaks failed after 3 items with ValueError: the disk"):
        run_build(make_config("user_data:breaks", tmp_path / "out", source={"arguments": {"after": 3}}))
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert list((tmp_path / "out").glob("*/*.tfrecord")) == []


def test_a_function_that_gives_nothing_useful_is_refused_in_words(tmp_path):
    config = make_config("user_data:returns", tmp_path / "out", source={"arguments": {"value": []}})
    with pytest.raises(UsageError, match="^source.path user_data:returns gives no inputs$"):
        run_build(config)
    config = make_config("user_data:returns", tmp_path / "out", source={"arguments": {"value": [1, 2]}})
    with pytest.raises(UsageError) as caught:
        run_build(config)
    assert str(caught.value) == (
        "source.path user_data:returns: none of the 2 inputs can be used; "
        "user_data:returns item 0: the item is a int" + WORDS
    )


def test_pictures_from_a_function_become_the_records_that_files_become(tmp_path):
    pictures = [encoded(picture(seed)) for seed in range(4)]
    for number, data in enumerate(pictures):
        (tmp_path / "files" / str(number % 2)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / str(number % 2) / f"{number}.jpg").write_bytes(data)
    items = [{"image": data, "label": n % 2, "id": f"{n % 2}/{n}.jpg"} for n, data in enumerate(pictures)]
    sections = {"splits": {"fractions": {"train": 1.0}}}
    run_build(make_config(tmp_path / "files", tmp_path / "a", **sections))
    assert len(given(*items)) == 4
    run_build(make_config("user_data:given", tmp_path / "b", **sections))
    shard = Path("train/train-00000.tfrecord")
    assert (tmp_path / "a" / shard).read_bytes() == (tmp_path / "b" / shard).read_bytes()
