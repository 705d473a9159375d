"""How much the loss of each class counts: from the config and the manifest's counts. No TensorFlow."""

import difflib
from collections.abc import Mapping

from shards.errors import UsageError
from trainer.config import TrainConfig
from trainer.reading.source import Source


def find_class_weights(config: TrainConfig, source: Source) -> tuple[float, ...] | None:
    """A weight for each label in id order; None if all count alike.

    Balanced weights give every class the same sum over the training split: examples / (classes * examples of the
    class). Where examples have several labels, they are those of having a label: examples without it / with it.
    """
    wanted = config.loss.class_weights
    if wanted == "none":
        return None
    if source.label_kind == "regression":
        raise UsageError(
            f"loss.class_weights needs labels, and {config.dataset} has examples {source.goal}; set it to none"
        )
    if wanted == "balanced":
        entry = source.manifest.split(config.splits.train)
        counts = [entry.labels.get(label, 0) for label in source.labels]
        return _balanced(counts, entry.records, several=source.label_kind == "multi")
    return _named(wanted, source.labels)


def _balanced(counts: list[int], records: int, *, several: bool) -> tuple[float, ...]:
    if several:
        return tuple((records - count) / count if 0 < count < records else 1.0 for count in counts)
    classes = sum(1 for count in counts if count)
    return tuple(records / (classes * count) if count else 1.0 for count in counts)


def _named(weights: Mapping[str, float], labels: tuple[str, ...]) -> tuple[float, ...]:
    for name in weights:
        if name not in labels:
            near = difflib.get_close_matches(name, labels, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the dataset has {', '.join(labels[:20])}"
            raise UsageError(f"loss.class_weights: there is no label {name!r}; {hint}")
    return tuple(weights.get(label, 1.0) for label in labels)
