"""A decoder that misbehaves on marked bytes, put before the real one in decoder processes from outside.

The folder that `install` writes goes on PYTHONPATH: Python itself loads `sitecustomize` in every process that starts.
"""

from pathlib import Path

PROJECT = Path(__file__).parent.parent
PROGRAM = """
import sys

if "pipelines.decoding.decoder_process" in sys.orig_argv:
    import itertools, os, signal
    from pathlib import Path
    import pipelines.pictures.images as images

    def crash_once(name):
        flag = Path(__file__).parent / name
        if not flag.exists():
            flag.touch()
            os.abort()

    def open_source(data, config, real=images.open_source):
        _, _, mark = data.rpartition(b"MARK:")
        match mark.decode("ascii", "replace").split():
            case ["abort"]:
                os.abort()
            case ["hang"]:
                sum(itertools.repeat(0))  # never leaves C, so that no handler in Python would ever run
            case ["hog"]:
                hoard = [bytes(1_000_000) for _ in range(100_000)]
            case ["killed"]:
                os.kill(os.getpid(), signal.SIGKILL)
            case ["bug"]:
                raise KeyError("a bug")
            case ["once", name]:
                crash_once(name)
        return real(data, config)

    images.open_source = open_source
"""


def install(folder: Path, program: str = PROGRAM) -> str:
    """Writes the fake and returns the PYTHONPATH that makes children use it."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(program)
    return f"{folder}:{PROJECT}"


def marked(data: bytes, mark: str) -> bytes:
    """A JPEG that the real decoder reads as before, and the fake one does not."""
    return data + b"MARK:" + mark.encode()
