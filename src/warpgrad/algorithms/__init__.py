"""Algorithms 1, 2 and 3 of the paper, backpropagation through adaptation, and the methods that they run."""

from warpgrad.algorithms.base import Algorithm
from warpgrad.algorithms.continual import Continual
from warpgrad.algorithms.meta_optimiser import MetaOptimiser
from warpgrad.algorithms.method import Method
from warpgrad.algorithms.offline import Offline
from warpgrad.algorithms.online import Online
from warpgrad.algorithms.recipes import warp_leap, warp_maml, warp_rnn
from warpgrad.algorithms.replay import ReplayBudget, ReplayBuffer
from warpgrad.algorithms.unrolled import Unrolled

__all__ = [
    "Algorithm",
    "Continual",
    "MetaOptimiser",
    "Method",
    "Offline",
    "Online",
    "ReplayBudget",
    "ReplayBuffer",
    "Unrolled",
    "warp_leap",
    "warp_maml",
    "warp_rnn",
]
