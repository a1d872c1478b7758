"""C(θ0): what the initialisation learns from a trajectory (§2.5, App. C).

An initialiser sees a trajectory one segment at a time and returns gradients for θ0, so that it adds nothing
to the memory of Algorithm 1. Only parameters with the start policy `learned` reach it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from warpgrad.adaptation.base import Adaptation, Point, Step, Transition
from warpgrad.model.learner import Learner
from warpgrad.tensors import Tensors, detached, select


@dataclass(frozen=True)
class Start:
    """θ at the beginning of a task, and the noise that made it where θ0 is a distribution."""

    theta: Tensors
    noise: Tensors


@dataclass(frozen=True)
class ThetaGradient:
    """A contribution to g_θ0: for the learned part of θ0, and for the initialiser's own parameters."""

    theta0: Tensors
    prior: Tensors


class Initialiser:
    """How θ0 is learned. The base class learns nothing."""

    learns = True
    """Whether θ0 changes at all."""

    needs_final_loss = False
    """Whether the last segment needs L_task(θ_K), one more forward pass per task."""

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
        """The part of ∇C that one segment θ_k → θ_{k+1} contributes; a pure function of one task's tensors."""
        raise NotImplementedError

    def final(self, adaptation: Adaptation, start: Point, last: Point, steps: int) -> Tensors | None:
        """The part of ∇C that is known only at the end of the trajectory; one entry per task in a stack."""
        del adaptation, start, last, steps
        return None

    def pull_back(self, gradient: Tensors, noise: Tensors) -> ThetaGradient:
        """From a gradient for the start that was used to one for the meta-parameters that made it."""
        del noise
        return ThetaGradient(gradient, {})


class Tracker:
    """Feeds one trajectory, or a stack of them, to an initialiser, one step behind.

    Leap's segment k needs the loss at θ_{k+1}, which the next step computes anyway; so segment k is
    handed over when step k+1 arrives, and the last one after an extra forward pass, if the initialiser wants it.
    """

    def __init__(self, initialiser: Initialiser, adaptation: Adaptation) -> None:
        self.initialiser = initialiser
        self.adaptation = adaptation
        starts = [initialiser.start(adaptation.learner, key) for key in adaptation.keys]
        self.begin = adaptation.start([start.theta for start in starts])
        self._noise = adaptation.gather([start.noise for start in starts])
        self._waiting: Transition | None = None

    def observe(self, transition: Transition) -> ThetaGradient | None:
        """Take step k; returns what segment k−1 contributes, one entry per task in a stack."""
        k = transition.point.k
        if not self._wants(k):
            # What nobody will look at gives its memory to the next step.
            transition = Transition(Point(k, {}, {}, {}), transition.loss, {}, transition.after)
        previous, self._waiting = self._waiting, transition
        if previous is None:
            return None
        return self._pulled_back(self._segment(previous, transition.loss))

    def finish(self) -> ThetaGradient | None:
        """What the last segment and the end of the trajectory contribute."""
        transition = self._waiting
        assert transition is not None, "a trajectory has at least one step"
        last, loss = transition.after, transition.loss
        if self.initialiser.needs_final_loss:
            loss = self.adaptation.task_loss(last.theta, last.buffers, last.k)[0].detach()
        segment = self._segment(transition, loss)
        assert isinstance(last.k, int), "trajectories are tracked in step"
        final = self.initialiser.final(self.adaptation, self.begin, last, last.k)
        if segment is not None and final is not None:
            final = {name: value + final[name] for name, value in segment.items()}
        return self._pulled_back(segment if final is None else final)

    def zero(self) -> ThetaGradient:
        """No contribution, in the shape of one."""
        learned = select(self.begin.theta, self.adaptation.learner.learned)
        zeros = {name: torch.zeros_like(value) for name, value in learned.items()}
        return self.initialiser.pull_back(zeros, self._noise)

    def _segment(self, transition: Transition, next_loss: Tensor) -> Tensors | None:
        learned = self.adaptation.learner.learned
        if not self._wants(transition.point.k):
            return None
        return self.adaptation.per_task(
            self.initialiser.increment,
            select(transition.point.theta, learned),
            select(transition.after.theta, learned),
            transition.loss,
            next_loss,
            select(transition.gradient, learned),
        )

    def _wants(self, k: Step) -> bool:
        assert isinstance(k, int), "trajectories are tracked in step"
        return bool(self.adaptation.learner.learned) and self.initialiser.wants_segment(k)

    def _pulled_back(self, gradient: Tensors | None) -> ThetaGradient | None:
        return None if gradient is None else self.initialiser.pull_back(detached(gradient), self._noise)
