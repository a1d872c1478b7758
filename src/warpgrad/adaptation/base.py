"""Adaptation: θ_{k+1} = U(θ_k; φ) on one task.

`Adaptation` is one task under adaptation, evaluated one at a time: the reference that every fast path is
tested against. `warpgrad.adaptation.stacked.BatchedAdaptation` has the same methods for many tasks at once, so
objectives, initialisers and algorithms are written once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from warpgrad.errors import NonFiniteError, WarpgradError, integer
from warpgrad.keys import fold
from warpgrad.model.learner import Forward, Learner
from warpgrad.rules import Rule, checked_update
from warpgrad.tasks.base import Batch, Task
from warpgrad.tensors import Groups, Tensors, detached, gradients, leaves, shapes, without_autocast

T = TypeVar("T")
StepIndex = int | tuple[int, ...]
"""k, or the k of each point where points from different steps are stacked."""


@dataclass(frozen=True)
class Source:
    """One of the batches that a task draws for a step.

    Example:
        >>> META_BATCH.name, META_BATCH.draw(task, 0)[0].shape
        ('meta_batch', torch.Size([8, 2]))
    """

    name: str
    """The name that keys the dropout masks of losses on this batch."""
    draw: Callable[[Task, int], Batch]
    """(task, k) -> the batch."""


@dataclass(frozen=True)
class Role:
    """One of the losses of a task, and the batch that it is evaluated on. `Adaptation.evaluate_loss` evaluates it.

    Example:
        >>> role = Role("loss", META_BATCH, lambda task, forward, batch: task.loss(forward, batch))
        >>> loss, buffers = adaptation.evaluate_loss(role, start.theta, start.buffers, 0)
        >>> loss.shape
        torch.Size([])
    """

    name: str
    """The name in messages."""
    source: Source
    loss: Callable[..., Tensor]
    """(task, model, batch, *constants) -> a scalar."""


ADAPT_BATCH = Source("adapt_batch", lambda task, k: task.adapt_batch(k))
"""The batch of adaptation step k."""
META_BATCH = Source("meta_batch", lambda task, k: task.meta_batch(k))
"""The batch of the meta-loss after step k."""

TASK_LOSS = Role("loss", ADAPT_BATCH, lambda task, forward, batch: task.loss(forward, batch))
META_LOSS = Role("meta_loss", META_BATCH, lambda task, forward, batch: task.meta_loss(forward, batch))
IN_PLACE_LOSS = Role("meta_loss", ADAPT_BATCH, META_LOSS.loss)
"""L_meta on the batch and the masks of the adaptation step: they share masks because they share the batch."""


@dataclass(frozen=True)
class Point:
    """A place on a trajectory, (k, θ_k, buffers, rule state), over which the sum of Eq. 11 runs.

    Example:
        >>> start = wg.Adaptation(learner, wg.SGD(0.1, momentum=0.9), task, key=0).start()
        >>> start.k, sorted(start.theta) == sorted(learner.theta0), len(start.state)
        (0, True, 4)
    """

    k: StepIndex
    theta: Tensors
    buffers: Tensors
    state: Tensors
    memory: Tensors = field(default_factory=dict)
    """Tensors that a computation keeps from the trajectory so far, see `Computation.remember`."""

    def groups(self) -> Groups:
        return {"theta": self.theta, "buffers": self.buffers, "state": self.state, "memory": self.memory}

    @classmethod
    def of(cls, k: StepIndex, groups: Groups) -> Point:
        """Build a point from its groups; the inverse of `groups`."""
        return cls(k, groups["theta"], groups["buffers"], groups["state"], groups["memory"])


@dataclass(frozen=True)
class Inner:
    """L_task and its gradient at a point; with a graph, `theta` is the leaf the gradient was taken for."""

    loss: Tensor
    gradient: Tensors
    theta: Tensors
    buffers: Tensors


@dataclass(frozen=True)
class Transition:
    """One adaptation step, outside any graph: from `point` to `after`.

    Example:
        >>> transition = wg.Adaptation(learner, wg.SGD(0.1), task, key=0).step(start)
        >>> transition.point.k, transition.after.k
        (0, 1)
    """

    point: Point
    loss: Tensor
    gradient: Tensors
    after: Point


class Computation(ABC, Generic[T]):
    """Something to compute at a point of a trajectory: a step, an objective, a gradient through several steps."""

    reads: tuple[tuple[Source, int], ...]
    """The batches that it looks at, each with how many steps it lies after the point's."""

    @abstractmethod
    def step(self, adaptation: Adaptation, point: Point) -> T:
        """Compute the result by plain evaluation."""

    def remember(self, adaptation: Adaptation, point: Point) -> Tensors:
        """Return the memory of a point that later steps look back on; by default that of the point before it.

        A pure function: return `{**point.memory, ...}` with more tensors, as many for each task as θ has. They travel
        with the points, so that they are stacked with the tasks and given to a traced graph.
        """
        del adaptation
        return point.memory

    @abstractmethod
    def groups(self, result: T) -> Groups:
        """Return a result as named tensors by role, its losses included, as a traced graph returns them."""

    @abstractmethod
    def result(self, groups: Groups, point: Point) -> T:
        """Build a result from its groups; the inverse of `groups`."""


