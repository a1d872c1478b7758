"""Algorithms 1, 2 and 3 of the paper, and backpropagation through adaptation for comparison."""

from warpgrad.algorithms.base import Algorithm
from warpgrad.algorithms.continual import Continual
from warpgrad.algorithms.offline import Offline
from warpgrad.algorithms.online import Online
from warpgrad.algorithms.unrolled import Unrolled

__all__ = ["Algorithm", "Continual", "Offline", "Online", "Unrolled"]
