"""Small smooth problems in float64 that the proofs share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import warpgrad as wg
from warpgrad.adaptation.trajectory import Trajectory
from warpgrad.keys import generator
from warpgrad.objectives import StartSample
from warpgrad.tensors import Tensors, gradients


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(3, 5), nn.Tanh(), wg.Warp(nn.Linear(5, 5)), nn.Linear(5, 4), nn.Tanh(),
        wg.Warp(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))), nn.Linear(4, 2),
    ).double()  # fmt: skip


def conv_batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.AvgPool2d(2), nn.BatchNorm2d(3), nn.Tanh(),
        wg.Warp(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3))),
        nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Tanh(), wg.Warp(nn.Conv2d(3, 3, 1)),
        nn.Flatten(), nn.Linear(12, 2),
    ).double()  # fmt: skip


def relu_max_pool() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.BatchNorm2d(4), nn.ReLU(),
        wg.Warp(nn.Conv2d(4, 4, 3, padding=1)), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(),
        wg.Warp(nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())), nn.Flatten(), nn.Linear(16, 2),
    ).double()  # fmt: skip


class Recurrent(nn.Module):
    """A user's recurrent model: a task LSTM under a warp GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.lower = nn.LSTM(3, 4, batch_first=True)
        self.upper = wg.Warp(nn.GRU(4, 4, batch_first=True))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lower(x)
        hidden, _ = self.upper(hidden)
        return self.head(hidden[:, -1])


def recurrent() -> nn.Module:
    return Recurrent().double()


INPUTS: dict[Callable[[], nn.Module], tuple[int, ...]] = {
    mlp: (3,),
    conv_batch_norm: (1, 4, 4),
    relu_max_pool: (1, 4, 4),
    recurrent: (4, 3),
}


def make_task(
    make: Callable[[], nn.Module],
    seed: int = 0,
    batch_size: int | None = 6,
    kind: type[wg.SupervisedTask] = wg.SupervisedTask,
) -> wg.SupervisedTask:
    """Regression onto random targets, with other data for the meta-loss."""
    draw = generator(seed, "problem")
    shape = INPUTS[make]

    def data() -> tuple[Tensor, Tensor]:
        inputs = torch.randn(12, *shape, generator=draw, dtype=torch.float64)
        return inputs, torch.randn(12, 2, generator=draw, dtype=torch.float64)

    inputs, targets = data()
    others = {"meta": data(), "test": data()}
    return kind(inputs, targets, F.mse_loss, batch_size=batch_size, seed=seed, name=f"t{seed}", **others)


class JudgedStart(wg.Exact):
    """Eq. 11, and the meta-loss at θ_0 itself."""

    def __init__(self, weight: float = 0.5) -> None:
        self.weight = weight

    def at_start(self, adaptation: wg.Adaptation, start: wg.Point) -> StartSample:
        loss = adaptation.meta_loss(start.theta, start.buffers, start.k)
        (phi,) = gradients(self.weight * loss.sum(), adaptation.learner.phi, what="the meta loss")
        return StartSample(loss.detach(), phi)


def point_after(adaptation: wg.Adaptation, steps: int, objective: wg.Objective | None = None) -> wg.Point:
    """A point in the middle of a trajectory, where rule states and statistics are no longer trivial."""
    point = adaptation.start()
    for segment in Trajectory(adaptation, steps, objective=objective) if steps else ():
        point = segment.after
    return point


def central_differences(function: Callable[[], float], parameters: Tensors, step: float = 1e-5) -> Tensors:
    """The gradient of `function` by moving one entry of `parameters` at a time, in place."""
    result: Tensors = {}
    for name, value in parameters.items():
        slope = torch.empty_like(value, requires_grad=False)
        flat, out = value.detach().view(-1), slope.view(-1)
        for i in range(flat.numel()):
            kept = flat[i].item()
            flat[i] = kept + step
            above = function()
            flat[i] = kept - step
            below = function()
            flat[i] = kept
            out[i] = (above - below) / (2 * step)
        result[name] = slope
    return result


