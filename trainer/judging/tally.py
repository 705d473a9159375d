"""What was counted over some batches of a split, in NumPy; merged tallies do not depend on how batches were dealt out.

Whole numbers are added, so their order does not matter. Sums of fractions depend on the order, so those of each batch
are kept under its number and added up only at the end. Of single examples only the worst are kept.

What this takes grows slowly: for each batch 128 bytes where examples have one class, 8 where they have several labels,
and 16 + 32 for each number of a regression; for each different confusion or score 16 bytes (at most `judges.SCORES`).
"""

import heapq
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.judging.multiset import NONE, Ints, Multiset, merge_multisets

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Mistake:
    """An example that the model got wrong: its loss, its ordinal in the split, and what was true and what was said."""

    loss: float
    ordinal: int
    about: dict[str, Any]

    @property
    def rank(self) -> tuple[float, int]:
        """The worst first; a loss that is not a number is the worst."""
        return (-math.inf if math.isnan(self.loss) else -self.loss), self.ordinal


@dataclass(frozen=True)
class Tally:
    """`counts` by what they count, `sums` by the number of their batch, `codes` of events, and the worst mistakes."""

    counts: Mapping[str, Ints]
    sums: Mapping[int, Floats]
    codes: Multiset = NONE
    worst: tuple[Mistake, ...] = ()

    @property
    def total(self) -> Floats:
        """The sums of all batches, added in the order of the batches."""
        return np.add.accumulate(self.by_batch)[-1]

    @property
    def by_batch(self) -> Floats:
        """A row of sums per batch, in the order of the batches."""
        return np.stack([self.sums[number] for number in sorted(self.sums)])


NOTHING = Tally({}, {})


def merge(tallies: Sequence[Tally], *, worst: int, codes: int | None = None) -> Tally:
    """The tally of all batches together, with the `worst` mistakes and at most so many different `codes`."""
    counts: dict[str, Ints] = {}
    for tally in tallies:
        counts |= {name: counts.get(name, 0) + values for name, values in tally.counts.items()}
    return Tally(
        counts=counts,
        sums={number: row for tally in tallies for number, row in tally.sums.items()},
        codes=merge_multisets([tally.codes for tally in tallies], limit=codes),
        worst=worst_of((mistake for tally in tallies for mistake in tally.worst), worst),
    )


def worst_of(mistakes: Iterable[Mistake], count: int) -> tuple[Mistake, ...]:
    """The `count` worst of the mistakes, the worst first."""
    return tuple(heapq.nsmallest(count, mistakes, key=lambda mistake: mistake.rank))


def pack(tally: Tally) -> bytes:
    """A tally as bytes for another worker."""
    numbers = sorted(tally.sums)
    mistakes = json.dumps([asdict(mistake) for mistake in tally.worst]).encode()
    stream = io.BytesIO()
    arrays: dict[str, Any] = {f"count_{name}": values for name, values in tally.counts.items()} | {
        "batches": np.array(numbers, np.int64),
        "sums": tally.by_batch if numbers else np.empty((0, 0)),
        "codes": tally.codes.codes,
        "times": tally.codes.counts,
        "dropped": np.array(tally.codes.dropped),
        "worst": np.frombuffer(mistakes, np.uint8),
    }
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def unpack(data: bytes) -> Tally:
    """The tally that was packed."""
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        return Tally(
            counts={name.removeprefix("count_"): stored[name] for name in stored if name.startswith("count_")},
            sums=dict(zip(stored["batches"].tolist(), stored["sums"], strict=True)),
            codes=Multiset(stored["codes"], stored["times"], int(stored["dropped"])),
            worst=tuple(Mistake(**mistake) for mistake in json.loads(stored["worst"].tobytes())),
        )
