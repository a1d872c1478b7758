"""Ratios that a busy machine hardly affects: ways take turns within each repetition, and are compared within it.

A way is a function that does one whole piece of work. Times are processor times, so waiting does not count;
neighbours still disturb caches and clock rates, but they hit all ways of a repetition alike. A `Figure` is such a ratio
with what it is compared with, and whether it is good enough.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warpgrad.errors import WarpgradError

Way = Callable[[], Any]
Clock = Callable[[], float]

MILLI = 1e3


@dataclass(frozen=True)
class Spread:
    """A median with the smallest and the largest value."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def scaled(self, factor: float) -> Spread:
        return Spread(self.median * factor, self.low * factor, self.high * factor)

    def record(self) -> dict[str, float]:
        return {"median": self.median, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Timings:
    """Seconds of every way in every repetition."""

    seconds: Mapping[str, Sequence[float]]

    def time(self, way: str) -> Spread:
        return Spread.of(self.seconds[way])

    def ratio(self, way: str, against: str) -> Spread:
        """Return the cost of `way` in units of `against`, repetition by repetition."""
        pairs = zip(self.seconds[way], self.seconds[against], strict=True)
        return Spread.of([mine / theirs for mine, theirs in pairs])


def interleaved(
    ways: Mapping[str, Way], repetitions: int, *, warm_up: int = 1, clock: Clock = time.process_time
) -> Timings:
    """Time every way once per repetition, after warm-up rounds that are not counted.

    Every other repetition goes through them backwards, so that the effect of coming first cancels out.
    """
    if repetitions < 1:
        raise WarpgradError(f"repetitions={repetitions}: time everything at least once.")
    order, seconds = list(ways.items()), {name: list[float]() for name in ways}
    for turn in range(warm_up + repetitions):
        gc.collect()  # so that no repetition pays for the garbage of another
        turns = order[:: -1 if turn % 2 else 1]
        turns[0][1]()  # collecting empties the caches: only the way at an end of the order would pay for that
        for name, way in turns:
            began = clock()
            way()
            elapsed = clock() - began
            if turn >= warm_up:
                # A clock too coarse for the work would make ratios infinite.
                seconds[name].append(max(elapsed, 1e-9))
    return Timings(seconds)


@dataclass(frozen=True)
class Figure:
    """The cost of `what` in units of `against`: less is better, 1 is equal."""

    row: str
    what: str
    against: str
    ratio: Spread
    ours: Spread
    """Milliseconds per (task, step)."""
    theirs: Spread
    """The same for what it is compared with."""
    most: float | None = None
    """The target: the ratio may be at most this."""

    @property
    def met(self) -> bool | None:
        """None where there is no target."""
        return None if self.most is None else self.ratio.median <= self.most

    def record(self) -> dict[str, Any]:
        return {
            "row": self.row,
            "what": self.what,
            "against": self.against,
            "ratio": self.ratio.record(),
            "milliseconds": self.ours.record(),
            "milliseconds_against": self.theirs.record(),
            "at_most": self.most,
            "met": self.met,
        }


def figure(
    timings: Timings, row: str, way: str, against: str, points: int, *, words: tuple[str, str], most: float | None
) -> Figure:
    """Make a figure of two ways of one run; `words` name them for a reader."""
    per_point = MILLI / points
    return Figure(
        row,
        *words,
        timings.ratio(way, against),
        timings.time(way).scaled(per_point),
        timings.time(against).scaled(per_point),
        most,
    )
