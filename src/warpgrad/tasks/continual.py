"""Continual learning as task adaptation (App. C, App. J): one task is a sequence of sub-tasks, seen one at a time.

Step k belongs to sub-task t = ⌊k / n⌋ + 1 of T. Adaptation sees batches of that sub-task alone; no past data is kept.
The meta-loss looks back, on validation batches, all terms at the same θ:

    L_meta(θ) = Σ_{i ≤ t} w_{i,t} L_task(θ, D_i)

| weighting  | w_{i,t}         | meaning                                                                          |
|------------|-----------------|----------------------------------------------------------------------------------|
| `balanced` | 1 / (n(T−i+1))  | sub-task i is judged at n(T−i+1) steps, so every sub-task weighs 1 in the sum      |
| `printed`  | 1 / (n(T−t+1))  | the formula as it stands in App. J: late steps weigh more                         |
| `mean`     | 1 / t           | the formula as it stands in App. C: early sub-tasks weigh more                    |
| `current`  | 1 for i = t     | no looking back: the baseline that may forget                                    |

    ContinualTask([TensorSubTask((x, y)) for x, y in my_data], F.cross_entropy, steps_per_subtask=20, batch_size=5)
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Generator, Tensor

from warpgrad.errors import WarpgradError, require
from warpgrad.keys import generator
from warpgrad.model.learner import Forward
from warpgrad.tasks.supervised import Loss, MeasuredTask

Split = Literal["train", "validation"]

Examples = tuple[Tensor, Tensor]
"""(inputs [n, …], targets [n, …])."""

SeenExamples = tuple[Tensor, Tensor, Tensor]
"""(inputs [T, n, …], targets [T, n, …], weights [T]): those of several sub-tasks."""


class SubTask(ABC):
    """One member of a sequence: where its examples come from.

    Example:
        >>> part = tasks.TensorSubTask((x, y))
        >>> isinstance(part, tasks.SubTask), tuple(part.test()[0].shape)
        (True, (8, 2))
    """

    @abstractmethod
    def draw(self, split: Split, size: int, draw: Generator) -> Examples:
        """Draw `size` examples; everything random comes from `draw`, a generator on the CPU."""

    @abstractmethod
    def test(self) -> Examples:
        """Return the examples that the sub-task is tested on."""


class TensorSubTask(SubTask):
    """A sub-task from tensors. Validation data judges the warp; where it is not given, training data does.

    Example:
        >>> part = tasks.TensorSubTask(train=(x[:4], y[:4]), validation=(x[4:], y[4:]))
        >>> tuple(part.draw("train", 3, torch.Generator())[0].shape)
        (3, 2)
    """

    def __init__(self, train: Examples, validation: Examples | None = None, test: Examples | None = None) -> None:
        self._splits: dict[Split, Examples] = {
            "train": train,
            "validation": train if validation is None else validation,
        }
        self._test = self._splits["validation"] if test is None else test
        for what, examples in (*self._splits.items(), ("test", self._test)):
            require(
                isinstance(examples, tuple | list) and len(examples) == 2,
                f"a sub-task's {what} data must be a pair of tensors, (inputs, targets).",
            )
            inputs, targets = examples
            require(
                len(inputs) != 0 and len(inputs) == len(targets),
                f"a sub-task's {what} data has {len(inputs)} inputs and {len(targets)} targets; "
                "give the same number of both, at least 1.",
            )

    def draw(self, split: Split, size: int, draw: Generator) -> Examples:
        inputs, targets = self._splits[split]
        index = torch.randint(len(inputs), (size,), generator=draw).to(inputs.device)
        return inputs[index], targets[index]

    def test(self) -> Examples:
        return self._test


def weighted(batches: Sequence[Examples], weights: Sequence[float]) -> SeenExamples:
    """Stack the batches of several sub-tasks into one, with the weight of each."""
    inputs, targets = (torch.stack(column) for column in zip(*batches, strict=True))
    dtype = inputs.dtype if inputs.is_floating_point() else torch.get_default_dtype()
    return inputs, targets, torch.tensor(weights, dtype=dtype, device=inputs.device)


def predictions(forward: Forward, inputs: Tensor) -> Tensor:
    """Return the model's outputs for examples [T, n, …] of several sub-tasks, from one pass over all of them."""
    outputs: Tensor = forward(inputs.flatten(0, 1)).unflatten(0, inputs.shape[:2])
    return outputs


