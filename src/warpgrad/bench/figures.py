"""One figure of the benchmark: a cost, what it is held against, and whether that is good enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from warpgrad.bench.timing import Spread, Timings

MILLI = 1e3


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
    """The same of what it is held against."""
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
    """From two ways of one run to a figure; `words` name them for a reader."""
    per_point = MILLI / points
    return Figure(
        row,
        *words,
        timings.ratio(way, against),
        timings.time(way).scaled(per_point),
        timings.time(against).scaled(per_point),
        most,
    )
