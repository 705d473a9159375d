"""Small pictures made in code, so that the tests carry no binary files."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int, *, size: tuple[int, int] = (40, 30)) -> Image.Image:
    """A smooth coloured gradient that depends on the seed; `size` is (width, height)."""
    width, height = size
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    channels = [(x * (seed % 7 + 1) + y * (seed % 5 + 1) + seed / 10 + phase) % 2 for phase in (0.0, 0.4, 0.9)]
    return Image.fromarray((np.abs(np.stack(channels, axis=-1) - 1) * 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "jpeg", **options: object) -> bytes:
    """The picture as a file's bytes."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def write_class_folders(root: Path, *, classes: tuple[str, ...] = ("cat", "dog"), images: int = 10) -> Path:
    """`root/<class>/<n>.jpg|png`: every third picture is a PNG, one folder deeper."""
    for label, name in enumerate(classes):
        (root / name / "deep").mkdir(parents=True, exist_ok=True)
        for number in range(images):
            seed = label * 1000 + number
            if number % 3:
                (root / name / f"{number:03d}.jpg").write_bytes(encoded(picture(seed)))
            else:
                (root / name / "deep" / f"{number:03d}.png").write_bytes(encoded(picture(seed), "png"))
    return root
