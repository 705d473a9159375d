"""Object stores as folders of files: gs:// and s3://, with the clients, options and credentials of Beam's file systems.

The clients are used without Beam's FileSystem interface above them, which makes a new client for every call (0.15 s of
CPU for S3), asks twice for every read, lists a whole bucket to see its folders, holds the listing in memory, and
retries for hours what cannot succeed. Every failure is an OSError here, whatever the store calls it.
"""

import errno
import importlib
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol

from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from shards.errors import UsageError

_VARIABLE = "SHARDSMITH_STORE_OPTIONS"
_GOOGLE_OPTIONS = ("project", "impersonate_service_account", "gcp_oauth_scopes")
_PROBE_SECONDS = 10.0
_BEYOND_THE_END = 416


class Page(NamedTuple):
    """A part of a listing: names with sizes, and the folders beside them if they were asked for."""

    files: list[tuple[str, int]]
    folders: list[str]


class Store(Protocol):
    """What we ask of an object store; names are whole, `remedy` helps where credentials are missing."""

    remedy: ClassVar[str]

    def read(self, bucket: str, name: str, start: int, end: int) -> bytes:
        """The bytes of an object from `start` up to `end` or its own end."""

    def size(self, bucket: str, name: str) -> int | None:
        """The size of an object; None if there is none of this name."""

    def pages(self, bucket: str, prefix: str, *, deep: bool) -> Iterator[Page]:
        """The objects whose names start with `prefix`; if not `deep`, those below it as folders."""

    def probe(self, bucket: str) -> None:
        """Fails, within seconds, if the bucket cannot be listed."""


@dataclass(frozen=True)
class S3Store:
    """S3 and what speaks like it."""

    remedy: ClassVar[str] = (
        "set AWS_PROFILE or AWS_ACCESS_KEY_ID, or give --s3_access_key_id and --s3_secret_access_key"
    )

    client: Any  # boto3's

    def read(self, bucket: str, name: str, start: int, end: int) -> bytes:
        """The bytes of an object from `start` up to `end` or its own end."""
        return self.client.get_object(Bucket=bucket, Key=name, Range=f"bytes={start}-{end - 1}")["Body"].read()

    def size(self, bucket: str, name: str) -> int | None:
        """The size of an object; None if there is none of this name."""
        try:
            return self.client.head_object(Bucket=bucket, Key=name)["ContentLength"]
        except Exception as error:
            if _status(error) == 404:
                return None
            raise

    def pages(self, bucket: str, prefix: str, *, deep: bool) -> Iterator[Page]:
        """The objects whose names start with `prefix`; if not `deep`, those below it as folders."""
        listing = self.client.get_paginator("list_objects_v2")
        for page in listing.paginate(Bucket=bucket, Prefix=prefix, Delimiter="" if deep else "/"):
            files = [(each["Key"], each["Size"]) for each in page.get("Contents", ())]
            yield Page(files, [each["Prefix"] for each in page.get("CommonPrefixes", ())])

    def probe(self, bucket: str) -> None:
        """Fails, within seconds, if the bucket cannot be listed."""
        self.client.list_objects_v2(Bucket=bucket, MaxKeys=1)


@dataclass(frozen=True)
class GcsStore:
    """Google Cloud Storage."""

    remedy: ClassVar[str] = "set GOOGLE_APPLICATION_CREDENTIALS, or run: gcloud auth application-default login"

    client: Any

    def read(self, bucket: str, name: str, start: int, end: int) -> bytes:
        """The bytes of an object from `start` up to `end` or its own end."""
        blob = self.client.bucket(bucket).blob(name)
        return blob.download_as_bytes(start=start, end=end - 1, raw_download=True)  # raw: never decompressed

    def size(self, bucket: str, name: str) -> int | None:
        """The size of an object; None if there is none of this name."""
        found = self.client.bucket(bucket).get_blob(name)
        return None if found is None else found.size

    def pages(self, bucket: str, prefix: str, *, deep: bool) -> Iterator[Page]:
        """The objects whose names start with `prefix`; if not `deep`, those below it as folders."""
        for page in self.client.list_blobs(bucket, prefix=prefix, delimiter=None if deep else "/").pages:
            yield Page([(each.name, each.size) for each in page], sorted(page.prefixes))

    def probe(self, bucket: str) -> None:
        """Fails, within seconds, if the bucket cannot be listed."""
        from google.cloud.storage.retry import DEFAULT_RETRY

        retry = DEFAULT_RETRY.with_timeout(_PROBE_SECONDS)
        next(iter(self.client.list_blobs(bucket, max_results=1, retry=retry, timeout=_PROBE_SECONDS)), None)


def use_options(options: PipelineOptions) -> None:
    """Makes Beam's options known to this process before a pipeline does, and to the workers that it starts.

    Beam itself tells the workers of a cluster, but not those of its local runner.
    """
    os.environ[_VARIABLE] = _store_options(options)


