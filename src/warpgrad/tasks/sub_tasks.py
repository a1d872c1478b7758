"""The members of a sequence that is learned one at a time: where their examples come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Generator, Tensor

from warpgrad.errors import WarpgradError
from warpgrad.forward import Forward
from warpgrad.tasks.supervised import Loss

Split = Literal["train", "validation"]

Examples = tuple[Tensor, Tensor]
"""(inputs [n, …], targets [n, …])."""

SeenExamples = tuple[Tensor, Tensor, Tensor]
"""(inputs [T, n, …], targets [T, n, …], weights [T]): those of several sub-tasks."""


class SubTask(ABC):
    """One member of a sequence: where its examples come from."""

    @abstractmethod
    def draw(self, split: Split, size: int, draw: Generator) -> Examples:
        """`size` examples; everything random comes from `draw`, a generator on the CPU."""

    @abstractmethod
    def test(self) -> Examples:
        """The examples that the sub-task is tested on."""


class TensorSubTask(SubTask):
    """A sub-task from tensors. Validation data judges the warp; where it is not given, training data does."""

    def __init__(self, train: Examples, validation: Examples | None = None, test: Examples | None = None) -> None:
        self._splits: dict[Split, Examples] = {
            "train": train,
            "validation": train if validation is None else validation,
        }
        self._test = self._splits["validation"] if test is None else test
        for what, examples in (*self._splits.items(), ("test", self._test)):
            if not isinstance(examples, tuple | list) or len(examples) != 2:
                raise WarpgradError(f"a sub-task's {what} data must be a pair of tensors, (inputs, targets).")
            inputs, targets = examples
            if len(inputs) == 0 or len(inputs) != len(targets):
                raise WarpgradError(
                    f"a sub-task's {what} data has {len(inputs)} inputs and {len(targets)} targets; "
                    "give as many of both, at least 1."
                )

    def draw(self, split: Split, size: int, draw: Generator) -> Examples:
        inputs, targets = self._splits[split]
        index = torch.randint(len(inputs), (size,), generator=draw).to(inputs.device)
        return inputs[index], targets[index]

    def test(self) -> Examples:
        return self._test


def weighted(batches: Sequence[Examples], weights: Sequence[float]) -> SeenExamples:
    """Batches of several sub-tasks in one, with what each weighs."""
    inputs, targets = (torch.stack(column) for column in zip(*batches, strict=True))
    dtype = inputs.dtype if inputs.is_floating_point() else torch.get_default_dtype()
    return inputs, targets, torch.tensor(weights, dtype=dtype, device=inputs.device)


def predictions(forward: Forward, inputs: Tensor) -> Tensor:
    """The model's outputs for examples [T, n, …] of several sub-tasks, from one pass over all of them."""
    outputs: Tensor = forward(inputs.flatten(0, 1)).unflatten(0, inputs.shape[:2])
    return outputs


def moved_predictions(forward: Forward, inputs: Tensor) -> Tensor:
    """F(θ; φ) − F(θ̄_i; φ) + sg[F(θ̄_i; φ)] for examples [T, n, …], where θ̄_i is the i-th mark: the same numbers as
    `predictions`, whose gradient for φ is that of how far they have moved since θ̄_i."""
    before = torch.stack([forward.at_mark(place)(own) for place, own in enumerate(inputs)])
    return predictions(forward, inputs) + (before.detach() - before)


def per_subtask(measure: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """[T]: a measure of outputs [T, n, …] for the examples of each sub-task."""
    return torch.stack([measure(own, target) for own, target in zip(outputs, targets, strict=True)])
