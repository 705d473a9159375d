"""The files that `evaluate` leaves beside the run: numbers, pictures and the worst mistakes."""

import json
from pathlib import Path

from shards.errors import ShardsmithError
from shards.files import write_atomically
from trainer.judging.mistakes import mistake_lines, read_samples, render_mistakes
from trainer.judging.results import Evaluation
from trainer.reading.source import Split


def write_evaluation(output: Path, result: Evaluation, split: Split, *, figures: dict[str, bytes]) -> list[Path]:
    """Writes evaluation-SPLIT.json and, in a folder of that name, figures and mistakes; returns where they are."""
    folder = output / f"evaluation-{result.split}"
    samples = read_samples(split, [mistake.ordinal for mistake in result.mistakes])
    contents = {output / f"{folder.name}.json": json.dumps(result.as_dict(), indent=1, ensure_ascii=False) + "\n"}
    contents |= {folder / "mistakes.jsonl": mistake_lines(result.mistakes, samples)}
    contents |= {folder / "mistakes.html": render_mistakes(result, samples)}
    files = {path: text.encode() for path, text in contents.items()}
    files |= {folder / f"{name}.png": picture for name, picture in figures.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in files.items():
            write_atomically(path, content)
    except OSError as error:
        raise ShardsmithError(f"output {output} cannot be written: {error.strerror}") from error
    return list(files)
