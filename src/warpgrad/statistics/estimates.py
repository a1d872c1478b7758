"""The one place where numbers become claims: paired differences, with intervals clustered by meta-seed.

There is one score per meta-seed s, held-out task τ and (if there are any) start r. Everything that depends on
the meta-seed (split, φ, θ0) is shared by its tasks, so tasks of one meta-seed are not independent
evidence: an interval over all tasks at once is far too narrow. The mean gives every meta-seed equal weight,

    d̄ = 1/S Σ_s d_s,    d_s = mean over τ of mean over r of (a_{sτr} − b_{sτr}),

and there are two intervals for it:

- `interval`, the headline: Student's t over the S seed means, d̄ ± t_{S−1} · sd(d_s)/√S. With four to ten
  seeds it keeps its coverage of 95 %: the seed means are nearly normal (each is an average over tasks), and t
  accounts for estimating their spread from so few.
- `bootstrap`, beside it: the percentile interval of the hierarchical bootstrap (draw seeds, then tasks within
  each, then starts). It does not assume normality, but S clusters limit the spread it can see: it covers less
  than 95 % when S is small, unless tasks vary much more than seeds do. Use it as a check from 10 seeds on.

Warning: with fewer than four meta-seeds a result is called indicative. With one meta-seed the tasks are the
clusters, and the interval says nothing about another meta-training. If all meta-seeds share the same
held-out tasks, the interval is about new meta-seeds on those tasks. A single value has no spread: its
interval is unbounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from warpgrad.errors import require
from warpgrad.statistics.formatting import between, count, number, shared_digits
from warpgrad.statistics.intervals import UNBOUNDED, Interval, bootstrap_means, t_interval
from warpgrad.statistics.scores import PaddedScores, paired, scores_of

Nested = Mapping[Any, Mapping[Any, float | Sequence[float]]]
"""meta-seed -> held-out task -> score, or the scores of that task's starts."""

Values = Nested | ArrayLike
"""Nested scores, or an array [seeds, tasks] or [seeds, tasks, starts]."""

SEEDS_FOR_A_CLAIM = 4
"""With fewer meta-seeds a result is called indicative."""


@dataclass(frozen=True)
class Estimate:
    """A mean over meta-seeds with its intervals."""

    mean: float
    interval: Interval
    """The headline: Student's t over cluster means."""
    bootstrap: Interval
    """The hierarchical bootstrap's percentile interval, as a check."""
    seed_means: tuple[float, ...]
    tasks_per_seed: tuple[int, ...]
    clustered_by: str
    """The unit taken as independent: `meta-seed`; with one meta-seed `task`; with one task `start`."""
    level: float

    @property
    def seeds(self) -> int:
        return len(self.seed_means)

    @property
    def tasks(self) -> int:
        """Held-out tasks, summed over meta-seeds."""
        return sum(self.tasks_per_seed)

    @property
    def indicative(self) -> bool:
        return self.seeds < SEEDS_FOR_A_CLAIM

    @property
    def method(self) -> str:
        """What the headline interval is, e.g. `95 % interval, clustered by meta-seed`."""
        return f"{number(100 * self.level)} % interval, clustered by {self.clustered_by}"

    def digits(self) -> int | None:
        """Return the number of decimals to print the mean and its interval with."""
        ends = (self.interval.low, self.interval.high) if self.interval.bounded else ()
        return shared_digits(self.mean, *ends)

    def basis(self) -> str:
        """Say how much data there is, e.g. `10 meta-seeds × 10 held-out tasks`."""
        few, many = min(self.tasks_per_seed), max(self.tasks_per_seed)
        tasks = count(many, "held-out task") if few == many else f"{few} to {many} held-out tasks"
        return f"{count(self.seeds, 'meta-seed')} × {tasks}"

    def cell(self, digits: int | None = None) -> str:
        """Format the estimate for a table: `83.4 [81.9 to 84.9]`, followed by `indicative` if it is."""
        return self._cell(digits, signed=False)

    def sentence(self, *, unit: str = "", digits: int | None = None) -> str:
        """State the mean, its interval and how much data there is as a sentence."""
        digits = self.digits() if digits is None else digits
        head = f"Mean {number(self.mean, digits)}{_unit(unit)}"
        return self._qualified(f"{head} ({self._evidence(digits, signed=False)}).")

    def _cell(self, digits: int | None, *, signed: bool) -> str:
        interval = self.interval
        digits = self.digits() if digits is None else digits
        ends = between(interval.low, interval.high, digits, signed=signed) if interval.bounded else "no interval"
        badge = " indicative" if self.indicative else ""
        return f"{number(self.mean, digits, signed=signed)} [{ends}]{badge}"

    def _evidence(self, digits: int | None, *, signed: bool) -> str:
        if not self.interval.bounded:
            return f"no interval from a single value; {self.basis()}"
        ends = between(self.interval.low, self.interval.high, digits, signed=signed)
        return f"{self.method}: {ends}; {self.basis()}"

    def _qualified(self, text: str) -> str:
        return f"Indicative only ({count(self.seeds, 'meta-seed')}): {text}" if self.indicative else text