def relative_error(found: Tensors, expected: Tensors) -> float:
    """‖found − expected‖ / ‖expected‖ over all names together; the names must agree."""
    assert set(found) == set(expected)
    difference = sum(float((found[name] - expected[name]).square().sum()) for name in expected)
    size = sum(float(expected[name].square().sum()) for name in expected)
    assert size > 0, "the expected gradient vanishes: this comparison would prove nothing"
    return (difference / size) ** 0.5


def directional_differences(
    function: Callable[[], float], parameters: Tensors, directions: Sequence[Tensors], step: float = 1e-5
) -> Tensor:
    """The slope of `function` along each direction, by moving all entries of `parameters` together, in place."""
    kept = {name: value.detach().clone() for name, value in parameters.items()}

    def moved(direction: Tensors, length: float) -> float:
        for name, value in parameters.items():
            value.detach().copy_(kept[name] + length * direction[name])
        return function()

    slopes = [(moved(each, step) - moved(each, -step)) / (2 * step) for each in directions]
    for name, value in parameters.items():
        value.detach().copy_(kept[name])
    return torch.tensor(slopes, dtype=torch.float64)


def along_directions(found: Tensors, function: Callable[[], float], parameters: Tensors) -> float:
    """The relative error of a gradient, seen along eight random directions: a wrong entry shows in all of them."""
    assert set(found) == set(parameters)
    directions = [
        {
            name: torch.randn(value.shape, generator=generator("direction", place, name), dtype=value.dtype)
            for name, value in parameters.items()
        }
        for place in range(8)
    ]
    expected = directional_differences(function, parameters, directions)
    slopes = torch.stack([sum((found[name] * each[name]).sum() for name in each) for each in directions])
    return relative_error({"slope": slopes}, {"slope": expected})


def along_coordinates(found: Tensors, function: Callable[[], float], parameters: Tensors) -> float:
    """The relative error of a gradient, entry by entry."""
    return relative_error(found, central_differences(function, parameters))


class Position(nn.Module):
    """A model that is its own parameter vector, behind an optional warp."""

    def __init__(self, start: Tensor, warp: nn.Module | None = None) -> None:
        super().__init__()
        self.theta = nn.Parameter(start.clone())
        self.warp = nn.Identity() if warp is None else wg.Warp(warp)

    def forward(self) -> Tensor:
        return self.warp(self.theta)


class Quadratic(wg.Task):
    """L_task(γ) = ½(γ−c)ᵀA(γ−c) and L_meta(γ) = ½(γ−d)ᵀB(γ−d)."""

    name = "quadratic"
    stack_key = "quadratic"

    def __init__(self, seed: int = 0, size: int = 3) -> None:
        draw = generator(seed, "quadratic")

        def positive() -> Tensor:
            root = torch.randn(size, size, generator=draw, dtype=torch.float64)
            return root @ root.T / size + 0.5 * torch.eye(size, dtype=torch.float64)

        self.a, self.b = positive(), positive()
        self.c = torch.randn(size, generator=draw, dtype=torch.float64)
        self.d = torch.randn(size, generator=draw, dtype=torch.float64)

    def adapt_batch(self, k: int) -> tuple[Tensor, Tensor]:
        return self.a, self.c

    def meta_batch(self, k: int) -> tuple[Tensor, Tensor]:
        return self.b, self.d

    def loss(self, forward: wg.Forward, batch: tuple[Tensor, Tensor]) -> Tensor:
        matrix, centre = batch
        offset = forward() - centre
        return 0.5 * offset @ matrix @ offset


class Recorder:
    """A meta-update that changes nothing and keeps what it was given."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Tensors]] = []

    def __call__(self, group: str, gradient: Tensors) -> None:
        self.seen.append((group, gradient))

    def of(self, group: str) -> list[Tensors]:
        return [gradient for name, gradient in self.seen if name == group]
