"""The two families of the continual experiment: mixtures of two sines (App. J), and characters of drawn alphabets.

A sine task is g(x) = α(x) a₁ sin(x − b₁) + (1 − α(x)) a₂ sin(x − b₂) with α(x) = σ(x + o), a ∈ [0.1, 5], b ∈ [0, π],
o ∈ [−5, 5]. Its sub-tasks are equal parts of [−5, 5], from left to right.

An alphabet task is classification of the characters of one alphabet, `ways` of them per sub-task. With
`scenario="class"` every character has a distinct label, in random order; with `"domain"` each sub-task counts from 0.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Generator, Tensor

from warpgrad.data import AlphabetData, AlphabetProtocol, Alphabets, open_store, prepare_drawn, to_float
from warpgrad.keys import generator
from warpgrad.tasks import TaskFamily, accuracy
from warpgrad.tasks.continual import ContinualTask, Examples, Split, SubTask, TensorSubTask

EDGE = 5.0
"""Inputs lie in [−EDGE, EDGE]."""

Scenario = Literal["class", "domain"]


def half_squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Compute the sub-task loss of App. J, 1/(2|D|) Σ (f(x) − g(x))²."""
    return 0.5 * (prediction - target).square().mean()


Numbers = NDArray[np.floating]
Coefficients = Sequence[float] | Sequence[Numbers]
"""(a₁, b₁, a₂, b₂, o), as numbers or as arrays with one entry for every x."""

RANGES = ((0.1, 5.0), (0.0, math.pi), (0.1, 5.0), (0.0, math.pi), (-5.0, 5.0))
"""The ranges of the coefficients."""


def sine_mixture(x: Numbers, coefficients: Coefficients) -> Numbers:
    """Compute g at x with NumPy, because tensor operations take several times as long for batches of five numbers."""
    a1, b1, a2, b2, offset = coefficients
    alpha = 1.0 / (1.0 + np.exp(-(x + offset)))
    first, second = a1 * np.sin(x - b1), a2 * np.sin(x - b2)
    found: Numbers = second + alpha * (first - second)
    return found


def draw_sine_mixture(seed: int) -> Coefficients:
    """Draw uniform coefficients from the seed."""
    draws = torch.rand(5, generator=generator(seed, "sine mixture"), dtype=torch.float64).tolist()
    return [low + (high - low) * part for (low, high), part in zip(RANGES, draws, strict=True)]


class SineSubTask(SubTask):
    """The function g on one interval. Every batch draws new inputs, so training and validation never share any."""

    def __init__(
        self, coefficients: Coefficients, low: float, high: float, test_points: int, device: str = "cpu"
    ) -> None:
        self.coefficients = coefficients
        self.low, self.high = low, high
        self._test_points = test_points
        self._device = device

    def draw(self, split: Split, size: int, draw: Generator) -> Examples:
        del split
        return self._examples(torch.rand(size, 1, generator=draw))

    def test(self) -> Examples:
        """Return evenly spaced examples, at the midpoints of `test_points` equal parts of the interval."""
        count = self._test_points
        return self._examples((torch.arange(count, dtype=torch.get_default_dtype())[:, None] + 0.5) / count)

    def _examples(self, fractions: Tensor) -> Examples:
        return _examples(self.low + (self.high - self.low) * fractions.numpy(), self.coefficients, self._device)


def _examples(x: Numbers, coefficients: Coefficients, device: str) -> Examples:
    """Return inputs and targets as tensors, in the precision of the inputs."""
    inputs, targets = torch.from_numpy(x), torch.from_numpy(sine_mixture(x, coefficients))
    return (inputs, targets) if device == "cpu" else (inputs.to(device), targets.to(device))