class Adaptation:
    """One task under adaptation with a learner and a rule.

    Example:
        >>> adaptation = wg.Adaptation(learner, wg.SGD(0.1), task, key=0)
        >>> point = adaptation.step(adaptation.start()).after
        >>> point.k
        1
    """

    size = 1
    """The number of tasks that advance together."""
    mapped = False
    """Whether losses are evaluated by `torch.vmap` over a stack of tasks."""

    def __init__(self, learner: Learner, rule: Rule, task: Task, key: int) -> None:
        """Set up the adaptation; `key` seeds the start and the dropout masks of this task in this meta-step."""
        self.learner, self.rule, self.task, self.key = learner, rule, task, key

    @property
    def one_loss(self) -> bool:
        return self.task.one_loss

    @property
    def keys(self) -> list[int]:
        """The key of every task that advances here."""
        return [self.key]

    def start(self, thetas: Sequence[Tensors] | None = None) -> Point:
        """Return the point k = 0, at the learner's start or at the θ given for each task."""
        begin = self.learner.start(self.key) if thetas is None else thetas[0]
        return Point(0, begin, self.learner.buffers(), self.rule.init(begin))

    def task_loss(
        self, theta: Mapping[str, Tensor], buffers: Mapping[str, Tensor], k: StepIndex
    ) -> tuple[Tensor, Tensors]:
        """Compute L_task(θ; φ) on the batch of step k, and the buffers after it."""
        return self.evaluate_loss(TASK_LOSS, theta, buffers, k)

    def meta_loss(self, theta: Mapping[str, Tensor], buffers: Mapping[str, Tensor], k: StepIndex) -> Tensor:
        """Compute L_meta(θ; φ) on the meta-batch of step k, discarding its updates of batch-norm statistics."""
        return self.evaluate_loss(META_LOSS, theta, buffers, k)[0]

    def in_place_loss(self, theta: Mapping[str, Tensor], buffers: Mapping[str, Tensor], k: StepIndex) -> Tensor:
        """Compute L_meta(θ; φ) on the batch and the masks of adaptation step k."""
        return self.evaluate_loss(IN_PLACE_LOSS, theta, buffers, k)[0]

    def inner(self, point: Point, *, create_graph: bool = False, theta: Tensors | None = None) -> Inner:
        """Compute ∇_θ L_task at a point; a `theta` that carries a graph may replace the point's."""
        theta = leaves(point.theta) if theta is None else theta
        loss, buffers = self.task_loss(theta, point.buffers, point.k)
        self.check_finite(loss, "the task loss", point.k)
        (gradient,) = gradients(
            loss,
            theta,
            what="the task loss",
            create_graph=create_graph,
            allow_unused=self.learner.allow_unused,
        )
        return Inner(loss, gradient, theta, buffers)

    def update(
        self, gradient: Mapping[str, Tensor], state: Mapping[str, Tensor], theta: Mapping[str, Tensor]
    ) -> tuple[Tensors, Tensors]:
        """Apply the update rule to θ, outside autocast."""
        with without_autocast():
            return checked_update(self.rule, self.rule.update(gradient, state, theta, self.rule.meta))

    def step(self, point: Point) -> Transition:
        """Take the step from θ_k to θ_{k+1}, leaving no graph behind."""
        inner = self.inner(point)
        with torch.no_grad():
            theta, state = self.update(inner.gradient, point.state, point.theta)
        return self.transition(point, inner, theta, state)

    def compute(self, computation: Computation[T], point: Point) -> T:
        """Return the result of a computation at a point: evaluated plainly here, faster in some backends."""
        return computation.step(self, point)

    def transition(self, point: Point, inner: Inner, theta: Tensors, state: Tensors) -> Transition:
        """Return a step that an objective has already computed, detached from its graph."""
        after = Point(following(point.k), detached(theta), inner.buffers, detached(state), point.memory)
        return Transition(point, inner.loss.detach(), detached(inner.gradient), after)

    def check_finite(self, loss: Tensor, what: str, k: StepIndex) -> None:
        """Raise at the first NaN, naming the task and the step, before it gets into any parameter."""
        if not math.isfinite(loss.item()):
            raise non_finite(self.task, what, loss.item(), k)

    def gather(self, trees: Sequence[Tensors]) -> Tensors:
        """Combine one tree of tensors per task into one for all tasks."""
        return trees[0]

    def split(self, tree: Tensors) -> list[Tensors]:
        """Split one tree of tensors for all tasks into one per task: the inverse of `gather`."""
        return [tree]

    def total(self, tree: Tensors) -> Tensors:
        """Sum over the tasks."""
        return tree

    def per_task(self, function: Callable[..., T], *arguments: Any) -> T:
        """Apply a function of one task's tensors: directly here, mapped over the stack in the batched backend."""
        return function(*arguments)

    def evaluate_loss(
        self,
        role: Role,
        theta: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        k: StepIndex,
        *constants: Mapping[str, Tensor],
    ) -> tuple[Tensor, Tensors]:
        """Compute a loss of the task at θ on its batch of step k, and the buffers after it.

        `constants` are further tensors of the task that the loss is given, such as an earlier θ.
        """
        assert isinstance(k, int), "one task is at one step"
        forward = self.learner.bind(theta, buffers, key=fold(self.key, k, role.source.name))
        return scored(self.task, role, forward, self._batch(role.source, k), k, *constants), forward.buffers

    def _batch(self, source: Source, k: StepIndex) -> Batch:
        """Return the task's batch of step k; for a stack, the batches of all tasks, stacked."""
        assert isinstance(k, int), "one task is at one step"
        return draw_batch(self.task, source, k)


