"""Who takes part in a run, read from TF_CONFIG before TensorFlow does it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shards.errors import UsageError

EXAMPLE = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'


@dataclass(frozen=True)
class Cluster:
    """This process is worker `index` of `workers`; worker 0, the chief, writes the results."""

    workers: int = 1
    index: int = 0

    @property
    def is_chief(self) -> bool:
        """Whether this process writes checkpoints and metrics."""
        return self.index == 0


def read_cluster(environment: Mapping[str, str]) -> Cluster:
    """The cluster that TF_CONFIG describes; a lone process when there is none."""
    text = environment.get("TF_CONFIG", "").strip()
    if not text:
        return Cluster()
    try:
        value = json.loads(text)
        return _parse(value) if value else Cluster()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"TF_CONFIG {text!r} cannot be used: {_explain(error)}; it looks like {EXAMPLE}") from error


def tf_config(addresses: list[str], index: int) -> str:
    """The TF_CONFIG of worker `index` among `addresses`."""
    return json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})


def _parse(value: dict[str, Any]) -> Cluster:
    jobs, task = value["cluster"], value["task"]
    if unknown := set(jobs) - {"chief", "worker"}:
        raise ValueError(f"job {sorted(unknown)[0]!r} has no part in synchronous training")
    chiefs, workers = len(jobs.get("chief", [])), len(jobs.get("worker", []))
    kind, index = task["type"], int(task["index"])
    if kind not in jobs or not 0 <= index < len(jobs[kind]):
        raise ValueError(f"task {kind} {index} is not in the cluster")
    return Cluster(workers=chiefs + workers, index=index if kind == "chief" else chiefs + index)


def _explain(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
