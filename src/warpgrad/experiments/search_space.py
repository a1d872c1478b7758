"""What a sweep may choose a setting from: plain data, so that experiments declare it and nothing else is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from warpgrad.errors import WarpgradError

Option = bool | int | float | str | tuple[int | float | str, ...] | None
"""A value that can be chosen; of a setting that is a list, the whole list."""


@dataclass(frozen=True)
class FloatRange:
    """Numbers from `low` to `high`; with `log`, every factor is as likely as every other."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        _check_range(self.low, self.high, self.log)

    @property
    def extremes(self) -> tuple[Option, ...]:
        """Values that must be possible settings for all others to be."""
        return (self.low, self.high)


@dataclass(frozen=True)
class IntRange:
    """Whole numbers from `low` to `high`, both included."""

    low: int
    high: int
    log: bool = False

    def __post_init__(self) -> None:
        _check_range(self.low, self.high, self.log)

    @property
    def extremes(self) -> tuple[Option, ...]:
        return (self.low, self.high)


@dataclass(frozen=True)
class Choices:
    """One of some values, each as likely as the others."""

    choices: tuple[Option, ...]

    def __post_init__(self) -> None:
        # True and 1 are equal in Python, but not the same choice.
        distinct = {(type(value), value) for value in self.choices}
        if len(self.choices) < 2 or len(distinct) < len(self.choices):
            raise WarpgradError(f"choices {list(self.choices)}: give at least two values, each once.")

    @property
    def extremes(self) -> tuple[Option, ...]:
        return self.choices


Space = FloatRange | IntRange | Choices

Spaces = Mapping[str, Mapping[str, Space]]
"""Method -> setting -> what to choose it from. The paper gives no ranges: those that experiments declare are ours,
around each preset's value, wide enough to hold those of the other methods."""


def _check_range(low: float, high: float, log: bool) -> None:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise WarpgradError(f"the range {low:g} to {high:g} must have finite ends.")
    if not low < high:
        raise WarpgradError(f"the range {low:g} to {high:g} is empty: low must be less than high.")
    if log and low <= 0:
        raise WarpgradError(f"the range {low:g} to {high:g} cannot be logarithmic: low must be greater than 0.")
