"""The tf.distribute strategy for the config, the machine and the cluster."""

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shards.errors import UsageError
from trainer.config import StrategyName, TrainConfig
from trainer.learning.precision import check_precision
from trainer.reading.dataset import Share
from trainer.running.cluster import Cluster

Dataset = Any


@dataclass(frozen=True)
class Workplace:
    """Where the computation happens: the strategy, this process's place in the cluster and its threads.

    `leaving` is a variable that becomes 1 when this process is asked to end (`running.signals`): steps read it, so that
    all workers learn of it in the same step and save together.
    """

    strategy: Any
    cluster: Cluster
    threads: int
    leaving: Any

    def distribute(self, make: Callable[[Share], Dataset], *, global_batch: int) -> Any:
        """An iterator over the distributed dataset that each worker makes for its own share."""

        def for_worker(context: Any) -> Dataset:
            return make(
                Share(
                    worker=context.input_pipeline_id,
                    workers=context.num_input_pipelines,
                    batch=context.get_per_replica_batch_size(global_batch),
                    threads=self.threads,
                )
            )

        return iter(self.strategy.distribute_datasets_from_function(for_worker))

    def wait_for_all(self) -> None:
        """Returns when every worker has come here; a chief that leaves earlier takes the others down with it."""
        self.sum_over_replicas(0)

    def must_leave(self) -> bool:
        """Whether a worker has been asked to end; all workers have to ask at the same place, and notice a lost one."""
        return self.sum_over_replicas(int(self.leaving.numpy() > 0)) > 0

    def gather_texts(self, text: str) -> list[str]:
        """The texts of all workers, in the order of the workers."""
        return [data.decode() for data in self.gather_bytes(text.encode())]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """The bytes of all workers, in the order of the workers."""
        lengths = self._share_out(np.array([len(data)], np.int64), 1)[:, 0]
        words = np.frombuffer(data + bytes(-len(data) % 8), np.int64)
        rows = self._share_out(words, -(-int(lengths.max()) // 8))
        return [row.tobytes()[:length] for row, length in zip(rows, lengths, strict=True)]

    def _share_out(self, values: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
        """[worker, width]: the values of each worker in its row; a sum over tables that hold only their own row."""
        table = np.zeros((self.cluster.workers, width), np.int64)
        table[self.cluster.index, : len(values)] = values
        mine = self.strategy.num_replicas_in_sync // self.cluster.workers

        def contribution() -> Any:  # of a worker's replicas, the first speaks for all
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            return tf.constant(table) * tf.cast(replica % mine == 0, tf.int64)

        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, self.strategy.run(contribution), axis=None).numpy()

    def sum_over_replicas(self, value: int) -> int:
        """The sum of the workers' values, each counted once per replica."""
        values = self.strategy.run(lambda: tf.constant(value, tf.int64))
        return int(self.strategy.reduce(tf.distribute.ReduceOp.SUM, values, axis=None))


_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # of mallopt(3)


def keep_freed_memory() -> None:
    """Makes glibc keep memory for the next step; giving it back and asking again took half the time of CPU training."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 2**25)  # glibc's own upper limit
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, 2**26)


def open_workplace(config: TrainConfig, cluster: Cluster, *, threads: int | None) -> Workplace:
    """Sets up TensorFlow's devices; must come before any other use of it."""
    keep_freed_memory()
    share = threads or len(os.sched_getaffinity(0))
    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))  # collectives must not block the input
    keras.utils.set_random_seed(config.seed)
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    check_precision(config.model.precision)
    _let_gpu_memory_grow()
    strategy = make_strategy(config.strategy, cluster)
    return Workplace(strategy=strategy, cluster=cluster, threads=share, leaving=tf.Variable(0.0, trainable=False))


def _let_gpu_memory_grow() -> None:
    """Takes GPU memory as it is needed, instead of all of it at once. Untested here: no GPU."""
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)


def check_strategy(name: StrategyName, cluster: Cluster) -> None:
    """Refuses a strategy for one process when there are several."""
    if name not in ("auto", "multi_worker") and cluster.workers > 1:
        raise UsageError(f"strategy {name} is for one process, but TF_CONFIG has {cluster.workers}; use auto")


def make_strategy(name: StrategyName, cluster: Cluster) -> Any:
    """The strategy called `name`; `auto` follows TF_CONFIG, then the number of GPUs. Those are untested here."""
    gpus = tf.config.list_physical_devices("GPU")
    if name == "auto":
        name = "multi_worker" if cluster.workers > 1 else "mirrored" if len(gpus) > 1 else "one_device"
    if name == "mirrored":
        return tf.distribute.MirroredStrategy()
    if name == "one_device":
        return tf.distribute.OneDeviceStrategy("/gpu:0" if gpus else "/cpu:0")
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=_communication(bool(gpus)))


def _communication(has_gpus: bool) -> Any:
    """NCCL between GPUs (untested here), rings over gRPC between CPUs."""
    kind = tf.distribute.experimental.CommunicationImplementation
    return tf.distribute.experimental.CommunicationOptions(implementation=kind.NCCL if has_gpus else kind.RING)
