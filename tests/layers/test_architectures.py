"""The four architectures of App. A: gradients everywhere; Warp-ConvNet and Warp-ResNet."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import warpgrad as wg
from tests.support.layer_problems import assert_every_gradient, draw, exact_step
from warpgrad.layers import (
    FEW_SHOT_ORDER,
    WarpHyperCell,
    WarpHyperNetwork,
    WarpLSTM,
    conv_block,
    warp_convnet,
    warp_residual_block,
    warp_resnet,
)


class Reader(nn.Module):
    """A recurrent core, batch first, with a linear task head on its last output: the lower half of (c) and (d)."""

    def __init__(self, core: nn.Module, hidden: int, outputs: int) -> None:
        super().__init__()
        self.core, self.head = core, nn.Linear(hidden, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.core(x)[0][:, -1])


ARCHITECTURES = {
    "convnet": (lambda: warp_convnet(1, 3, image_size=8, widths=(4, 5)), (6, 1, 8, 8)),
    "resnet": (lambda: warp_resnet(1, 3, widths=(4, 6)), (6, 1, 8, 8)),
    "lstm": (lambda: Reader(WarpLSTM(3, 5, pairs=2, batch_first=True), 5, 3), (6, 4, 3)),
    "lstm with skip": (
        lambda: Reader(WarpLSTM(3, 5, batch_first=True, skip_input=True), 5, 3),
        (6, 4, 3),
    ),
    "hypernetwork": (
        lambda: Reader(WarpHyperNetwork(WarpHyperCell(3, 5), batch_first=True), 5, 3),
        (6, 4, 3),
    ),
    "hypernetwork lstm": (
        lambda: Reader(WarpHyperNetwork(WarpHyperCell(3, 5, task="lstm"), batch_first=True), 5, 3),
        (6, 4, 3),
    ),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_meta_step_reaches_every_parameter_of_the_four_architectures(name: str):
    build, shape = ARCHITECTURES[name]
    model = build()
    assert model(draw(*shape)).shape == (6, 3)
    assert_every_gradient(model, draw(*shape), 3)


@pytest.mark.parametrize("name", ["lstm", "lstm with skip", "hypernetwork", "hypernetwork lstm"])
def test_second_order_of_the_recurrent_ones_matches_finite_differences(name: str):
    build, shape = ARCHITECTURES[name]
    model = build().double()
    if name.startswith("hyper"):
        model.core.cell.projection.weight.data *= 5  # newly drawn gates are so small that little happens
    inputs = draw(*shape, dtype=torch.float64)
    adaptation, step = exact_step(model, inputs, 3, lr=1.0)
    learner = adaptation.learner
    direction = {n: draw(*v.shape, dtype=torch.float64) for n, v in learner.phi.items()}

    def meta_loss(shift: float) -> float:
        original = {n: v.detach().clone() for n, v in learner.phi.items()}
        with torch.no_grad():
            for n, v in learner.phi.items():
                v.add_(direction[n], alpha=shift)
        after = adaptation.step(adaptation.start()).after
        value = adaptation.meta_loss(after.theta, after.buffers, 0).item()
        with torch.no_grad():
            for n, v in learner.phi.items():
                v.copy_(original[n])
        return value

    numeric = (meta_loss(1e-5) - meta_loss(-1e-5)) / 2e-5
    exact = sum((step.phi[n] * direction[n]).sum() for n in direction).item()
    assert exact == pytest.approx(numeric, rel=1e-6)
    _, first_order = exact_step(model, inputs, 3, objective=wg.Approximate(), lr=1.0)
    approximate = sum((first_order.phi[n] * direction[n]).sum() for n in direction).item()
    assert abs(exact - approximate) > 1e-4 * abs(exact)


# --- Warp-ConvNet and Warp-ResNet


def test_warp_convnet_has_the_parameters_of_appendix_e():
    learner = wg.Learner(warp_convnet(1, 20))
    blocks = {f"block{i}.{part}" for i in range(1, 5) for part in ("conv.weight", "norm.weight", "norm.bias")}
    assert set(learner.theta0) == blocks | {"head.weight", "head.bias"}
    assert set(learner.phi) == {f"warp{i}.{part}" for i in range(1, 5) for part in ("weight", "bias")}
    assert learner.phi["warp1.weight"].shape == (64, 64, 3, 3)
    assert learner.theta0["head.weight"].shape == (20, 64)


def test_the_plain_convnet_has_the_same_task_parameters():
    plain = wg.Learner(warp_convnet(1, 20, warp=None), warp=())
    assert set(plain.theta0) == set(wg.Learner(warp_convnet(1, 20)).theta0)


def test_warp_convnet_of_appendix_h():
    few_shot = warp_convnet(3, 5, image_size=84, widths=(8,) * 4, order=FEW_SHOT_ORDER, warp_blocks=1)
    learner = wg.Learner(few_shot)
    assert few_shot.head.in_features == 5 * 5 * 8
    first = {f"block1.{part}" for part in ("conv.weight", "norm.weight", "norm.bias")}
    warps = {f"warp{i}.{part}" for i in (2, 3, 4) for part in ("weight", "bias")}
    assert set(learner.phi) == first | warps
    multi_shot = warp_convnet(3, 10, image_size=84, widths=(4, 4, 6, 6, 8, 8), order=FEW_SHOT_ORDER, pools=5)
    assert multi_shot.head.in_features == 2 * 2 * 8
    assert "pool" in dict(multi_shot.block5.named_children())
    assert "pool" not in dict(multi_shot.block6.named_children())


def test_building_a_convnet_moves_no_statistics_and_leaves_it_in_training_mode():
    model = warp_convnet(1, 2, image_size=8, widths=(3,))
    assert model.training
    assert all(child.training for child in model.modules())
    assert model.block1.norm.num_batches_tracked == 0


def test_a_block_follows_its_order_and_drops_only_a_bias_that_batch_norm_removes():
    order = [name for name, _ in conv_block(1, 2, order=("pool", "norm", "activation")).named_children()]
    assert order == ["conv", "pool", "norm", "activation"]
    assert conv_block(1, 2, order=("pool", "norm", "activation")).conv.bias is None
    assert conv_block(1, 2, order=("activation", "norm")).conv.bias is not None
    assert conv_block(1, 2, order=("activation",)).conv.bias is not None
    assert conv_block(1, 2, stride=2, order=())(draw(1, 1, 8, 8)).shape == (1, 2, 4, 4)


def test_the_residual_block_is_the_one_of_the_figure():
    block = warp_residual_block(3, 3)
    learner = wg.Learner(block)
    assert set(learner.phi) == {f"residual.branch.{n}" for n in ("conv.weight", "norm.weight", "norm.bias")}
    task = {f"residual.branch.block.{n}" for n in ("conv.weight", "norm.weight", "norm.bias")}
    assert set(learner.theta0) == task | {"norm.weight", "norm.bias"}
    x = draw(4, 3, 6, 6)
    branch = block.residual.branch
    expected = block.norm(x + branch.norm(branch.conv(branch.block(x))))
    torch.testing.assert_close(block(x), expected, rtol=0, atol=0)


def test_a_residual_block_that_changes_shape_projects_its_shortcut():
    block = warp_residual_block(3, 5, stride=2)
    assert block(draw(2, 3, 6, 6)).shape == (2, 5, 3, 3)
    assert "residual.shortcut.weight" in wg.Learner(block).theta0
