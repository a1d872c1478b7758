"""Row ranks: two ranks that share a meta-step against two processes that each do one by themselves, at the same time.

Times are of the wall clock: a rank that waits for another is as slow as one that works. Both pools have two workers
of one thread, so memory bandwidth, caches and clock rates that two cores share slow down both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from benchmarks.timing import MILLI, Spread
from benchmarks.worker_pool import Job, worker_pools

LEAST = 0.85
"""The throughput of two ranks, in units of that of two processes."""
FINER = 2
"""How many times more repetitions: cores whose speeds drift apart make one as uncertain as its margin to the target."""


@dataclass(frozen=True)
class Throughput:
    """Wall-clock milliseconds per (task, step) of two ranks and of two processes, and the ratio of throughputs."""

    what: str
    ratio: Spread
    """More is better, 1 is equal."""
    ranks: Spread
    processes: Spread

    @property
    def met(self) -> bool:
        return self.ratio.median >= LEAST

    def record(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "ratio": self.ratio.record(),
            "milliseconds": self.ranks.record(),
            "milliseconds_against": self.processes.record(),
            "at_least": LEAST,
            "met": self.met,
        }


def jobs(quick: bool) -> Mapping[str, Job]:
    """Return adaptation with Leap, and whole meta-steps of Algorithm 2, which consist mostly of the meta-phase."""
    tasks, steps = (2, 2) if quick else (6, 5)
    # Tasks without replay are short: there are as many as in the paper's meta-step, for a time that can be compared.
    found = {"adaptation": Job(tasks if quick else 20, steps, quick=quick)}
    for samples in (2,) if quick else (8, 20):
        found[f"Algorithm 2, η = {samples}"] = Job(tasks, steps, samples, quick)
    return MappingProxyType(found)


def measure(repetitions: int, quick: bool) -> list[Throughput]:
    seconds: dict[str, list[tuple[float, float]]] = {what: [] for what in jobs(quick)}
    with worker_pools(ranks=2, alone=2) as (ranks, processes):
        for turn in range((repetitions if quick else FINER * repetitions) + 1):
            for what, job in jobs(quick).items():
                # The pool that went first goes second in the next turn: a machine's speed drifts from one to the other.
                if turn % 2:
                    shared = max(ranks.seconds(job))
                    alone = together(processes.seconds(job))
                else:
                    alone = together(processes.seconds(job))
                    shared = max(ranks.seconds(job))
                if turn > 0:  # the first turn warms up
                    seconds[what].append((shared, alone))
    return [throughput(what, jobs(quick)[what].points, pairs) for what, pairs in seconds.items()]


def together(seconds: list[float]) -> float:
    """Return seconds per meta-step of processes that do one each: the inverse of the sum of their rates.

    The time after the fastest has ended is not counted as lost, which would flatter the ranks.
    """
    return 1 / sum(1 / each for each in seconds)


def throughput(what: str, points: int, pairs: list[tuple[float, float]]) -> Throughput:
    """Compare the seconds per meta-step of ranks with those of processes, repetition by repetition."""
    ratio = Spread.of([processes / ranks for ranks, processes in pairs])
    both = [Spread.of(column).scaled(MILLI / points) for column in zip(*pairs, strict=True)]
    return Throughput(what, ratio, *both)
