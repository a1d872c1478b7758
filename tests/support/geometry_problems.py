"""Warps and tasks on which the geometry of Eqs. 6-10 is known, in double precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import warpgrad as wg
from warpgrad.analysis import Omega
from warpgrad.keys import generator


@pytest.fixture(autouse=True)
def double_precision():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def draw(*shape: int, key: int | str = 0) -> Tensor:
    return torch.randn(*shape, generator=generator("geometry", key))


def scatter(points: int, key: int | str = 0) -> Tensor:
    """Points of the square [-3, 3]², where the synthetic surfaces live."""
    return 6 * torch.rand(points, 2, generator=generator("geometry", key)) - 3


def residual_omega(size: int, scale: float, key: int = 0, hidden: int = 30) -> Omega:
    """θ + g(θ) with a two-layer tanh g; the larger the scale, the more it folds."""
    first, shift = scale * draw(hidden, size, key=key), scale * draw(hidden, key=key + 1)
    second = scale * draw(size, hidden, key=key + 2) / hidden**0.5
    return lambda theta: theta + second @ torch.tanh(first @ theta + shift)


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def hooks(module: nn.Module) -> int:
    return sum(len(child._forward_hooks) + len(child._forward_pre_hooks) for child in module.modules())


class Vector(nn.Module):
    """γ = T θ: a task parameter that is a plain vector, behind a linear warp-layer."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(draw(size, key="theta"))
        self.warp = wg.Warp(nn.Linear(size, size, bias=False))

    def forward(self) -> Tensor:
        return self.warp(self.theta)


class Residual(nn.Module):
    """x + V tanh(U x): a non-linear warp-layer."""

    def __init__(self, size: int, hidden: int = 7) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, size))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def regression(examples: int = 6, *, inputs: int = 3, outputs: int = 2, batch_size: int | None = None):
    x, y = draw(examples, inputs, key="x"), draw(examples, outputs, key="y")
    return wg.SupervisedTask(x, y, F.mse_loss, batch_size=batch_size)
