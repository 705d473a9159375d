"""Where the time of a run will go: the input alone and the model alone, measured for some seconds each on this machine.

Nothing is trained or written. The model is given the same batch again and again, so that it never waits.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.config import TrainConfig
from trainer.learning.class_weights import find_class_weights
from trainer.learning.state import build_state
from trainer.learning.update import Update
from trainer.reading.dataset import Share, training_dataset, training_records
from trainer.reading.inputs import make_inputs
from trainer.reading.settings import AugmentConfig
from trainer.reading.source import Geometry, Source, stored_box
from trainer.running.strategy import Workplace

WARM_UP = 3  # batches, in which buffers fill and graphs are built
CLOSE = 1.25  # rates that differ by less are called equal
SLOW_READING = 2.0  # reading alone should be at least so much faster than reading with decoding


@dataclass(frozen=True)
class Examination:
    """Examples per second: of reading alone, of the whole input, of the model; and how long the first batch took."""

    noun: str
    reading: float
    input: float
    model: float
    first_batch: float
    shares_cores: bool  # the model computes where the input does

    @property
    def together(self) -> float:
        """What training will do, about: on the same cores one has to wait for the other."""
        slower = min(self.input, self.model)
        return self.input * self.model / (self.input + self.model) if self.shares_cores else slower

    @property
    def bottleneck(self) -> str:
        """`input`, `model`, or `neither` when both are about as fast."""
        if max(self.input, self.model) < CLOSE * min(self.input, self.model):
            return "neither"
        return "input" if self.input < self.model else "model"

    def table(self) -> list[tuple[str, str, str]]:
        """Header and rows for people."""
        rate = f"{self.noun}/s"
        return [
            ("part", rate, "what it is"),
            ("reading", f"{self.reading:,.0f}", "records in the order of the run, still encoded"),
            (
                "input",
                f"{self.input:,.0f}",
                f"read, decoded, changed, batched; first batch after {self.first_batch:.1f} s",
            ),
            ("model", f"{self.model:,.0f}", "training steps on a batch that is always there"),
        ]

    def verdict(self) -> str:
        """One sentence."""
        shared = ", on the same cores" if self.shares_cores else ""
        expected = f"together about {self.together:,.0f} {self.noun}/s{shared}"
        if self.bottleneck == "neither":
            return f"input and model are about equally fast: {expected}"
        slow, fast = (self.input, self.model) if self.bottleneck == "input" else (self.model, self.input)
        return f"the {self.bottleneck} is the bottleneck, {fast / slow:.1f} times slower than the other: {expected}"


def examine(config: TrainConfig, source: Source, workplace: Workplace, *, seconds: float) -> Examination:
    """Measures each part for about `seconds`."""
    share = Share(worker=0, workers=1, batch=config.global_batch, threads=workplace.threads)
    records = training_records(config, source, share, start_step=0).batch(share.batch)
    _, reading = _rate(iter(records), share.batch, seconds)
    batches = iter(training_dataset(config, source, share, start_step=0))
    first_batch, whole = _rate(batches, share.batch, seconds)
    return Examination(
        noun=make_inputs(source.form).noun,
        reading=reading,
        input=whole,
        model=_model_rate(config, source, workplace, batch=next(batches), seconds=seconds),
        first_batch=first_batch,
        shares_cores=not tf.config.list_physical_devices("GPU"),
    )


def _rate(batches: Iterator[Any], size: int, seconds: float) -> tuple[float, float]:
    """Seconds until the first batch, and examples per second after the warm-up."""
    started = time.monotonic()
    next(batches)
    first = time.monotonic() - started
    for _ in range(WARM_UP):
        next(batches)
    return first, size * _times_per_second(lambda: next(batches), seconds)


def _model_rate(config: TrainConfig, source: Source, workplace: Workplace, *, batch: Any, seconds: float) -> float:
    strategy = workplace.strategy
    state = build_state(config, source, strategy)
    update = Update(config, state, replicas=strategy.num_replicas_in_sync, weights=find_class_weights(config, source))

    def share_of(share: Share) -> Any:
        part = tf.nest.map_structure(lambda values: values[: share.batch], batch)
        return tf.data.Dataset.from_tensors(part).repeat()

    same = workplace.distribute(share_of, global_batch=config.global_batch)

    @tf.function
    def step() -> Any:
        counted = strategy.run(tf.autograph.experimental.do_not_convert(update), args=(next(same),))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, counted, axis=None)

    def wait_for_step() -> None:
        step().numpy()

    for _ in range(WARM_UP):
        wait_for_step()
    return config.global_batch * _times_per_second(wait_for_step, seconds)


def _times_per_second(action: Callable[[], object], seconds: float) -> float:
    """How often an action can be done: timed to the end of the last one, at least twice."""
    started, done = time.monotonic(), 0
    while done < 2 or time.monotonic() - started < seconds:
        action()
        done += 1
    return done / (time.monotonic() - started)


def advise(found: Examination, config: TrainConfig, source: Source, *, cores: int) -> list[str]:
    """What to change, the most promising first."""
    if found.bottleneck == "input":
        return _faster_input(found, config, source, cores)
    if found.bottleneck == "model":
        return _faster_model(config)
    return ["to go faster, both must become faster: more cores or more workers"]


def _faster_input(found: Examination, config: TrainConfig, source: Source, cores: int) -> list[str]:
    advice = []
    if found.reading < SLOW_READING * found.input and config.input.cache == "none":
        advice.append("reading is slow: set input.cache to memory or disk, so that later epochs read nearby copies")
    if isinstance(source.form, Geometry):
        advice += _cheaper_pictures(config, source, source.form)
    advice.append(f"give the process more than its {cores} cores, or train on more workers: each reads its own part")
    return advice


def _cheaper_pictures(config: TrainConfig, source: Source, form: Geometry) -> Iterator[str]:
    image = source.manifest.settings.get("image") or {}
    stored = stored_box(image.get("resize") or {})
    if (image.get("encode") or {}).get("format") == "png":
        yield "the pictures are PNG: build the dataset with image.encode.format jpeg, which decodes faster"
    if stored is None or stored[0] * stored[1] > 2 * form.size[0] * form.size[1]:
        size = f"{stored[0]}x{stored[1]}" if stored else "various sizes"
        yield (
            f"the pictures are stored in {size} and the model takes {form.size[0]}x{form.size[1]}: "
            "build the dataset with smaller ones (image.resize)"
        )
    changes = [name for name, value in config.augment if value != getattr(AugmentConfig(), name)]
    costly = [f"augment.{name}" for name in changes if name in ("policy", "colour", "resized_crop")]
    if costly:
        yield f"try without {', '.join(costly)}: these changes cost the most"


def _faster_model(config: TrainConfig) -> list[str]:
    advice = []
    if config.model.precision == "float32":
        advice.append("set model.precision to bfloat16 (recent CPUs, TPUs, GPUs) or float16 (GPUs)")
    advice.append(f"try a global_batch larger than {config.global_batch}: a device that is not full idles")
    advice.append("use a smaller network or model.image_size, a GPU, or more workers")
    return advice