def scored(
    task: Task, role: Role, forward: Forward, batch: Batch, k: StepIndex, *constants: Mapping[str, Tensor]
) -> Tensor:
    """Compute a task's loss on a batch; errors in the user's code name the task, the step and the shapes."""
    try:
        loss: Any = role.loss(task, forward, batch, *constants)
    except WarpgradError:
        raise
    except Exception as error:  # user code may raise anything
        raise WarpgradError(
            f"task '{task.name}' failed in {role.name} at step {k} on a batch of shapes {shapes(batch)}: "
            f"{error_line(error)}"
        ) from error
    if not isinstance(loss, Tensor) or loss.ndim != 0:
        got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise WarpgradError(
            f"{role.name} of task '{task.name}' must be a scalar tensor, not {got}; take its mean or sum."
        )
    return loss


def draw_batch(task: Task, source: Source, k: int) -> Batch:
    """Draw a task's batch of step k; errors in the user's code name the task and the step."""
    try:
        return source.draw(task, k)
    except WarpgradError:
        raise
    except Exception as error:  # user code may raise anything
        raise WarpgradError(f"task '{task.name}' failed in {source.name}({k}): {error_line(error)}") from error


def error_line(error: Exception) -> str:
    """Return the first line of an error's message, with the error's type where that says more."""
    first = str(error).splitlines()[0] if str(error) else ""
    return first if isinstance(error, RuntimeError) and first else f"{type(error).__name__}: {first}".rstrip(": ")


def non_finite(task: Task, what: str, value: float, k: StepIndex) -> NonFiniteError:
    return NonFiniteError(
        f"{what} of task '{task.name}' is {value} at step {k}: "
        "lower the inner step size or clip the inner gradient with Clip(...)."
    )


def following(k: StepIndex, steps: int = 1) -> StepIndex:
    """Return k + 1, or k plus the given number of steps."""
    return k + steps if isinstance(k, int) else tuple(step + steps for step in k)


def check_steps(steps: int) -> int:
    """Check K, and return it."""
    return integer(steps, "steps", at_least=1)
