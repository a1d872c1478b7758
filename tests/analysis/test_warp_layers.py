"""Jacobians of all sorts of warp-layers: dropout, batch-norm, convolution, recurrence, and what is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import jacrev, vmap

import warpgrad as wg
from tests.support.geometry_problems import close, double_precision, draw, hooks, regression
from warpgrad.analysis import warp_jacobians, warp_jacobians_along, warp_layers
from warpgrad.errors import WarpgradError

__all__ = ["double_precision"]


def test_dropout_is_differentiated_with_the_masks_of_the_call() -> None:
    learner = wg.Learner(nn.Sequential(nn.Linear(3, 8), wg.Warp(nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8)))))
    theta, x = learner.start(0), draw(5, 3, key="x")
    outputs = learner.bind(theta, {}, key=3)(x).detach()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    with torch.no_grad():  # whatever mode the caller is in
        (found,) = warp_jacobians(learner, theta, {}, (x,), key=3).values()
    assert torch.equal(torch.get_rng_state(), state)
    received = F.linear(x, theta["0.weight"], theta["0.bias"])
    bias = learner.phi["1.1.bias"].detach()
    # T M x + t is linear given the mask M, so the Jacobian must give the very outputs of the forward.
    close(torch.einsum("noi,ni->no", found, received) + bias, outputs, 1e-13)
    assert (found == 0).all(1).any()


def test_batch_norm_in_a_warp_gives_each_examples_own_block() -> None:
    warp = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh())
    learner = wg.Learner(nn.Sequential(nn.Linear(3, 4), wg.Warp(warp)))
    theta, buffers, x = learner.start(0), learner.buffers(), draw(5, 3, key="x")
    (found,) = warp_jacobians(learner, theta, buffers, (x,)).values()
    received = F.linear(x, theta["0.weight"], theta["0.bias"])

    def by_hand(inputs: Tensor) -> Tensor:
        hidden = F.linear(inputs, warp[0].weight, warp[0].bias)
        return torch.tanh(F.batch_norm(hidden, None, None, warp[1].weight, warp[1].bias, training=True))

    full = jacrev(by_hand)(received).detach()  # [example, out, example, in]
    close(found, torch.stack([full[i, :, i] for i in range(5)]), 1e-12)
    assert all(torch.equal(value, buffers[name]) for name, value in learner.buffers().items())
    # With the statistics of a task the examples no longer meet.
    moved = {name: value + 0.5 if value.is_floating_point() else value for name, value in buffers.items()}
    (found,) = warp_jacobians(learner, theta, moved, (x,), training=False).values()

    def at_test(one: Tensor) -> Tensor:
        hidden = F.linear(one, warp[0].weight, warp[0].bias)
        return torch.tanh((hidden - 0.5) / (1.5 + warp[1].eps) ** 0.5)

    close(found, vmap(jacrev(at_test))(received).detach(), 1e-12)


def test_convolutional_warp_is_flattened_per_example() -> None:
    conv = nn.Conv2d(2, 3, 3, padding=1, bias=False)
    learner = wg.Learner(nn.Sequential(nn.Conv2d(1, 2, 1), wg.Warp(conv)))
    x = draw(2, 1, 4, 4, key="x")
    (found,) = warp_jacobians(learner, learner.start(0), {}, (x,)).values()
    assert found.shape == (2, 3 * 16, 2 * 16)
    other = draw(2, 2, 4, 4, key="other")
    close((found @ other.flatten(1).unsqueeze(-1)).reshape(2, 3, 4, 4), conv(other).detach(), 1e-13)


class Recurrent(nn.Module):
    """A warp-layer called at every step, in a container without a forward of its own, and once without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.task = nn.Linear(4, 4)
        self.warps = nn.ModuleList([nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4))])

    def forward(self, h: Tensor, steps: int) -> Tensor:
        with torch.no_grad():
            self.warps[0](h.clone())
        for _ in range(steps):
            h = self.warps[0](self.task(h))
        return h


def test_every_call_with_a_gradient_counts_and_layers_may_work_in_place() -> None:
    model = Recurrent()
    learner = wg.Learner(model, warp="warps")
    assert list(warp_layers(learner)) == ["warps.0"]
    h = draw(5, 4, key="h")
    (found,) = warp_jacobians(learner, learner.start(0), {}, (h, 3)).values()
    assert found.shape == (15, 4, 4)
    for call in found.split(5):
        received = model.task(h)
        close(call, (model.warps[0][1].weight * (received > 0).unsqueeze(1)).detach(), 1e-14)
        h = model.warps[0](received)


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.task = nn.Linear(3, 3)
        self.warp = wg.Warp(nn.Linear(3, 3))
        self.fails = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.warp(self.task(x))
        if self.fails:
            raise KeyError("broken")
        return x


def test_hooks_are_gone_even_when_the_forward_raises() -> None:
    learner = wg.Learner(Failing())
    x = draw(2, 3)
    with pytest.raises(KeyError, match="broken"):
        warp_jacobians(learner, learner.start(0), {}, (x,))
    assert hooks(learner.module) == 0
    path = warp_jacobians_along(learner, wg.SGD(0.1), regression(outputs=3), steps=2)
    with pytest.raises(WarpgradError, match=r"failed in loss at step 0 .*'broken'"):
        next(path)
    assert hooks(learner.module) == 0
    learner.module.fails = False
    path = warp_jacobians_along(learner, wg.SGD(0.1), regression(outputs=3), steps=2)
    next(path)
    assert hooks(learner.module) == 0  # none is left while the caller works, nor if it never comes back
    with pytest.raises(WarpgradError, match="'task' is not a warp-layer; the model has warp"):
        warp_jacobians(learner, learner.start(0), {}, (x,), layers=["warp", "task"])
    assert hooks(learner.module) == 0


class Odd(nn.Module):
    """Warp-layers that cannot be differentiated, one way each."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.task = nn.Linear(3, 3)
        self.warp = nn.Embedding(3, 3) if way == "integers" else nn.Linear(3, 3)
        if way == "loose":
            self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.task(x)
        if self.way == "integers":
            return x + self.warp(torch.arange(len(x)) % 3)
        if self.way == "bypassed":
            return F.linear(x, self.warp.weight)
        if self.way == "keyword":
            return self.warp(input=x)
        return self.warp(x) * getattr(self, "scale", 1.0)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("integers", "'warp' needs a floating-point tensor"),
        ("keyword", "'warp' needs a floating-point tensor"),
        ("bypassed", "'warp' was not called with gradients"),
        ("loose", "warp parameter 'scale' is not in a module of only warp parameters"),
    ],
)
def test_what_cannot_be_differentiated_is_said(way: str, message: str) -> None:
    learner = wg.Learner(Odd(way), task="task")
    with pytest.raises(WarpgradError, match=message):
        warp_jacobians(learner, learner.start(0), {}, (draw(4, 3),))
    assert hooks(learner.module) == 0


def test_a_warp_that_moves_the_batch_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 3), wg.Warp(nn.Sequential(nn.Linear(3, 3), nn.Flatten(0))))
    learner = wg.Learner(model)
    with pytest.raises(WarpgradError, match="'1' must return a tensor with the batch of its input first"):
        warp_jacobians(learner, learner.start(0), {}, (draw(4, 3),))
