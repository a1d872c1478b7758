"""Random numbers that are the same bits on every machine.

The drawn alphabets are data: their bytes must not depend on the processor or on a library's release. NumPy
promises a fixed stream only for raw bits, and sine, exponential and matrix products may differ in the last digit from
one processor to the next. So all draws come from raw bits, and only + − × ÷ √ follow, which IEEE 754 fixes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from warpgrad.keys import fold

Floats = npt.NDArray[np.float64]


class Draws:
    """The draws of the place that `parts` name (see `warpgrad.keys.fold`)."""

    def __init__(self, *parts: int | str) -> None:
        self._bits = np.random.PCG64(fold(*parts))

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> Floats:
        raw = np.asarray(self._bits.random_raw(math.prod(shape)), dtype=np.uint64)
        unit = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
        scaled: Floats = (low + (high - low) * unit).reshape(shape)
        return scaled

    def bell(self, deviation: float, shape: tuple[int, ...]) -> Floats:
        """Nearly Gaussian around 0: four uniform draws summed, never beyond 2√3 deviations."""
        four = self.uniform(-0.5, 0.5, (4, *shape))
        summed: Floats = (four[0] + four[1] + four[2] + four[3]) * (deviation * math.sqrt(3.0))
        return summed

    def number(self, low: float, high: float) -> float:
        return float(self.uniform(low, high, (1,))[0])

    def integer(self, low: int, high: int) -> int:
        """Uniform on low..high, both included."""
        return low + int(self.number(0.0, 1.0) * (high - low + 1))

    def chance(self, probability: float) -> bool:
        return self.number(0.0, 1.0) < probability

    def sign(self) -> float:
        return 1.0 if self.chance(0.5) else -1.0

    def weighted(self, weights: Sequence[float]) -> int:
        """An index, drawn in proportion to its weight."""
        # accumulate(), not sum(): what sum() does with floats differs between releases of Python.
        reached = list(accumulate(weights))
        return min(bisect_right(reached, self.number(0.0, 1.0) * reached[-1]), len(weights) - 1)
