"""Forest plots, the headline of a comparison: paired differences with their intervals, stacked on one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from warpgrad.errors import require
from warpgrad.report.blocks import Block
from warpgrad.statistics.estimates import SEEDS_FOR_A_CLAIM, Difference, Estimate
from warpgrad.statistics.formatting import between, number, shared_digits


@dataclass(frozen=True)
class ForestRow:
    """One estimate, with its label and the method whose colour it has."""

    label: str
    estimate: Estimate
    method: str = ""
    """The method whose colour it has and with which it is hidden; defaults to the label."""

    @property
    def whose(self) -> str:
        return self.method or self.label

    @property
    def shown(self) -> list[float]:
        """What is drawn besides the mean: the ends of the interval, or every seed if there are too few for one."""
        estimate = self.estimate
        if estimate.indicative or not estimate.interval.bounded:
            return list(estimate.seed_means)
        return [estimate.interval.low, estimate.interval.high]

    @property
    def decided(self) -> bool:
        """Whether the interval of a difference excludes 0; always true for a mean, which decides nothing."""
        return not isinstance(self.estimate, Difference) or 0.0 not in self.estimate.interval


@dataclass(frozen=True)
class Forest(Block):
    """Estimates on one axis; paired differences have a line at 0, and the axis says whom each side favours.

    With fewer than four meta-seeds a row shows every seed instead of an interval.
    """

    rows: Sequence[ForestRow]
    caption: str
    unit: str = ""
    left: str = ""
    """Whom values below 0 favour."""
    right: str = ""
    """Whom values above 0 favour."""
    digits: int | None = None

    def __post_init__(self) -> None:
        require(self.rows, "a forest plot needs at least one row.")

    @property
    def methods(self) -> Sequence[str]:
        return [row.whose for row in self.rows]

    @property
    def differences(self) -> bool:
        return any(isinstance(row.estimate, Difference) for row in self.rows)

    def place(self, value: float) -> str:
        """Return the position of a value on the axis, as a percentage for SVG."""
        low, high = self._ends()
        return f"{100 * (value - low) / (high - low):.2f}%"

    def ticks(self) -> list[tuple[str, str]]:
        """Return (position, label) of three to seven round values on the axis."""
        low, high = self._ends()
        step = _round_step((high - low) / 6)
        first = math.ceil(low / step)
        values = [step * i for i in range(first, math.floor(high / step) + 1)]
        return [(self.place(value), number(value, max(0, -math.floor(math.log10(step))))) for value in values]

    def mean_of(self, row: ForestRow) -> str:
        return number(row.estimate.mean, self._digits(), signed=isinstance(row.estimate, Difference))

    def spread_of(self, row: ForestRow) -> str:
        """Return the interval of a row as text, or the value of each seed."""
        estimate, signed = row.estimate, isinstance(row.estimate, Difference)
        if not estimate.indicative:
            return between(estimate.interval.low, estimate.interval.high, self._digits(), signed=signed)
        if estimate.seeds == 1:
            return "one seed"
        return ", ".join(number(mean, self._digits(), signed=signed) for mean in estimate.seed_means)

    def legend(self) -> str:
        """Explain the marks that occur in this plot."""
        whole = [row for row in self.rows if not row.estimate.indicative]
        words = [f"bars: {method}" for method in dict.fromkeys(row.estimate.method for row in whole)]
        if self.differences and whole:
            words.append("hollow: 0 lies within, the two cannot be told apart")
        seeds = {row.estimate.seeds for row in self.rows if row.estimate.indicative}
        if seeds == {1}:
            words.append("circles: one meta-seed each; indicative only")
        elif seeds:
            words.append(
                f"small dots: each meta-seed, circles: their mean, where there are fewer than {SEEDS_FOR_A_CLAIM}; "
                "indicative only"
            )
        return " · ".join(words)

    def _digits(self) -> int | None:
        if self.digits is not None:
            return self.digits
        # Alike in all rows, as in a column of a table: as many as the largest of them needs.
        return shared_digits(*(value for each in self.rows for value in (each.estimate.mean, *each.shown)))

    def _ends(self) -> tuple[float, float]:
        values = [value for row in self.rows for value in (*row.shown, row.estimate.mean) if math.isfinite(value)]
        low, high = min(values, default=0.0), max(values, default=0.0)
        if self.differences:
            low, high = min(low, 0.0), max(high, 0.0)
        room = 0.06 * (high - low) or abs(high) or 1.0
        return low - room, high + room


def _round_step(size: float) -> float:
    """Return the smallest 1, 2 or 5 times a power of ten that is at least `size`."""
    power = 10.0 ** math.floor(math.log10(size))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= size * (1 - 1e-9))
