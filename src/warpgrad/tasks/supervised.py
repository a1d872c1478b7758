"""Supervised tasks from tensors: the shortest way from a user's data to meta-learning."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from warpgrad.errors import WarpgradError, expect, function, integer, mapping, require, short_repr
from warpgrad.keys import fold, generator
from warpgrad.model.learner import Forward
from warpgrad.tasks.base import Batch, Task, TaskFamily

Loss = Callable[[Tensor, Tensor], Tensor]
"""(prediction, target) -> scalar, e.g. `torch.nn.functional.cross_entropy`."""


def accuracy(prediction: Tensor, target: Tensor) -> Tensor:
    """Compute the fraction of targets that have the largest output; classes are in dimension 1, as for cross-entropy.

    Example:
        >>> wg.accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
        tensor(0.5000)
    """
    return (prediction.argmax(dim=1) == target).float().mean()


class MeasuredTask(Task):
    """A task on (inputs, targets) with measures of predictions: the loss and other test scores.

    Example:
        >>> task = wg.SupervisedTask(x, y, F.mse_loss, metrics={"absolute": F.l1_loss})
        >>> isinstance(task, tasks.MeasuredTask), list(task.measures)
        (True, ['loss', 'absolute'])
    """

    measures: Mapping[str, Loss]
    """Name -> function of (prediction, target); `loss` is the task loss."""
    seed: int
    """The seed of every random draw."""

    def predicted(self, forward: Forward, batch: Batch) -> tuple[Any, Any]:
        """Return the model's prediction for a batch, and its target."""
        inputs, targets = batch
        return forward(inputs), targets

    def loss(self, forward: Forward, batch: Batch) -> Tensor:
        return self.measures["loss"](*self.predicted(forward, batch))

    def metrics(self, forward: Forward, batch: Batch) -> dict[str, float]:
        prediction, target = self.predicted(forward, batch)
        return {name: float(measure(prediction, target).detach()) for name, measure in self.measures.items()}

    def with_seed(self, seed: int) -> Self:
        other = copy.copy(self)
        other.seed = seed
        return other


class SupervisedTask(MeasuredTask):
    """Batches drawn from (inputs, targets); the meta-loss is taken on other batches, held-out ones where given.

        SupervisedTask(x, y, F.cross_entropy, batch_size=20)
        SupervisedTask(x, y, F.mse_loss, batch_size=10, meta=(x_val, y_val), test=(x_test, y_test))

    A batch size of None takes all data at every step. `metrics` are test scores besides the loss, by name:
    `{"accuracy": accuracy}`, which this module has.

    Example:
        >>> task = wg.SupervisedTask(x, y, F.mse_loss, batch_size=4, test=(x, y))
        >>> [tuple(part.shape) for part in task.adapt_batch(0)]
        [(4, 2), (4, 1)]
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        loss: Loss,
        *,
        batch_size: int | None = None,
        meta: tuple[Tensor, Tensor] | None = None,
        test: tuple[Tensor, Tensor] | None = None,
        metrics: Mapping[str, Loss] | None = None,
        seed: int = 0,
        name: str = "supervised",
    ) -> None:
        self.name = name
        self.measures = {"loss": function(loss, "loss", "F.mse_loss"), **metric_functions(metrics)}
        self.seed = integer(seed, "seed")
        self._batch_size = batch_size
        self._train = _checked(name, "training", (inputs, targets))
        self._meta = _checked(name, "meta", meta) if meta is not None else self._train
        self._test = _checked(name, "test", test) if test is not None else None
        if batch_size is not None:
            integer(batch_size, "batch_size", at_least=1)
        self.stack_key = (SupervisedTask, loss)

    def adapt_batch(self, k: int) -> tuple[Tensor, Tensor]:
        return self._draw(self._train, k, "adapt")

    def meta_batch(self, k: int) -> tuple[Tensor, Tensor]:
        return self._draw(self._meta, k, "meta")

    def test_batches(self) -> Iterable[tuple[Tensor, Tensor]]:
        return () if self._test is None else (self._test,)

    def _draw(self, data: tuple[Tensor, Tensor], k: int, role: str) -> tuple[Tensor, Tensor]:
        if self._batch_size is None:
            return data
        inputs, targets = data
        draw = generator(self.seed, k, role)
        index = torch.randint(len(inputs), (self._batch_size,), generator=draw).to(inputs.device)
        return inputs[index], targets[index]


class FunctionFamily(TaskFamily):
    """A family from a function of a seed: `FunctionFamily(lambda seed: SupervisedTask(...))`.

    Example:
        >>> family = wg.FunctionFamily(lambda seed: wg.SupervisedTask(x, y, F.mse_loss, seed=seed))
        >>> family.sample(3).name
        'supervised'
    """

    def __init__(self, make: Callable[[int], Task]) -> None:
        self._make: Callable[[int], Task] = function(make, "make", "lambda seed: SupervisedTask(...)")

    def sample(self, seed: int) -> Task:
        return self._make(seed)


class TaskList(TaskFamily):
    """A finite family, e.g. one task per user. A meta-batch is a shuffled run through the list, repeated when it
    is shorter than the meta-batch.

    Example:
        >>> len(wg.TaskList([task, task, task]).meta_batch(0, 2))
        2
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        if not isinstance(tasks, Iterable) or isinstance(tasks, str | bytes | Mapping):
            raise WarpgradError(f"TaskList(...) takes a list of tasks, not {short_repr(tasks)}.")
        self.tasks = list(tasks)
        if not self.tasks:
            raise WarpgradError("a TaskList needs at least one task.")
        for place, task in enumerate(self.tasks):
            expect(task, Task, f"tasks[{place}]", "SupervisedTask(...)")

    def sample(self, seed: int) -> Task:
        return self.tasks[seed % len(self.tasks)].with_seed(seed)

    def meta_batch(self, seed: int, size: int) -> list[Task]:
        chosen: list[Task] = []
        round_ = 0
        while len(chosen) < size:
            order = torch.randperm(len(self.tasks), generator=generator(seed, round_)).tolist()
            chosen += [self.tasks[index] for index in order[: size - len(chosen)]]
            round_ += 1
        return [task.with_seed(fold(seed, "draws", place)) for place, task in enumerate(chosen)]


def metric_functions(metrics: Mapping[str, Loss] | None) -> dict[str, Loss]:
    """Check the test scores besides the loss, and return them by name."""
    if metrics is None:
        return {}
    for name, one in mapping(metrics, "metrics", '{"accuracy": accuracy}').items():
        function(one, f"metrics[{name!r}]", "accuracy")
    return dict(metrics)


def _checked(name: str, what: str, data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    pair = isinstance(data, tuple | list) and len(data) == 2
    if not pair or not all(isinstance(one, Tensor) and one.ndim for one in data):
        given = " and ".join(map(short_repr, data)) if pair else short_repr(data)
        raise WarpgradError(
            f"task '{name}' has {given} as its {what} data, which must be two tensors, inputs and targets, with the "
            "examples in dimension 0."
        )
    inputs, targets = data
    require(len(inputs) != 0, f"task '{name}' is empty: its {what} data has no examples.")
    require(
        len(inputs) == len(targets),
        f"task '{name}' has {len(inputs)} inputs but {len(targets)} targets in its {what} data.",
    )
    return inputs, targets
