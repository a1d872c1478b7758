"""Eq. 6 for warp-layers in a model: Jacobians at the inputs, along a task, and what they depend on."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

import warpgrad as wg
from tests.support.geometry_problems import Residual, close, double_precision, draw, hooks, regression
from warpgrad.adaptation.base import Adaptation
from warpgrad.analysis import warp_jacobians, warp_jacobians_along, warp_layers
from warpgrad.errors import WarpgradError

__all__ = ["double_precision"]


class Layer(nn.Sequential):
    """h(x) = tanh(W x + b)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.Linear(inputs, outputs), nn.Tanh())


SIZES = (3, 5, 4, 2)


def interleaved() -> nn.Sequential:
    """ω³ ∘ h³ ∘ ω² ∘ h² ∘ ω¹ ∘ h¹."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(SIZES):
        layers += [Layer(inputs, outputs), wg.Warp(Residual(outputs))]
    return nn.Sequential(*layers)


def test_gradient_of_every_task_layer_is_the_product_of_jacobians() -> None:
    model, task = interleaved(), regression()
    learner = wg.Learner(model)
    adaptation = Adaptation(learner, wg.SGD(0.1), task, key=0)
    point = adaptation.start()
    gradient = adaptation.inner(point).gradient
    inputs, targets = task.adapt_batch(0)

    explicit = {name: torch.zeros_like(value) for name, value in point.theta.items()}
    for x, y in zip(inputs, targets, strict=True):
        received = []
        for module in model:
            received.append(x)
            x = module(x).detach()
        row = 2 * (x - y) / y.numel() / len(inputs)  # ∇ℓ of the mean squared error
        for place in (4, 2, 0):
            task_layer, warp_layer = model[place], model[place + 1]
            row = row @ jacrev(warp_layer)(received[place + 1])  # · D_x ω
            weights = dict(task_layer.named_parameters())

            def h(values: dict[str, Tensor], layer=task_layer, x=received[place]) -> Tensor:
                return functional_call(layer, values, (x,))

            for name, derivative in jacrev(h)(weights).items():  # · D_θ h
                explicit[f"{place}.{name}"] += torch.tensordot(row, derivative.detach(), dims=1)
            row = row @ jacrev(task_layer)(received[place])  # · D_x h

    assert set(gradient) == set(explicit) == set(learner.theta0)
    for name, value in gradient.items():
        assert value.abs().max() > 1e-4
        close(value, explicit[name], 1e-10)


@pytest.mark.parametrize("training", [True, False])
def test_warp_jacobians_are_those_of_the_layers_at_their_inputs(training: bool) -> None:
    model = interleaved()
    learner = wg.Learner(model)
    assert list(warp_layers(learner)) == ["1", "3", "5"]
    theta = {name: value + draw(*value.shape, key=name) for name, value in learner.start(0).items()}
    x = draw(6, 3, key="x")
    found = warp_jacobians(learner, theta, learner.buffers(), (x,), training=training)
    moved = copy.deepcopy(model)
    moved.load_state_dict(theta, strict=False)
    for place, name in ((1, "1"), (3, "3"), (5, "5")):
        received = moved[:place](x).detach()
        expected = vmap(jacrev(moved[place]))(received).detach()
        assert found[name].shape == (6, SIZES[place // 2 + 1], SIZES[place // 2 + 1])
        assert not found[name].requires_grad
        close(found[name], expected, 1e-13)
    only = warp_jacobians(learner, theta, learner.buffers(), (x,), layers=["3"], training=training)
    assert list(only) == ["3"]
    assert torch.equal(only["3"], found["3"])


def warped_net(*warps: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), wg.Warp(warps[0]), nn.Tanh(), nn.Linear(4, 4), wg.Warp(warps[1]))


def test_linear_warps_jacobian_depends_on_neither_data_nor_step_and_a_nonlinear_ones_on_both() -> None:
    task = regression(outputs=4, batch_size=3)
    linear = wg.Learner(warped_net(nn.Linear(4, 4), nn.Linear(4, 4, bias=False)))
    seen = 0
    for _, found in warp_jacobians_along(linear, wg.SGD(0.2), task, steps=6):
        for name, value in found.items():
            for example in value:
                close(example, linear.phi[f"{name}.weight"].detach(), 1e-15)
                seen += 1
    assert seen == 6 * 2 * 3

    nonlinear = wg.Learner(warped_net(Residual(4), Residual(4)))
    adaptation = Adaptation(nonlinear, wg.SGD(0.2), task, key=0)
    start = adaptation.start()
    after = adaptation.step(start).after
    x = draw(2, 3, key="probe")
    here = warp_jacobians(nonlinear, start.theta, start.buffers, (x,))
    there = warp_jacobians(nonlinear, after.theta, start.buffers, (x,))
    path = dict(warp_jacobians_along(nonlinear, wg.SGD(0.2), task, steps=6))
    for name in ("1", "4"):
        assert (here[name][0] - here[name][1]).abs().max() > 1e-2  # other data, the same θ
        assert (here[name] - there[name]).abs().max() > 1e-3  # the same data, another θ
        assert (path[0][name] - path[5][name]).abs().max() > 1e-2


class Watched(wg.SupervisedTask):
    """A task that counts the hooks in a model while its loss is taken."""

    module: nn.Module

    def loss(self, forward: wg.Forward, batch: tuple[Tensor, Tensor]) -> Tensor:
        self.watched = [*getattr(self, "watched", []), hooks(self.module)]
        return super().loss(forward, batch)


def test_jacobians_along_a_task_are_those_at_its_points_and_leave_adaptation_alone() -> None:
    learner = wg.Learner(warped_net(Residual(4), nn.Sequential(nn.Dropout(0.5), Residual(4))))
    task = Watched(draw(6, 3, key="x"), draw(6, 4, key="y"), F.mse_loss, batch_size=3)
    task.module = learner.module
    rule = wg.SGD(0.2, momentum=0.9)
    plain = Adaptation(learner, rule, task, key=7)
    points = [plain.start()]
    for _ in range(5):
        points.append(plain.step(points[-1]).after)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    path = list(warp_jacobians_along(learner, rule, task, 5, every=2, key=7))
    assert torch.equal(torch.get_rng_state(), state)
    assert [k for k, _ in path] == [0, 2, 4]
    assert task.watched == [0] * 5 + [4, 0, 4, 0, 4]  # two hooks for each of two layers, only where they are due
    for k, found in path:
        point = points[k]
        inputs, _ = task.adapt_batch(k)
        mask_key = wg.keys.fold(7, k, "adapt_batch")
        expected = warp_jacobians(learner, point.theta, point.buffers, (inputs,), key=mask_key)
        assert all(torch.equal(found[name], expected[name]) for name in found)
    assert hooks(learner.module) == 0
    with pytest.raises(WarpgradError, match="at least 1 step"):
        next(warp_jacobians_along(learner, rule, task, 5, every=0))
    with pytest.raises(WarpgradError, match="steps=0"):
        next(warp_jacobians_along(learner, rule, task, 0))
