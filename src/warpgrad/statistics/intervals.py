"""Two intervals for a mean of few clusters: Student's t, and the hierarchical bootstrap."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from warpgrad.errors import require
from warpgrad.keys import fold
from warpgrad.statistics.scores import PaddedScores

_TINY = 1e-300


def incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b) for 0 ≤ x ≤ 1, by the continued fraction on the side where it converges fast."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - incomplete_beta(1.0 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    return front / (a * _continued_fraction(x, a, b))


def _continued_fraction(x: float, a: float, b: float) -> float:
    """1 + d₁/(1 + d₂/(1 + …)), evaluated from the front by keeping the ratios of successive terms.

    d_{2m} = m(b−m)x / ((a+2m−1)(a+2m)), d_{2m+1} = −(a+m)(a+b+m)x / ((a+2m)(a+2m+1)).
    """
    value = numerator = 1.0
    denominator = 0.0
    for index in range(1, 10_000):
        m = index // 2
        if index % 2 == 0:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        denominator = 1.0 + d * denominator
        numerator = 1.0 + d / numerator
        # A term that vanishes would stop the recurrence; a tiny one carries it past that place.
        denominator = 1.0 / (denominator if abs(denominator) > _TINY else _TINY)
        numerator = numerator if abs(numerator) > _TINY else _TINY
        ratio = numerator * denominator
        value *= ratio
        if abs(ratio - 1.0) < 1e-15:
            return value
    raise ArithmeticError(f"the incomplete beta function did not converge at x={x}, a={a}, b={b}")


def t_probability(t: float, degrees: int) -> float:
    """P(T ≤ t) with `degrees` degrees of freedom."""
    tail = 0.5 * incomplete_beta(degrees / (degrees + t * t), degrees / 2.0, 0.5)
    return 1.0 - tail if t >= 0 else tail


@lru_cache(maxsize=256)
def t_quantile(probability: float, degrees: int) -> float:
    """The t with P(T ≤ t) = `probability`, by bisection to the last digits of a double."""
    require(0.0 < probability < 1.0, f"a quantile needs a probability between 0 and 1, not {probability}.")
    require(degrees >= 1, f"Student's t needs at least 1 degree of freedom, not {degrees}.")
    if probability < 0.5:
        return -t_quantile(1.0 - probability, degrees)
    low, high = 0.0, 1.0
    while t_probability(high, degrees) < probability:
        low, high = high, 2.0 * high
    while True:
        middle = 0.5 * (low + high)
        if not low < middle < high or high - low < 1e-13 * high:
            return middle
        if t_probability(middle, degrees) < probability:
            low = middle
        else:
            high = middle


@dataclass(frozen=True)
class Interval:
    """A confidence interval; unbounded where a single value gives no idea of the spread."""

    low: float
    high: float

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


UNBOUNDED = Interval(-math.inf, math.inf)


def t_interval(clusters: NDArray[np.float64], level: float) -> Interval:
    """mean ± t_{n−1} · sd/√n over n independent values."""
    size = len(clusters)
    if size < 2:
        return UNBOUNDED
    mean = float(clusters.mean())
    half = t_quantile(0.5 + level / 2.0, size - 1) * float(clusters.std(ddof=1)) / math.sqrt(size)
    return Interval(mean - half, mean + half)


def bootstrap_means(scores: PaddedScores, resamples: int, key: int) -> NDArray[np.float64]:
    """d̄ of `resamples` draws of seeds, tasks within each drawn seed, and starts within each drawn task."""
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
    """Uniform numbers in [0, 1) as integers in [0, count)."""
    return (uniform * counts[..., None]).astype(np.int64)


def _leading_mean(values: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean of the first `count` entries along the last axis; the rest is padding."""
    kept = np.arange(values.shape[-1]) < counts[..., None]
    total: NDArray[np.float64] = (values * kept).sum(axis=-1)
    return total / counts
