"""A first look at inputs in decoder processes: what is wrong with them costs nothing but their look."""

import hashlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from conftest import make_config, make_ref
from fake_decoder import install, marked
from pictures import encoded, picture

from pipelines.decoding import decoders
from pipelines.decoding.decoders import DecoderPool
from pipelines.decoding.glance import Glance, Seen
from pipelines.pictures.perceptual import FLAT
from pipelines.values import Fault, Location

CONFIG = make_config("raw", "out", image={"max_seconds": 1})


def job(path: Path, data: bytes, *, decode: bool = True) -> Glance:
    path.write_bytes(data)
    return Glance(make_ref(path.name, path=str(path), size=len(data)), decode)


def test_a_picture_shows_its_bytes_and_its_look(tmp_path):
    data = encoded(picture(1))
    seen = job(tmp_path / "a", data).perform(CONFIG)
    assert seen.sha256 == hashlib.sha256(data).digest()
    assert len(seen.look) == 32
    assert job(tmp_path / "a", data, decode=False).perform(CONFIG) == Seen(seen.sha256)


def test_arrays_have_looks(tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(bytes(7) + bytes(range(256)))
    seen = Glance(make_ref("x", location=Location(str(path), 256, 7, form="|u1:16,16")), True).perform(CONFIG)
    assert seen.sha256 == hashlib.sha256(bytes(range(256))).digest()
    assert len(seen.look) == 32


@pytest.mark.parametrize(
    ("data", "look"),
    [(b"", b""), (b"no picture", b""), (encoded(picture(1))[:300], b""), (encoded(picture(1).resize((1, 1))), FLAT)],
    ids=["empty", "unknown", "cut", "flat"],
)
def test_what_is_no_picture_has_bytes_and_no_look(data, look, tmp_path):
    assert job(tmp_path / "a", data).perform(CONFIG) == Seen(hashlib.sha256(data).digest(), look)


def test_what_cannot_be_read_shows_nothing(tmp_path):
    assert Glance(make_ref("a", path=str(tmp_path / "gone"), size=3), True).perform(CONFIG) == Seen()
    changed = job(tmp_path / "a", b"abc")
    (tmp_path / "a").write_bytes(b"abcd")
    assert changed.perform(CONFIG) == Seen()
    faulty = make_ref("a", path="s3://bucket/a", size=3, fault=Fault("unreadable", "told by the worker"))
    assert Glance(faulty, True).perform(CONFIG) == Seen()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Children with a decoder that misbehaves on marked bytes, and that no other test gets."""
    monkeypatch.setenv("PYTHONPATH", install(tmp_path / "fake"))
    monkeypatch.setattr(decoders, "_idle", type(decoders._idle)())
    yield
    while not decoders._idle.empty():
        decoders._idle.get().stop()


def test_pictures_that_kill_their_decoder_have_bytes_and_no_look(fake, tmp_path):
    good = encoded(picture(1))
    files = [good, marked(good, "abort"), marked(good, "hang"), marked(good, "bug"), good]
    jobs = [job(tmp_path / f"{number}", data) for number, data in enumerate(files)]
    with closing(DecoderPool(CONFIG, 1)) as pool:
        seen = pool.submit(jobs).result()
    assert [len(each.look) for each in seen] == [32, 0, 0, 0, 32]
    hashes = [hashlib.sha256(data).digest() for data in files]
    assert [each.sha256 for each in seen] == [*hashes[:3], b"", hashes[4]]  # a bug of ours leaves nothing
