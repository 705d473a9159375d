"""Sources in object stores, against real servers that imitate S3 and Google Cloud Storage."""

import gzip
import io
import os
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from conftest import make_config, run_build
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage as google_storage
from pictures import write_class_folders

from pipelines.config import BuildConfig
from pipelines.decoding.decoders import fetch
from pipelines.inputs import objects
from pipelines.inputs.storage import (
    exists,
    file_stat,
    find_files,
    is_folder,
    open_binary,
    open_text,
    subfolders,
    walk_files,
)
from pipelines.pictures.process import Task
from pipelines.reasons import Reason
from pipelines.sources import check_sources, list_partition, partition_sources
from pipelines.values import InputRef
from shards.errors import UsageError
from shards.manifest import Manifest
from shards.settings import validate

BUCKET = "pictures"
STORES = ("s3", "gs")


@dataclass(frozen=True)
class Stores:
    """Two running servers with the same files in them, as below a local folder."""

    local: Path
    options: list[str]
    put: dict[str, Callable[[str, bytes], Any]]
    delete: dict[str, Callable[[str], Any]]


def s3_options(endpoint: str) -> list[str]:
    names = ("endpoint_url", "access_key_id", "secret_access_key", "region_name")
    return [f"--s3_{name}={value}" for name, value in zip(names, (endpoint, "x", "y", "us-east-1"), strict=True)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(*command: str, port: int) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, f"{command[0]} ended"
                assert time.monotonic() < deadline, f"{command[0]} did not start"
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def write_files(root: Path) -> Path:
    """Class folders with a broken picture and odd names, listings of some of them, arrays and an archive."""
    write_class_folders(root / "photos", images=6)
    (root / "photos" / "cat" / "broken.jpg").write_bytes(b"no picture")
    (root / "photos" / "cat" / "empty.png").write_bytes(b"")
    for odd in ("with space.jpg", "ünï [1]+%20?#.jpg"):
        (root / "photos" / "dog" / odd).write_bytes((root / "photos" / "dog" / "001.jpg").read_bytes())
    (root / "photos" / ".hidden").mkdir()
    (root / "photos" / ".hidden" / "x.jpg").write_bytes(b"x")
    lists = root / "lists"
    (lists / "near").mkdir(parents=True)
    (lists / "near" / "x.jpg").write_bytes((root / "photos" / "dog" / "002.jpg").read_bytes())
    (lists / "a.csv").write_text("path,label\nnear/x.jpg,cat\nnear/../near/gone.jpg,cat\n")
    (lists / "b.csv").write_text("path,label,id\n../photos/dog/001.jpg,dog,second\n")
    for number in range(2):
        pixels = np.arange(3 * 8 * 8 * 3, dtype=np.uint8).reshape(3, 8, 8, 3) + np.uint8(number)
        np.savez(root / f"part_{number}.npz", data=pixels, labels=np.arange(3))
    with tarfile.open(root / "a.tar", "w") as archive:
        for file in sorted((root / "photos" / "dog").glob("00*.jpg")):
            archive.add(file, f"{file.stem}.jpg")
            (root / "lists" / "label").write_text("dog")
            archive.add(root / "lists" / "label", f"{file.stem}.cls")
    (root / "lists" / "label").unlink()
    return root


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    local = write_files(tmp_path_factory.mktemp("remote"))
    ports = free_port(), free_port()
    with ExitStack() as stack:
        s3 = stack.enter_context(server("moto.server", "-H", "127.0.0.1", "-p", str(ports[0]), port=ports[0]))
        gcs = stack.enter_context(
            server("gcp_storage_emulator", "start", "--host=127.0.0.1", f"--port={ports[1]}", "--in-memory",
                   f"--default-bucket={BUCKET}", port=ports[1])
        )  # fmt: skip
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("STORAGE_EMULATOR_HOST", gcs)
        amazon = boto3.client(
            "s3", endpoint_url=s3, aws_access_key_id="x", aws_secret_access_key="y", region_name="us-east-1"
        )
        amazon.create_bucket(Bucket=BUCKET)
        google = google_storage.Client(project="p", credentials=AnonymousCredentials()).bucket(BUCKET)
        found = Stores(
            local,
            s3_options(s3),
            put={
                "s3": lambda name, data: amazon.put_object(Bucket=BUCKET, Key=name, Body=data),
                "gs": lambda name, data: google.blob(name).upload_from_string(data),
            },
            delete={
                "s3": lambda name: amazon.delete_object(Bucket=BUCKET, Key=name),
                "gs": lambda name: google.blob(name).delete(),
            },
        )  # fmt: skip
        for file in sorted(path for path in local.rglob("*") if path.is_file()):
            for put in found.put.values():
                put(file.relative_to(local).as_posix(), file.read_bytes())
        yield found


@pytest.fixture(autouse=True)
def options(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(objects._VARIABLE, raising=False)  # so that it is set back afterwards
    objects.use_options(PipelineOptions(stores.options))


def all_kinds(base: str, output: Path) -> BuildConfig:
    """Class folders, globs of listings and of arrays, and an archive, in one build."""
    paths = {"folders": "photos", "listings": "lists/*.csv", "arrays": "part_*.npz", "archive": "a.tar"}
    values = {
        "sources": [{"path": f"{base}/{path}", "name": name} for name, path in paths.items()],
        "output": str(output),
        "image": {"resize": "exact:16", "encode": {"format": "png"}},
        "splits": {"fractions": {"train": 0.6, "validation": 0.4}},
        "shards": {"count": 2},
        "max_reject_fraction": 0.5,
    }
    return validate(BuildConfig, values, place="the test")


def digests(manifest: Manifest) -> list[tuple[str, str]]:
    return [(split.name, shard.sha256) for split in manifest.splits for shard in split.shards]


@pytest.fixture(scope="module")
def local_build(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return run_build(all_kinds(str(stores.local), tmp_path_factory.mktemp("built") / "local"))


@pytest.mark.parametrize(
    ("scheme", "beam"),
    [("s3", []), ("gs", []), ("s3", ["--direct_running_mode=multi_processing", "--direct_num_workers=2"])],
    ids=["s3", "gs", "s3 in worker processes"],
)
def test_a_remote_build_makes_the_bytes_of_a_local_one(stores, local_build, tmp_path, scheme, beam):
    made = run_build(all_kinds(f"{scheme}://{BUCKET}", tmp_path / "remote"), *stores.options, *beam)
    assert digests(made) == digests(local_build)
    assert made.counts == local_build.counts
    assert made.counts.rejected == {"empty_file": 1, "unknown_format": 1, "unreadable": 1}
    assert (made.counts.written, made.counts.duplicates) == (25, 1)  # one file is in a folder and in a listing


def listed(config: BuildConfig) -> dict[str, InputRef]:
    return {ref.key: ref for part in partition_sources(config) for ref in list_partition(part, config)}


@pytest.mark.parametrize("scheme", STORES)
def test_keys_labels_and_sizes_are_those_of_local_files(stores, scheme):
    here, there = (listed(make_config(f"{base}/photos", "o")) for base in (stores.local, f"{scheme}://{BUCKET}"))
    assert sorted(here) == sorted(there)
    for key, ref in here.items():
        far = there[key]
        assert (far.labels, far.location.size, far.fault) == (ref.labels, ref.location.size, ref.fault)
        assert far.location.path == f"{scheme}://{BUCKET}/photos/{key}"


@pytest.mark.parametrize("scheme", STORES)
def test_a_glob_filters_remote_folders(stores, scheme):
    keys = listed(make_config(f"{scheme}://{BUCKET}/photos/*/deep/*.png", "o"))
    assert sorted(keys) == sorted(listed(make_config(f"{stores.local}/photos/*/deep/*.png", "o"))) == [
        "cat/deep/000.png", "cat/deep/003.png", "dog/deep/000.png", "dog/deep/003.png",
    ]  # fmt: skip


@pytest.mark.parametrize("scheme", STORES)
def test_storage_sees_files_and_folders(scheme):
    base = f"{scheme}://{BUCKET}"
    assert (exists(f"{base}/photos"), is_folder(f"{base}/photos"), is_folder(base)) == (True, True, True)
    assert (exists(f"{base}/lists/a.csv"), is_folder(f"{base}/lists/a.csv")) == (True, False)
    assert (exists(f"{base}/phot"), is_folder(f"{base}/phot")) == (False, False)
    assert subfolders(base) == ["lists", "photos"]
    assert subfolders(f"{base}/photos/") == ["cat", "dog"]
    assert sorted(file.path for file in walk_files(f"{base}/lists", deep=False)) == [
        f"{base}/lists/{name}" for name in ("a.csv", "b.csv")
    ]
    assert [file.path for file in find_files(f"{base}/*/?.csv")] == [f"{base}/lists/a.csv", f"{base}/lists/b.csv"]
    assert find_files(f"{base}/nowhere/*.csv") == []
    assert file_stat(f"{base}/lists/none").problem == "No such file or directory"


@pytest.mark.parametrize("scheme", STORES)
def test_a_stream_reads_seeks_and_ends_like_a_file(stores, scheme):
    data = bytes(range(256)) * 40
    stores.put[scheme]("streams/data.bin", data)
    for buffered in (True, False):
        with open_binary(f"{scheme}://{BUCKET}/streams/data.bin", buffered=buffered) as stream:
            assert stream.read(10) == data[:10]
            assert (stream.seek(1000), stream.read(5), stream.tell()) == (1000, data[1000:1005], 1005)
            assert (stream.seek(-3, io.SEEK_END), stream.read(99), stream.read(99)) == (len(data) - 3, data[-3:], b"")
            assert (stream.seek(len(data) + 7), stream.read(1)) == (len(data) + 7, b"")
            assert (stream.seek(0), stream.read()) == (0, data)
    with open_binary(f"{scheme}://{BUCKET}/photos/cat/empty.png") as stream:
        assert stream.read() == b""
    with open_text(f"{scheme}://{BUCKET}/lists/b.csv") as text:
        assert list(text) == ["path,label,id\n", "../photos/dog/001.jpg,dog,second\n"]
    stores.put[scheme]("streams/list.csv.gz", gzip.compress(b"path,label\n"))
    with open_text(f"{scheme}://{BUCKET}/streams/list.csv.gz") as text:
        assert text.read() == "path,label\n"
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        open_binary(f"{scheme}://{BUCKET}/none").read()


@pytest.mark.parametrize("scheme", STORES)
def test_an_object_that_vanishes_or_grows_after_the_listing_is_a_reject(stores, scheme):
    for name in ("gone", "grown"):
        stores.put[scheme](f"flux/cat/{name}.jpg", b"12345")
    config = make_config(f"{scheme}://{BUCKET}/flux", "o")
    refs = listed(config)
    stores.delete[scheme]("flux/cat/gone.jpg")
    stores.put[scheme]("flux/cat/grown.jpg", b"123456")
    faults = {key: fetch(Task(ref, ()), config).ref.fault for key, ref in refs.items()}
    assert faults == {
        "cat/gone.jpg": (Reason.UNREADABLE, "No such file or directory"),
        "cat/grown.jpg": (Reason.CHANGED, "the file has not the 5 bytes that were listed; build again"),
    }


def refused(path: str) -> str:
    with pytest.raises(UsageError) as caught:
        check_sources(make_config(path, "o"))
    return str(caught.value)


@pytest.mark.parametrize("scheme", STORES)
def test_what_is_not_there_is_refused(scheme):
    base = f"{scheme}://{BUCKET}"
    assert refused(f"{scheme}://no-such-bucket/x") == (
        f"source.path {scheme}://no-such-bucket/x: there is no bucket 'no-such-bucket'"
    )
    assert refused(f"{base}/nothing") == f"source.path {base}/nothing does not exist"
    assert refused(f"{base}/nothing/*.csv") == f"source.path {base}/nothing/*.csv matches no file"
    assert refused(f"{scheme}://pic*/x") == (
        f"source.path {scheme}://pic*/x: write the bucket's name, without wildcards, after ://"
    )
    assert refused(f"{base}/lists/near") == (
        f"source.path {base}/lists/near has no class folders; expected {base}/lists/near/<class>/<image>, "
        "or a listing; for a flat folder set source.label_pattern, or labels.kind: none"
    )


def test_a_server_that_does_not_answer_is_refused(monkeypatch):
    nobody = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setattr(objects, "_PROBE_SECONDS", 1.0)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", nobody)
    objects.use_options(PipelineOptions(s3_options(nobody)))
    assert refused("s3://bucket/x").startswith(
        f'source.path s3://bucket/x cannot be reached: Could not connect to the endpoint URL: "{nobody}/bucket'
    )
    assert refused("gs://bucket/x").startswith("source.path gs://bucket/x cannot be reached: Timeout of 1.0s exceeded")


def test_missing_credentials_come_with_a_remedy(stores, monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    objects.use_options(PipelineOptions([stores.options[0], "--s3_region_name=us-east-1"]))
    assert refused(f"s3://{BUCKET}/photos") == (
        f"source.path s3://{BUCKET}/photos cannot be reached: Unable to locate credentials; "
        "set AWS_PROFILE or AWS_ACCESS_KEY_ID, or give --s3_access_key_id and --s3_secret_access_key"
    )


@pytest.mark.parametrize(
    ("scheme", "module", "remedy"),
    [
        ("gs", "google.cloud.storage", "gs:// needs google-cloud-storage: pip install 'shardsmith[gcs]'"),
        ("s3", "boto3", "s3:// needs boto3: pip install 'shardsmith[s3]'"),
    ],
)
def test_a_missing_package_is_named(monkeypatch, scheme, module, remedy):
    monkeypatch.setitem(sys.modules, module, None)
    objects.use_options(PipelineOptions([]))
    assert refused(f"{scheme}://{BUCKET}/photos") == remedy


def test_other_schemes_and_remote_outputs_are_refused(tmp_path):
    assert refused("hdfs://host/x") == "hdfs://host/x: hdfs:// is not supported; use gs://, s3:// or a mounted folder"
    with pytest.raises(UsageError, match="output s3://bucket/o: remote outputs are not supported yet"):
        run_build(make_config(write_class_folders(tmp_path), "s3://bucket/o"))


def test_the_command_line_tells_it_in_one_line(stores):
    command = ["plan", "--source", f"s3://{BUCKET}/photo", *stores.options]
    done = subprocess.run(
        [sys.executable, "-m", "pipelines", *command], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: source.path s3://{BUCKET}/photo does not exist\n"
