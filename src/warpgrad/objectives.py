"""Meta-objectives: from a point (τ, θ_k) on a trajectory to the gradient g_φ for the warp.

| objective           | equation | gradient                                                           |
|---------------------|----------|--------------------------------------------------------------------|
| `Exact`             | 11       | through the adaptation step and through the loss after it          |
| `Approximate`       | 12       | through the loss after the step alone                              |
| `InPlace`           | 18       | at θ_k itself, from the backward pass that adaptation takes anyway |
| `UnrolledObjective` | 1        | through all K steps: MAML and its family                           |

To add one, subclass `Objective`: see `docs/extending.md`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from warpgrad.adaptation.base import (
    ADAPT_BATCH,
    META_BATCH,
    Adaptation,
    Computation,
    Inner,
    Point,
    Source,
    Transition,
    following,
)
from warpgrad.adaptation.trajectory import ObjectiveStep
from warpgrad.errors import require
from warpgrad.model.learner import Learner
from warpgrad.rules import Rule
from warpgrad.tensors import Groups, Tensors, detached, gradients, leaves, select

__all__ = [
    "Approximate", "Exact", "InPlace", "Objective", "ObjectiveStep", "StartSample", "UnrolledObjective", "UnrolledStep",
]  # fmt: skip


@dataclass(frozen=True)
class StartSample:
    """L_meta(θ_0; φ) and its gradient; no step is taken, so a rule has no part in it.

    Example:
        >>> objectives.StartSample(torch.tensor(1.0), learner.phi).rule
        {}
    """

    meta_loss: Tensor
    phi: Tensors
    rule: Tensors = field(default_factory=dict)


class Objective(Computation[ObjectiveStep]):
    """Base class of objectives, which give the gradient for φ at a point (τ, θ_k).

    Example:
        >>> issubclass(wg.Exact, wg.Objective), wg.Exact.stops_gradient, wg.Approximate.stops_gradient
        (True, False, True)
    """

    reads: tuple[tuple[Source, int], ...] = ((ADAPT_BATCH, 0), (META_BATCH, 0))

    stops_gradient: bool
    """Whether the inner step is a constant in the objective: then nothing that acts only through it can be learned."""

    needs_trajectory: bool = False
    """Whether it looks at more than single points, by `remember` or `at_start`: then it is for Algorithm 1 alone."""

    @abstractmethod
    def step(self, adaptation: Adaptation, point: Point) -> ObjectiveStep:
        """Take the adaptation step at `point`, and compute the gradients of this objective there."""

    def meta_loss(
        self, adaptation: Adaptation, theta: Mapping[str, Tensor], buffers: Mapping[str, Tensor], before: Point
    ) -> Tensor:
        """Compute L_meta at the θ that the step from `before` led to; one entry per task in a stack."""
        return adaptation.meta_loss(theta, buffers, before.k)

    def at_start(self, adaptation: Adaptation, start: Point) -> StartSample | None:
        """Return a sample at θ_0 itself, which Algorithm 1 adds to those of the steps; by default there is none.

        Eq. 11 evaluates the loss after each step, never at the start itself.
        """
        del adaptation, start
        return None

    def groups(self, result: ObjectiveStep) -> Groups:
        transition = result.transition
        return {
            "losses": {"task": transition.loss, "meta": result.meta_loss},
            "gradient": transition.gradient,
            **transition.after.groups(),
            "phi": result.phi,
            "rule": result.rule,
        }

    def result(self, groups: Groups, point: Point) -> ObjectiveStep:
        losses, after = groups["losses"], Point.of(following(point.k), groups)
        transition = Transition(point, losses["task"], groups["gradient"], after)
        return ObjectiveStep(transition, losses["meta"], groups["phi"], groups["rule"])

    def check(self, learner: Learner, rule: Rule) -> None:
        """Raise for parts that could never learn under this objective."""
        name = type(self).__name__
        require(
            not self.stops_gradient or not rule.meta,
            f"the rule learns {', '.join(rule.meta)}, which would never change because {name} stops the gradient "
            "of the inner step; use Exact(), or a fixed value.",
        )
        require(
            learner.phi or rule.meta,
            f"{name} has nothing to learn: the model has no warp parameters and the rule learns none; "
            "add warp-layers, or pass objective=None to learn an initialisation alone.",
        )


class Exact(Objective):
    """L(φ) = L_meta(θ − α ∇L_task(θ; φ); φ), for whatever step the rule takes.

    φ acts twice: on the step that is taken, and on the loss after it. The first path needs the derivative
    of a gradient. θ, the rule's state and the buffers are constants.

    Example:
        >>> sample = adaptation.compute(wg.Exact(), adaptation.start())
        >>> sorted(sample.phi) == sorted(learner.phi), sample.transition.after.k
        (True, 1)
    """

    stops_gradient = False

    def step(self, adaptation: Adaptation, point: Point) -> ObjectiveStep:
        learner, rule = adaptation.learner, adaptation.rule
        with learner.second_order(mapped=adaptation.mapped):
            inner = adaptation.inner(point, create_graph=True)
        new_theta, new_state = adaptation.update(inner.gradient, point.state, point.theta)
        meta_loss = self.meta_loss(adaptation, new_theta, inner.buffers, point)
        adaptation.check_finite(meta_loss, "the meta loss", point.k)
        phi, meta = gradients(
            meta_loss, learner.phi, rule.meta, what="the meta loss", allow_unused=learner.allow_unused
        )
        transition = adaptation.transition(point, inner, new_theta, new_state)
        return ObjectiveStep(transition, meta_loss.detach(), phi, meta)


class Approximate(Objective):
    """L̂(φ) = L_meta(sg[θ − α ∇L_task(θ; φ)]; φ): the step is taken, then held constant.

    Keeps every first-order term along the trajectory and drops only the effect of φ on the step itself.

    Example:
        >>> sample = adaptation.compute(wg.Approximate(), adaptation.start())
        >>> sorted(sample.phi) == sorted(learner.phi), sample.transition.after.k
        (True, 1)
    """

    stops_gradient = True

    def step(self, adaptation: Adaptation, point: Point) -> ObjectiveStep:
        learner = adaptation.learner
        transition = adaptation.step(point)
        after = transition.after
        meta_loss = self.meta_loss(adaptation, after.theta, after.buffers, point)
        adaptation.check_finite(meta_loss, "the meta loss", point.k)
        (phi,) = gradients(meta_loss, learner.phi, what="the meta loss", allow_unused=learner.allow_unused)
        return ObjectiveStep(transition, meta_loss.detach(), phi, {})


class InPlace(Objective):
    """∇_φ L_meta(θ; φ) at θ itself, on the batch of the adaptation step.

    Where L_meta and L_task are one function, a single forward and backward pass gives both ∇_θ (for C and
    for the step) and ∇_φ. Where they differ, a second pass on the same batch and masks gives ∇_φ.

    Example:
        >>> sample = adaptation.compute(wg.InPlace(), adaptation.start())
        >>> sorted(sample.phi) == sorted(learner.phi), sample.transition.after.k
        (True, 1)
    """

    stops_gradient = True
    reads = ((ADAPT_BATCH, 0),)

    def step(self, adaptation: Adaptation, point: Point) -> ObjectiveStep:
        learner = adaptation.learner
        theta = leaves(point.theta)
        unused = learner.allow_unused
        loss, buffers = adaptation.task_loss(theta, point.buffers, point.k)
        adaptation.check_finite(loss, "the task loss", point.k)
        if adaptation.one_loss:
            meta_loss = loss
            gradient, phi = gradients(loss, theta, learner.phi, what="the task loss", allow_unused=unused)
        else:
            (gradient,) = gradients(loss, theta, what="the task loss", allow_unused=unused)
            meta_loss = adaptation.in_place_loss(point.theta, point.buffers, point.k)
            adaptation.check_finite(meta_loss, "the meta loss", point.k)
            (phi,) = gradients(meta_loss, learner.phi, what="the meta loss", allow_unused=unused)
        with torch.no_grad():
            new_theta, new_state = adaptation.update(gradient, point.state, point.theta)
        inner = Inner(loss, gradient, theta, buffers)
        transition = adaptation.transition(point, inner, new_theta, new_state)
        return ObjectiveStep(transition, meta_loss.detach(), phi, {})


@dataclass(frozen=True)
class UnrolledStep:
    """L_meta(θ_K) and its gradients through all K steps; sums over the stack where tasks are stacked.

    Example:
        >>> found = adaptation.compute(wg.UnrolledObjective(2, theta0_only=True), adaptation.start())
        >>> found.phi, found.rule
        ({}, {})
    """

    meta_loss: Tensor
    theta0: Tensors
    phi: Tensors
    rule: Tensors
    last: Point


class UnrolledObjective(Computation[UnrolledStep]):
    """Gradients of L_meta(θ_K; φ) for θ0, φ and the rule's meta-parameters, through `steps` updates.

    With `theta0_only` the warp is a constant: C^MAML of Warp-MAML, whose gradient goes to θ0 and never to φ.
    The gradient for θ0 has one entry per task in a stack and covers learned parameters only.

    Example:
        >>> found = adaptation.compute(wg.UnrolledObjective(steps=3), adaptation.start())
        >>> sorted(found.theta0) == sorted(learner.theta0), found.last.k
        (True, 3)
    """

    def __init__(self, steps: int, *, theta0_only: bool = False) -> None:
        self.steps, self.theta0_only = steps, theta0_only
        self.reads = (*((ADAPT_BATCH, k) for k in range(steps)), (META_BATCH, steps))

    def step(self, adaptation: Adaptation, point: Point) -> UnrolledStep:
        learner, rule = adaptation.learner, adaptation.rule
        begin = leaves(point.theta)
        point = Point(point.k, begin, point.buffers, point.state)
        with learner.second_order(mapped=adaptation.mapped, theta=True):
            for _ in range(self.steps):
                inner = adaptation.inner(point, create_graph=True, theta=point.theta)
                theta, state = adaptation.update(inner.gradient, point.state, point.theta)
                point = Point(following(point.k), theta, inner.buffers, state)
        meta_loss = adaptation.meta_loss(point.theta, point.buffers, point.k)
        adaptation.check_finite(meta_loss, "the meta loss", point.k)
        sought = [select(begin, learner.learned)]
        if not self.theta0_only:
            sought += [learner.phi, rule.meta]
        found = gradients(meta_loss, *sought, what="the meta loss", allow_unused=learner.allow_unused)
        phi, meta = ({}, {}) if self.theta0_only else (found[1], found[2])
        last = Point(point.k, detached(point.theta), point.buffers, detached(point.state))
        return UnrolledStep(meta_loss.detach(), found[0], phi, meta, last)

    def groups(self, result: UnrolledStep) -> Groups:
        gradients_ = {"theta0": result.theta0, "phi": result.phi, "rule": result.rule}
        return {"losses": {"meta": result.meta_loss}, **gradients_, **result.last.groups()}

    def result(self, groups: Groups, point: Point) -> UnrolledStep:
        last = Point.of(following(point.k, self.steps), groups)
        return UnrolledStep(groups["losses"]["meta"], groups["theta0"], groups["phi"], groups["rule"], last)
