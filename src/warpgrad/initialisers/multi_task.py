"""C^multi: θ is one solution for all tasks (App. B, Algorithm 3)."""

from __future__ import annotations

from torch import Tensor

from warpgrad.initialisers.base import Initialiser
from warpgrad.tensors import Tensors


class MultiTask(Initialiser):
    """g_θ0 = ∇L_task(θ_0): the gradient of the mean task loss, at the start of each trajectory."""

    def wants_segment(self, k: int) -> bool:
        return k == 0

    def increment(self, theta: Tensors, after: Tensors, loss: Tensor, next_loss: Tensor, gradient: Tensors) -> Tensors:
        del theta, after, loss, next_loss
        return gradient
