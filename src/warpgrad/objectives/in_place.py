"""The in-place objective of the Warp-RNN (App. C): no inner step at all."""

from __future__ import annotations

import torch

from warpgrad.adaptation import Adaptation, Inner, Point
from warpgrad.objectives.base import Objective, ObjectiveStep
from warpgrad.tensors import gradients, leaves


class InPlace(Objective):
    """∇_φ L_meta(θ; φ) at θ itself, on the batch of the adaptation step.

    Where L_meta and L_task are one function, a single forward and backward pass gives both ∇_θ (for C and
    for the step) and ∇_φ. Where they differ, a second pass on the same batch and masks gives ∇_φ.
    """

    stops_gradient = True
    reads = (("adapt_batch", 0),)

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
