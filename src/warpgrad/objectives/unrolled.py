"""Backpropagation through adaptation, Eq. 1: the trajectory-dependent alternative that WarpGrad avoids.

One computation serves MAML, Meta-SGD, Meta-Curvature, T-Nets, MT-Nets, CAVIA and ANIL: they differ in what is θ,
what is φ and which rule steps, not in how the gradient is taken. Its memory grows with K.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from warpgrad.adaptation.base import ADAPT_BATCH, META_BATCH, Adaptation, Computation, Point, following
from warpgrad.tensors import Groups, Tensors, detached, gradients, leaves, select


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
        found = gradients(meta_loss.sum(), *sought, what="the meta loss", allow_unused=learner.allow_unused)
        phi, meta = ({}, {}) if self.theta0_only else (found[1], found[2])
        last = Point(point.k, detached(point.theta), point.buffers, detached(point.state))
        return UnrolledStep(meta_loss.detach(), found[0], phi, meta, last)

    def groups(self, result: UnrolledStep) -> Groups:
        gradients_ = {"theta0": result.theta0, "phi": result.phi, "rule": result.rule}
        return {"losses": {"meta": result.meta_loss}, **gradients_, **result.last.groups()}

    def result(self, groups: Groups, point: Point) -> UnrolledStep:
        last = Point.of(following(point.k, self.steps), groups)
        return UnrolledStep(groups["losses"]["meta"], groups["theta0"], groups["phi"], groups["rule"], last)
