"""WebDataset with torch's DataLoader, and Grain, over the same pictures: `python input_peers.py NAME CASE FOLDER ...`.

Stands alone, because these libraries live in an environment of their own (`pip install .[benchmarks]` makes one).
Both decode with OpenCV, the fastest decoder that people use there, in one process per core.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Cut = Callable[[Any], Any]


def serve(take: Callable[[int], object]) -> None:
    """Takes as many batches as each line of stdin says, and answers with the seconds that they took."""
    take(1)
    print("ready", flush=True)
    for line in sys.stdin:
        started = time.monotonic()
        take(int(line))
        print(time.monotonic() - started, flush=True)


def taking(batches: Iterator[Any]) -> Callable[[int], object]:
    """Takes from one iterator that lives as long as the process."""

    def take(count: int) -> None:
        for _ in range(count):
            next(batches)

    return take


def make_cut(case: str, side: int) -> Cut:
    """Encoded bytes to a random part of the picture, `side` pixels high and wide."""
    import cv2
    import numpy as np

    cv2.setNumThreads(1)  # the processes fill the cores already

    def decode(data: bytes) -> Any:
        return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)

    def crop(data: bytes) -> Any:
        pixels = decode(data)
        top, left = (random.randint(0, length - side) for length in pixels.shape[:2])
        return np.ascontiguousarray(pixels[top : top + side, left : left + side])

    def resized(data: bytes) -> Any:
        pixels = decode(data)
        top, left, height, width = draw_window(*pixels.shape[:2])
        return cv2.resize(pixels[top : top + height, left : left + width], (side, side), interpolation=cv2.INTER_LINEAR)

    return {"crop": crop, "resized": resized}[case]


def draw_window(height: int, width: int) -> tuple[int, int, int, int]:
    """A window of 8 to 100 % of the area and a ratio of 3:4 to 4:3."""
    for _ in range(10):
        area, ratio = height * width * random.uniform(0.08, 1), (3 / 4) * (16 / 9) ** random.random()
        rows, columns = round((area / ratio) ** 0.5), round((area * ratio) ** 0.5)
        if 0 < rows <= height and 0 < columns <= width:
            return random.randint(0, height - rows), random.randint(0, width - columns), rows, columns
    return 0, 0, height, width


def webdataset(case: str, folder: Path, *, side: int, batch: int, window: int) -> Iterator[Any]:
    """Batches of tensors from tar files."""
    import torch
    import webdataset as wds

    cut, workers = make_cut(case, side), len(os.sched_getaffinity(0))

    def example(sample: dict[str, Any]) -> tuple[Any, int]:
        return torch.from_numpy(cut(sample["jpg"])), int(sample["cls"])

    tars = sorted(str(path) for path in folder.glob("*.tar"))
    records = wds.WebDataset(tars, shardshuffle=len(tars), nodesplitter=None).repeat().shuffle(window // workers)
    loader = torch.utils.data.DataLoader(records.map(example), batch_size=batch, num_workers=workers)
    return iter(loader)


def grain(case: str, folder: Path, *, side: int, batch: int, window: int) -> Iterator[Any]:
    """Batches of arrays from ArrayRecord files, shuffled as a whole: records can be read in any order."""
    import grain.python as pg

    paths = sorted(str(path) for path in folder.glob("*.array_record")) or write_array_records(folder)
    cut = make_cut(case, side)

    def example(record: bytes) -> tuple[Any, int]:
        return cut(record[1:]), record[0]

    records = pg.MapDataset.source(pg.ArrayRecordDataSource(paths)).shuffle(seed=0).repeat().map(example)
    batches = records.batch(batch).to_iter_dataset(pg.ReadOptions(num_threads=1, prefetch_buffer_size=2))
    return iter(batches.mp_prefetch(pg.MultiprocessingOptions(num_workers=len(os.sched_getaffinity(0)))))


def write_array_records(folder: Path) -> list[str]:
    """The tar files as ArrayRecord files, a byte for the label before each picture."""
    import tarfile

    from array_record.python.array_record_module import ArrayRecordWriter

    paths = []
    for tar in sorted(folder.glob("*.tar")):
        path = tar.with_suffix(".array_record")
        writer = ArrayRecordWriter(str(path), "group_size:1")
        with tarfile.open(tar) as archive:
            contents = {member.name: archive.extractfile(member) for member in archive}
            for name in (name for name in contents if name.endswith(".jpg")):
                label = contents[name.removesuffix(".jpg") + ".cls"]
                writer.write(bytes([int(label.read())]) + contents[name].read())  # type: ignore[union-attr]
        writer.close()
        paths.append(str(path))
    return paths


def main(name: str, case: str, folder: str, side: str, batch: str, window: str) -> None:
    """Serves one contestant."""
    make = {"webdataset": webdataset, "grain": grain}[name]
    serve(taking(make(case, Path(folder), side=int(side), batch=int(batch), window=int(window))))


if __name__ == "__main__":
    main(*sys.argv[1:])
