"""Many small shards become few: the same records in the same splits, in the order of their hashes, without a source."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from conftest import make_config
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encoded, picture, write_class_folders
from test_append import add_pictures, rejects_of
from test_match import STATES, unchanged_rejects
from test_update import LOCAL, REAL, SETTINGS, break_files, examples_of, files_of, images, run_append, run_build
from trainer_data import make_config as make_trainer_config
from versions import Versions

from pipelines.__main__ import main
from pipelines.compact import compact
from pipelines.config import BuildConfig
from pipelines.planning.splits import order_hash
from pipelines.workspace.layout import BuildFolder
from shards.__main__ import main as shards_main
from shards.diff import compare_datasets
from shards.errors import ShardsmithError, UsageError
from shards.example import decode_example
from shards.manifest import Manifest, read_manifest
from shards.order import global_batch
from shards.records import read_records
from shards.verify import verify
from trainer.reading.dataset import Share, training_records
from trainer.reading.source import open_source


def run_compact(config: BuildConfig) -> Manifest:
    return compact(config, options=LOCAL, started=0)


@settings(max_examples=15, deadline=None)
@given(st.lists(STATES.filter(bool), min_size=2, max_size=4), st.booleans())
def test_the_same_records_in_fewer_shards(states, keep_missing):
    with tempfile.TemporaryDirectory() as base:
        dataset, state = Versions(Path(base) / "out"), {}
        for each in states:
            dataset.update(each, keep_missing=keep_missing)
            state = state | each if keep_missing else each
        splits, rejects, labels, count = dataset.splits, dataset.rejects, dataset.labels, len(dataset.shard_files)
        shards = {split: len(list((dataset.root / split).glob("*.tfrecord"))) for split in dataset.records}
        plan, maker = dataset.compact()
        assert maker.asked == set()
        assert (dataset.splits, dataset.rejects, dataset.labels) == (splits, rejects, labels)
        assert plan.changes == type(plan.changes)()
        assert len(dataset.shard_files) == count - len(plan.ended) + len(plan.shards)
        for split in (split for split in plan.splits if split.starts):
            assert len(split.starts) < shards[split.name]
            keys = [record.split()[0] for record in dataset.records[split.name]]
            assert keys == sorted(keys, key=order_hash)
        # There is nothing left to merge, and every input is known as before.
        files = dataset.shard_files
        assert dataset.compact()[0].shards == ()
        plan, maker = dataset.update(state)
        assert maker.asked <= unchanged_rejects(state, state)
        assert dataset.shard_files == files
        assert (plan.changes.added, plan.changes.removed, plan.changes.changed) == (0, 0, 0)


@pytest.fixture(scope="module")
def grown(tmp_path_factory) -> tuple[Path, BuildConfig]:
    """A dataset of five versions with gaps in its indices, whose sources are gone; analysed by the real analyst."""
    base = tmp_path_factory.mktemp("grown")
    source = write_class_folders(base / "raw", images=30)
    break_files(images(source)[5:8])
    config = make_config(source, base / "out", max_rejects=3, quarantine=True, **SETTINGS)
    run_build(config)
    for week in range(3):
        add_pictures(source / "dog", *(f"week{week}-{number}.png" for number in range(5)))
        (source / "cat" / f"00{week + 1}.jpg").write_bytes(encoded(picture(8000 + week)))
        run_append(config)
    (source / "cat" / "deep" / "000.png").unlink()
    run_append(config, REAL)
    shutil.copytree(source, base / "gone")
    shutil.rmtree(source)
    return base, config


@pytest.fixture
def copy(grown, tmp_path) -> tuple[Path, BuildConfig]:
    """A copy of it, which may be changed."""
    base, config = grown
    shutil.copytree(base / "out", tmp_path / "out")  # keeps times
    return tmp_path / "out", config.model_copy(update={"output": str(tmp_path / "out")})


def indices_of(manifest: Manifest, split: str) -> list[int]:
    return [int(shard.path[-14:-9]) for shard in manifest.split(split).shards]


def test_everyone_can_read_a_dataset_with_gaps(grown):
    """Indices that are no longer in use are no files: to TFDS, plain TensorFlow, the trainer, verify and diff."""
    base, _ = grown
    root, manifest = base / "out", read_manifest(base / "out")
    indices = indices_of(manifest, "train")
    assert len(indices) < max(indices) + 1, "there are no gaps"
    assert verify(root) == []
    expected = {name: set(examples) for name, examples in examples_of(root).items()}
    builder = tfds.builder_from_directory(str(root))
    assert str(builder.version) == "5.0.0"
    for name, keys in expected.items():
        assert builder.info.splits[name].num_examples == len(keys)
        assert {example["key"].numpy().decode() for example in builder.as_dataset(split=name)} == keys
    paths = [str(root / shard.path) for shard in manifest.split("train").shards]
    assert sum(1 for _ in tf.data.TFRecordDataset(paths)) == len(expected["train"])
    assert_trained_in_order(root)
    assert not compare_datasets(root, root)


def assert_trained_in_order(root: Path) -> None:
    """The trainer gets the records that the order names, by their number in the split."""
    trainer = make_trainer_config(root, global_batch=8, input={"lanes": 4, "run": 3, "shuffle_records": 16})
    source = open_source(trainer)
    records = [
        decode_example(record)["key"][0]
        for shard in read_manifest(root).split("train").shards
        for _, record in read_records((root / shard.path).open("rb"))
    ]
    found = training_records(trainer, source, Share(worker=0, workers=1, batch=8, threads=2), start_step=0)
    rows = found.as_numpy_iterator()
    for step in range(5):
        ordinals = global_batch(source.split("train").shard_records, trainer.order, step=step)
        assert [next(rows)["key"] for _ in ordinals] == [records[ordinal] for ordinal in ordinals]


def test_shards_are_merged_without_their_sources(copy, grown, capsys):
    out, config = copy
    before, examples, rejects = read_manifest(out), examples_of(out), rejects_of(out)
    analysis = {name: each for name, each in files_of(out).items() if name.startswith("transform_fn")}
    larger = config.model_copy(update={"shards": config.shards.model_copy(update={"target_mb": 0.02})})
    after = run_compact(larger)
    count = {split.name: len(split.shards) for split in after.splits}
    assert count["train"] < len(before.split("train").shards) / 2
    assert f"shards: train {len(before.split('train').shards)} -> {count['train']}, test " in capsys.readouterr().out
    assert examples_of(out) == examples
    assert rejects_of(out) == rejects
    assert {name: each for name, each in files_of(out).items() if name.startswith("transform_fn")} == analysis
    assert (after.counts, after.labels, after.made_by) == (before.counts, before.labels, before.made_by)
    assert verify(out) == []
    assert min(indices_of(after, "train")) == before.split("train").next_index
    for split in after.splits:
        keys = [
            decode_example(record)["key"][0].decode() for shard in split.shards for record in records_in(out, shard)
        ]
        assert keys == sorted(keys, key=order_hash)
        assert max(shard.bytes for shard in split.shards) <= 20_000
    last = after.history[-1]
    assert (last.version, last.command, last.added, last.removed, last.changed) == (6, "compact", 0, 0, 0)
    assert last.settings == {"shards.target_mb": ("0.006", "0.02")}
    assert (last.new_shards, last.ended_shards) == (sum(count.values()), sum(len(s.shards) for s in before.splits))
    # Whoever reads the version before can go on.
    assert all((out / shard.path).exists() for split in before.splits for shard in split.shards)
    assert len(compare_datasets(grown[0] / "out", out).examples) == 0
    builder = tfds.builder_from_directory(str(out))
    assert {e["key"].numpy().decode() for e in builder.as_dataset(split="train")} == set(examples["train"])
    assert_trained_in_order(out)


def records_in(root: Path, shard) -> list[bytes]:
    with (root / shard.path).open("rb") as stream:
        return [record for _, record in read_records(stream)]


def test_afterwards_everything_goes_on_as_before(copy, grown, tmp_path, capsys):
    """The inputs are known as before, so that a build finds nothing to do, and an append takes up what is new."""
    out, config = copy
    run_compact(config)
    compacted = read_manifest(out)
    assert run_compact(config).version == compacted.version
    count = sum(len(split.shards) for split in compacted.splits)
    assert f"nothing to do: the {count} shards of {out} cannot be fewer; it is still version 6" in (
        capsys.readouterr().out
    )
    shutil.copytree(grown[0] / "gone", grown[0] / "raw")
    try:
        assert run_build(config).version == 6
        assert run_append(config).version == 6
        assert "nothing to do: no input was added, changed or removed; 3 are rejected: " in capsys.readouterr().out
        add_pictures(grown[0] / "raw" / "cat", "late.png")
        assert run_append(config).history[-1].added == 1
        assert "processed now: 1 inputs, 1 written, 0 rejected" in capsys.readouterr().out
        assert verify(out) == []
        assert not any((out / shard.path).exists() for shard in before_compact(grown))
    finally:
        shutil.rmtree(grown[0] / "raw")


def before_compact(grown) -> list:
    return [shard for split in read_manifest(grown[0] / "out").splits for shard in split.shards]


def test_an_interrupted_compact_goes_on(copy, tmp_path, capsys):
    out, config = copy
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.compact.commit", _stop)
        with pytest.raises(KeyboardInterrupt):
            run_compact(config)
    assert read_manifest(out).version == 5
    assert verify(out) == []
    shutil.copytree(out, tmp_path / "cut")
    run_compact(config)
    assert "going on with an unfinished build: " in capsys.readouterr().err
    shutil.rmtree(tmp_path / "cut" / ".build")
    run_compact(config.model_copy(update={"output": str(tmp_path / "cut")}))
    assert files_of(out) == files_of(tmp_path / "cut")


def _stop(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_what_cannot_be_merged_is_refused(copy, tmp_path):
    out, config = copy
    before = files_of(out)
    other = config.model_copy(update={"name": "pets"})
    with pytest.raises(UsageError, match=r'^name is "pets", but .* was built with "dataset"; use the settings'):
        run_compact(other)
    with pytest.raises(UsageError, match=r"holds no dataset; build it first"):
        run_compact(config.model_copy(update={"output": str(tmp_path / "none")}))
    assert files_of(out) == before
    shard = read_manifest(out).split("train").shards[0]
    content = bytearray((out / shard.path).read_bytes())
    content[30] ^= 1
    (out / shard.path).write_bytes(content)
    with pytest.raises(ShardsmithError) as caught:
        run_compact(config)
    assert f"{out}/{shard.path}: the record of " in str(caught.value)
    assert "`python -m pipelines repair` mends it" in str(caught.value)
    assert read_manifest(out).version == 5
    content[30] ^= 1
    (out / shard.path).write_bytes(content)
    BuildFolder(out).seen_here.rename(tmp_path / "seen")
    with pytest.raises(UsageError, match=r"is not there, so what is known of the inputs cannot go along; copy "):
        run_compact(config)


def test_other_packages_are_no_hindrance(copy, monkeypatch):
    """No record is made, so it does not matter who would make it; who made them stays written down."""
    out, config = copy
    before = read_manifest(out)
    monkeypatch.setattr("pipelines.recipe.version", lambda name: "99.0")
    assert run_compact(config).made_by == before.made_by


def test_rows_of_features_are_merged_too(tmp_path):
    rows, labels = np.random.default_rng(5).random((30, 5), dtype=np.float32), np.arange(30) % 3
    (tmp_path / "raw").mkdir()
    config = make_config(tmp_path / "raw" / "set.npz", tmp_path / "out", shards={"target_mb": 0.002})
    for count in (10, 20, 30):
        np.savez_compressed(tmp_path / "raw" / "set.npz", data=rows[:count], labels=labels[:count])
        _ = run_append(config) if (tmp_path / "out").exists() else run_build(config)
    before = read_manifest(tmp_path / "out")
    examples = examples_of(tmp_path / "out")
    shutil.rmtree(tmp_path / "raw")
    after = run_compact(config.model_copy(update={"shards": config.shards.model_copy(update={"target_mb": 1})}))
    assert [len(split.shards) for split in after.splits] == [1] * len(before.splits)
    assert examples_of(tmp_path / "out") == examples
    assert after.features == before.features
    assert verify(tmp_path / "out") == []


def test_the_command_line(copy, tmp_path, capsys):
    out, _ = copy
    config = tmp_path / "config.yaml"
    config.write_text(
        f"source: {{path: {tmp_path}/nowhere}}\noutput: {out}\nquarantine: true\nmax_rejects: 3\n"
        "splits: {fractions: {train: 0.7, test: 0.3}}\nimage: {resize: 'exact:16', encode: {format: png}}\n"
    )
    assert main(["compact", str(config), "--set", "shards.target_mb=1"]) == 0
    assert "version 6: the same 72 examples; shards: train " in capsys.readouterr().out
    assert verify(out) == []
    assert inspect([str(out)]) == 0
    told = capsys.readouterr().out
    assert "version 6:\n  1    2023-11-14T22:13:20Z  build    60 added, 0 removed, 0 changed: 60 inputs; " in told
    assert (
        "  5    2023-11-14T22:13:20Z  append   0 added, 1 removed, 0 changed: 75 inputs; 1 new shards, 1 ended" in told
    )
    assert "  6    2023-11-14T22:13:20Z  compact  0 added, 0 removed, 0 changed: 75 inputs; 2 new shards, 15 " in told
    assert "       shards.target_mb: 0.006 -> 1.0\n" in told


def inspect(arguments: list[str]) -> int:
    return shards_main(["inspect", *arguments, "--records", "0"])
