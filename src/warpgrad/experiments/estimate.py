"""Estimate what a run will cost from a few of its own meta-steps, shortened (`warpgrad run … --estimate`).

The experiment's `train` is called in a scratch directory with fewer steps K, and fewer tasks if those are slow. Time,
entries of the replay buffer and FLOPs are linear in K, so two values of K are enough to extrapolate to the actual one.
The estimate covers meta-training with its validations, but not the final test.

Warning: times depend on the current load of the machine, and early stopping may end a run sooner.
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

from warpgrad.adaptation.traced import traced_at_once
from warpgrad.algorithms.backend import planned_for
from warpgrad.algorithms.replay import ReplayBuffer
from warpgrad.errors import WarpgradError, require
from warpgrad.experiments.base import C, Config, Execution, Experiment
from warpgrad.training.resources import Flops, peak_bytes

FEWEST, MOST = 3, 30
"""The smallest and largest number of meta-steps in a sample."""
SCRATCH = "warpgrad-estimate-"
OWN_STEPS = "test_steps"
VALIDATED = {OWN_STEPS: 10}
"""The largest validation in a sample, by the setting that its time is proportional to; five by default."""
COARSEST = 20
"""The largest difference in K between samples that is tried to make the share of points an integer."""


@dataclass(frozen=True)
class CostFields:
    """The settings of an experiment that its cost is linear in."""

    steps: str | None = None
    """K, or a setting that K is a multiple of."""
    tasks: str | None = None
    """The number of tasks in each meta-step."""
    validations: tuple[str, ...] = ()
    """What the time of a validation is proportional to; also to K, unless its number of steps is among them."""
    tests: str | None = None
    """The number of tasks in tests during meta-training, each of which costs as much as a validation task."""

    @property
    def validated_in_k_steps(self) -> bool:
        """Whether validation adapts for the K steps of meta-training."""
        return OWN_STEPS not in self.validations


FIELDS: Mapping[str, CostFields] = MappingProxyType(
    {
        "synthetic": CostFields("steps", "starts"),
        "omniglot": CostFields("steps", "meta_batch", ("validation_tasks", OWN_STEPS)),
        "continual": CostFields("steps_per_subtask", "tasks"),
        "maze": CostFields(),
        "few-shot": CostFields("steps", "meta_batch", ("validation_episodes",), "test_curve_episodes"),
        "multi-shot": CostFields("steps", "meta_batch", ("validation_tasks",), "test_curve_tasks"),
        "text-intents": CostFields("steps", "meta_batch", ("validation_draws",)),
    }
)
USUAL = CostFields("steps", "meta_batch")


def fields_of(experiment: Experiment[Any], config: Config) -> CostFields:
    """Return the cost fields of an experiment; those not listed above are assumed to use the usual names."""
    fields = FIELDS.get(experiment.name, USUAL)
    if config.method == "maml" and hasattr(config, "maml_steps"):
        fields = dataclasses.replace(fields, steps="maml_steps")
    for name in filter(None, (fields.steps, fields.tasks, *fields.validations)):
        require(hasattr(config, name), f"{experiment.name} cannot be estimated: it has no setting '{name}'.")
    return fields


@dataclass(frozen=True)
class Sample:
    """Measurements of a few meta-steps at some K."""

    steps: int
    seconds: float
    """Seconds of one meta-step."""
    start: float
    """Extra seconds of the first meta-step, in which kernels are loaded and steps of stacked tasks are traced."""
    validation: float
    """Seconds of one validation; 0 where there is none."""
    entries: int
    entry_bytes: int
    memory_budget: int
    peak: int

    @property
    def buffer(self) -> int:
        """Bytes of the replay buffer that are in memory."""
        size = self.entries * self.entry_bytes
        return size if size <= self.memory_budget else 0


def repeats(budget: float, seconds: float) -> int:
    """Return the number of meta-steps to sample, given the time of one: few if they are slow, many if they are fast."""
    return max(FEWEST, min(MOST, int(budget / (3 * seconds))))


def sample_at(
    experiment: Experiment[C], config: C, fields: CostFields, steps: int, tasks: int, meta_steps: int
) -> Sample | None:
    """Measure a few meta-steps; the first is a warm-up, and the last is followed by a validation if the run has any.

    Returns None if the method has no meta-steps.
    """
    changed = shortened(config, fields, steps, tasks, meta_steps, validated=scores_before_end(config, fields))
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as place, buffers_watched() as buffers:
        directory = Path(place) / "run"
        experiment.train(changed, Execution(directory, progress=False))
        records = [json.loads(each) for each in (directory / "metrics.jsonl").read_text().splitlines()]
    if not records:
        return None
    first, *timed = (record["seconds"] for record in records)
    typical = statistics.fmean(timed)
    added = records[-1].get("validation_seconds", 0.0)
    buffer = buffers[-1] if buffers else (0, 0, 0)
    return Sample(steps, typical, max(first - typical, 0.0), added, *buffer, peak_bytes())


def flops_at(experiment: Experiment[C], config: C, fields: CostFields, steps: int, tasks: int) -> float:
    """Count the FLOPs of the second meta-step; the first one also tests whether tasks can be stacked."""
    counts = []
    for meta_steps in (1, 2):
        changed = shortened(config, fields, steps, tasks, meta_steps, validated=False)
        with tempfile.TemporaryDirectory(prefix=SCRATCH) as place, Flops() as counter:
            experiment.train(changed, Execution(Path(place) / "run", progress=False))
        counts.append(counter.total)
    return float(counts[1] - counts[0])


def shortened(config: C, fields: CostFields, steps: int, tasks: int, meta_steps: int, *, validated: bool) -> C:
    """Return the settings of a sample, with one validation at its end if `validated`, else with none."""
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


def scores_before_end(config: Config, fields: CostFields) -> bool:
    """Return whether the run validates or tests before it ends; its peak memory may be that of a validation."""
    tests = bool(fields.tests and getattr(config, "test_curve_every", 0))
    return tests or 0 < getattr(config, "validate_every", 0) <= getattr(config, "meta_steps", 0)


def validated_in_sample(config: Config, fields: CostFields) -> dict[str, int]:
    """Return the reduced values of the settings that the time of a validation is proportional to."""
    return {name: min(int(getattr(config, name)), VALIDATED.get(name, 5)) for name in fields.validations}


def steps_between(config: Config, tasks: int) -> int:
    """Return the step in K that makes the number of replayed points, a share of all, grow in proportion."""
    per_step = getattr(config, "share", 1.0) * tasks
    exact = (k for k in range(1, COARSEST) if math.isclose(k * per_step, max(1, round(k * per_step)), rel_tol=1e-9))
    return next(exact, COARSEST)


@contextmanager
def buffers_watched() -> Iterator[list[tuple[int, int, int]]]:
    """Collect (entries, bytes per entry, memory budget) of every replay buffer that is closed inside the block."""
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


GROWTH = 0.05
"""Memory that grows by less than this fraction between two values of K is assumed not to grow with K."""


@dataclass(frozen=True)
class CostEstimate:
    """The cost of meta-training."""

    meta_steps: int
    tasks: int
    seconds_per_meta_step: float
    seconds: float
    """Seconds of the whole run, including validations."""
    peak_bytes: int
    buffer_entries: int
    buffer_bytes: int
    buffer_on_disk: bool
    flops_per_meta_step: float
    """FLOPs of products and convolutions, forward and backward."""
    serial: bool
    """Whether updates of φ are sequential (Algorithm 2, η = 1), so that ranks share only adaptation."""

    def cluster_seconds(self, rate: float, ranks: int = 1) -> float:
        """Return the seconds at `rate` FLOPs per second and rank, where ranks share the tasks of a meta-step."""
        require(rate > 0 and ranks >= 1, f"flops={rate:g}, ranks={ranks}: flops must be above 0 and ranks at least 1.")
        share = math.ceil(self.tasks / ranks) / self.tasks
        return self.meta_steps * self.flops_per_meta_step * share / rate

    def lines(self, rate: float | None = None, ranks: int = 1) -> list[str]:
        where = "disk" if self.buffer_on_disk else "memory"
        lines = [
            f"meta-steps            {self.meta_steps} × {in_time_unit(self.seconds_per_meta_step)}",
            f"meta-training         {in_time_unit(self.seconds)} on this machine at its current load",
            f"peak memory           {in_byte_unit(self.peak_bytes)}",
            f"replay buffer         {self.buffer_entries} points, {in_byte_unit(self.buffer_bytes)} in {where}"
            if self.buffer_entries
            else "replay buffer         none",
            f"products              {self.flops_per_meta_step:.3g} FLOPs per meta-step, "
            f"{self.flops_per_meta_step / self.seconds_per_meta_step:.2g} per second here",
        ]
        if rate is not None:
            lines.append(
                f"at {rate:.3g} FLOPs/s      {in_time_unit(self.cluster_seconds(rate, ranks))} on {ranks} rank(s)"
                + (", at least: with η = 1 ranks share adaptation only" if self.serial and ranks > 1 else "")
            )
        return lines


def estimate_cost(experiment: Experiment[C], config: C, *, budget: float = 60.0) -> CostEstimate:
    """Time short meta-steps for about `budget` seconds and extrapolate."""
    fields = fields_of(experiment, config)
    steps = getattr(config, fields.steps) if fields.steps else 1
    tasks = getattr(config, fields.tasks) if fields.tasks else 1
    few = min(tasks, 2)
    unit = min(steps, steps_between(config, few))
    counts = {k: flops_at(experiment, config, fields, k, few) for k in (unit, min(steps, 2 * unit))}
    first = sample_at(experiment, config, fields, unit, few, FEWEST)
    if first is None:
        raise WarpgradError(f"{experiment.name} with method {config.method} meta-trains nothing to estimate.")
    # Stacked tasks cost less than one by one: use all of them if the budget allows two short samples.
    dear = first.seconds / (few * unit)
    taken = tasks if dear * tasks * 3 * 2 <= budget / 2 else few
    unit = steps_between(config, taken)

    def whole(k: int) -> int:
        """Round K of a sample down to a multiple of `unit`, so that the share of points to replay is hardly rounded."""
        return min(steps, max(1, k // unit) * unit)

    most = whole(max(2, int(budget / (6 * dear * taken))))
    short = whole(most // 3)
    # Short as they are, samples must run the way the whole run does: traced, or compiled.
    with traced_at_once(), planned_for(getattr(config, "meta_steps", 1) * steps):
        samples = [sample_at(experiment, config, fields, short, taken, repeats(budget, dear * taken * short))]
        # Traced steps can be far cheaper than the first ones: the budget then allows a sample closer to the run.
        step = samples[0].seconds / short if samples[0] is not None else dear * taken
        long = whole(max(most, int(budget / (6 * step)), short + unit))
        if long > short:
            samples.append(sample_at(experiment, config, fields, long, taken, repeats(budget, step * long)))
    found = [sample for sample in samples if sample is not None]
    return extrapolated(config, fields, steps, tasks, taken / tasks, found, _flops_at(counts, steps) * tasks / few)


def _flops_at(counts: dict[int, float], steps: int) -> float:
    """Extrapolate FLOPs along the line through two counts, which is exact because the counts are."""
    (k, fewer), *more = counts.items()
    return fewer + sum((count - fewer) * (steps - k) / (further - k) for further, count in more)


def estimate_lines(
    experiment: Experiment[C], config: C, *, flops: float | None = None, ranks: int = 1, budget: float = 60.0
) -> list[str]:
    """Describe the estimate; with `flops`, a rate per second and rank, also for a cluster of `ranks` processes."""
    title = f"{experiment.name}, {config.method}, preset {config.preset}: an estimate, nothing was run"
    return [title, *estimate_cost(experiment, config, budget=budget).lines(flops, ranks)]


def extrapolated(
    config: Any, fields: CostFields, steps: int, tasks: int, share: float, samples: list[Sample], flops: float
) -> CostEstimate:
    """Return the cost of the run, at `steps` steps of `tasks` tasks, from samples with a `share` of these tasks."""
    last = samples[-1]

    def at(name: str) -> float:
        """Extrapolate a field of the samples to the actual K."""
        return on_line([sample.steps for sample in samples], [getattr(sample, name) for sample in samples], steps)

    per_step = at("seconds") / share
    every = getattr(config, "validate_every", 0)
    validations = float(config.meta_steps // every if every else 0)
    # In units of a sample's validation; tests during meta-training take as long per task.
    for name, count in validated_in_sample(config, fields).items():
        validations *= getattr(config, name) / count
    if fields.tests and config.test_curve_every:
        (count,) = validated_in_sample(config, fields).values()
        validations += config.meta_steps // config.test_curve_every * getattr(config, fields.tests) / count
    validation = at("validation") if fields.validated_in_k_steps else last.validation
    entries = round(at("entries") / share)
    total = entries * last.entry_bytes
    on_disk = total > last.memory_budget > 0
    held = [sample.peak - sample.buffer for sample in samples]
    grows = held[-1] > held[0] * (1 + GROWTH)
    peak = on_line([sample.steps for sample in samples], held, steps) if grows else held[-1]
    return CostEstimate(
        meta_steps=config.meta_steps,
        tasks=tasks,
        seconds_per_meta_step=per_step,
        seconds=last.start + config.meta_steps * per_step + validations * validation,
        peak_bytes=round(peak) + (0 if on_disk else total),
        buffer_entries=entries,
        buffer_bytes=total,
        buffer_on_disk=on_disk,
        flops_per_meta_step=flops,
        serial=entries > 0 and getattr(config, "samples", None) == 1,
    )


def on_line(xs: list[int], ys: list[float] | list[int], x: float) -> float:
    """Evaluate at x the line through the first and last point, or through 0 if it would start below.

    If the line would fall, return the last value: no cost falls as steps are added, so the clock was disturbed.
    """
    if xs[0] == xs[-1]:
        return ys[-1] * x / xs[-1] if xs[-1] != x else float(ys[-1])
    slope = (ys[-1] - ys[0]) / (xs[-1] - xs[0])
    if slope < 0:
        return float(ys[-1])
    start = ys[0] - slope * xs[0]
    return ys[-1] * x / xs[-1] if start < 0 else start + slope * x


def in_time_unit(seconds: float) -> str:
    """Format seconds in a readable unit."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.2g} s"


def in_byte_unit(count: float) -> str:
    """Format bytes in a readable unit."""
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= length:
            return f"{count / length:.2f} {unit}"
    return f"{count:.0f} bytes"
