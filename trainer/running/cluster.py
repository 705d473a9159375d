"""Who takes part in a run, read from TF_CONFIG before TensorFlow does it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shards.errors import UsageError

EXAMPLE = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'


@dataclass(frozen=True)
class Cluster:
    """This process is worker `index` of `workers`, each at its address; worker 0, the chief, writes the results.

    `chiefs` is 1 when TF_CONFIG has a job of that name for worker 0, and its job `worker` begins with worker 1.
    """

    workers: int = 1
    index: int = 0
    addresses: tuple[str, ...] = ()
    chiefs: int = 0

    @property
    def is_chief(self) -> bool:
        """Whether this process writes checkpoints and metrics."""
        return self.index == 0

    @property
    def others(self) -> list[int]:
        """The indexes of the other workers."""
        return [index for index in range(self.workers) if index != self.index]

    def index_of(self, job: str, task: int) -> int:
        """The worker that TensorFlow calls by its job and task."""
        return task if job == "chief" else self.chiefs + task

    def name(self, index: int) -> str:
        """Reads like `worker 1 (host1:2222)`."""
        return f"worker {index} ({self.addresses[index]})" if self.addresses else f"worker {index}"


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


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[2001:db8::1]:port`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"address {address!r} is not host:port")
    return host.strip("[]"), int(port)


def _parse(value: dict[str, Any]) -> Cluster:
    jobs, task = value["cluster"], value["task"]
    if unknown := set(jobs) - {"chief", "worker"}:
        raise ValueError(f"job {sorted(unknown)[0]!r} has no part in synchronous training")
    chiefs, workers = list(jobs.get("chief", [])), list(jobs.get("worker", []))
    kind, index = task["type"], int(task["index"])
    if kind not in jobs or not 0 <= index < len(jobs[kind]):
        raise ValueError(f"task {kind} {index} is not in the cluster")
    addresses = (*chiefs, *workers)
    for address in addresses:
        split_address(address)
    cluster = Cluster(len(addresses), addresses=addresses, chiefs=len(chiefs))
    return replace(cluster, index=cluster.index_of(kind, index))


def _explain(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
