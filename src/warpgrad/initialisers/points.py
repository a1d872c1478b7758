"""Initialisers that learn θ0 as a point: multi-task, Reptile, Leap (Eqs. 16-17), first-order MAML and MAML."""

from __future__ import annotations

import torch
from torch import Tensor

from warpgrad.adaptation.base import Adaptation, Point
from warpgrad.errors import flag
from warpgrad.initialisers.base import Initialiser
from warpgrad.objectives.unrolled import UnrolledObjective
from warpgrad.rules.base import safe_sqrt
from warpgrad.tensors import Tensors, gradients, leaves, select


class Fixed(Initialiser):
    """θ0 is the module's own initialisation and never changes; with start policy `fresh`, redrawn per task.

    Example:
        >>> start_only = wg.Method(learner, wg.SGD(0.1), initialiser=wg.Fixed())
        >>> start_only.initialiser.learns, start_only.parameters("prior")
        (False, {})
    """

    learns = False
    needs_gradient = False


class MultiTask(Initialiser):
    """g_θ0 = ∇L_task(θ_0): the gradient of the mean task loss, at the start of each trajectory.

    Example:
        >>> start_only = wg.Method(learner, wg.SGD(0.1), initialiser=wg.MultiTask())
        >>> start_only.initialiser.learns, start_only.parameters("prior")
        (True, {})
    """

    def wants_segment(self, k: int) -> bool:
        return k == 0

    def increment(self, theta: Tensors, after: Tensors, loss: Tensor, next_loss: Tensor, gradient: Tensors) -> Tensors:
        del theta, after, loss, next_loss
        return gradient


class Reptile(Initialiser):
    """g_θ0 = θ_0 − θ_K, as the sum of its segments θ_k − θ_{k+1}.

    Example:
        >>> start_only = wg.Method(learner, wg.SGD(0.1), initialiser=wg.Reptile())
        >>> start_only.initialiser.learns, start_only.parameters("prior")
        (True, {})
    """

    needs_gradient = False

    def wants_segment(self, k: int) -> bool:
        del k
        return True

    def increment(self, theta: Tensors, after: Tensors, loss: Tensor, next_loss: Tensor, gradient: Tensors) -> Tensors:
        del loss, next_loss, gradient
        return {name: value - after[name] for name, value in theta.items()}


class Leap(Initialiser):
    """∇C = −Σ_k (ΔL_k ∇L(θ_{k−1}) + Δθ_k) / ‖ϑ_k − ϑ_{k−1}‖ with ϑ = (θ, L(θ)).

    Each segment pulls θ_{k−1}, and with it θ0, towards the point adaptation reached from it.

    Example:
        >>> start_only = wg.Method(learner, wg.SGD(0.1), initialiser=wg.Leap(stabilise=False))
        >>> start_only.initialiser.learns, start_only.parameters("prior")
        (True, {})
    """

    def __init__(self, *, loss: bool = True, norm: bool = True, stabilise: bool = True) -> None:
        """
        Args:
            loss: Measure the path on the loss surface (θ, L(θ)), not in parameter space alone.
            norm: Minimise the path's length; otherwise its energy, half the sum of squares, with no division.
            stabilise: Use −|ΔL| for ΔL, so that a step on which a noisy loss went up does not push uphill.
        """
        super().__init__()
        self.loss, self.norm = flag(loss, "loss"), flag(norm, "norm")
        self.stabilise = flag(stabilise, "stabilise")
        self.needs_next_loss = self.needs_gradient = loss

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


class FOMAML(Initialiser):
    """g_θ0 = ∇L_meta(θ_K): MAML with the derivative of every step taken as the identity.

    Example:
        >>> start_only = wg.Method(learner, wg.SGD(0.1), initialiser=wg.FOMAML())
        >>> start_only.initialiser.learns, start_only.parameters("prior")
        (True, {})
    """

    needs_gradient = False

    def final(self, adaptation: Adaptation, start: Point, last: Point, steps: int) -> Tensors:
        del start, steps
        learner = adaptation.learner
        theta = leaves(last.theta)
        loss = adaptation.meta_loss(theta, last.buffers, last.k)
        (gradient,) = gradients(
            loss.sum(),
            select(theta, learner.learned),
            what="the meta loss",
            allow_unused=learner.allow_unused,
        )
        return gradient


class MAML(Initialiser):
    """g_θ0 = ∇_θ0 L_meta(θ_K(θ0)), Eq. 1, with φ held constant: C^MAML of Warp-MAML.

    Warning: it keeps the graph of all K steps, so its memory grows with K. For few-shot tasks only.

    Example:
        >>> start_only = wg.Method(learner, wg.SGD(0.1), initialiser=wg.MAML())
        >>> start_only.initialiser.learns, start_only.parameters("prior")
        (True, {})
    """

    needs_gradient = False

    def final(self, adaptation: Adaptation, start: Point, last: Point, steps: int) -> Tensors:
        del last
        return adaptation.compute(UnrolledObjective(steps, theta0_only=True), start).theta0
