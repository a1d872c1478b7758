"""Which engine evaluates a meta-batch: the loop, or the stack.

The batched engine is taken only for tasks that say they may be stacked, for models whose layers are known to
gain from it, and after its numbers were compared with the loop's once; otherwise the loop, with a line
in the log that says why.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from warpgrad.adaptation import Adaptation, Point
from warpgrad.batched import BatchedAdaptation
from warpgrad.errors import WarpgradError
from warpgrad.method import Method
from warpgrad.tasks.base import Task

logger = logging.getLogger(__name__)

Engine = Literal["auto", "loop", "batched"]
ENGINES: tuple[Engine, ...] = ("auto", "loop", "batched")


class EngineChoice:
    """Turns a meta-batch into adaptations, one per task or one per stack."""

    def __init__(self, engine: Engine, chunk: int) -> None:
        if engine not in ENGINES:
            raise WarpgradError(f"engine={engine!r} is unknown; choose one of {', '.join(ENGINES)}.")
        self.engine = engine
        self.chunk = chunk
        self._checked: bool | None = None

    def adaptations(self, method: Method, tasks: Sequence[Task], keys: Sequence[int]) -> list[Adaptation]:
        """Adaptations that together cover `tasks`."""
        if not self.stacks(method, tasks, keys):
            return [Adaptation(method.learner, method.rule, task, key) for task, key in zip(tasks, keys, strict=True)]
        return [
            BatchedAdaptation(method.learner, method.rule, tasks[i : i + self.chunk], keys[i : i + self.chunk])
            for i in range(0, len(tasks), self.chunk)
        ]

    def stacks(self, method: Method, tasks: Sequence[Task], keys: Sequence[int]) -> bool:
        """Whether these tasks are stacked."""
        if self.engine == "loop" or len(tasks) < 2:
            return False
        reason = _obstacle(tasks)
        if reason is None and self.engine == "auto":
            reason = _disadvantage(method.learner.module, method.learner.device)
        if reason is not None:
            if self.engine == "batched":
                raise WarpgradError(f"engine='batched' cannot be used: {reason}.")
            return False
        if self._checked is None:
            self._checked = self._probe(method, tasks[:2], keys[:2])
        return self._checked

    def _probe(self, method: Method, tasks: Sequence[Task], keys: Sequence[int]) -> bool:
        """One step of two tasks both ways: does the stack run, and are its numbers the loop's?"""
        try:
            stack = BatchedAdaptation(method.learner, method.rule, tasks, keys)
            found = _probe_step(method, stack, stack.start())
        except (WarpgradError, RuntimeError, TypeError, ValueError) as error:
            return self._refused(f"it fails on this model: {str(error).splitlines()[0]}", error)
        expected: list[Tensor] = []
        for task, key in zip(tasks, keys, strict=True):
            single = Adaptation(method.learner, method.rule, task, key)
            one = _probe_step(method, single, single.start())
            expected = [a + b for a, b in zip(expected, one, strict=True)] if expected else one
        tolerance = 1e-8 if expected[0].dtype == torch.float64 else 1e-3
        # A gradient that is 0 but for rounding, such as that of a bias before batch-norm, is measured by the others.
        least = 1e-3 * torch.stack([value.norm() for value in expected]).norm()
        for ours, theirs in zip(found, expected, strict=True):
            if (ours - theirs).norm() > tolerance * torch.maximum(theirs.norm(), least):
                return self._refused("its numbers differ from the loop's; do losses depend on more than the batch?")
        return True

    def _refused(self, reason: str, cause: Exception | None = None) -> bool:
        if self.engine == "batched":
            raise WarpgradError(f"engine='batched' cannot be used: {reason}") from cause
        logger.info("tasks are evaluated one by one, not stacked: %s", reason)
        return False


def _probe_step(method: Method, adaptation: Adaptation, point: Point) -> list[Tensor]:
    """Everything a step produces, summed over tasks, so that both engines can be compared."""
    transition, sample = method.step(adaptation, point)
    numbers = [transition.loss.sum()]
    numbers += adaptation.total(transition.after.theta).values()
    numbers += [] if sample is None else [sample.meta_loss.sum(), *sample.phi.values(), *sample.rule.values()]
    return numbers


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
