"""Does a stack of tasks give the loop's numbers? One step of two tasks both ways, in double precision if possible.

In single precision two sums in another order may put a unit on the other side of its ReLU, and a stack that is right
would look wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from warpgrad.adaptation import Adaptation, Point
from warpgrad.batched import BatchedAdaptation
from warpgrad.errors import WarpgradError
from warpgrad.forward import Forward
from warpgrad.method import Method
from warpgrad.tasks.base import Batch, Task
from warpgrad.tensors import flattened, leaves, refilled

Tree = TypeVar("Tree")
Cast = Callable[[Any], Any]
"""Tensors in the precision of a probe."""

TOLERANCE, TOLERANCE_SINGLE = 1e-8, 1e-3
FAILURES = (WarpgradError, RuntimeError, TypeError, ValueError)
"""What a model may raise in a stack, or in a precision that it was not written for."""


def objection(method: Method, tasks: Sequence[Task], keys: Sequence[int]) -> tuple[str, Exception | None] | None:
    """Why these tasks must not be stacked, and what was raised; None where they may be."""
    try:
        with _in_double(method):
            return _difference(method, [_InDouble(task) for task in tasks], keys, _doubled)
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
    """Everything the first step produces, summed over tasks, so that both engines can be compared."""
    start = adaptation.start([cast(method.learner.start(key)) for key in adaptation.keys])
    transition, sample = method.step(adaptation, Point(start.k, start.theta, cast(start.buffers), start.state))
    numbers = [transition.loss.sum(), *adaptation.total(transition.after.theta).values()]
    numbers += [] if sample is None else [sample.meta_loss.sum(), *sample.phi.values(), *sample.rule.values()]
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


def _doubled(tree: Tree) -> Tree:
    values = (value.double() if value.is_floating_point() else value for value in flattened(tree))
    doubled: Tree = refilled(tree, values)
    return doubled


class _InDouble(Task):
    """A task with its batches in double precision."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.name, self.steps, self.stack_key = task.name, task.steps, task.stack_key

    @property
    def one_loss(self) -> bool:
        return self.task.one_loss

    def adapt_batch(self, k: int) -> Batch:
        return _doubled(self.task.adapt_batch(k))

    def meta_batch(self, k: int) -> Batch:
        return _doubled(self.task.meta_batch(k))

    def loss(self, forward: Forward, batch: Batch) -> Tensor:
        return self.task.loss(forward, batch)

    def meta_loss(self, forward: Forward, batch: Batch) -> Tensor:
        return self.task.meta_loss(forward, batch)
