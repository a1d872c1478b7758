"""Random numbers as a function of (episode seed, role, time step), for a whole batch of episodes at once.

`warpgrad.keys` makes a generator per key, which would need a loop over the batch. Here the key itself is scrambled: the
state of an episode is its seed mixed with the role, and draw t is a mix of state + t · γ (the SplitMix64 generator,
whose t-th output needs none of those before it).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from warpgrad.keys import fold

_GAMMA = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def uniforms(seeds: ArrayLike, role: str, count: int) -> NDArray[np.float64]:
    """Draw `count` numbers from [0, 1) for every seed, shape [count, seeds]; row t is draw t of each."""
    return np.asarray((_bits(seeds, role, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def following_seeds(seeds: ArrayLike) -> NDArray[np.int64]:
    """Return the seed of the episode after the one with this seed, for environments that are reset without one."""
    return np.asarray(_bits(seeds, "next episode", 1)[0] >> np.uint64(1), dtype=np.int64)


def _bits(seeds: ArrayLike, role: str, count: int) -> NDArray[np.uint64]:
    own = np.atleast_1d(np.asarray(seeds, dtype=np.int64)).view(np.uint64)
    state = _mixed(own + np.array([fold(role)], np.uint64))
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.array([_GAMMA], np.uint64)
    return _mixed(state + steps[:, None])


def _mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Map 64 bits one-to-one so that every input bit affects every output bit; arithmetic is modulo 2⁶⁴."""
    first, second = np.array(_FACTORS, np.uint64)[:, None]
    value = (value ^ (value >> np.uint64(30))) * first
    value = (value ^ (value >> np.uint64(27))) * second
    return value ^ (value >> np.uint64(31))
