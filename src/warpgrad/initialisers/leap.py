"""Leap: the shortest expected gradient-descent path (Eqs. 16-17)."""

from __future__ import annotations

import torch
from torch import Tensor

from warpgrad.initialisers.base import Initialiser
from warpgrad.rules.base import safe_sqrt
from warpgrad.tensors import Tensors


class Leap(Initialiser):
    """∇C = −Σ_k (ΔL_k ∇L(θ_{k−1}) + Δθ_k) / ‖ϑ_k − ϑ_{k−1}‖ with ϑ = (θ, L(θ)).

    Each segment pulls θ_{k−1}, and with it θ0, towards the point adaptation reached from it.
    """

    def __init__(self, *, loss: bool = True, norm: bool = True, stabilise: bool = True) -> None:
        """
        Args:
            loss: Measure the path on the loss surface (θ, L(θ)), not in parameter space alone.
            norm: Minimise the path's length; otherwise its energy, half the sum of squares, with no division.
            stabilise: Use −|ΔL| for ΔL, so that a step on which a noisy loss went up does not push uphill.
        """
        super().__init__()
        self.loss = loss
        self.norm = norm
        self.stabilise = stabilise
        self.needs_final_loss = loss

    def wants_segment(self, k: int) -> bool:
        del k
        return True

    def increment(self, theta: Tensors, after: Tensors, loss: Tensor, next_loss: Tensor, gradient: Tensors) -> Tensors:
        moved = {name: after[name] - value for name, value in theta.items()}
        drop = next_loss - loss
        square = sum((value.square().sum() for value in moved.values()), torch.zeros_like(loss))
        direction = moved
        if self.loss:
            square = square + drop.square()
            signed = -drop.abs() if self.stabilise else drop
            direction = {name: value + signed * gradient[name] for name, value in moved.items()}
        if not self.norm:
            return {name: -value for name, value in direction.items()}
        length = safe_sqrt(square)
        # A segment of length 0 has no direction: it contributes nothing.
        scale = -torch.where(length > 0, 1.0 / torch.where(length > 0, length, 1.0), 0.0)
        return {name: value * scale for name, value in direction.items()}
