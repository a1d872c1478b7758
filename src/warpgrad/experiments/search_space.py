"""Search spaces of settings for sweeps, as plain data that experiments declare without any other dependency."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from warpgrad.errors import require

Option = bool | int | float | str | tuple[int | float | str, ...] | None
"""A value that can be chosen; for a setting that is a list, the whole list."""


Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class _Range(Generic[Number]):
    low: Number
    high: Number
    log: bool = False

    def __post_init__(self) -> None:
        ends = f"the range {self.low:g} to {self.high:g}"
        require(math.isfinite(self.low) and math.isfinite(self.high), f"{ends} must have finite ends.")
        require(self.low < self.high, f"{ends} is empty: low must be less than high.")
        require(not self.log or self.low > 0, f"{ends} cannot be logarithmic: low must be greater than 0.")

    @property
    def extremes(self) -> tuple[Option, ...]:
        """Values that must be valid settings; if they are, so are all values in between."""
        return (self.low, self.high)


class FloatRange(_Range[float]):
    """Numbers from `low` to `high`, uniform or, with `log`, uniform on a logarithmic scale."""


class IntRange(_Range[int]):
    """Integers from `low` to `high`, both included."""


@dataclass(frozen=True)
class Choices:
    """One of several values, all equally likely."""

    choices: tuple[Option, ...]

    def __post_init__(self) -> None:
        # True and 1 are equal in Python, but not the same choice.
        distinct = {(type(value), value) for value in self.choices}
        require(
            len(self.choices) == len(distinct) >= 2,
            f"choices {list(self.choices)}: give at least two values, each once.",
        )

    @property
    def extremes(self) -> tuple[Option, ...]:
        return self.choices


Space = FloatRange | IntRange | Choices

Spaces = Mapping[str, Mapping[str, Space]]
"""Method -> setting -> what to choose it from. The paper gives no ranges: those that experiments declare are ours,
around each preset's value, wide enough to hold those of the other methods."""
