"""The base classes of tasks and of families of tasks.

A task τ = (task loss, meta loss, data). It is stateless: `adapt_batch(k)` called twice gives the same batch,
so trajectories can be replayed, resumed and shared between processes without storing a single batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from warpgrad.errors import WarpgradError, require, short_repr
from warpgrad.keys import fold
from warpgrad.model.learner import Forward

Batch = Any
"""Any value that the task's losses accept: a tensor, a tuple, a dict; on the learner's device."""


class Task(ABC):
    """One task: how to draw its batches and how to score a model on them.

    Example:
        >>> class Quadratic(wg.Task):
        ...     def adapt_batch(self, k): return torch.ones(4, 2)
        ...     meta_batch = adapt_batch
        ...     def loss(self, forward, batch): return forward(batch).square().mean()
        >>> fitted = wg.adapt(learner, Quadratic(), rule=wg.SGD(0.1), steps=3)
    """

    name: str = "task"
    """The name in messages and metrics."""

    steps: int | None = None
    """K_τ: this task's own number of adaptation steps, where it differs from the algorithm's K."""

    stack_key: Hashable | None = None
    """Tasks with the same key, not None, may be stacked and evaluated at once with `torch.vmap`: their losses
    are the same function of (forward, batch) alone, and their batches have the same shapes."""

    @abstractmethod
    def adapt_batch(self, k: int) -> Batch:
        """Return the batch of adaptation step k; always the same one for the same k."""

    @abstractmethod
    def meta_batch(self, k: int) -> Batch:
        """Return the batch on which the parameters after step k are judged."""

    def test_batches(self) -> Iterable[Batch]:
        """Return held-out batches for the final score."""
        return ()

    @abstractmethod
    def loss(self, forward: Forward, batch: Batch) -> Tensor:
        """Compute L_task, the scalar that adaptation descends."""

    def meta_loss(self, forward: Forward, batch: Batch) -> Tensor:
        """Compute L_meta, the scalar that the warp is learned for; L_task unless it is overridden."""
        return self.loss(forward, batch)

    def examples(self, batch: Batch) -> int:
        """Return how many examples a test batch holds, the weight of its scores: the length of its first tensor."""
        sizes = (len(tensor) for tensor in _tensors(batch) if tensor.ndim)
        return next(sizes, 1)

    def with_seed(self, seed: int) -> Task:
        """Return this task with its random draws keyed by `seed`; the task itself if nothing is drawn."""
        del seed
        return self

    @property
    def one_loss(self) -> bool:
        """Whether L_meta and L_task are the same function, so that one backward pass can serve both."""
        return type(self).meta_loss is Task.meta_loss

    def metrics(self, forward: Forward, batch: Batch) -> dict[str, float]:
        """Compute the scores of a model on a test batch; the task loss unless it is overridden."""
        return {"loss": float(self.loss(forward, batch).detach())}


def _tensors(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, whatever else is in it."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for part in tree.values():
            yield from _tensors(part)
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from _tensors(part)


def check_repeats(task: Task) -> None:
    """Raise for a task that returns another batch for the same k: its trajectories could not be repeated."""
    for name, draw in (("adapt_batch", task.adapt_batch), ("meta_batch", task.meta_batch)):
        first, again = draw(0), draw(0)
        pairs = zip(_tensors(first), _tensors(again), strict=False)
        require(
            all((_equal(one, other) for one, other in pairs)),
            f"task '{task.name}' returned a different batch when {name}(0) was called again: a batch must be a "
            "function of k alone, so seed its draws, e.g. with warpgrad.keys.generator(seed, k, 'adapt').",
        )


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    same = one == other
    if one.is_floating_point():
        same = same | (one.isnan() & other.isnan())
    return bool(same.all())


def checked_tasks(batch: Sequence[Task], *, first: bool) -> Sequence[Task]:
    """Check that a family returned a `Task` for each place of a meta-step; the `first` time, draw one of them twice."""
    if not isinstance(batch, Sequence) or not batch:
        raise WarpgradError("the task family returned an empty meta-batch.")
    for place, task in enumerate(batch):
        if not isinstance(task, Task):
            raise WarpgradError(
                f"the task family returned {short_repr(task)} as task {place} of a meta-batch: sample(seed) must "
                "return a Task."
            )
    if first:
        check_repeats(batch[0])
    return batch


class TaskFamily(ABC):
    """A distribution p(τ) over tasks.

    Example:
        >>> class Lines(wg.TaskFamily):
        ...     def sample(self, seed): return wg.SupervisedTask(x, seed % 7 * x[:, :1], F.mse_loss)
        >>> len(Lines().meta_batch(0, 4))
        4
    """

    @abstractmethod
    def sample(self, seed: int) -> Task:
        """Draw the task of this seed; always the same one for the same seed."""

    def meta_batch(self, seed: int, size: int) -> list[Task]:
        """Return the tasks of one meta-step. Override it to draw without replacement from a finite set."""
        return [self.sample(fold(seed, index)) for index in range(size)]
