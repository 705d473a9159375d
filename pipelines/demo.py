"""Writes the demo's raw images.

`python -m pipelines.demo DIR`. Real pictures that a wheel carries, and some broken on purpose. scikit-learn's 1,797
handwritten digits (8x8, UCI) become PNG and JPEG files in ten class folders.
"""

import sys
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from shards.errors import run

_SIDE = 32


def write_demo(root: Path) -> int:
    """Writes the class folders and returns how many files they hold."""
    from sklearn.datasets import load_digits  # here, because only the demo needs scikit-learn

    digits = load_digits()
    for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        folder = root / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        # Every third picture is a JPEG, as in real folders, where formats are mixed.
        suffix = "jpg" if number % 3 == 0 else "png"
        enlarge(image).save(folder / f"digit_{number:04d}.{suffix}", quality=95)  # PNG has no quality and ignores it
    return len(digits.images) + write_broken(root)


def enlarge(image: npt.NDArray[np.float64]) -> Image.Image:
    """A digit of 0..16 grey values as a 32x32 picture."""
    grey = Image.fromarray((image * 255 / 16).round().astype(np.uint8))
    return grey.resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)


def write_broken(root: Path) -> int:
    """Adds files such as every real heap has: empty, cut off, not an image, damaged."""
    whole = (root / "3" / "digit_0003.jpg").read_bytes()
    png = (root / "1" / "digit_0001.png").read_bytes()
    broken = {
        "0/empty.png": b"",
        "1/cut_off.png": png[: len(png) // 2],
        "3/cut_off.jpg": whole[: len(whole) // 2],
        "5/page_instead_of_image.jpg": b"<html><body>404 Not Found</body></html>",
        "8/damaged.png": png[:40] + bytes(20) + png[60:],
    }
    for name, data in broken.items():
        (root / name).write_bytes(data)
    return len(broken)


def main() -> int:
    """Writes the demo below the folder given on the command line."""
    parser = ArgumentParser(prog="python -m pipelines.demo", description="Write the raw images of the demo.")
    parser.add_argument("folder", metavar="DIR", type=Path, help="where the class folders go")
    root = parser.parse_args().folder
    print(f"wrote {write_demo(root):,} files, 5 of them broken on purpose, to {root}")
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