class SineMixtures(TaskFamily):
    """p(τ) of App. J; `options` are those of `ContinualTask`."""

    def __init__(
        self, subtasks: int, test_points: int, device: str = "cpu", start_functions: int = 40, **options: Any
    ) -> None:
        """Create the family; `start_functions` is the number of functions per task that θ0 is judged on, if it is.

        With few of them, their irreducible noise would drown the rest of the meta-gradient.
        """
        self.subtasks, self.test_points, self.device = subtasks, test_points, device
        self.start_functions = start_functions
        self.options = options

        edges = [-EDGE + 2.0 * EDGE * place / subtasks for place in range(subtasks + 1)]
        self._intervals = list(pairwise(edges))

    def sample(self, seed: int) -> ContinualTask:
        found = draw_sine_mixture(seed)
        parts = [SineSubTask(found, low, high, self.test_points, self.device) for low, high in self._intervals]
        name = f"sine mixture {seed}"
        return ContinualTask(parts, half_squared_error, start=self.unknown, seed=seed, name=name, **self.options)

    def unknown(self, place: int, draw: Generator) -> Examples:
        """Draw one point from each of many functions, in this part of the interval, to judge θ0 without a task."""
        ranges = (*RANGES, self._intervals[place])
        fractions = torch.rand(len(ranges), self.start_functions, 1, generator=draw).numpy()
        *found, x = (low + (high - low) * part for (low, high), part in zip(ranges, fractions, strict=True))
        return _examples(x, found, self.device)


class AlphabetSequences(TaskFamily):
    """Sequences of characters from the alphabets of one split; `options` are those of `ContinualTask`."""

    def __init__(
        self, alphabets: Sequence[AlphabetData], ways: int, scenario: Scenario, device: str = "cpu", **options: Any
    ) -> None:
        self.alphabets, self.ways, self.scenario, self.device = list(alphabets), ways, scenario, device
        self.options = options

    def sample(self, seed: int) -> ContinualTask:
        """Draw an alphabet, the order of its characters, and their labels from the seed."""
        draw = generator(seed, "alphabet sequence")
        alphabet = self.alphabets[int(torch.randint(len(self.alphabets), (1,), generator=draw))]
        characters = torch.randperm(len(alphabet.characters), generator=draw)
        labels = torch.randperm(len(characters), generator=draw)
        if self.scenario == "domain":
            labels = torch.arange(len(characters)) % self.ways
        sequence = zip(characters.view(-1, self.ways), labels.view(-1, self.ways), strict=True)
        parts = [self._subtask(alphabet, chosen, named) for chosen, named in sequence]
        return ContinualTask(
            parts, F.cross_entropy, metrics={"accuracy": accuracy}, seed=seed, name=f"{alphabet.name} {seed}",
            **self.options,
        )  # fmt: skip

    def _subtask(self, alphabet: AlphabetData, characters: Tensor, labels: Tensor) -> TensorSubTask:
        def part(images: Tensor, shown: Tensor) -> Examples:
            hits = shown[:, None] == characters
            kept = hits.any(dim=1)
            half_size = F.avg_pool2d(to_float(images[kept], torch.device(self.device)), 2)
            return half_size.flatten(1), labels[hits[kept].int().argmax(dim=1)].to(self.device)

        held_out = part(alphabet.test_images, alphabet.test_labels)
        return TensorSubTask(part(alphabet.train_images, alphabet.train_labels), held_out, held_out)


Parts = Mapping[Literal["train", "validation", "test"], list[AlphabetData]]


@lru_cache(maxsize=1)
def alphabet_parts(seed: int, alphabets: int, characters: int, path: str) -> Parts:
    """Return the splits of the prepared alphabets at `path`, or else of alphabets drawn here.

    A quarter is held out for the test, a sixth for validation. They are small and stay in memory.
    """
    protocol = AlphabetProtocol(characters=characters, held_out=max(1, alphabets // 4))

    def read(folder: Path) -> Parts:
        kept = Alphabets(open_store(folder), seed, protocol)
        split = kept.split(alphabets - protocol.held_out - max(1, alphabets // 6))
        return {
            "train": [kept[name] for name in split.train],
            "validation": [kept[name] for name in split.validation],
            "test": [kept[name] for name in split.test],
        }

    if path:
        return read(Path(path))
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "drawn"
        prepare_drawn(store, alphabets=alphabets, characters=(characters, characters))
        return read(store)