@dataclass(frozen=True)
class Difference(Estimate):
    """The paired difference `first` − `second`; `mean` and the intervals are of the difference."""

    first: str
    second: str
    first_mean: float
    second_mean: float

    def cell(self, digits: int | None = None) -> str:
        return self._cell(digits, signed=True)

    def sentence(self, *, unit: str = "", digits: int | None = None) -> str:
        digits = self.digits() if digits is None else digits
        evidence = f"({self._evidence(digits, signed=True)}, paired)."
        if 0.0 in self.interval:
            size = f"mean difference {number(self.mean, digits, signed=True)}{_unit(unit)}"
            return self._qualified(f"{self.first} and {self.second} cannot be told apart: {size} {evidence}")
        verb = "exceeds" if self.mean > 0 else "falls below"
        size = f"{number(abs(self.mean), digits)}{_unit(unit)}"
        return self._qualified(f"{self.first} {verb} {self.second} by {size} {evidence}")


def paired_difference(
    first: Values,
    second: Values,
    *,
    names: tuple[str, str] = ("A", "B"),
    level: float = 0.95,
    resamples: int = 4000,
    key: int = 0,
) -> Difference:
    """Estimate the mean of `first` − `second` over the same meta-seeds, held-out tasks and starts.

    Args:
        first: Scores of the first method.
        second: Scores of the second, for exactly the same meta-seeds, tasks and starts.
        names: What the two methods are called in sentences and messages.
        level: Of the intervals.
        resamples: Bootstrap draws.
        key: Of the bootstrap; the same key gives the same interval.
    """
    a = scores_of(first, names[0])
    b = scores_of(second, names[1])
    summary = _summarise(paired(a, b, names), level, resamples, key)
    return Difference(
        **vars(summary),
        first=names[0],
        second=names[1],
        first_mean=float(np.mean(a.seed_means())),
        second_mean=float(np.mean(b.seed_means())),
    )


def mean_interval(
    values: Values, *, name: str = "the scores", level: float = 0.95, resamples: int = 4000, key: int = 0
) -> Estimate:
    """Estimate the mean of one method's scores, with the same clustering; do not compare methods by such intervals."""
    return _summarise(scores_of(values, name), level, resamples, key)


def _summarise(scores: PaddedScores, level: float, resamples: int, key: int) -> Estimate:
    require(0.0 < level < 1.0, f"level={level} is not a confidence level; give one between 0 and 1.")
    require(resamples >= 1, f"resamples={resamples} gives no interval; ask for at least 1.")
    clustered_by, clusters = scores.clusters()
    means = scores.seed_means()
    tail = 50.0 * (1.0 - level)
    low, high = np.percentile(bootstrap_means(scores, resamples, key), [tail, 100.0 - tail])
    return Estimate(
        mean=float(means.mean()),
        interval=t_interval(clusters, level),
        bootstrap=Interval(float(low), float(high)) if len(clusters) > 1 else UNBOUNDED,
        seed_means=tuple(means.tolist()),
        tasks_per_seed=tuple(scores.tasks.tolist()),
        clustered_by=clustered_by,
        level=level,
    )


def _unit(unit: str) -> str:
    return f" {unit}" if unit else ""
