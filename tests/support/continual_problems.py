"""Continual tasks whose examples say where they come from, and small ones in double precision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

import warpgrad as wg
from warpgrad.keys import generator
from warpgrad.tasks.continual import ContinualTask, StartDraw, SubTask, TensorSubTask, Weighting

T, N = 3, 4


class Marked(SubTask):
    """Examples that say where they come from: 10·place, plus 1 where they are validation data; keeps who asked."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.asked: list[str] = []

    def draw(self, split: str, size: int, draw: Generator) -> tuple[Tensor, Tensor]:
        self.asked.append(split)
        value = 10.0 * self.place + (split == "validation")
        return torch.full((size, 1), value), torch.rand(size, 1, generator=draw)

    def test(self) -> tuple[Tensor, Tensor]:
        return torch.full((2, 1), 10.0 * self.place + 2), torch.zeros(2, 1)


def marked(
    order: tuple[int, ...] | None = None, weighting: Weighting = "balanced", start: StartDraw | None = None
) -> ContinualTask:
    return ContinualTask(
        [Marked(place) for place in range(T)],
        F.mse_loss,
        steps_per_subtask=N,
        batch_size=2,
        meta_batch_size=3,
        order=order,
        weighting=weighting,
        start=start,
    )


def smooth_net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(1, 4), nn.Tanh(), wg.Warp(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4))), nn.Linear(4, 1)
    ).double()  # fmt: skip


def double_task(
    seed: int,
    weighting: Weighting = "balanced",
    order: tuple[int, ...] | None = None,
    *,
    pad: bool = True,
) -> ContinualTask:
    """Regression in float64 with validation data of its own in each sub-task."""
    draw = generator(seed, "continual problem")

    def data(size: int) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(size, 1, generator=draw, dtype=torch.float64)
        return inputs, torch.randn(size, 1, generator=draw, dtype=torch.float64)

    return ContinualTask(
        [TensorSubTask(data(7), data(6)) for _ in range(T)],
        F.mse_loss,
        steps_per_subtask=N,
        batch_size=3,
        meta_batch_size=2,
        order=order,
        weighting=weighting,
        pad=pad,
        seed=seed,
        name=f"t{seed}",
    )


def learner() -> wg.Learner:
    torch.manual_seed(3)
    return wg.Learner(smooth_net(), start={"*": "fixed"})
