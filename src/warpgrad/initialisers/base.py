"""C(θ0): what the initialisation learns from a trajectory (§2.5, App. C).

An initialiser sees a trajectory one segment at a time and returns gradients for θ0, so that it adds nothing
to the memory of Algorithm 1. Only parameters with the start policy `learned` reach it.
"""

from __future__ import annotations

from torch import Tensor

from warpgrad.adaptation.base import Adaptation, Point, Transition
from warpgrad.adaptation.trajectory import Start, ThetaGradient, Trajectory
from warpgrad.model.learner import Learner
from warpgrad.tensors import Tensors, detached, select


class Initialiser:
    """How θ0 is learned. The base class learns nothing.

    Example:
        >>> issubclass(wg.Leap, wg.Initialiser), wg.Leap().needs_next_loss
        (True, True)
    """

    learns = True
    """Whether θ0 changes at all."""

    needs_next_loss = False
    """Whether segments need L_task(θ_{k+1}): the next step computes it, the last segment takes a forward pass more."""

    needs_gradient = True
    """Whether `increment` looks at the gradient; compiled steps go without it where it does not."""

    def __init__(self) -> None:
        self.meta: Tensors = {}
        """The initialiser's own meta-parameters (the spread of a prior)."""

    def prepare(self, learner: Learner) -> None:
        """Called once before meta-training, when the learner is known."""
        del learner

    def start(self, learner: Learner, key: int) -> Start:
        """θ_0 of the task with this key."""
        return Start(learner.start(key), {})

    def wants_segment(self, k: int) -> bool:
        """Whether segment k contributes to ∇C."""
        del k
        return False

    def increment(self, theta: Tensors, after: Tensors, loss: Tensor, next_loss: Tensor, gradient: Tensors) -> Tensors:
        """The part of ∇C that one segment θ_k → θ_{k+1} contributes; a pure function of one task's tensors.

        `next_loss` is L_task(θ_{k+1}) with `needs_next_loss`, otherwise `loss` once more.
        """
        raise NotImplementedError

    def final(self, adaptation: Adaptation, start: Point, last: Point, steps: int) -> Tensors | None:
        """The part of ∇C that is known only at the end of the trajectory; one entry per task in a stack."""
        del adaptation, start, last, steps
        return None

    def pull_back(self, gradient: Tensors, noise: Tensors) -> ThetaGradient:
        """From a gradient for the start that was used to one for the meta-parameters that made it."""
        del noise
        return ThetaGradient(gradient, {})

    def contribution(
        self, trajectory: Trajectory, transition: Transition, next_loss: Tensor, *, last: bool
    ) -> ThetaGradient | None:
        """What a step contributes to g_θ0, the end of the trajectory included after the last one; None for nothing."""
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
