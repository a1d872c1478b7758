"""`adapt_many`: a list of tasks adapted at once, and all of their models served in one call.

adapted = wg.adapt_many(learner, tasks, rule=rule, steps=5)
adapted(inputs)                                   # inputs [tasks, ...]: each task's own model on its own inputs
adapted.module(3)                                 # the fourth task's model, a plain module
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from warpgrad.adaptation.adapt import check_parts
from warpgrad.adaptation.base import Adaptation, Point
from warpgrad.adaptation.stacked import BatchedAdaptation
from warpgrad.adaptation.trajectory import Trajectory
from warpgrad.errors import WarpgradError, expect, integer, short_repr
from warpgrad.keys import fold, isolated_rng
from warpgrad.model.learner import Forward, Learner
from warpgrad.rules import Rule
from warpgrad.tasks.base import Task
from warpgrad.tensors import Tensors, stack_trees

logger = logging.getLogger(__name__)

TOLERANCE = 1e-3
"""Between one step of two tasks stacked and the same step one by one, relative to the step."""


class Adapted:
    """Many adapted models with one φ: θ_K of every task, and calls to all of them together.

    Example:
        >>> adapted = wg.adapt_many(learner, [task, task], rule=wg.SGD(0.1), steps=2)
        >>> len(adapted), type(adapted.module(1)).__name__
        (2, 'Sequential')
    """

    def __init__(self, learner: Learner, points: Sequence[tuple[Tensors, Tensors]], *, stacked: bool) -> None:
        self.learner = learner
        self.points = list(points)
        """θ_K and the buffers of every task, in the order of the tasks."""
        self.stacked = stacked
        """Whether the tasks were adapted in a stack."""
        self._together: tuple[Tensors, Tensors] | None = None

    def __len__(self) -> int:
        return len(self.points)

    def module(self, index: int) -> nn.Module:
        """Return the model of one task, a plain module of the user's own class."""
        return self.learner.adapted(*self.points[index])

    def __call__(self, *inputs: Any) -> Any:
        """Run every task's model on its inputs; all arguments and results have the tasks in dimension 0."""
        for value in inputs:
            if not isinstance(value, Tensor) or len(value) != len(self):
                given = f"length {len(value)}" if isinstance(value, Tensor) else short_repr(value)
                raise WarpgradError(f"inputs need one entry for each of {len(self)} tasks in dimension 0, not {given}.")
        theta, buffers = self._stack()
        with torch.no_grad(), self.learner.modes_kept(), isolated_rng(self.learner.device):
            try:
                with sdpa_kernel(SDPBackend.MATH):
                    return vmap(self._one)(theta, buffers, *inputs)
            except RuntimeError as error:
                logger.info("models are called one by one, not mapped: %s", str(error).splitlines()[0])
                return stack_trees([self._one(*_part((theta, buffers, *inputs), i)) for i in range(len(self))])

    def _one(self, theta: Tensors, buffers: Tensors, *inputs: Tensor) -> Any:
        return Forward(self.learner, theta, self.learner.phi, buffers, key=None, training=False)(*inputs)

    def _stack(self) -> tuple[Tensors, Tensors]:
        if self._together is None:
            tested = [dict(self.learner.test_buffers(buffers)) for _, buffers in self.points]
            self._together = stack_trees([theta for theta, _ in self.points]), stack_trees(tested)
        return self._together


def _part(trees: Sequence[Any], index: int) -> list[Any]:
    """Return one task's part of stacked tensors."""
    return [
        tree[index] if isinstance(tree, Tensor) else {name: value[index] for name, value in tree.items()}
        for tree in trees
    ]


def adapt_many(
    learner: Learner, tasks: Sequence[Task], *, rule: Rule, steps: int, key: int = 0, chunk: int = 64
) -> Adapted:
    """Adapt θ to each of several tasks with φ fixed, stacked where that is possible; see `Adapted`.

    Tasks are stacked where they have one `stack_key`, and the first step of two of them is the same in a stack as it is
    one by one. Otherwise they are adapted one after the other: the numbers are the same.

    Args:
        learner: The meta-learned learner; it is not changed.
        tasks: The new tasks.
        rule: The rule that it was meta-trained with.
        steps: K; a task's own `steps` is not asked for.
        key: Seed of dropout masks and of parameters that start fresh; each task has its own, as in `score`.
        chunk: At most this many tasks are stacked at once; bounds memory.

    Example:
        >>> adapted = wg.adapt_many(learner, [task, task], rule=wg.SGD(0.1), steps=2)
        >>> tuple(adapted(torch.stack([x, x])).shape)
        (2, 8, 1)
    """
    check_parts(learner, rule, steps, key)
    integer(chunk, "chunk", at_least=1)
    if not isinstance(tasks, list | tuple) or not tasks:
        raise WarpgradError(f"adapt_many(...) takes a list of at least one task, not {short_repr(tasks)}.")
    for index, task in enumerate(tasks):
        expect(task, Task, f"tasks[{index}]", "SupervisedTask(...)")
    keys = [fold(key, index + 1) for index in range(len(tasks))]
    points: list[tuple[Tensors, Tensors]] = []
    with isolated_rng(learner.device), learner.modes_kept(), torch.enable_grad():
        stacks = _stackable(learner, rule, tasks, keys)
        for begin in range(0, len(tasks), chunk if stacks else 1):
            part = slice(begin, begin + (chunk if stacks else 1))
            adaptation: Adaptation
            if stacks:
                adaptation = BatchedAdaptation(learner, rule, tasks[part], keys[part])
            else:
                adaptation = Adaptation(learner, rule, tasks[begin], keys[begin])
            trajectory = Trajectory(adaptation, steps)
            for segment in trajectory:
                del segment  # its gradients would hold memory that the next step needs
            last = trajectory.point
            points += zip(adaptation.split(last.theta), adaptation.split(last.buffers), strict=True)
    return Adapted(learner, points, stacked=stacks)


def _stackable(learner: Learner, rule: Rule, tasks: Sequence[Task], keys: Sequence[int]) -> bool:
    first = tasks[0]
    if len(tasks) < 2 or first.stack_key is None or any(task.stack_key != first.stack_key for task in tasks):
        return False
    try:
        stack = BatchedAdaptation(learner, rule, tasks[:2], keys[:2])
        start = stack.start()
        found = stack.step(start).after
        for place in range(2):
            one = Adaptation(learner, rule, tasks[place], keys[place])
            if not _same(stack.split(start.theta)[place], stack.split(found.theta)[place], one.step(one.start()).after):
                logger.info("tasks are adapted one by one: stacked, they give different numbers")
                return False
    except (WarpgradError, RuntimeError, TypeError, ValueError) as error:
        logger.info("tasks are adapted one by one: %s", str(error).splitlines()[0])
        return False
    return True


def _same(start: Tensors, found: Tensors, expected: Point) -> bool:
    moved = torch.stack([(expected.theta[name] - value).norm() for name, value in start.items()]).norm()
    apart = torch.stack([(expected.theta[name] - value).norm() for name, value in found.items()]).norm()
    return bool(apart <= TOLERANCE * moved)
