"""Reptile: move θ0 towards where adaptation ended."""

from __future__ import annotations

from torch import Tensor

from warpgrad.initialisers.base import Initialiser
from warpgrad.tensors import Tensors


class Reptile(Initialiser):
    """g_θ0 = θ_0 − θ_K, as the sum of its segments θ_k − θ_{k+1}."""

    def wants_segment(self, k: int) -> bool:
        del k
        return True

    def increment(self, theta: Tensors, after: Tensors, loss: Tensor, next_loss: Tensor, gradient: Tensors) -> Tensors:
        del loss, next_loss, gradient
        return {name: value - after[name] for name, value in theta.items()}
