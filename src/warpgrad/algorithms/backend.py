"""Which backend evaluates a meta-batch: the loop, the stack, or the traced stack.

Tasks are stacked only if they say that they may be, for models whose layers are known to gain from it, and after the
stack's numbers were compared with the loop's once; otherwise the loop, with a line in the log that says why.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from warpgrad.adaptation.base import Adaptation
from warpgrad.adaptation.stacked import BatchedAdaptation
from warpgrad.adaptation.traced import TracedAdaptation, TracedGraphs
from warpgrad.adaptation.trajectory import Trajectory
from warpgrad.algorithms.method import Method
from warpgrad.errors import WarpgradError, choice
from warpgrad.tasks.base import Batch, Task
from warpgrad.tensors import flattened, leaves, refilled

logger = logging.getLogger(__name__)

BackendName = Literal["auto", "loop", "batched", "traced"]
"""`loop` takes one task at a time: the reference. `batched` stacks tasks, or fails where they cannot be. `traced`
does so too, and runs the steps of a stack as graphs, see `warpgrad.adaptation.traced`. `auto` is `traced` where that is
known to win, else `loop`."""
BACKENDS: tuple[BackendName, ...] = ("auto", "loop", "batched", "traced")


class Backend:
    """Turns a meta-batch into adaptations, one per task or one per stack."""

    def __init__(self, backend: BackendName, chunk: int) -> None:
        choice(backend, "backend", BACKENDS)
        self.name, self.chunk = backend, chunk
        self._checked: bool | None = None
        self._graphs = TracedGraphs()

    def adaptations(self, method: Method, tasks: Sequence[Task], keys: Sequence[int]) -> list[Adaptation]:
        """Adaptations that together cover `tasks`."""
        if not self.stacks(method, tasks, keys):
            return [Adaptation(method.learner, method.rule, task, key) for task, key in zip(tasks, keys, strict=True)]
        self._graphs.begin(method.learner, method.rule)
        chunks = [slice(begin, begin + self.chunk) for begin in range(0, len(tasks), self.chunk)]
        return [self._stack(method, tasks[chunk], keys[chunk]) for chunk in chunks]

    def stacks(self, method: Method, tasks: Sequence[Task], keys: Sequence[int]) -> bool:
        """Whether these tasks are stacked."""
        if self.name == "loop" or len(tasks) < 2:
            return False
        reason = _obstacle(tasks)
        if reason is None and self.name == "auto":
            reason = _disadvantage(method.learner.module, method.learner.device)
        if reason is not None:
            if self.name != "auto":
                raise WarpgradError(f"backend='{self.name}' cannot be used: {reason}.")
            return False
        if self._checked is None:
            found = why_not_stackable(method, tasks[:2], keys[:2])
            self._checked = True if found is None else self._refused(*found)
        return self._checked

    def _stack(self, method: Method, tasks: Sequence[Task], keys: Sequence[int]) -> Adaptation:
        if self.name == "batched":
            return BatchedAdaptation(method.learner, method.rule, tasks, keys)
        return TracedAdaptation(method.learner, method.rule, tasks, keys, self._graphs)

    def _refused(self, reason: str, cause: Exception | None) -> bool:
        if self.name != "auto":
            raise WarpgradError(f"backend='{self.name}' cannot be used: {reason}") from cause
        logger.info("tasks are evaluated one by one, not stacked: %s", reason)
        return False


def _obstacle(tasks: Sequence[Task]) -> str | None:
    first = tasks[0]
    if first.stack_key is None:
        return f"task '{first.name}' has no stack_key"
    for task in tasks:
        if task.stack_key != first.stack_key or task.steps != first.steps:
            return f"tasks '{first.name}' and '{task.name}' differ in stack_key or steps"
    return None


def _disadvantage(module: nn.Module, device: torch.device) -> str | None:
    for child in module.modules():
        if isinstance(child, nn.RNNBase) or (isinstance(child, _ConvNd) and device.type == "cpu"):
            return f"{type(child).__name__} is slower stacked"
    return None


T = TypeVar("T")
Cast = Callable[[Any], Any]
"""Tensors in the precision of a probe."""

TOLERANCE, TOLERANCE_SINGLE = 1e-8, 1e-3
FAILURES = (WarpgradError, RuntimeError, TypeError, ValueError)
"""What a model may raise in a stack, or in a precision that it was not written for."""


def why_not_stackable(
    method: Method, tasks: Sequence[Task], keys: Sequence[int]
) -> tuple[str, Exception | None] | None:
    """Why these tasks must not be stacked, and what was raised; None where they may be."""
    try:
        with _in_double(method):
            return _difference(method, [_doubled_task(task) for task in tasks], keys, _doubled)
    except FAILURES:
        pass  # a model that computes with other tensors than its own and the batch's has a precision of its own
    try:
        return _difference(method, tasks, keys, lambda tree: tree)
    except FAILURES as error:
        return f"it fails on this model: {str(error).splitlines()[0]}", error


def _difference(method: Method, tasks: Sequence[Task], keys: Sequence[int], cast: Cast) -> tuple[str, None] | None:
    found = _numbers(method, BatchedAdaptation(method.learner, method.rule, tasks, keys), cast)
    expected: list[Tensor] = []
    for task, key in zip(tasks, keys, strict=True):
        one = _numbers(method, Adaptation(method.learner, method.rule, task, key), cast)
        expected = [a + b for a, b in zip(expected, one, strict=True)] if expected else one
    tolerance = TOLERANCE if expected[0].dtype == torch.float64 else TOLERANCE_SINGLE
    # A gradient that is 0 but for rounding, such as that of a bias before batch-norm, is measured by the others.
    least = 1e-3 * torch.stack([value.norm() for value in expected]).norm()
    for ours, theirs in zip(found, expected, strict=True):
        if (ours - theirs).norm() > tolerance * torch.maximum(theirs.norm(), least):
            return "its numbers differ from the loop's; do losses depend on more than the batch?", None
    return None


def _numbers(method: Method, adaptation: Adaptation, cast: Cast) -> list[Tensor]:
    """Everything the first step produces, summed over tasks, so that both backends can be compared."""
    start = adaptation.start([cast(method.learner.start(key)) for key in adaptation.keys])
    start = replace(start, buffers=cast(start.buffers))
    (segment,) = Trajectory(adaptation, 1, start=start, objective=method.objective)
    numbers = [segment.loss.sum(), *adaptation.total(segment.after.theta).values()]
    if (sample := segment.sample) is not None:
        numbers += [sample.meta_loss.sum(), *sample.phi.values(), *sample.rule.values()]
    return numbers


@contextmanager
def _in_double(method: Method) -> Iterator[None]:
    """All meta-parameters in double precision."""
    learner, rule = method.learner, method.rule
    own, rule.meta = rule.meta, leaves(_doubled(rule.meta))
    try:
        with learner.substituted(leaves(_doubled(learner.phi)), _doubled(learner.constants)):
            yield
    finally:
        rule.meta = own


def _doubled(tree: T) -> T:
    values = (value.double() if value.is_floating_point() else value for value in flattened(tree))
    doubled: T = refilled(tree, values)
    return doubled


def _doubled_task(task: Task) -> Task:
    """A copy of a task with its batches in double precision."""
    own = copy.copy(task)
    vars(own).update({name: _doubling(getattr(task, name)) for name in ("adapt_batch", "meta_batch")})
    return own


def _doubling(draw: Callable[[int], Batch]) -> Callable[[int], Batch]:
    return lambda k: _doubled(draw(k))
