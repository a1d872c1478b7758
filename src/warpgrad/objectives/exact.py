"""The canonical objective, Eq. 11, with its second-order term."""

from __future__ import annotations

from warpgrad.adaptation import Adaptation, Point
from warpgrad.objectives.base import Objective, ObjectiveStep
from warpgrad.tensors import gradients


class Exact(Objective):
    """L(φ) = L_meta(θ − α ∇L_task(θ; φ); φ), for whatever step the rule takes.

    φ acts twice: on the step that is taken, and on the loss after it. The first path needs the derivative
    of a gradient. θ, the rule's state and the buffers are constants.
    """

    stops_gradient = False

    def step(self, adaptation: Adaptation, point: Point) -> ObjectiveStep:
        learner, rule = adaptation.learner, adaptation.rule
        with learner.second_order(mapped=adaptation.mapped):
            inner = adaptation.inner(point, create_graph=True)
        new_theta, new_state = adaptation.update(inner.gradient, point.state, point.theta)
        meta_loss = adaptation.meta_loss(new_theta, inner.buffers, point.k, point)
        adaptation.check_finite(meta_loss, "the meta loss", point.k)
        phi, meta = gradients(
            meta_loss.sum(), learner.phi, rule.meta, what="the meta loss", allow_unused=learner.allow_unused
        )
        transition = adaptation.transition(point, inner, new_theta, new_state)
        return ObjectiveStep(transition, meta_loss.detach(), phi, meta)
