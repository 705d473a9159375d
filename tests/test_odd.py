"""Real files: 745 odd and broken ones, each with its known outcome, and photographs compared with Pillow's.

They lie beside the project, or where SHARDSMITH_DATA says, and are no part of it: without them these tests are skipped,
except where CI is set. To renew the golden table after a change on purpose: `python tests/test_odd.py`.
"""

import base64
import csv
import io
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageOps

PROJECT = Path(__file__).parent.parent
DATA = Path(os.environ.get("SHARDSMITH_DATA") or PROJECT / ".." / "shared" / "data")
GOLDEN = Path(__file__).parent / "golden" / "odd_outcomes.csv"
GIGABYTE = 1_000_000_000

# Runs in a process of its own, so that the peak of memory is that of the work and not of the tests before it. Its
# arguments: a folder, and the config's image section as JSON. It prints the outcomes and the peak of each process.
PROGRAM = """
import base64, json, sys
from contextlib import closing
from pathlib import Path

import psutil

from pipelines.config import BuildConfig
from pipelines.decoding.decoders import DecoderPool
from pipelines.pictures.process import Made, Task
from pipelines.values import InputRef, Location
from shards.example import decode_example

def main():
    root, image = Path(sys.argv[1]), json.loads(sys.argv[2])
    config = BuildConfig.model_validate({"source": {"path": str(root)}, "output": "out", "image": image})
    paths = sorted(path for path in root.glob("*/**/*") if path.is_file() and "LICENSES" not in path.parts)
    tasks = [Task(InputRef("key", Location(str(path), path.stat().st_size), labels=("x",)), (0,)) for path in paths]
    with closing(DecoderPool(config, 2)) as pool:
        groups = [pool.submit(tasks[start:start + 16]) for start in range(0, len(tasks), 16)]
        outcomes = [outcome for group in groups for outcome in group.result()]
    for path, outcome in zip(paths, outcomes, strict=True):
        made = isinstance(outcome, Made)
        line = {"file": path.relative_to(root).as_posix(), "outcome": "written" if made else outcome.reason}
        if made and len(sys.argv) > 3:
            line["picture"] = base64.b64encode(decode_example(outcome.record)["image"][0]).decode()
        print(json.dumps(line | {"message": "" if made else outcome.message}))
    processes = [psutil.Process(), *psutil.Process().children()]
    print(json.dumps({"peaks": [peak_bytes(process.pid) for process in processes]}))

def peak_bytes(pid):
    # Not ru_maxrss, which a process inherits from whoever started it.
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])

main()
"""


def needed(name: str) -> Path:
    """A folder of the shared data; skips the test where it is absent, or fails it where it must not be."""
    path = DATA / name
    if not path.is_dir():
        problem = f"{path} is absent; set SHARDSMITH_DATA to the folder of the shared data"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(problem)
    return path


def process(folder: Path, *, pictures: bool = False, **image: object) -> tuple[list[dict[str, str]], int]:
    """What becomes of every file below a folder, and the peaks of memory of the worker and its decoders, added up."""
    command = [sys.executable, "-c", PROGRAM, str(folder), json.dumps(image), *(["pictures"] if pictures else [])]
    worker = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=True)
    *lines, last = (json.loads(line) for line in worker.stdout.splitlines())
    assert len(last["peaks"]) == 3  # one worker and two decoders
    return lines, sum(last["peaks"])


def read_golden() -> dict[str, str]:
    with GOLDEN.open(newline="", encoding="utf-8") as stream:
        return {row["file"]: row["outcome"] for row in csv.DictReader(stream)}


def test_every_odd_file_has_its_outcome() -> None:
    lines, peak = process(needed("odd"))
    outcomes = {line["file"]: line["outcome"] for line in lines}
    golden = read_golden()
    assert len(golden) == 745
    assert {file: outcomes.get(file) for file in golden} == golden
    assert outcomes.keys() == golden.keys()
    assert peak < 1.5 * GIGABYTE


def test_the_outcomes_agree_with_the_manifest() -> None:
    with (needed("odd") / "manifest.csv").open(newline="", encoding="utf-8") as stream:
        manifest = {row["file"]: row for row in csv.DictReader(stream)}
    golden = read_golden()
    # No native crash, no hang, no hog among real files; these reasons are for the unexpected.
    assert not {"decoder_crashed", "timed_out", "out_of_memory"} & set(golden.values())
    ours = {"JPEG", "MPO", "PNG", "GIF", "BMP", "WEBP"}
    for file, row in manifest.items():
        if row["pillow_format"] not in ours:
            continue
        if row["pillow_status"] == "ok" and golden[file] != "written":
            # Damage that Pillow overlooks: wrong checksums, missing data, sides out of all proportion.
            assert golden[file] in ("decode_failed", "truncated", "extreme_aspect"), file
    kinds = Counter(golden[file] for file, row in manifest.items() if row["pillow_status"] == "ok")
    assert kinds["written"] > 250


def difference(stored: bytes, path: Path, size: int) -> float:
    """The mean difference, in levels, of a stored picture and what Pillow makes of its file."""
    with Image.open(io.BytesIO(stored)) as image:
        assert image.mode == "RGB"
        ours = np.asarray(image)
    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.has_transparency_data:
            rgba = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
        rgb = upright.convert("RGB")
    scale = size / min(rgb.size)
    width, height = round(rgb.width * scale), round(rgb.height * scale)
    if scale < 1:
        theirs = average_rows(average_rows(np.asarray(rgb), height).transpose(1, 0, 2), width).transpose(1, 0, 2)
    else:
        theirs = np.asarray(rgb.resize((width, height), Image.Resampling.LANCZOS)).astype(float)
    assert ours.shape == theirs.shape, path
    return float(np.abs(ours - theirs).mean())


def average_rows(pixels: npt.NDArray[Any], count: int) -> npt.NDArray[np.float64]:
    """Fewer rows, each the exact average of what it covers; Pillow's own box filter counts pixels only wholly."""
    sums = np.concatenate([np.zeros((1, *pixels.shape[1:])), np.cumsum(pixels, axis=0, dtype=np.float64)])
    edges = np.linspace(0, len(pixels), count + 1)
    whole = np.minimum(edges.astype(int), len(pixels) - 1)
    up_to = sums[whole] + (edges - whole)[:, None, None] * pixels[whole]
    rows: npt.NDArray[np.float64] = np.diff(up_to, axis=0) * count / len(pixels)
    return rows


def test_photographs_are_upright_rgb_and_undistorted() -> None:
    photos, size = needed("photos"), 256
    lines, _ = process(photos, pictures=True, resize=f"keep_ratio:{size}", encode={"format": "png"})
    assert len(lines) == 135
    assert {line["outcome"] for line in lines} == {"written"}
    differences = {
        line["file"]: difference(base64.b64decode(line["picture"]), photos / line["file"], size) for line in lines
    }
    assert {file: value for file, value in differences.items() if value >= 2} == {}


def renew_golden() -> None:
    """Writes the table of outcomes as they are now."""
    lines, _ = process(needed("odd"))
    with GOLDEN.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["file", "outcome"])
        writer.writerows((line["file"], line["outcome"]) for line in lines)


if __name__ == "__main__":
    renew_golden()
