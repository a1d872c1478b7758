"""The canonical objective, Eq. 11, with its second-order term."""

from __future__ import annotations

import torch

from warpgrad.adaptation.base import ADAPT_BATCH, Adaptation, Inner, Point
from warpgrad.adaptation.trajectory import ObjectiveStep
from warpgrad.objectives.base import Objective
from warpgrad.tensors import gradients, leaves


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
            meta_loss.sum(), learner.phi, rule.meta, what="the meta loss", allow_unused=learner.allow_unused
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
        (phi,) = gradients(meta_loss.sum(), learner.phi, what="the meta loss", allow_unused=learner.allow_unused)
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
            gradient, phi = gradients(loss.sum(), theta, learner.phi, what="the task loss", allow_unused=unused)
        else:
            (gradient,) = gradients(loss.sum(), theta, what="the task loss", allow_unused=unused)
            meta_loss = adaptation.in_place_loss(point.theta, point.buffers, point.k)
            adaptation.check_finite(meta_loss, "the meta loss", point.k)
            (phi,) = gradients(meta_loss.sum(), learner.phi, what="the meta loss", allow_unused=unused)
        with torch.no_grad():
            new_theta, new_state = adaptation.update(gradient, point.state, point.theta)
        inner = Inner(loss, gradient, theta, buffers)
        transition = adaptation.transition(point, inner, new_theta, new_state)
        return ObjectiveStep(transition, meta_loss.detach(), phi, {})
