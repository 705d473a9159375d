"""The same pictures in every form that a source can have: what `benchmarks.sources` builds from.

Encoded pictures are the bytes of small JPEG files; pixels are the same pictures decoded. Each packer writes its form
below a folder and returns the source's settings.
"""

import csv
import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import simplejpeg
from PIL import Image

from shards.example import encode_example
from shards.records import RecordWriter

CLASSES = 10
_BATCH = 100
Settings = dict[str, Any]
Packer = Callable[[Sequence[bytes], int, Path], Settings]  # (distinct pictures, how many to write, folder)


def label_of(number: int) -> str:
    """Pictures are dealt to the classes in turn."""
    return f"class_{number % CLASSES}"


def each(pictures: Sequence[bytes], count: int) -> Iterator[tuple[int, bytes]]:
    """(number, picture) for as many as asked; the distinct ones repeat."""
    return ((number, pictures[number % len(pictures)]) for number in range(count))


def pixels(data: bytes) -> npt.NDArray[np.uint8]:
    """A picture decoded."""
    array: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(data)
    return array


def pack_files(pictures: Sequence[bytes], count: int, folder: Path) -> Settings:
    """Class folders of JPEG files: what the others are compared with."""
    for number, data in each(pictures, count):
        path = folder / "tree" / label_of(number) / f"{number:07d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return {"path": str(folder / "tree")}


def pack_csv(pictures: Sequence[bytes], count: int, folder: Path) -> Settings:
    """A listing beside the files."""
    pack_files(pictures, count, folder)
    with (folder / "list.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", "label"])
        writer.writerows((f"tree/{label_of(n)}/{n:07d}.jpg", label_of(n)) for n in range(count))
    return {"path": str(folder / "list.csv")}


def pack_parquet(pictures: Sequence[bytes], count: int, folder: Path) -> Settings:
    """Bytes inside of Parquet, as Hugging Face stores them."""
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", image), ("label", pa.string())])
    with pq.ParquetWriter(folder / "images.parquet", schema) as writer:
        for first in range(0, count, _BATCH):
            numbers = range(first, min(first + _BATCH, count))
            images = [{"bytes": pictures[n % len(pictures)], "path": f"{n:07d}.jpg"} for n in numbers]
            writer.write_table(pa.table({"image": images, "label": [label_of(n) for n in numbers]}, schema=schema))
    return {"path": str(folder / "images.parquet")}


