"""The first-order objective, Eq. 12."""

from __future__ import annotations

from warpgrad.adaptation import Adaptation, Point
from warpgrad.errors import WarpgradError
from warpgrad.objectives.base import Objective, ObjectiveStep
from warpgrad.tensors import gradients


class Approximate(Objective):
    """L̂(φ) = L_meta(sg[θ − α ∇L_task(θ; φ)]; φ): the step is taken, then held constant.

    Keeps every first-order term along the trajectory and drops only the effect of φ on the step itself.
    """

    stops_gradient = True

    def step(self, adaptation: Adaptation, point: Point) -> ObjectiveStep:
        learner, task = adaptation.learner, adaptation.task
        if task.judges_step:
            raise WarpgradError(
                f"the meta-loss of task '{task.name}' judges the step itself, which Approximate() holds constant: it "
                "would judge nothing; use Exact(), or a meta-loss that looks at where the step led."
            )
        transition = adaptation.step(point)
        after = transition.after
        meta_loss = adaptation.meta_loss(after.theta, after.buffers, point.k, point)
        adaptation.check_finite(meta_loss, "the meta loss", point.k)
        (phi,) = gradients(meta_loss.sum(), learner.phi, what="the meta loss", allow_unused=learner.allow_unused)
        return ObjectiveStep(transition, meta_loss.detach(), phi, {})
