"""The fast backend: many tasks, or many (task, step) pairs, evaluated at once.

One `torch.vmap` over the loss, one ordinary backward pass outside it: the gradient of the sum of losses
for stacked θ is the stack of the tasks' gradients, and for the shared φ it is their sum. Small networks gain
because one kernel serves all tasks; convolutions on a CPU lose, so the backend `auto` leaves them to the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from warpgrad.adaptation.base import Adaptation, Point, Role, Source, StepIndex, draw_batch, non_finite, scored
from warpgrad.model.learner import Learner
from warpgrad.rules import Rule
from warpgrad.tasks.base import Task
from warpgrad.tensors import Tensors, stack_trees

T = TypeVar("T")


class BatchedAdaptation(Adaptation):
    """Several tasks that adapt in step. It has the methods of `Adaptation`; losses have one entry per task.

    Example:
        >>> stack = wg.BatchedAdaptation(learner, wg.SGD(0.1), [task, task], keys=[0, 1])
        >>> tuple(stack.step(stack.start()).loss.shape)
        (2,)
    """

    mapped = True

    def __init__(self, learner: Learner, rule: Rule, tasks: Sequence[Task], keys: Sequence[int]) -> None:
        super().__init__(learner, rule, tasks[0], keys[0])
        self.tasks = list(tasks)
        self._keys = list(keys)
        self.size = len(self.tasks)
        self._stacked: dict[Source, tuple[StepIndex, list[Any], Any]] = {}

    @property
    def keys(self) -> list[int]:
        return self._keys

    def start(self, thetas: Sequence[Tensors] | None = None) -> Point:
        begins = thetas or [self.learner.start(key) for key in self.keys]
        states = [self.rule.init(begin) for begin in begins]
        buffers = [self.learner.buffers()] * self.size
        return Point(0, self.gather(begins), self.gather(buffers), self.gather(states))

    def gather(self, trees: Sequence[Tensors]) -> Tensors:
        return cast(Tensors, stack_trees(trees))

    def split(self, tree: Tensors) -> list[Tensors]:
        return [{name: value[place] for name, value in tree.items()} for place in range(self.size)]

    def total(self, tree: Tensors) -> Tensors:
        return {name: value.sum(0) for name, value in tree.items()}

    def stack(self, points: Sequence[Point]) -> Point:
        """Stack points of these tasks, one for each, which may be at different steps."""
        return Point(
            tuple(cast(int, point.k) for point in points),
            self.gather([point.theta for point in points]),
            self.gather([point.buffers for point in points]),
            self.gather([point.state for point in points]),
        )

    def update(
        self, gradient: Mapping[str, Tensor], state: Mapping[str, Tensor], theta: Mapping[str, Tensor]
    ) -> tuple[Tensors, Tensors]:
        if self.rule.elementwise:
            return super().update(gradient, state, theta)

        def one(own_gradient: Tensors, own_state: Tensors, own_theta: Tensors) -> tuple[Tensors, Tensors]:
            return Adaptation.update(self, own_gradient, own_state, own_theta)

        return self.per_task(one, gradient, state, theta)

    def check_finite(self, loss: Tensor, what: str, k: StepIndex) -> None:
        finite = torch.isfinite(loss)
        if not finite.all():
            place = int((~finite).nonzero()[0])
            raise non_finite(self.tasks[place], what, loss[place].item(), self._steps(k)[place])

    def per_task(self, function: Callable[..., T], *arguments: Any) -> T:
        return vmap(function)(*arguments)

    def _steps(self, k: StepIndex) -> tuple[int, ...]:
        return (k,) * self.size if isinstance(k, int) else k

    def evaluate_loss(
        self,
        role: Role,
        theta: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        k: StepIndex,
        *constants: Mapping[str, Tensor],
    ) -> tuple[Tensor, Tensors]:
        def one(own_theta: Tensors, own_buffers: Tensors, own_batch: Any, *own: Tensors) -> tuple[Tensor, Tensors]:
            forward = self.learner.bind(own_theta, own_buffers, key=self.key)
            return scored(self.task, role, forward, own_batch, k, *own), forward.buffers

        # Fused attention cannot be mapped over a stack; its plain form can.
        with sdpa_kernel(SDPBackend.MATH):
            return self.per_task(one, theta, buffers, self._batch(role.source, k), *constants)

    def _batch(self, source: Source, k: StepIndex) -> Any:
        # Batches are stacked again only if a task returns other objects.
        kept = self._stacked.get(source)
        if kept is not None and kept[0] == k:  # tasks are stateless: a step has one batch
            return kept[2]
        batches = [draw_batch(task, source, step) for task, step in zip(self.tasks, self._steps(k), strict=True)]
        same = kept is not None and all(new is old for new, old in zip(batches, kept[1], strict=True))
        stacked = kept[2] if kept is not None and same else stack_trees(batches)
        self._stacked[source] = (k, batches, stacked)
        return stacked