def pack_tar(pictures: Sequence[bytes], count: int, folder: Path) -> Settings:
    """A tar in WebDataset's layout."""
    with tarfile.open(folder / "images.tar", "w") as archive:
        for number, data in each(pictures, count):
            for suffix, content in (("jpg", data), ("cls", str(number % CLASSES).encode())):
                member = tarfile.TarInfo(f"{number:07d}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return {"path": str(folder / "images.tar")}


def pack_zip(pictures: Sequence[bytes], count: int, folder: Path, *, method: int = zipfile.ZIP_STORED) -> Settings:
    """A zip of class folders."""
    with zipfile.ZipFile(folder / "images.zip", "w", method) as archive:
        for number, data in each(pictures, count):
            archive.writestr(f"{label_of(number)}/{number:07d}.jpg", data)
    return {"path": str(folder / "images.zip")}


def pack_zip_deflated(pictures: Sequence[bytes], count: int, folder: Path) -> Settings:
    """The same, compressed."""
    return pack_zip(pictures, count, folder, method=zipfile.ZIP_DEFLATED)


def pack_tfrecord(pictures: Sequence[bytes], count: int, folder: Path) -> Settings:
    """tf.train.Examples with the names that TensorFlow's own models use."""
    with (folder / "images.tfrecord").open("wb") as stream, (folder / "unused.idx").open("wb") as index:
        writer = RecordWriter(stream, index)
        for number, data in each(pictures, count):
            features = {"image/encoded": data, "image/class/label": [number % CLASSES]}
            writer.write(encode_example(features))
    return {"path": str(folder / "images.tfrecord")}


def pack_python(pictures: Sequence[bytes], count: int, folder: Path) -> Settings:
    """A generator that reads the files."""
    settings = pack_files(pictures, count, folder)
    return {"path": "benchmarks.packing:yield_files", "kind": "python", "arguments": {"folder": settings["path"]}}


def yield_files(folder: str) -> Iterator[dict[str, Any]]:
    """What a user's own generator might do."""
    for path in sorted(Path(folder).rglob("*.jpg")):
        yield {"id": path.name, "image": path.read_bytes(), "label": path.parent.name}


def pack_bitmaps(pictures: Sequence[bytes], count: int, folder: Path) -> Settings:
    """Class folders of BMP files, whose bytes are plain pixels: what arrays are compared with."""
    bitmaps = [_bitmap(pixels(data)) for data in pictures]
    for number, data in each(bitmaps, count):
        path = folder / "tree" / label_of(number) / f"{number:07d}.bmp"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return {"path": str(folder / "tree")}


def _bitmap(array: npt.NDArray[np.uint8]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "BMP")
    return stream.getvalue()


def pack_npy(pictures: Sequence[bytes], count: int, folder: Path) -> Settings:
    """One array of pixels, one of labels."""
    _write_npy(folder / "images.npy", pictures, count)
    np.save(folder / "labels.npy", np.arange(count) % CLASSES)
    return {"path": str(folder / "images.npy"), "labels_path": str(folder / "labels.npy")}


def _write_npy(path: Path, pictures: Sequence[bytes], count: int) -> None:
    decoded = [pixels(data) for data in pictures]
    array = np.lib.format.open_memmap(path, "w+", np.uint8, (count, *decoded[0].shape))
    for number in range(count):
        array[number] = decoded[number % len(decoded)]
    array.flush()


def pack_npz(pictures: Sequence[bytes], count: int, folder: Path, *, method: int = zipfile.ZIP_STORED) -> Settings:
    """Both arrays in one file."""
    pack_npy(pictures, count, folder)
    with zipfile.ZipFile(folder / "images.npz", "w", method, compresslevel=1) as archive:
        archive.write(folder / "images.npy", "data.npy")
        archive.write(folder / "labels.npy", "labels.npy")
    return {"path": str(folder / "images.npz")}


def pack_npz_compressed(pictures: Sequence[bytes], count: int, folder: Path) -> Settings:
    """The same, compressed."""
    return pack_npz(pictures, count, folder, method=zipfile.ZIP_DEFLATED)


def pack_grey_bitmaps(pictures: Sequence[bytes], count: int, folder: Path) -> Settings:
    """Grey BMP files: what IDX is compared with."""
    return pack_bitmaps([_grey(data) for data in pictures], count, folder)


def _grey(data: bytes) -> bytes:
    encoded: bytes = simplejpeg.encode_jpeg(_grey_pixels(data), 95, "GRAY")
    return encoded


def _grey_pixels(data: bytes) -> npt.NDArray[np.uint8]:
    array: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(data, "GRAY")
    return array


def pack_idx(pictures: Sequence[bytes], count: int, folder: Path) -> Settings:
    """MNIST's format: grey pixels and labels, each with a short header."""
    decoded = [_grey_pixels(data)[:, :, 0].tobytes() for data in pictures]
    side = _grey_pixels(pictures[0]).shape[0]
    with (folder / "train-images-idx3-ubyte").open("wb") as stream:
        stream.write(b"\0\0\x08\x03" + np.array([count, side, side], ">u4").tobytes())
        for number in range(count):
            stream.write(decoded[number % len(decoded)])
    labels = (np.arange(count) % CLASSES).astype(np.uint8).tobytes()
    (folder / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + np.array([count], ">u4").tobytes() + labels)
    return {"path": str(folder / "train-images-idx3-ubyte")}


def pack_large_npz(gigabytes: float, side: int, folder: Path) -> Settings:
    """A compressed npz whose pictures take so much when inflated; streamed, for it may be larger than memory."""
    count = large_count(gigabytes, side)
    with zipfile.ZipFile(folder / "large.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("data.npy", "w", force_zip64=True) as stream:
            header = {"descr": "|u1", "fortran_order": False, "shape": (count, side, side, 3)}
            np.lib.format.write_array_header_2_0(stream, header)
            for array in yield_pixels(count, side):
                stream.write(array.tobytes())
        labels = io.BytesIO()
        np.save(labels, np.arange(count) % CLASSES)
        archive.writestr("labels.npy", labels.getvalue())
    return {"path": str(folder / "large.npz")}


def describe_large_generator(gigabytes: float, side: int) -> Settings:
    """The same pictures from a function."""
    arguments = {"count": large_count(gigabytes, side), "side": side}
    return {"path": "benchmarks.packing:yield_large", "kind": "python", "arguments": arguments}


def large_count(gigabytes: float, side: int) -> int:
    """How many pictures of this side fill so many gigabytes."""
    return max(CLASSES, round(gigabytes * 1e9 / (side * side * 3)))


def yield_large(count: int, side: int) -> Iterator[dict[str, Any]]:
    """Pictures with labels, made as they are asked for."""
    for number, array in enumerate(yield_pixels(count, side)):
        yield {"id": f"{number:07d}", "image": array, "label": label_of(number)}


def yield_pixels(count: int, side: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Different smooth pictures, cheap to make."""
    ramp = np.add.outer(np.arange(side), np.arange(side))[:, :, np.newaxis]
    phases = np.array([0, 85, 170])
    for number in range(count):
        yield ((ramp * (number % 7 + 1) + phases + number) % 256).astype(np.uint8)
