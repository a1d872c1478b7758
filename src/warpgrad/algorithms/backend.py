"""The choice of the backend that evaluates a meta-batch: loop, stack, traced stack, or compiled stack.

Tasks are stacked only if their `stack_key` allows it, for models whose layers are known to gain from it, and after the
stack's numbers were compared with the loop's once. Otherwise the loop is used, and a line in the log says why.

Traced steps give the same bits as the stack, so it does not matter when a run starts to use them. Compiled steps differ
in the last digits, so a run uses them from its first meta-step to its last, or never. That is decided by the length of
the run when it starts, and is part of its state.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from warpgrad.adaptation.base import Adaptation
from warpgrad.adaptation.compiled import CompiledGraphs, compiler
from warpgrad.adaptation.stacked import BatchedAdaptation
from warpgrad.adaptation.traced import TracedAdaptation, TracedGraphs, TracedTask, graph_settings
from warpgrad.adaptation.trajectory import Trajectory
from warpgrad.algorithms.method import Method
from warpgrad.errors import WarpgradError, choice
from warpgrad.keys import fold
from warpgrad.tasks.base import Batch, Task
from warpgrad.tensors import discrepancy, flattened, leaves, refilled

logger = logging.getLogger(__name__)

BackendName = Literal["auto", "loop", "batched", "traced", "compiled"]
"""`loop` takes one task at a time: the reference. `batched` stacks tasks, or fails where they cannot be. `traced`
does so too, and runs the steps of a stack as graphs, see `warpgrad.adaptation.traced`. `compiled` has a C++ compiler
build these, see `warpgrad.adaptation.compiled`. `auto` is `traced` where that is known to win, or `compiled` in a run
that is long enough to pay for it, else `loop`; there it runs the steps of convolutional networks as graphs, task by
task."""
BACKENDS: tuple[BackendName, ...] = ("auto", "loop", "batched", "traced", "compiled")

Form = Literal["traced", "compiled"]
"""How the steps of a stack are run."""
WORTH_COMPILING = 20_000
"""Runs of at least this many steps are compiled by `auto`: compiling costs what some thousand steps save."""
_NO_COMPILER = "no C++ compiler was found: install g++, or set CXX to one"
_planned: int | None = None


@contextmanager
def planned_for(steps: int) -> Iterator[None]:
    """Choose the form of runs inside the block as if they had this many steps; for measurements, which are short."""
    global _planned
    before, _planned = _planned, steps
    try:
        yield
    finally:
        _planned = before


class Backend:
    """Turns a meta-batch into adaptations, one per task or one per stack."""

    def __init__(self, backend: BackendName, chunk: int) -> None:
        choice(backend, "backend", BACKENDS)
        self.name, self.chunk = backend, chunk
        self._checked: bool | None = None
        self._form: Form | None = "compiled" if backend == "compiled" else None
        self._settings: int | None = None
        self.graphs: TracedGraphs | None = None
        """The traced or compiled graphs of stacked steps, once there are any."""
        self.alone = TracedGraphs()
        """The traced graphs of steps of single tasks."""
        self._begun, self._left = False, set[int]()

    def adaptations(
        self, method: Method, tasks: Sequence[Task], keys: Sequence[int], *, gradients: bool = True
    ) -> list[Adaptation]:
        """Return adaptations that together cover `tasks`.

        Where the gradients of the steps are not read, `gradients=False` lets compiled steps leave them out.
        """
        if not self.stacks(method, tasks, keys):
            learner, rule = method.learner, method.rule
            one: Callable[..., Adaptation] = Adaptation
            if self.name == "auto" and _gains_alone(learner.module, learner.device):
                self.alone.begin(learner, rule)
                one = partial(TracedTask, graphs=self.alone)
            return [
                (one if task.stack_key is not None else Adaptation)(learner, rule, task, key)
                for task, key in zip(tasks, keys, strict=True)
            ]
        if self.name == "batched":
            make: Callable[..., Adaptation] = BatchedAdaptation
        else:
            graphs = self._graphs_for(method)
            make = partial(TracedAdaptation, graphs=graphs, gradients=gradients or self._form != "compiled")
        chunks = [slice(begin, begin + self.chunk) for begin in range(0, len(tasks), self.chunk)]
        return [make(method.learner, method.rule, tasks[chunk], keys[chunk]) for chunk in chunks]

    def plan(self, steps: int) -> None:
        """Choose how the stacks of a run are run, before its first step; `steps` is its total of adaptation steps."""
        if self.name == "auto":
            long = (steps if _planned is None else _planned) >= WORTH_COMPILING
            self._form = "compiled" if long and compiler() is not None else "traced"
            self._settings = self.graphs = None
            self._begun, self._left = False, set()

    def state(self) -> dict[str, Any]:
        """Return the form of a run's steps, the settings they were made for, and those that could not be compiled.

        A run has to resume with all three.
        """
        return {"form": self._form, "settings": self._settings, "left": sorted(self._left)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Resume with a run's form, unless another backend was requested by name."""
        if self.name == "auto":
            self._form, self._settings = state["form"], state["settings"]
            self._begun, self._left, self.graphs = True, set(state.get("left", ())), None

    def _graphs_for(self, method: Method) -> TracedGraphs:
        """Return the graphs of this meta-step."""
        learner, rule = method.learner, method.rule
        if self._form == "compiled":
            settings = fold(repr(graph_settings(learner, rule)))
            reason = None
            if learner.device.type != "cpu":
                reason = "steps can be compiled for a CPU only"
            elif self.name == "auto" and self._settings not in (None, settings):
                reason = "settings of the model or the rule have changed"
            if reason is not None:
                self._trace_instead(reason)
            self._settings = settings
        if self.graphs is None:
            self.graphs = self._compiled_graphs() if self._form == "compiled" else TracedGraphs()
        self.graphs.begin(learner, rule)
        return self.graphs

    def _trace_instead(self, reason: str) -> None:
        if self.name != "auto":
            raise WarpgradError(f"backend='{self.name}' cannot be used: {reason}.")
        logger.info("steps are traced from here on, not compiled: %s", reason)
        self._form, self.graphs = "traced", None

    def _compiled_graphs(self) -> TracedGraphs:
        if compiler() is None:
            if self.name == "auto":
                raise WarpgradError(
                    f"the steps of this run are compiled, but {_NO_COMPILER}, or continue with backend='traced', whose "
                    "numbers differ in the last digits."
                )
            raise WarpgradError(f"backend='compiled' cannot be used: {_NO_COMPILER}.")
        return CompiledGraphs(strict=self.name == "compiled", begun=self._begun, left=self._left)

    def stacks(self, method: Method, tasks: Sequence[Task], keys: Sequence[int]) -> bool:
        """Return whether these tasks are stacked."""
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


