"""Row growth: the time of a meta-step against K, tasks, η, parameters and ranks, on small sizes.

Points of a curve take turns within each repetition. Times are processor times, except for ranks, where they are
wall-clock times: there the point is to wait less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from benchmarks.library import Piece
from benchmarks.timing import MILLI, Spread, Way, interleaved
from benchmarks.worker_pool import Job, worker_pools
from benchmarks.workloads import Workload, conv, mlp
from warpgrad.adaptation.traced import traced_at_once
from warpgrad.algorithms import Algorithm, Offline, Online, Unrolled
from warpgrad.algorithms.method import Method
from warpgrad.objectives import Approximate, Exact, Objective
from warpgrad.rules import SGD

FILTERS = 16
"""Sizes of the curves against K, tasks and η; other curves have different sizes."""

ENOUGH = 3

Make = Callable[[int, bool], tuple[int, Way]]
"""(size, quick) -> (place on the axis, a meta-step of that size)."""


@dataclass(frozen=True)
class Axis:
    """What grows, and the meta-steps that grow with it, by the name of their curve."""

    words: str
    sizes: tuple[int, ...]
    curves: Mapping[str, Make]


@dataclass(frozen=True)
class Curve:
    axis: str
    name: str
    places: tuple[int, ...]
    milliseconds: tuple[Spread, ...]
    """The time of one meta-step, at each place."""

    @property
    def exponent(self) -> float:
        """p, if time grew like the p-th power from the first place to the last."""
        times, places = self.milliseconds, self.places
        return math.log(times[-1].median / times[0].median) / math.log(places[-1] / places[0])

    def record(self) -> dict[str, Any]:
        return {
            "axis": self.axis,
            "name": self.name,
            "places": list(self.places),
            "milliseconds": [time.record() for time in self.milliseconds],
            "exponent": self.exponent,
        }


def measure(repetitions: int, quick: bool) -> list[Curve]:
    """Measure all curves with at most `ENOUGH` repetitions: curves over powers of two need no more."""
    repetitions = min(repetitions, ENOUGH)
    found = []
    # Tracing takes as long as the rest of a trial, whose times are not used.
    with nullcontext() if quick else traced_at_once():
        for axis in AXES:
            found += _curves(axis, repetitions, quick)
    return [*found, *_rank_curves(repetitions, quick)]


def _curves(axis: Axis, repetitions: int, quick: bool) -> list[Curve]:
    sizes = axis.sizes[:2] if quick else axis.sizes
    made = {(name, size): make(size, quick) for name, make in axis.curves.items() for size in sizes}
    timings = interleaved({f"{name} {size}": way for (name, size), (_, way) in made.items()}, repetitions)
    return [
        Curve(
            axis.words,
            name,
            tuple(made[name, size][0] for size in sizes),
            tuple(timings.time(f"{name} {size}").scaled(MILLI) for size in sizes),
        )
        for name in axis.curves
    ]


def _rank_curves(repetitions: int, quick: bool) -> list[Curve]:
    tasks, steps = (2, 2) if quick else (6, 8)
    jobs = {"adaptation": Job(tasks, steps, quick=quick), "Algorithm 2, η = 8": Job(tasks, steps, 8, quick)}
    seconds: dict[tuple[str, int], list[float]] = {(name, size): [] for name in jobs for size in (1, 2)}
    with worker_pools(ranks=2, alone=1) as (ranks, alone):
        for turn in range(repetitions + 1):
            for name, job in jobs.items():
                for size, pool in ((1, alone), (2, ranks)):
                    elapsed = max(pool.seconds(job))
                    if turn > 0:  # the first turn warms up
                        seconds[name, size].append(elapsed)
    return [
        Curve("ranks", name, (1, 2), tuple(Spread.of(seconds[name, size]).scaled(MILLI) for size in (1, 2)))
        for name in jobs
    ]


def _meta_step(work: Workload, algorithm: Callable[..., Algorithm], objective: Objective | None) -> Way:
    method = Method(work.make(), SGD(work.rate), objective)
    return Piece(work, method, algorithm(steps=work.steps, tasks=len(work.tasks))).meta_step


def _along_steps(algorithm: Callable[..., Algorithm], objective: Objective | None) -> Make:
    def make(size: int, quick: bool) -> tuple[int, Way]:
        work = conv(quick, warp=objective is not None, steps=size, filters=FILTERS)
        return size, _meta_step(work, algorithm, objective)

    return make


def _along_tasks(workload: Callable[..., Workload], steps: int) -> Make:
    return lambda size, quick: (size, _meta_step(workload(quick, tasks=size, steps=steps), Online, Exact()))


def _along_samples(workload: Callable[..., Workload]) -> Make:
    """Make meta-steps of 32 points, whatever η is."""

    def make(size: int, quick: bool) -> tuple[int, Way]:
        work = workload(quick, tasks=1 if quick else 4, steps=2 if quick else 8)
        return size, _meta_step(work, partial(Offline, samples=size), Exact())

    return make


def _along_parameters(objective: Objective | None) -> Make:
    def make(size: int, quick: bool) -> tuple[int, Way]:
        work = conv(quick, steps=2, filters=size)
        learner = work.make()
        parameters = sum(value.numel() for value in (*learner.theta0.values(), *learner.phi.values()))
        return parameters, _meta_step(work, Online, objective)

    return make


_SMALL = partial(conv, filters=FILTERS)

AXES: tuple[Axis, ...] = (
    Axis(
        "K",
        (1, 2, 4, 8, 16, 32),
        MappingProxyType(
            {
                "Algorithm 1": _along_steps(Online, Exact()),
                "Algorithm 2": _along_steps(Offline, Exact()),
                "MAML": _along_steps(Unrolled, None),
            }
        ),
    ),
    Axis(
        "tasks",
        (1, 2, 4, 8, 16, 32),
        MappingProxyType({"conv": _along_tasks(_SMALL, 2), "MLP, stacked": _along_tasks(mlp, 10)}),
    ),
    Axis(
        "η",
        (1, 2, 4, 8, 16, 32),
        MappingProxyType({"conv": _along_samples(_SMALL), "MLP, stacked": _along_samples(mlp)}),
    ),
    Axis(
        "parameters",
        (8, 16, 32, 64, 128),
        MappingProxyType(
            {
                "adaptation": _along_parameters(None),
                "approximate": _along_parameters(Approximate()),
                "exact": _along_parameters(Exact()),
            }
        ),
    ),
)
