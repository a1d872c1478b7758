"""What a run will cost, from a few short meta-steps of the run itself (`warpgrad run … --estimate`).

The experiment's own `train` is called in a scratch directory with fewer steps K, and tasks where those are dear; time,
entries of the replay buffer and FLOPs are lines in K, so two values of K give them for the K that was asked for.
Meta-training alone is estimated, its validations included; the final test is not.

What bites: times are those of the machine as busy as it is now, and early stopping may end a run sooner.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from warpgrad.errors import WarpgradError
from warpgrad.estimate_samples import (
    FEWEST,
    Fields,
    Sample,
    fields_of,
    flops_at,
    repeats,
    sample_at,
    steps_between,
    validated_in_sample,
)
from warpgrad.experiments.base import C, Experiment
from warpgrad.recording import recorded_at_once

GROWTH = 0.05
"""Memory that grows by less than this between the two values of K is taken not to grow with K."""


@dataclass(frozen=True)
class Estimate:
    """The cost of meta-training."""

    meta_steps: int
    tasks: int
    seconds_per_meta_step: float
    seconds: float
    """In all, validations included."""
    peak_bytes: int
    buffer_entries: int
    buffer_bytes: int
    buffer_on_disk: bool
    flops_per_meta_step: float
    """Of products and convolutions, forwards and backwards."""
    serial: bool
    """Whether updates of φ follow one another (Algorithm 2, η = 1), so that ranks share adaptation only."""

    def cluster_seconds(self, rate: float, ranks: int = 1) -> float:
        """At `rate` FLOPs per second and rank; ranks share the tasks of a meta-step."""
        if not rate > 0 or ranks < 1:
            raise WarpgradError(f"flops={rate:g}, ranks={ranks}: a rate above 0 and at least 1 rank are needed.")
        share = math.ceil(self.tasks / ranks) / self.tasks
        return self.meta_steps * self.flops_per_meta_step * share / rate

    def lines(self, rate: float | None = None, ranks: int = 1) -> list[str]:
        where = "disk" if self.buffer_on_disk else "memory"
        lines = [
            f"meta-steps            {self.meta_steps} × {duration(self.seconds_per_meta_step)}",
            f"meta-training         {duration(self.seconds)} on this machine, as busy as it is now",
            f"peak memory           {size(self.peak_bytes)}",
            f"replay buffer         {self.buffer_entries} points, {size(self.buffer_bytes)} in {where}"
            if self.buffer_entries
            else "replay buffer         none",
            f"products              {self.flops_per_meta_step:.3g} FLOPs per meta-step, "
            f"{self.flops_per_meta_step / self.seconds_per_meta_step:.2g} per second here",
        ]
        if rate is not None:
            lines.append(
                f"at {rate:.3g} FLOPs/s      {duration(self.cluster_seconds(rate, ranks))} on {ranks} rank(s)"
                + (", at least: with η = 1 ranks share adaptation only" if self.serial and ranks > 1 else "")
            )
        return lines


def estimate(experiment: Experiment[C], config: C, *, budget: float = 60.0) -> Estimate:
    """Time short meta-steps for about `budget` seconds and extrapolate."""
    fields = fields_of(experiment, config)
    steps = getattr(config, fields.steps) if fields.steps else 1
    tasks = getattr(config, fields.tasks) if fields.tasks else 1
    few = min(tasks, 2)
    unit = min(steps, steps_between(config, few))
    counts = {k: flops_at(experiment, config, fields, k, few) for k in (unit, min(steps, 2 * unit))}
    first = sample_at(experiment, config, fields, unit, few, FEWEST)
    if first is None:
        raise WarpgradError(f"{experiment.name} with method {config.method} meta-trains nothing: no time is spent.")
    # A stack of tasks costs less than its tasks one by one: all of them are taken where two short samples can be paid.
    dear = first.seconds / (few * unit)
    taken = tasks if dear * tasks * 3 * 2 <= budget / 2 else few
    unit = steps_between(config, taken)

    def whole(k: int) -> int:
        """K of a sample, so that the share of points to replay is not rounded much."""
        return min(steps, max(1, k // unit) * unit)

    most = whole(max(2, int(budget / (6 * dear * taken))))
    short = whole(most // 3)
    with recorded_at_once():
        samples = [sample_at(experiment, config, fields, short, taken, repeats(budget, dear * taken * short))]
        # Recorded steps can be far cheaper than the first ones: the budget then pays for a sample nearer to the run.
        step = samples[0].seconds / short if samples[0] is not None else dear * taken
        long = whole(max(most, int(budget / (6 * step)), short + unit))
        if long > short:
            samples.append(sample_at(experiment, config, fields, long, taken, repeats(budget, step * long)))
    found = [sample for sample in samples if sample is not None]
    return _extrapolated(config, fields, steps, tasks, taken / tasks, found, _flops_at(counts, steps) * tasks / few)


def _flops_at(counts: dict[int, float], steps: int) -> float:
    """Counts are exact, so a line through two of them is."""
    (k, fewer), *more = counts.items()
    return fewer + sum((count - fewer) * (steps - k) / (further - k) for further, count in more)


def estimate_lines(
    experiment: Experiment[C], config: C, *, flops: float | None = None, ranks: int = 1, budget: float = 60.0
) -> list[str]:
    """The estimate in words; with `flops`, a rate per second and rank, also for a cluster of `ranks`."""
    title = f"{experiment.name}, {config.method}, preset {config.preset}: an estimate, nothing was run"
    return [title, *estimate(experiment, config, budget=budget).lines(flops, ranks)]


def _extrapolated(
    config: Any, fields: Fields, steps: int, tasks: int, share: float, samples: list[Sample], flops: float
) -> Estimate:
    last = samples[-1]

    def at(name: str) -> float:
        """A quantity at the K asked for, from the line through the samples."""
        return line([sample.steps for sample in samples], [getattr(sample, name) for sample in samples], steps)

    per_step = at("seconds") / share
    every = getattr(config, "validate_every", 0)
    validations = float(config.meta_steps // every if every else 0)
    # In units of a sample's validation; the tests on the way take as long for each task.
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
    peak = line([sample.steps for sample in samples], held, steps) if grows else held[-1]
    return Estimate(
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


def line(xs: list[int], ys: list[float] | list[int], x: float) -> float:
    """The line through the first and the last point; through 0 where it would start below, level where it would fall.

    No cost falls as steps are added: where it seems to, the clock was disturbed.
    """
    if xs[0] == xs[-1]:
        return ys[-1] * x / xs[-1] if xs[-1] != x else float(ys[-1])
    slope = (ys[-1] - ys[0]) / (xs[-1] - xs[0])
    if slope < 0:
        return float(ys[-1])
    start = ys[0] - slope * xs[0]
    return ys[-1] * x / xs[-1] if start < 0 else start + slope * x


def duration(seconds: float) -> str:
    """Seconds in the unit a person would use."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.2g} s"


def size(count: float) -> str:
    """Bytes in the unit a person would use."""
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= length:
            return f"{count / length:.2f} {unit}"
    return f"{count:.0f} bytes"
