"""Samples of a run: a few meta-steps at small K, in a scratch directory, timed and counted.

What the estimate of a whole run (`estimate.py`) is extrapolated from.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from warpgrad.bench.flops import Flops
from warpgrad.bench.memory import peak_bytes
from warpgrad.errors import WarpgradError
from warpgrad.experiments.base import C, Config, Execution, Experiment
from warpgrad.replay import ReplayBuffer

FEWEST, MOST = 3, 30
"""Meta-steps of a sample."""
OWN_STEPS = "test_steps"
VALIDATED = {OWN_STEPS: 10}
"""How many of what a validation is proportional to a sample has at most; five where nothing is said."""
COARSEST = 20
"""Steps by which K grows at most from sample to sample, so that the points of a share are a whole number."""


@dataclass(frozen=True)
class Fields:
    """The settings of an experiment that its cost is a line in."""

    steps: str | None = None
    """K, or what K is a multiple of."""
    tasks: str | None = None
    """Tasks per meta-step."""
    validations: tuple[str, ...] = ()
    """What the time of a validation is proportional to, besides K where it does not name steps of its own."""
    tests: str | None = None
    """How many tasks are tested on the way, each of which costs what one of a validation does."""

    @property
    def validated_in_k_steps(self) -> bool:
        """Whether a validation takes the K steps of meta-training."""
        return OWN_STEPS not in self.validations


FIELDS: Mapping[str, Fields] = MappingProxyType(
    {
        "synthetic": Fields("steps", "starts"),
        "omniglot": Fields("steps", "meta_batch", ("validation_tasks", OWN_STEPS)),
        "continual": Fields("steps_per_subtask", "tasks"),
        "maze": Fields(),
        "few-shot": Fields("steps", "meta_batch", ("validation_episodes",), "test_curve_episodes"),
        "multi-shot": Fields("steps", "meta_batch", ("validation_tasks",), "test_curve_tasks"),
    }
)
USUAL = Fields("steps", "meta_batch")


def fields_of(experiment: Experiment[Any], config: Config) -> Fields:
    """The fields that matter; an experiment that is not named above is taken to call them by the usual names."""
    fields = FIELDS.get(experiment.name, USUAL)
    if config.method == "maml" and hasattr(config, "maml_steps"):
        fields = dataclasses.replace(fields, steps="maml_steps")
    for name in filter(None, (fields.steps, fields.tasks, *fields.validations)):
        if not hasattr(config, name):
            raise WarpgradError(f"{experiment.name} cannot be estimated: it has no setting '{name}'.")
    return fields


@dataclass(frozen=True)
class Sample:
    """A few meta-steps at some K."""

    steps: int
    seconds: float
    """Of one meta-step."""
    start: float
    """Seconds more that the first meta-step took: kernels are loaded, and steps of stacked tasks recorded."""
    validation: float
    """Seconds of one validation; 0 where there is none."""
    entries: int
    entry_bytes: int
    memory_budget: int
    peak: int

    @property
    def buffer(self) -> int:
        """Bytes of the replay buffer that lie in memory."""
        size = self.entries * self.entry_bytes
        return size if size <= self.memory_budget else 0


def repeats(budget: float, seconds: float) -> int:
    """Meta-steps of a sample, where one takes about so long: few where they are dear, many where they are short."""
    return max(FEWEST, min(MOST, int(budget / (3 * seconds))))


def sample_at(
    experiment: Experiment[C], config: C, fields: Fields, steps: int, tasks: int, meta_steps: int
) -> Sample | None:
    """The first meta-step warms up, the last has a validation after it; the others are timed."""
    changed = _changed(config, fields, steps, tasks, meta_steps, validated=True)
    with _scratch() as directory, buffers_watched() as buffers:
        experiment.train(changed, Execution(directory, progress=False))
        records = [json.loads(each) for each in (directory / "metrics.jsonl").read_text().splitlines()]
    if not records:
        return None
    first, *timed = (record["seconds"] for record in records)
    typical = statistics.fmean(timed)
    added = records[-1].get("validation_seconds", 0.0)
    buffer = buffers[-1] if buffers else (0, 0, 0)
    return Sample(steps, typical, max(first - typical, 0.0), added, *buffer, peak_bytes())


def flops_at(experiment: Experiment[C], config: C, fields: Fields, steps: int, tasks: int) -> float:
    """FLOPs of the second meta-step: the first one also tries whether tasks can be stacked."""
    counts = []
    for meta_steps in (1, 2):
        changed = _changed(config, fields, steps, tasks, meta_steps, validated=False)
        with _scratch() as directory, Flops() as counter:
            experiment.train(changed, Execution(directory, progress=False))
        counts.append(counter.total)
    return float(counts[1] - counts[0])


def _changed(config: C, fields: Fields, steps: int, tasks: int, meta_steps: int, *, validated: bool) -> C:
    """The settings of a sample; `validated` ends it with a validation, otherwise there is none."""
    changes: dict[str, Any] = {"meta_steps": meta_steps}
    if fields.steps:
        changes[fields.steps] = steps
    if fields.tasks:
        changes[fields.tasks] = tasks
    if getattr(config, "validate_every", 0):
        changes["validate_every"] = meta_steps if validated else meta_steps + 1
    if fields.tests:
        changes["test_curve_every"] = 0
    changes.update(validated_in_sample(config, fields))
    return dataclasses.replace(config, **changes)


def validated_in_sample(config: Config, fields: Fields) -> dict[str, int]:
    """How many there are in a sample of what a validation's time is proportional to."""
    return {name: min(int(getattr(config, name)), VALIDATED.get(name, 5)) for name in fields.validations}


def steps_between(config: Config, tasks: int) -> int:
    """The steps by which K must grow for the points that a share of the replay takes to grow in proportion."""
    per_step = getattr(config, "share", 1.0) * tasks
    exact = (k for k in range(1, COARSEST) if math.isclose(k * per_step, max(1, round(k * per_step)), rel_tol=1e-9))
    return next(exact, COARSEST)


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="warpgrad-estimate-") as path:
        yield Path(path) / "run"


@contextmanager
def buffers_watched() -> Iterator[list[tuple[int, int, int]]]:
    """(entries, bytes per entry, memory budget) of every replay buffer that is closed inside the block."""
    seen: list[tuple[int, int, int]] = []
    close = ReplayBuffer.close

    def closing(self: ReplayBuffer) -> None:
        if len(self):
            seen.append((len(self), self.entry_bytes, self.budget.memory))
        close(self)

    ReplayBuffer.close = closing  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        ReplayBuffer.close = close  # type: ignore[method-assign]
