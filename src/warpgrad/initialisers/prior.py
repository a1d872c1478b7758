"""A prior over θ0 instead of a point (§2.5 c)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from warpgrad.adaptation.base import Adaptation, Point
from warpgrad.adaptation.trajectory import Start, ThetaGradient
from warpgrad.errors import expect, real, require
from warpgrad.initialisers.base import Initialiser
from warpgrad.keys import generator
from warpgrad.model.learner import Learner
from warpgrad.tensors import Tensors


class GaussianPrior(Initialiser):
    """θ_0 = μ + σ∘ε with ε ~ N(0, I): mean μ in the learner's θ0, log σ in `meta`, both learned by another C.

    Reparameterised: g_μ = g and g_{log σ} = g ∘ ε ∘ σ, where g is the gradient that C gives for the start drawn.

        GaussianPrior(Reptile(), std=0.01)

    Example:
        >>> prior = wg.GaussianPrior(wg.Reptile(), std=0.01)
        >>> sorted(wg.Method(learner, wg.SGD(0.1), None, prior).parameters("prior")) == sorted(learner.learned)
        True
    """

    def __init__(self, objective: Initialiser, *, std: float = 0.01) -> None:
        super().__init__()
        expect(objective, Initialiser, "objective", "Reptile()")
        require(
            not objective.meta and not isinstance(objective, GaussianPrior),
            "GaussianPrior(...) takes a plain initialiser such as Reptile() or Leap().",
        )
        self.objective, self.std = objective, real(std, "std", above=0)
        self.needs_next_loss, self.needs_gradient = objective.needs_next_loss, objective.needs_gradient

    def prepare(self, learner: Learner) -> None:
        if self.meta:
            return
        self.meta = {
            name: torch.full_like(value, math.log(self.std), requires_grad=True)
            for name, value in learner.learned_theta0.items()
        }

    def start(self, learner: Learner, key: int) -> Start:
        theta = learner.start(key)
        draw = generator(key, "prior")
        noise = {
            name: torch.randn(value.shape, generator=draw, dtype=value.dtype).to(value.device)
            for name, value in learner.learned_theta0.items()
        }
        for name, epsilon in noise.items():
            theta[name] = theta[name] + self.meta[name].detach().exp() * epsilon
        return Start(theta, noise)

    def wants_segment(self, k: int) -> bool:
        return self.objective.wants_segment(k)

    def increment(self, theta: Tensors, after: Tensors, loss: Tensor, next_loss: Tensor, gradient: Tensors) -> Tensors:
        return self.objective.increment(theta, after, loss, next_loss, gradient)

    def final(self, adaptation: Adaptation, start: Point, last: Point, steps: int) -> Tensors | None:
        return self.objective.final(adaptation, start, last, steps)

    def pull_back(self, gradient: Tensors, noise: Tensors) -> ThetaGradient:
        prior = {name: value * noise[name] * self.meta[name].detach().exp() for name, value in gradient.items()}
        return ThetaGradient(gradient, prior)