def _gains_alone(module: nn.Module, device: torch.device) -> bool:
    """Return whether steps of a single task are worth tracing: those with convolutions on a CPU, which are not stacked.

    A graph calls no hooks, so a model that has any is evaluated plainly. Recurrent layers would be traced step by step.
    """
    convolves = False
    for child in module.modules():
        if isinstance(child, nn.RNNBase) or any(getattr(child, name) for name in _HOOKS):
            return False
        convolves = convolves or isinstance(child, _ConvNd)
    return convolves and device.type == "cpu"


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

T = TypeVar("T")
Cast = Callable[[Any], Any]
"""Converts the tensors of a tree to the precision of a comparison."""

TOLERANCE, TOLERANCE_SINGLE = 1e-8, 1e-3
FAILURES = (WarpgradError, RuntimeError, TypeError, ValueError)
"""Errors that a model may raise in a stack, or in a precision that it was not written for."""


def why_not_stackable(
    method: Method, tasks: Sequence[Task], keys: Sequence[int]
) -> tuple[str, Exception | None] | None:
    """Return why these tasks must not be stacked, and the error if one was raised; None if they may be."""
    try:
        with _in_double(method):
            return _difference(method, [_doubled_task(task) for task in tasks], keys, _doubled)
    except FAILURES:
        pass  # the model uses tensors besides its own and the batch's, so its precision cannot be changed from outside
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
    if not discrepancy(found, expected) <= tolerance:
        return "stacking changes the numbers; check whether losses depend on more than the batch", None
    return None


def _numbers(method: Method, adaptation: Adaptation, cast: Cast) -> list[Tensor]:
    """Return everything that the first step produces, summed over tasks, so that both backends can be compared."""
    start = adaptation.start([cast(method.learner.start(key)) for key in adaptation.keys])
    start = replace(start, buffers=cast(start.buffers))
    (segment,) = Trajectory(adaptation, 1, start=start, objective=method.objective)
    numbers = [segment.loss.sum(), *adaptation.total(segment.after.theta).values()]
    if (sample := segment.sample) is not None:
        numbers += [sample.meta_loss.sum(), *sample.phi.values(), *sample.rule.values()]
    return numbers


@contextmanager
def _in_double(method: Method) -> Iterator[None]:
    """Convert all meta-parameters to double precision inside the block."""
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
    """Return a copy of a task with its batches in double precision."""
    own = copy.copy(task)
    vars(own).update({name: _doubling(getattr(task, name)) for name in ("adapt_batch", "meta_batch")})
    return own


def _doubling(draw: Callable[[int], Batch]) -> Callable[[int], Batch]:
    return lambda k: _doubled(draw(k))
