"""MAML and its first-order form as C(θ0)."""

from __future__ import annotations

from warpgrad.adaptation import Adaptation, Point
from warpgrad.initialisers.base import Initialiser
from warpgrad.objectives.unrolled import Through
from warpgrad.tensors import Tensors, gradients, leaves, select


class FOMAML(Initialiser):
    """g_θ0 = ∇L_meta(θ_K): MAML with the derivative of every step taken as the identity."""

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

    What bites: it keeps the graph of all K steps, so its memory grows with K. For few-shot tasks only.
    """

    def final(self, adaptation: Adaptation, start: Point, last: Point, steps: int) -> Tensors:
        del last
        return adaptation.compute(Through(steps, theta0_only=True), start).theta0
