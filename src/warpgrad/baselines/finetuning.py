"""Multi-headed finetuning: one body for all tasks and one head per task, trained jointly, without meta-learning.

On a new task the body starts from joint training, and the head is newly drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import cast

from torch import Tensor, nn

from warpgrad.adaptation.base import Adaptation, Point
from warpgrad.algorithms.base import Algorithm, Trace
from warpgrad.algorithms.method import MetaUpdate, Method
from warpgrad.algorithms.ranks import ALONE, Ranks, all_reduce
from warpgrad.errors import require
from warpgrad.model.learner import Forward
from warpgrad.tasks.base import Batch, Task
from warpgrad.tensors import Accumulator, Tensors

_HEADS = "heads"


class MultiHeaded(nn.Module):
    """A body and one linear head per task; `forward(x, head=i)` goes through the i-th.

    Example:
        >>> net = baselines.MultiHeaded(nn.Linear(2, 4), [nn.Linear(4, 1) for _ in range(3)])
        >>> tuple(net(torch.rand(5, 2), head=2).shape)
        (5, 1)
    """

    def __init__(self, body: nn.Module, heads: Iterable[nn.Module]) -> None:
        super().__init__()
        self.body = body
        self.heads = nn.ModuleList(heads)
        owned = [id(parameter) for head in self.heads for parameter in head.parameters()]
        require(
            owned and len(set(owned)) == len(owned),
            "every task needs a head of its own: give MultiHeaded separate modules.",
        )

    def forward(self, inputs: Tensor, head: int) -> Tensor:
        output: Tensor = self.heads[head](self.body(inputs))
        return output


class HeadedTask(Task):
    """A task seen by a multi-headed model: the same batches and losses, always through the head of this task.

    Example:
        >>> headed = [baselines.HeadedTask(task, place) for place in range(3)]
        >>> headed[1].head
        1
    """

    def __init__(self, task: Task, head: int) -> None:
        self.task, self.head = task, head
        self.name = task.name
        self.steps = task.steps

    def adapt_batch(self, k: int) -> Batch:
        return self.task.adapt_batch(k)

    def meta_batch(self, k: int) -> Batch:
        return self.task.meta_batch(k)

    def test_batches(self) -> Iterable[Batch]:
        return self.task.test_batches()

    def loss(self, forward: Forward, batch: Batch) -> Tensor:
        return self.task.loss(self._through_head(forward), batch)

    def metrics(self, forward: Forward, batch: Batch) -> dict[str, float]:
        return self.task.metrics(self._through_head(forward), batch)

    def with_seed(self, seed: int) -> HeadedTask:
        return HeadedTask(self.task.with_seed(seed), self.head)

    def _through_head(self, forward: Forward) -> Forward:
        # Called like the bound model itself, which is all that a loss does with it.
        return cast(Forward, partial(forward, head=self.head))


class JointTraining(Algorithm):
    """K rounds of joint training per meta-step: as much data as a meta-learner's meta-step sees.

    In round k every task of the meta-batch gives a batch. By default each batch is a separate step, tasks in turn,
    which makes tasks × K steps per meta-step; a step moves the body and the head of its task. With `averaged` the
    batches of a round make one step at the same parameters: the body descends the mean of their losses, and a head the
    loss of its task alone, so its step size does not depend on the number of tasks.

    The tasks are `HeadedTask`s, the model a `MultiHeaded` in a learner with `allow_unused=True`.

    Example:
        >>> joint = baselines.JointTraining(steps=10, tasks=3, averaged=True)
        >>> joint.averaged
        True
    """

    learns_by_itself = True

    def __init__(self, *, steps: int, tasks: int, averaged: bool = False) -> None:
        """
        Args:
            steps: K, batches of each task per meta-step.
            tasks: Tasks per meta-step.
            averaged: Take one step per round, on the mean over its tasks.
        """
        super().__init__(steps=steps, tasks=tasks)
        self.averaged = averaged

    def meta_step(
        self,
        method: Method,
        tasks: Sequence[Task],
        keys: Sequence[int],
        update: MetaUpdate,
        ranks: Ranks = ALONE,
    ) -> dict[str, float]:
        trace = Trace()
        learner = method.learner
        heads = [task.head for task in tasks if isinstance(task, HeadedTask)]
        require(
            len(heads) >= len(tasks), "JointTraining takes tasks with a head each: wrap them in HeadedTask(task, head)."
        )
        places = range(len(tasks))
        together = [places] if self.averaged else [places[place : place + 1] for place in places]
        mine = places[ranks.share(len(tasks))]
        for k in range(self.steps):
            for members in together:
                total = Accumulator()
                for place in members:
                    if place in mine:
                        adaptation = Adaptation(learner, method.rule, tasks[place], keys[place])
                        inner = adaptation.inner(Point(k, learner.start(keys[place]), learner.buffers(), {}))
                        total.add(inner.gradient)
                        trace.add("task_loss", inner.loss.detach())
                all_reduce(ranks, [(total, learner.learned_theta0)])
                serving = Counter(heads[place] for place in members)
                update("theta0", _step(total, serving))
        trace.all_reduce(ranks)
        return trace.means()

    def idleness(self, ranks: int) -> str | None:
        if self.averaged:
            return super().idleness(ranks)
        return "each batch of joint training is a step of its own: ranks take turns, and save no time"


def _step(total: Accumulator, heads: Counter[int]) -> Tensors:
    """Return the gradient of a step on several tasks, counted by `heads`: the mean over the tasks that use a parameter.

    Heads of other tasks are left out, so that an optimiser with momentum does not move them.
    """
    found: Tensors = {}
    for name, value in total.total.items():
        group, _, rest = name.partition(".")
        sharers = heads[int(rest.partition(".")[0])] if group == _HEADS else heads.total()
        if sharers:
            found[name] = value / sharers
    return found
