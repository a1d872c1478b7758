"""Initialisers: how θ0 is learned from a trajectory, C(θ0) of Eq. 13 (§2.5, App. C).

An initialiser sees a trajectory one segment at a time and returns gradients for θ0, so that it adds nothing to the
memory of Algorithm 1. It sees only the parameters whose start policy is `learned`. To add one, subclass `Initialiser`:
see `docs/extending.md`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from warpgrad.adaptation.base import Adaptation, Point, Transition
from warpgrad.adaptation.trajectory import Start, ThetaGradient, Trajectory
from warpgrad.errors import expect, flag, real, require
from warpgrad.keys import generator
from warpgrad.model.learner import Learner
from warpgrad.objectives import UnrolledObjective
from warpgrad.tensors import Tensors, detached, gradients, leaves, safe_sqrt, select

__all__ = [
    "FOMAML", "MAML", "Fixed", "GaussianPrior", "Initialiser", "Leap", "MultiTask", "Reptile", "Start",
    "ThetaGradient",
]  # fmt: skip


class Initialiser:
    """How θ0 is learned. The base class learns nothing.

    Example:
        >>> issubclass(wg.Leap, wg.Initialiser), wg.Leap().needs_next_loss
        (True, True)
    """

    learns = True
    """Whether θ0 changes at all."""

    needs_next_loss = False
    """Whether segments need L_task(θ_{k+1}). The next step computes it; after the last one it costs a forward pass."""

    needs_gradient = True
    """Whether `increment` uses the gradient; if not, compiled steps leave it out."""

    def __init__(self) -> None:
        self.meta: Tensors = {}
        """The initialiser's own meta-parameters (the spread of a prior)."""

    def prepare(self, learner: Learner) -> None:
        """Prepare for meta-training of this learner; called once, before the first meta-step."""
        del learner

    def start(self, learner: Learner, key: int) -> Start:
        """Return θ_0 of the task with this key."""
        return Start(learner.start(key), {})

    def wants_segment(self, k: int) -> bool:
        """Return whether segment k contributes to ∇C."""
        del k
        return False

    def increment(self, theta: Tensors, after: Tensors, loss: Tensor, next_loss: Tensor, gradient: Tensors) -> Tensors:
        """Compute the part of ∇C that one segment θ_k → θ_{k+1} contributes, as a pure function of one task's tensors.

        `next_loss` is L_task(θ_{k+1}) with `needs_next_loss`, otherwise `loss` once more.
        """
        raise NotImplementedError

    def final(self, adaptation: Adaptation, start: Point, last: Point, steps: int) -> Tensors | None:
        """Compute the part of ∇C that is known only at the end of the trajectory; one entry per task in a stack."""
        del adaptation, start, last, steps
        return None

    def pull_back(self, gradient: Tensors, noise: Tensors) -> ThetaGradient:
        """Turn a gradient for the start that was used into one for the meta-parameters that made it."""
        del noise
        return ThetaGradient(gradient, {})

    def contribution(
        self, trajectory: Trajectory, transition: Transition, next_loss: Tensor, *, last: bool
    ) -> ThetaGradient | None:
        """Return the contribution of a step to g_θ0, after the last one with that of the end; None if there is none."""
        adaptation, gradient = trajectory.adaptation, self._segment(trajectory.adaptation, transition, next_loss)
        if last:
            final = self.final(adaptation, trajectory.start, transition.after, trajectory.steps)
            if gradient is not None and final is not None:
                final = {name: value + final[name] for name, value in gradient.items()}
            gradient = gradient if final is None else final
        return None if gradient is None else self.pull_back(detached(gradient), trajectory.noise)

    def _segment(self, adaptation: Adaptation, transition: Transition, next_loss: Tensor) -> Tensors | None:
        point, learned = transition.point, adaptation.learner.learned
        assert isinstance(point.k, int), "the tasks of a trajectory advance in step"
        if not learned or not self.wants_segment(point.k):
            return None
        return adaptation.per_task(
            self.increment,
            select(point.theta, learned),
            select(transition.after.theta, learned),
            transition.loss,
            next_loss,
            select(transition.gradient, learned) if self.needs_gradient else {},
        )


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
            direction = {name: torch.addcmul(value, signed, gradient[name]) for name, value in moved.items()}
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
            loss,
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
