"""The trajectory of one adaptation, θ_0 → θ_1 → … → θ_K: the only loop over adaptation steps.

    for segment in Trajectory(adaptation, steps=5):
        segment.point, segment.loss, segment.after

Algorithms, `adapt`, the evaluations and the analyses iterate over it, for one task and for a stack of tasks alike. With
an objective every segment has its sample, the gradient for φ; with an initialiser its contribution to the gradient for
θ0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, cast, overload

from torch import Tensor

from warpgrad.adaptation.base import Adaptation, Computation, Point, Transition, check_steps
from warpgrad.model.learner import Learner
from warpgrad.tensors import Tensors


@dataclass(frozen=True)
class ObjectiveStep:
    """One sample of the meta-objective: the adaptation step it looked at, L_meta and its gradients.

    With stacked tasks the gradients are sums over the stack and `meta_loss` has one entry per task.

    Example:
        >>> (segment,) = Trajectory(adaptation, steps=1, objective=wg.Exact())
        >>> sorted(segment.sample.phi) == sorted(learner.phi)
        True
    """

    transition: Transition
    meta_loss: Tensor
    phi: Tensors
    rule: Tensors


@dataclass(frozen=True)
class Start:
    """θ at the beginning of a task, and the noise that made it where θ0 is a distribution.

    Example:
        >>> wg.Leap().start(learner, key=0).noise
        {}
    """

    theta: Tensors
    noise: Tensors


@dataclass(frozen=True)
class ThetaGradient:
    """A contribution to g_θ0: for the learned part of θ0, and for the initialiser's own parameters.

    Example:
        >>> (segment,) = Trajectory(adaptation, steps=1, initialiser=wg.Reptile())
        >>> sorted(segment.theta0.theta0) == sorted(learner.learned)
        True
    """

    theta0: Tensors
    prior: Tensors


@dataclass(frozen=True)
class Segment:
    """One step of a trajectory, with the results of the objective and the initialiser.

    Example:
        >>> segments = list(Trajectory(adaptation, steps=3))
        >>> [segment.after.k for segment in segments], segments[-1].last
        ([1, 2, 3], True)
    """

    transition: Transition
    sample: ObjectiveStep | None
    """What the objective computed at θ_k; None without an objective."""
    theta0: ThetaGradient | None
    """What the step, and after the last one the whole trajectory, contributes to g_θ0, one entry per task in a stack;
    None where that is nothing."""
    last: bool
    """Whether it is the K-th step."""

    @property
    def point(self) -> Point:
        """θ_k."""
        return self.transition.point

    @property
    def after(self) -> Point:
        """θ_{k+1}."""
        return self.transition.after

    @property
    def loss(self) -> Tensor:
        """L_task(θ_k) on the batch of step k; one entry per task in a stack."""
        return self.transition.loss


class Stepper(Protocol):
    """Anything that takes adaptation steps: an `Adaptation`, or a baseline such as `warpgrad.baselines.OnlineEWC`."""

    def start(self) -> Point: ...

    def step(self, point: Point) -> Transition: ...


class StartLearner(Protocol):
    """Anything that learns θ0 from a trajectory, as an `Initialiser` does."""

    needs_next_loss: bool

    def start(self, learner: Learner, key: int) -> Start: ...

    def wants_segment(self, k: int) -> bool: ...

    def contribution(
        self, trajectory: Trajectory, transition: Transition, next_loss: Tensor, *, last: bool
    ) -> ThetaGradient | None: ...


class Trajectory(Iterator[Segment]):
    """The steps of one adaptation, one after the other; each is taken when it is requested.

    Warning: a segment holds gradients as large as the parameters. Where memory is short, `del` it at the end of the
    loop's body: the loop's variable would keep it while the next step is computed.

    Example:
        >>> losses = [float(segment.loss) for segment in Trajectory(adaptation, steps=5)]
        >>> losses[-1] < losses[0]
        True
    """

    @overload
    def __init__(self, adaptation: Stepper, steps: int, *, start: Point | None = None) -> None: ...
    @overload
    def __init__(
        self,
        adaptation: Adaptation,
        steps: int,
        *,
        start: Point | None = None,
        objective: Computation[ObjectiveStep] | None = None,
        initialiser: StartLearner | None = None,
    ) -> None: ...
    def __init__(
        self,
        adaptation: Stepper,
        steps: int,
        *,
        start: Point | None = None,
        objective: Computation[ObjectiveStep] | None = None,
        initialiser: StartLearner | None = None,
    ) -> None:
        """
        Args:
            adaptation: One task, or a stack of tasks that advance together.
            steps: K.
            start: θ_0; if None, where the initialiser or else the adaptation starts.
            objective: L, which takes a sample at every point.
            initialiser: C, which learns from every segment.
        """
        self.steps = check_steps(steps)
        self.adaptation = cast(Adaptation, adaptation)
        self.noise: Tensors = {}
        """What made θ_0 where the initialiser draws it."""
        if start is None and initialiser is not None:
            starts = [initialiser.start(self.adaptation.learner, key) for key in self.adaptation.keys]
            start = self.adaptation.start([one.theta for one in starts])
            self.noise = self.adaptation.gather([one.noise for one in starts])
        self._objective, self._initialiser = objective, initialiser
        self.start = self._remembered(adaptation.start() if start is None else start)
        """θ_0."""
        self.point = self.start
        """The end of the last segment that was returned: θ_0 at first, θ_K at the end."""
        self._front = self.start
        self._taken = 0
        self._ahead: tuple[Transition, ObjectiveStep | None] | None = None

    def __next__(self) -> Segment:
        if self._ahead is None and self._taken == self.steps:
            raise StopIteration
        transition, sample = self._ahead or self._step()
        self._ahead = None
        last = self._taken == self.steps
        theta0 = None
        if self._initialiser is not None:
            next_loss = self._next_loss(transition, last=last)
            theta0 = self._initialiser.contribution(self, transition, next_loss, last=last)
        self.point = transition.after
        return Segment(transition, sample, theta0, last)

    def points(self) -> Iterator[Point]:
        """Yield θ_0, …, θ_K."""
        yield self.point
        for segment in self:
            point = segment.after
            del segment  # its gradients would hold memory that the next step needs
            yield point

    def _step(self) -> tuple[Transition, ObjectiveStep | None]:
        point = self._front
        if self._objective is None:
            transition, sample = self.adaptation.step(point), None
        else:
            sample = self.adaptation.compute(self._objective, point)
            transition = sample.transition
            after = self._remembered(transition.after)
            if after is not transition.after:
                transition = replace(transition, after=after)
        self._front = transition.after
        self._taken += 1
        return transition, sample

    def _remembered(self, point: Point) -> Point:
        if self._objective is None:
            return point
        memory = self._objective.remember(self.adaptation, point)
        return point if memory is point.memory else replace(point, memory=memory)

    def _next_loss(self, transition: Transition, *, last: bool) -> Tensor:
        """Return L_task(θ_{k+1}) where the initialiser needs it, from the next step, which computes it anyway.

        After the last step it costs a forward pass. An initialiser that does not need it gets L_task(θ_k).
        """
        initialiser, after = self._initialiser, transition.after
        assert isinstance(transition.point.k, int), "the tasks of a trajectory advance in step"
        assert initialiser is not None
        if not (initialiser.needs_next_loss and initialiser.wants_segment(transition.point.k)):
            return transition.loss
        if last:
            return self.adaptation.task_loss(after.theta, after.buffers, after.k)[0].detach()
        self._ahead = self._step()
        return self._ahead[0].loss