def _store_options(options: PipelineOptions | None) -> str:
    """The options that concern stores, as text."""
    given = options.get_all_options(drop_default=True) if options else {}
    ours = {name: value for name, value in given.items() if name.startswith("s3_") or name in _GOOGLE_OPTIONS}
    return json.dumps(ours, sort_keys=True)


def store_of(path: str) -> Store:
    """The store that a path's scheme names, as Beam's options describe it."""
    scheme = path.partition("://")[0]
    if scheme not in _STORES:
        raise UsageError(f"{path}: {scheme}:// is not supported; use gs://, s3:// or a mounted folder")
    return _STORES[scheme](os.environ.get(_VARIABLE) or _store_options(FileSystems._pipeline_options))


@lru_cache(maxsize=4)
def _s3_store(options: str) -> S3Store:
    _need("boto3", scheme="s3", package="boto3", extra="s3")
    from apache_beam.io.aws.clients.s3.boto3_client import Client

    return S3Store(Client(options=json.loads(options)).client)


@lru_cache(maxsize=4)
def _gcs_store(options: str) -> GcsStore:
    _need("google.cloud.storage", scheme="gs", package="google-cloud-storage", extra="gcs")
    from apache_beam.io.gcp.gcsio import create_storage_client

    known = PipelineOptions.from_dictionary(json.loads(options))
    return GcsStore(create_storage_client(known, use_credentials=_has_google_credentials()))


_STORES: dict[str, Callable[[str], Store]] = {"s3": _s3_store, "gs": _gcs_store}


def _has_google_credentials() -> bool:
    """Asked before Beam does, which would wait half a minute for credentials that are not there."""
    import google.auth

    if os.environ.get("STORAGE_EMULATOR_HOST"):
        return False
    try:
        google.auth.default()
    except google.auth.exceptions.DefaultCredentialsError:
        return False
    return True


def _need(module: str, *, scheme: str, package: str, extra: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"{scheme}:// needs {package}: pip install 'shardsmith[{extra}]'") from error


@contextmanager
def told(path: str) -> Iterator[None]:
    """Tells failures of a store's client as OSErrors."""
    try:
        yield
    except (OSError, UsageError) as error:
        if isinstance(error, UsageError) or error.errno:
            raise
        raise OSError(errno.EIO, _first_line(error)) from error
    except Exception as error:  # each client raises errors of its own
        number = {404: errno.ENOENT, 403: errno.EACCES, 401: errno.EACCES}.get(_status(error), errno.EIO)
        raise OSError(number, "No such file or directory" if number == errno.ENOENT else _first_line(error)) from error


def _status(error: Exception) -> int:
    """The HTTP status in a client's error, or 0."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return int(getattr(error, "code", None) or 0)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def split_path(path: str) -> tuple[str, str]:
    """The bucket and the name in it."""
    bucket, _, name = path.partition("://")[2].partition("/")
    return bucket, name


def list_objects(path: str, *, deep: bool) -> Iterator[Page]:
    """What lies below a folder, in full paths; placeholders of folders are left out."""
    bucket, name = split_path(path.rstrip("/"))
    start, prefix = f"{path.partition('://')[0]}://{bucket}/", f"{name}/" if name else ""
    with told(path):
        for page in store_of(path).pages(bucket, prefix, deep=deep):
            files = [(start + each, size) for each, size in page.files if not each.endswith("/")]
            yield Page(files, [start + folder for folder in page.folders])


def object_size(path: str) -> int | None:
    """The size of an object; None if there is none at this path."""
    bucket, name = split_path(path)
    with told(path):
        return store_of(path).size(bucket, name) if name else None


class ObjectStream(io.RawIOBase):
    """An object's bytes; every read is one request for exactly the bytes asked for."""

    def __init__(self, path: str) -> None:
        """Nothing is asked for yet, so an object that is not there shows at the first read."""
        self._path, self._store, self._place = path, store_of(path), split_path(path)
        self._position, self._end = 0, -1  # the end is known once a read met it

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Where the next read starts."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves to another place."""
        if whence == os.SEEK_END and self._end < 0:
            self._end = object_size(self._path) or 0
        self._position = max(0, offset + (0, self._position, self._end)[whence])
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer, but for the end of the object."""
        data = self._request(len(buffer)) if len(buffer) and self._position != self._end else b""
        buffer[: len(data)] = data
        self._position += len(data)
        if 0 < len(data) < len(buffer):
            self._end = self._position
        return len(data)

    def _request(self, size: int) -> bytes:
        with told(self._path):
            try:
                return self._store.read(*self._place, self._position, self._position + size)
            except Exception as error:
                if _status(error) == _BEYOND_THE_END:
                    return b""
                raise
