"""Multi-headed finetuning: one body for all tasks, a head of its own for each, trained jointly; no meta-learning.

On a new task the body begins where joint training left it, and the head is drawn afresh.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import cast

from torch import Tensor, nn

from warpgrad.adaptation import Adaptation, Point
from warpgrad.algorithms.base import Algorithm, Trace
from warpgrad.errors import WarpgradError
from warpgrad.forward import Forward
from warpgrad.method import MetaUpdate, Method
from warpgrad.ranks import add_up
from warpgrad.tasks.base import Batch, Task
from warpgrad.tensors import Accumulator

_HEADS = "heads"


class MultiHeaded(nn.Module):
    """A body and one linear head per task; `forward(x, head=i)` goes through the i-th."""

    def __init__(self, body: nn.Module, heads: Iterable[nn.Module]) -> None:
        super().__init__()
        self.body = body
        self.heads = nn.ModuleList(heads)
        owned = [id(parameter) for head in self.heads for parameter in head.parameters()]
        if not owned or len(set(owned)) < len(owned):
            raise WarpgradError("every task needs a head of its own: give MultiHeaded separate modules.")

    def forward(self, inputs: Tensor, head: int) -> Tensor:
        output: Tensor = self.heads[head](self.body(inputs))
        return output


class HeadedTask(Task):
    """A task seen by a multi-headed model: the same batches and losses, always through the head of this task."""

    def __init__(self, task: Task, head: int) -> None:
        self.task = task
        self.head = head
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
    """K steps of joint training per meta-step: as much data as a meta-learner's meta-step sees.

    In step k every task of the meta-batch gives a batch, at the same parameters. The body descends the mean of their
    losses; a head descends the loss of its own task alone, so its step size does not depend on how many others there
    are. The tasks are `HeadedTask`s, the model a `MultiHeaded` in a learner with `allow_unused=True`.
    """

    def meta_step(
        self, method: Method, tasks: Sequence[Task], keys: Sequence[int], update: MetaUpdate
    ) -> dict[str, float]:
        trace = Trace()
        learner = method.learner
        heads = Counter(task.head for task in tasks if isinstance(task, HeadedTask))
        if heads.total() < len(tasks):
            raise WarpgradError("JointTraining takes tasks with a head each: wrap them in HeadedTask(task, head).")
        scales = {name: 1.0 / _sharers(name, heads, len(tasks)) for name in learner.learned}
        mine = self.ranks.share(len(tasks))
        for k in range(self.steps):
            total = Accumulator()
            for task, key in zip(tasks[mine], keys[mine], strict=True):
                adaptation = Adaptation(learner, method.rule, task, key)
                inner = adaptation.inner(Point(k, learner.start(key), learner.buffers(), {}))
                total.add(inner.gradient)
                trace.add("task_loss", inner.loss.detach())
            add_up(self.ranks, [(total, learner.learned_theta0)])
            update("theta0", {name: total.total[name] * scale for name, scale in scales.items()})
        trace.add_up(self.ranks)
        return trace.means()


def _sharers(name: str, heads: Counter[int], tasks: int) -> int:
    """How many tasks of the meta-batch a parameter serves; an idle head has gradient 0 whatever it is divided by."""
    group, _, rest = name.partition(".")
    return max(1, heads[int(rest.partition(".")[0])]) if group == _HEADS else tasks