def per_subtask(measure: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Apply a measure to outputs [T, n, …] of each sub-task; the result is [T]."""
    return torch.stack([measure(own, target) for own, target in zip(outputs, targets, strict=True)])


Weighting = Literal["balanced", "printed", "mean", "current"]
WEIGHTINGS: tuple[Weighting, ...] = ("balanced", "printed", "mean", "current")

StartDraw = Callable[[int, Generator], Examples]
"""(place in `subtasks`, generator) -> examples that θ0 is judged on."""


class ContinualTask(MeasuredTask):
    """A sequence of sub-tasks, of which k selects one. Beyond the end of the sequence the last one continues.

    Warning: the meta-loss passes the batches of all seen sub-tasks through the model at once, so batch-norm in
    training mode would normalise over their mixture.

    Example:
        >>> parts = [tasks.TensorSubTask((x, y)), tasks.TensorSubTask((x, -y))]
        >>> tasks.ContinualTask(parts, F.mse_loss, steps_per_subtask=20, batch_size=4).steps
        40
    """

    steps: int
    """K = nT."""

    def __init__(
        self,
        subtasks: Sequence[SubTask],
        loss: Loss,
        *,
        steps_per_subtask: int,
        batch_size: int,
        meta_batch_size: int | None = None,
        order: Sequence[int] | None = None,
        weighting: Weighting = "balanced",
        pad: bool = True,
        start: StartDraw | None = None,
        metrics: Mapping[str, Loss] | None = None,
        seed: int = 0,
        name: str = "continual",
    ) -> None:
        """
        Args:
            subtasks: The sub-tasks; their inputs and targets have the same shapes except for the number of examples.
            loss: (prediction, target) -> scalar.
            steps_per_subtask: n, adaptation steps on each.
            batch_size: Examples per adaptation step.
            meta_batch_size: Validation examples of each seen sub-task; `batch_size` if None.
            order: Places in `subtasks`, each once, in which they are learned; as given if None.
            weighting: How the meta-loss weighs what was seen.
            pad: Give all meta-batches the same shape, so that points from different sub-tasks can be stacked. Costlier,
                and not needed where tasks advance in step, as in Algorithm 1.
            start: Draws what θ0 is judged on; own validation data if None. At θ0 the task is not known yet: data of
                many tasks make a steadier gradient than those of the few in a meta-step.
            metrics: Test scores besides the loss, by name.
        """
        self.subtasks = tuple(subtasks)
        if others := [type(subtask).__name__ for subtask in self.subtasks if not isinstance(subtask, SubTask)]:
            raise WarpgradError(f"a sub-task of task '{name}' is a {others[0]}; give TensorSubTask((x, y)) instead.")
        self.order = tuple(range(len(self.subtasks)) if order is None else order)
        meta_size = batch_size if meta_batch_size is None else meta_batch_size
        require(
            self.order and len(set(self.order)) >= len(self.order) and (set(self.order) <= set(range(len(subtasks)))),
            f"task '{name}' has {len(subtasks)} sub-tasks, which cannot be learned in the order {self.order}: "
            "list at least one, each at most once, counting from 0.",
        )
        require(
            all(isinstance(size, int) and size >= 1 for size in (steps_per_subtask, batch_size, meta_size)),
            f"task '{name}': steps per sub-task and batch sizes must be integers of at least 1.",
        )
        require(weighting in WEIGHTINGS, f"weighting={weighting!r} is unknown; choose one of {', '.join(WEIGHTINGS)}.")
        self.name = name
        self.weighting = weighting
        self.steps_per_subtask = steps_per_subtask
        self.steps = steps_per_subtask * len(self.order)
        self.measures = {"loss": loss, **(metrics or {})}
        self.seed = seed
        self._batch_size, self._meta_size = batch_size, meta_size
        self._pad = pad and weighting != "current"
        self._start = start
        self.stack_key = (
            ContinualTask,
            loss,
            len(self.order),
            steps_per_subtask,
            batch_size,
            meta_size,
            weighting,
            pad,
        )

    def stage(self, k: int) -> int:
        """Return t − 1, the number of sub-tasks finished before step k."""
        return min(k // self.steps_per_subtask, len(self.order) - 1)

    def subtask(self, k: int) -> int:
        """Return the place in `subtasks` of the one that step k learns."""
        return self.order[self.stage(k)]

    def switches(self, k: int) -> bool:
        """Return whether step k is the first one of another sub-task than step k − 1's."""
        return k > 0 and self.stage(k) != self.stage(k - 1)

    def ends_earlier(self, k: int) -> bool:
        """Return whether a sub-task has just ended that later meta-losses look back to."""
        return self.weighting != "current" and self.switches(k)

    def weights(self, k: int) -> tuple[float, ...]:
        """Return w_{i,t} at step k, in the order of learning; 0 for sub-tasks that have not been seen yet."""
        n, total, t = self.steps_per_subtask, len(self.order), self.stage(k) + 1
        if self.weighting == "current":
            return (0.0,) * (t - 1) + (1.0,) + (0.0,) * (total - t)
        each = {
            "balanced": [1.0 / (n * (total - i + 1)) for i in range(1, t + 1)],
            "printed": [1.0 / (n * (total - t + 1))] * t,
            "mean": [1.0 / t] * t,
        }[self.weighting]
        return (*each, *(0.0,) * (total - t))

    def adapt_batch(self, k: int) -> Examples:
        return self.subtasks[self.subtask(k)].draw("train", self._batch_size, generator(self.seed, k, "adapt"))

    def meta_batch(self, k: int) -> SeenExamples:
        """Return validation batches of the sub-tasks seen so far, with their weights; the current one is the last.

        With `pad` the places of later sub-tasks are filled too, at weight 0: no future data is used.
        """
        t = self.stage(k)
        places = [t] if self.weighting == "current" else range(t + 1)
        batches = [self._judging(place, k, "meta") for place in places]
        weights = [self.weights(k)[place] for place in places]
        if self._pad:
            missing = len(self.order) - len(batches)
            batches += [batches[-1]] * missing
            weights[-1:-1] = [0.0] * missing
        return weighted(batches, weights)

    def start_batch(self, k: int) -> SeenExamples:
        """Return the batch that judges θ0: all sub-tasks equally, or only the first with the weighting `current`."""
        total = 1 if self.weighting == "current" else len(self.order)
        return weighted([self._judging(place, k, "start") for place in range(total)], [1.0 / total] * total)

    def _judging(self, place: int, k: int, role: Literal["meta", "start"]) -> Examples:
        """Draw a batch for the meta-loss or the start, of the sub-task at this place of the order."""
        draw = generator(self.seed, k, role, place)
        if role == "start" and self._start is not None:
            return self._start(self.order[place], draw)
        return self.subtasks[self.order[place]].draw("validation", self._meta_size, draw)

    def test_batches(self) -> Iterable[Examples]:
        return [self.subtasks[place].test() for place in sorted(self.order)]

    def meta_loss(self, forward: Forward, batch: SeenExamples) -> Tensor:
        if len(batch) != 3:
            raise WarpgradError("a continual meta-loss needs validation batches: use Exact() or Approximate().")
        inputs, targets, weights = batch
        return (weights * per_subtask(self.measures["loss"], predictions(forward, inputs), targets)).sum()

    def with_order(self, order: Sequence[int]) -> ContinualTask:
        """Return a task with the same sub-tasks, learned in another order."""
        require(
            sorted(order) == sorted(self.order), f"{tuple(order)} is not a permutation of the sub-tasks {self.order}."
        )
        other = copy.copy(self)
        other.order = tuple(order)
        return other
