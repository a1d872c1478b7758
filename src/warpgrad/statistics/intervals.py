"""Two intervals for a mean of few clusters: Student's t, and the hierarchical bootstrap."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from warpgrad.errors import require
from warpgrad.keys import fold
from warpgrad.statistics.scores import PaddedScores


def t_quantile(probability: float, degrees: int) -> float:
    """Return the t with P(T ≤ t) = `probability` for `degrees` degrees of freedom."""
    from scipy.special import stdtrit  # slow to import, and few commands state an interval

    require(0.0 < probability < 1.0, f"a quantile needs a probability between 0 and 1, not {probability}.")
    require(degrees >= 1, f"Student's t needs at least 1 degree of freedom, not {degrees}.")
    return float(stdtrit(degrees, probability))


@dataclass(frozen=True)
class Interval:
    """A confidence interval; unbounded if a single value gives no estimate of the spread."""

    low: float
    high: float

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


UNBOUNDED = Interval(-math.inf, math.inf)


def t_interval(clusters: NDArray[np.float64], level: float) -> Interval:
    """Return the interval mean ± t_{n−1} · sd/√n over n independent values."""
    size = len(clusters)
    if size < 2:
        return UNBOUNDED
    mean = float(clusters.mean())
    half = t_quantile(0.5 + level / 2.0, size - 1) * float(clusters.std(ddof=1)) / math.sqrt(size)
    return Interval(mean - half, mean + half)


def bootstrap_means(scores: PaddedScores, resamples: int, key: int) -> NDArray[np.float64]:
    """Return d̄ for `resamples` draws of seeds, tasks within each drawn seed, and starts within each drawn task."""
    random = np.random.default_rng(fold("bootstrap", key))
    seeds, tasks, starts = scores.padded.shape
    # Bounded memory, and chunks that stay in the processor's cache.
    chunk = max(1, 100_000 // scores.padded.size)
    means: list[NDArray[np.float64]] = []
    for begin in range(0, resamples, chunk):
        rows = min(chunk, resamples - begin)
        seed = random.integers(seeds, size=(rows, seeds))
        task_counts = scores.tasks[seed]
        task = _below(random.random((rows, seeds, tasks)), task_counts)
        if starts == 1:
            per_task = scores.padded[seed[..., None], task, 0]
        else:
            start_counts = scores.starts[seed[..., None], task]
            start = _below(random.random((rows, seeds, tasks, starts)), start_counts)
            drawn = scores.padded[seed[..., None, None], task[..., None], start]
            per_task = _leading_mean(drawn, start_counts)
        means.append(_leading_mean(per_task, task_counts).mean(axis=1))
    return np.concatenate(means)


def _below(uniform: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Map uniform numbers in [0, 1) to integers in [0, count)."""
    return (uniform * counts[..., None]).astype(np.int64)


def _leading_mean(values: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean of the first `count` entries along the last axis; the rest is padding."""
    kept = np.arange(values.shape[-1]) < counts[..., None]
    total: NDArray[np.float64] = (values * kept).sum(axis=-1)
    return total / counts
