"""Which engine evaluates a meta-batch: the loop, the stack, or the stack played back from a recording.

Tasks are stacked only if they say that they may be, for models whose layers are known to gain from it, and after the
stack's numbers were compared with the loop's once; otherwise the loop, with a line in the log that says why.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from warpgrad.adaptation import Adaptation
from warpgrad.batched import BatchedAdaptation
from warpgrad.errors import WarpgradError
from warpgrad.method import Method
from warpgrad.probe import objection
from warpgrad.recorded import RecordedAdaptation
from warpgrad.recording import Programs
from warpgrad.tasks.base import Task

logger = logging.getLogger(__name__)

Engine = Literal["auto", "loop", "batched", "recorded"]
"""`loop` takes one task at a time: the reference. `batched` stacks tasks, or fails where they cannot be. `recorded`
does so too, and plays back the steps of a stack, see `warpgrad.recording`. `auto` is `recorded` where that is known to
win, else `loop`."""
ENGINES: tuple[Engine, ...] = ("auto", "loop", "batched", "recorded")


class EngineChoice:
    """Turns a meta-batch into adaptations, one per task or one per stack."""

    def __init__(self, engine: Engine, chunk: int) -> None:
        if engine not in ENGINES:
            raise WarpgradError(f"engine={engine!r} is unknown; choose one of {', '.join(ENGINES)}.")
        self.engine = engine
        self.chunk = chunk
        self._checked: bool | None = None
        self._programs = Programs()

    def adaptations(self, method: Method, tasks: Sequence[Task], keys: Sequence[int]) -> list[Adaptation]:
        """Adaptations that together cover `tasks`."""
        if not self.stacks(method, tasks, keys):
            return [Adaptation(method.learner, method.rule, task, key) for task, key in zip(tasks, keys, strict=True)]
        self._programs.begin(method.learner, method.rule)
        chunks = [slice(begin, begin + self.chunk) for begin in range(0, len(tasks), self.chunk)]
        return [self._stack(method, tasks[chunk], keys[chunk]) for chunk in chunks]

    def stacks(self, method: Method, tasks: Sequence[Task], keys: Sequence[int]) -> bool:
        """Whether these tasks are stacked."""
        if self.engine == "loop" or len(tasks) < 2:
            return False
        reason = _obstacle(tasks)
        if reason is None and self.engine == "auto":
            reason = _disadvantage(method.learner.module, method.learner.device)
        if reason is not None:
            if self.engine != "auto":
                raise WarpgradError(f"engine='{self.engine}' cannot be used: {reason}.")
            return False
        if self._checked is None:
            found = objection(method, tasks[:2], keys[:2])
            self._checked = True if found is None else self._refused(*found)
        return self._checked

    def _stack(self, method: Method, tasks: Sequence[Task], keys: Sequence[int]) -> Adaptation:
        if self.engine == "batched":
            return BatchedAdaptation(method.learner, method.rule, tasks, keys)
        return RecordedAdaptation(method.learner, method.rule, tasks, keys, self._programs)

    def _refused(self, reason: str, cause: Exception | None) -> bool:
        if self.engine != "auto":
            raise WarpgradError(f"engine='{self.engine}' cannot be used: {reason}") from cause
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
