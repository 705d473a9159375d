"""Strict settings: what a config may say, and what the message is when it says something else."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError, field_validator, model_validator
from shards_data import thorough

from shards.errors import UsageError
from shards.settings import Settings, load_settings, parse_assignments, read_yaml, set_dotted, validate


class Column(Settings):
    type: Literal["int", "text"]
    scale: str = "none"


class Resize(Settings):
    mode: str = "none"
    size: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        mode, _, size = value.partition(":")
        return {"mode": mode, "size": int(size)}


class Image(Settings):
    resize: Resize = Resize()
    quality: Annotated[int, Field(ge=1, le=100)] = 95
    max_megapixels: float = 200


class Config(Settings):
    output: str
    image: Image = Image()
    columns: dict[str, Column] = {}
    analyze: tuple[str, ...] = ("train",)
    stages: tuple[Image, ...] = ()
    count: Annotated[int, Field(ge=1)] | dict[str, int] | None = None
    shuffle: bool = False

    @field_validator("output")
    @classmethod
    def _not_empty(cls, output: str) -> str:
        if not output:
            raise ValueError("must not be empty; choose a directory")
        return output


def load(**values: Any) -> Config:
    return validate(Config, {"output": "out", **values}, place="c.yaml")


def refusal(**values: Any) -> str:
    with pytest.raises(UsageError) as caught:
        load(**values)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_defaults_and_values() -> None:
    config = load(image={"quality": 80}, columns={"stars": {"type": "int"}}, analyze=["train", "test"], count={"a": 1})
    assert config.image == Image(resize=Resize(mode="none", size=None), quality=80, max_megapixels=200)
    assert config.columns == {"stars": Column(type="int")}
    assert config.analyze == ("train", "test")
    assert config.count == {"a": 1}


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load().output = "elsewhere"


UNKNOWN = {
    "top": ({"outptu": "x"}, "c.yaml: unknown key 'outptu'; did you mean 'output'?"),
    "nested": ({"image": {"qualty": 1}}, "c.yaml: unknown key 'qualty' in image; did you mean 'quality'?"),
    "deeper": (
        {"image": {"resize": {"sizes": 1}}},
        "c.yaml: unknown key 'sizes' in image.resize; did you mean 'size'?",
    ),
    "in a mapping of settings": (
        {"columns": {"stars": {"type": "int", "sclae": "none"}}},
        "c.yaml: unknown key 'sclae' in columns.stars; did you mean 'scale'?",
    ),
    "in a mapping whose key is also a field": (
        {"columns": {"scale": {"type": "int", "tpye": "none"}}},
        "c.yaml: unknown key 'tpye' in columns.scale; did you mean 'type'?",
    ),
    "in a list of settings": (
        {"stages": [{}, {"qualty": 3}]},
        "c.yaml: unknown key 'qualty' in stages.1; did you mean 'quality'?",
    ),
    "nothing like it": (
        {"image": {"zzz": 1}},
        "c.yaml: unknown key 'zzz' in image; known keys: max_megapixels, quality, resize",
    ),
    "not text": ({"image": {7: 1}}, "c.yaml: unknown key '7' in image; known keys: max_megapixels, quality, resize"),
}


@pytest.mark.parametrize(("values", "message"), UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_key_is_refused_with_its_nearest_relative(values: dict[str, Any], message: str) -> None:
    assert refusal(**values) == message


STRICT = {
    "text is not an int": ({"image": {"quality": "3"}}, "image.quality: Input should be a valid integer (got '3')"),
    "a float is not an int": ({"image": {"quality": 3.5}}, "image.quality: Input should be a valid integer (got 3.5)"),
    "a bool is not an int": ({"image": {"quality": True}}, "image.quality: Input should be a valid integer (got True)"),
    "text is not a float": (
        {"image": {"max_megapixels": "12"}},
        "image.max_megapixels: Input should be a valid number (got '12')",
    ),
    "an int is not text": ({"output": 3}, "output: Input should be a valid string (got 3)"),
    "an int is not a bool": ({"shuffle": 1}, "shuffle: Input should be a valid boolean (got 1)"),
    "text is not a list": ({"analyze": "train"}, "analyze: Input should be a valid array (got 'train')"),
    "null is not a section": ({"image": None}, "image: Input should be an object (got None)"),
    "limits": ({"image": {"quality": 101}}, "image.quality: Input should be less than or equal to 100 (got 101)"),
    "choices": ({"columns": {"a": {"type": "real"}}}, "columns.a.type: Input should be 'int' or 'text' (got 'real')"),
    "own checks": ({"output": ""}, "output: must not be empty; choose a directory (got '')"),
    "in a list": ({"analyze": ["a", 3]}, "analyze.1: Input should be a valid string (got 3)"),
    "missing in a mapping": ({"columns": {"a": {}}}, "columns.a.type is required"),
    # pydantic names the branches of a union that it tried; nobody wrote those into the config.
    "neither of two types": (
        {"count": "many"},
        "count: Input should be a valid integer (got 'many'); count: Input should be an object (got 'many')",
    ),
}


@pytest.mark.parametrize(("values", "message"), STRICT.values(), ids=STRICT)
def test_types_are_strict(values: dict[str, Any], message: str) -> None:
    assert refusal(**values) == f"c.yaml: {message}"


def test_an_int_is_a_float() -> None:
    assert load(image={"max_megapixels": 12}).image.max_megapixels == 12.0


def test_every_problem_is_in_one_message() -> None:
    with pytest.raises(UsageError) as caught:
        validate(Config, {"image": {"quality": "3", "zoom": 1}, "shufle": True}, place="c.yaml")
    assert str(caught.value) == (
        "c.yaml: output is required; image.quality: Input should be a valid integer (got '3'); "
        "unknown key 'zoom' in image; known keys: max_megapixels, quality, resize; "
        "unknown key 'shufle'; did you mean 'shuffle'?"
    )


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_with_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, "output: out\nimage:\n  quality: 80\n  max_megapixels: 10\n")
    config = load_settings(Config, path, {"image.quality": 70, "columns.stars.type": "int"})
    assert config.image == Image(quality=70, max_megapixels=10)
    assert config.columns["stars"].type == "int"


def test_overrides_alone_are_enough() -> None:
    assert load_settings(Config, None, {"output": "x"}).output == "x"


def test_a_problem_names_the_file_or_the_command_line(tmp_path: Path) -> None:
    path = write(tmp_path, "")
    with pytest.raises(UsageError, match=f"^{path}: output is required$"):
        load_settings(Config, path, {})
    with pytest.raises(UsageError, match=r"^the command line: output is required$"):
        load_settings(Config, None, {})


def test_an_override_takes_the_place_of_a_short_form(tmp_path: Path) -> None:
    path = write(tmp_path, "output: out\nimage:\n  resize: center_crop:256\n")
    assert load_settings(Config, path, {}).image.resize == Resize(mode="center_crop", size=256)
    assert load_settings(Config, path, {"image.resize": "exact:8"}).image.resize == Resize(mode="exact", size=8)
    assert load_settings(Config, path, {"image.resize.size": 8}).image.resize == Resize(mode="none", size=8)


def test_an_override_below_an_empty_section(tmp_path: Path) -> None:
    path = write(tmp_path, "output: out\nimage:\n")
    assert load_settings(Config, path, {"image.quality": 8}).image.quality == 8


def test_an_unknown_override_is_refused_like_any_key() -> None:
    with pytest.raises(UsageError, match=r"unknown key 'qualty' in image; did you mean 'quality'\?$"):
        load_settings(Config, None, {"output": "x", "image.qualty": 3})


def test_set_dotted_makes_the_way() -> None:
    values: dict[str, Any] = {"a": {"x": 1}}
    set_dotted(values, "a.b.c", 2)
    set_dotted(values, "d", 3)
    assert values == {"a": {"x": 1, "b": {"c": 2}}, "d": 3}


@thorough
@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=4),
    st.integers(),
    st.dictionaries(st.sampled_from("abc"), st.integers()),
)
def test_what_is_set_is_found_there(keys: list[str], value: int, values: dict[str, Any]) -> None:
    before = dict(values)
    set_dotted(values, ".".join(keys), value)
    found: Any = values
    for key in keys:
        found = found[key]
    assert found == value
    assert {key: item for key, item in values.items() if key != keys[0]} == {
        key: item for key, item in before.items() if key != keys[0]
    }


def test_assignments_are_yaml() -> None:
    assert parse_assignments(
        ["a=3", "b.c=0.5", "d=text", "e='3'", "f=[1, x]", "g=true", "h=", "i=x=y", "j={k: 1}", "l=1e-3", "m=-2.5E+4"]
    ) == {
        "a": 3,
        "b.c": 0.5,
        "d": "text",
        "e": "3",
        "f": [1, "x"],
        "g": True,
        "h": None,
        "i": "x=y",
        "j": {"k": 1},
        "l": 0.001,
        "m": -25000.0,
    }


def test_the_last_of_equal_assignments_counts() -> None:
    assert parse_assignments(["a=1", "a=2"]) == {"a": 2}


@pytest.mark.parametrize("text", ["quality", "=3", ""])
def test_what_is_not_an_assignment_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_assignments([text])
    assert str(caught.value) == f"--set needs key=value, got {text!r}; for example --set shards.target_mb=64"


def test_an_assignment_that_is_not_yaml_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--set a: '\[1' is not a YAML value$"):
        parse_assignments(["a=[1"])


def test_numbers_with_exponents_are_numbers(tmp_path: Path) -> None:
    # To YAML 1.1 they are text; nobody who writes `learning_rate: 1e-3` means that.
    path = write(tmp_path, "a: 1e-3\nb: 2.e5\nc: -1E6\nd: 1e\ne: 12e3x\nf: '1e-3'\n")
    assert read_yaml(path) == {"a": 0.001, "b": 200000.0, "c": -1000000.0, "d": "1e", "e": "12e3x", "f": "1e-3"}


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n"])
def test_an_empty_file_sets_nothing(tmp_path: Path, text: str) -> None:
    assert read_yaml(write(tmp_path, text)) == {}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"^cannot read config {tmp_path}/none.yaml: No such file or directory$"):
        read_yaml(tmp_path / "none.yaml")


def test_a_directory_is_not_a_config(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"^cannot read config {tmp_path}: Is a directory$"):
        read_yaml(tmp_path)


@pytest.mark.parametrize(("text", "kind"), [("- a\n- b\n", "list"), ("hello\n", "str"), ("3\n", "int")])
def test_a_config_must_be_a_mapping(tmp_path: Path, text: str, kind: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError, match=f"^config {path} must be a mapping of keys to values, not a {kind}$"):
        read_yaml(path)


@pytest.mark.parametrize("text", ["a: [1\n", "a: b: c\n", "\tx: 1\n", "a: !!python/object/apply:os.system ['true']\n"])
def test_bad_yaml_is_refused(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError, match=f"^config {path} is not valid YAML: (.|\n)*line 1"):
        read_yaml(path)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not valid YAML: 'utf-8' codec can't decode byte 0xff in position 0"):
        read_yaml(tmp_path / "c.yaml")


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "output: a\nimage:\n  quality: 1\nshuffle: true\nimage:\n  max_megapixels: 3\n")
    with pytest.raises(UsageError, match="is not valid YAML: key 'image' is given twice"):
        read_yaml(path)


def test_anchors_and_merges_still_work(tmp_path: Path) -> None:
    path = write(tmp_path, "a: &one {x: 1, y: 2}\nb: {<<: *one, y: 3}\n")
    assert read_yaml(path) == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("output: 2020-01-01\n", "Object of type date is not JSON serializable"),
        ("output: &loop [*loop]\n", "Circular reference detected"),
    ],
)
def test_values_that_settings_cannot_hold_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError, match=f"^{path}: {problem}; quote dates and other unusual values$"):
        load_settings(Config, path, {})
