"""The four architectures of App. A and the warps of App. F: shapes, partition, identity, recurrence, gradients."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import warpgrad as wg
from warpgrad.keys import generator
from warpgrad.layers import (
    FEW_SHOT_ORDER,
    OMNIGLOT_WARPS,
    FiLM,
    HyperState,
    Residual,
    Scale,
    WarpHyperCell,
    WarpHyperNetwork,
    WarpLSTM,
    conv_block,
    convolutional_warp,
    feed_forward_warp,
    identity_,
    warp_convnet,
    warp_residual_block,
    warp_resnet,
)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


class Reader(nn.Module):
    """A recurrent core, batch first, with a linear task head on its last output: the lower half of (c) and (d)."""

    def __init__(self, core: nn.Module, hidden: int, outputs: int) -> None:
        super().__init__()
        self.core, self.head = core, nn.Linear(hidden, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.core(x)[0][:, -1])


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=generator("layers", *shape), dtype=torch.float64).to(dtype)


def exact_step(model: nn.Module, inputs: torch.Tensor, classes: int, objective=None, lr=0.1, **options):
    """One adaptation step and the gradients of the exact objective there."""
    targets = torch.arange(len(inputs)) % classes
    other = inputs.flip(0) * 0.9
    task = wg.SupervisedTask(inputs, targets, F.cross_entropy, meta=(other, targets))
    learner = wg.Learner(model, **options)
    adaptation = wg.Adaptation(learner, wg.SGD(lr=lr), task, 0)
    return adaptation, (objective or wg.Exact()).step(adaptation, adaptation.start())


def assert_every_gradient(model: nn.Module, inputs: torch.Tensor, classes: int, **options) -> None:
    adaptation, step = exact_step(model, inputs, classes, **options)
    assert set(step.transition.gradient) == set(adaptation.learner.theta0)
    assert set(step.phi) == set(adaptation.learner.phi)
    for name, gradient in {**step.transition.gradient, **step.phi}.items():
        assert torch.isfinite(gradient).all(), name
        assert gradient.abs().sum() > 0, f"{name} gets no gradient"


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


# --- Warp-LSTM


def test_warp_lstm_is_a_stacked_lstm_shared_between_task_and_warp():
    plain = nn.LSTM(3, 5, num_layers=4)
    warped = WarpLSTM(3, 5, pairs=2)
    for layer, own in enumerate([warped.task[0], warped.warp[0], warped.task[1], warped.warp[1]]):
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(own, f"{kind}_l0").data.copy_(getattr(plain, f"{kind}_l{layer}").data)
    x = draw(7, 2, 3)
    begin = (draw(4, 2, 5), draw(4, 2, 5) / 2)
    for state in (None, begin):
        expected, (h, c) = plain(x, state)
        outputs, (own_h, own_c) = warped(x, state)
        torch.testing.assert_close(outputs, expected)
        torch.testing.assert_close(own_h, h)
        torch.testing.assert_close(own_c, c)


def test_warp_lstm_partition():
    learner = wg.Learner(WarpLSTM(3, 5, pairs=2))
    kinds = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    assert set(learner.theta0) == {f"task.{i}.{kind}" for i in (0, 1) for kind in kinds}
    assert set(learner.phi) == {f"warp.{i}.{kind}" for i in (0, 1) for kind in kinds}


@pytest.mark.parametrize("skip_input", [False, True])
def test_warp_lstm_step_by_step_equals_the_whole_sequence(skip_input: bool):
    warped = WarpLSTM(3, 5, pairs=2, skip_input=skip_input)
    x = draw(6, 2, 3)
    whole, last = warped(x)
    assert whole.shape == (6, 2, 5)
    assert last[0].shape == last[1].shape == (4, 2, 5)
    state, steps = None, []
    for t in range(6):
        output, state = warped(x[t : t + 1], state)
        steps.append(output)
    torch.testing.assert_close(torch.cat(steps), whole)
    torch.testing.assert_close(state, last)
    first = WarpLSTM(3, 5, pairs=2, skip_input=skip_input, batch_first=True)
    first.load_state_dict(warped.state_dict())
    torch.testing.assert_close(first(x.transpose(0, 1))[0], whole.transpose(0, 1))


# --- Warp-HyperNetwork


def test_the_cell_computes_equation_20_with_five_distinct_gates():
    cell = WarpHyperCell(3, 5, context_size=4).double()
    x, h = draw(2, 3, dtype=torch.float64), draw(2, 5, dtype=torch.float64)
    z, memory = draw(2, 4, dtype=torch.float64), draw(2, 4, dtype=torch.float64) / 2
    output, state = cell(x, HyperState((h,), (z, memory)))
    z, memory = cell.meta_lstm(torch.cat([x, h], 1), (z, memory))
    rows = {"h1": 5, "h2": 5, "x1": 3, "x2": 5, "b": 5}
    projections = dict(zip(rows, cell.projection.weight.split(list(rows.values())), strict=True))
    for i in range(2):
        u = {name: torch.diag(torch.tanh(p @ z[i])) for name, p in projections.items()}
        w, v, b = cell.weight_ih, cell.weight_hh, cell.bias
        expected = torch.tanh(u["h2"] @ v @ u["h1"] @ h[i] + u["x2"] @ w @ u["x1"] @ x[i] + u["b"] @ b)
        torch.testing.assert_close(output[i], expected)
    assert torch.equal(state.task[0], output)
    torch.testing.assert_close(state.meta, (z, memory))


@pytest.mark.parametrize(("task", "plain"), [("rnn", nn.RNNCell), ("lstm", nn.LSTMCell)])
def test_open_gates_leave_the_plain_cell(task, plain):
    cell = WarpHyperCell(3, 5, task=task, gate_bias=50.0)  # tanh(50) is 1 to the last bit
    nn.init.zeros_(cell.projection.weight)
    reference = plain(3, 5)
    reference.load_state_dict(
        {
            "weight_ih": cell.weight_ih,
            "weight_hh": cell.weight_hh,
            "bias_ih": cell.bias,
            "bias_hh": torch.zeros_like(cell.bias),
        }
    )
    x, h, c = draw(2, 3), draw(2, 5), draw(2, 5) / 2
    output, state = cell(x, HyperState((h,) if task == "rnn" else (h, c), (torch.zeros(2, 5),) * 2))
    expected = (reference(x, h),) if task == "rnn" else reference(x, (h, c))
    torch.testing.assert_close(state.task, tuple(expected))
    assert torch.equal(output, state.task[0])


@pytest.mark.parametrize("task", ["rnn", "lstm"])
def test_hypernetwork_step_by_step_equals_the_whole_sequence(task):
    network = WarpHyperNetwork(WarpHyperCell(3, 5, context_size=4, task=task))
    x = draw(6, 2, 3)
    whole, last = network(x)
    assert whole.shape == (6, 2, 5)
    state, steps = None, []
    for t in range(6):
        output, state = network.cell(x[t], state)
        steps.append(output)
    torch.testing.assert_close(torch.stack(steps), whole, rtol=0, atol=0)
    torch.testing.assert_close(tuple(state), tuple(last), rtol=0, atol=0)
    half, middle = network(x[:3])
    rest, end = network(x[3:], middle)
    torch.testing.assert_close(torch.cat([half, rest]), whole, rtol=0, atol=0)
    torch.testing.assert_close(tuple(end), tuple(last), rtol=0, atol=0)
    first = WarpHyperNetwork(network.cell, batch_first=True)
    torch.testing.assert_close(first(x.transpose(0, 1))[0], whole.transpose(0, 1))


def test_hypernetwork_partition_and_fresh_task_parameters():
    network = WarpHyperNetwork(WarpHyperCell(3, 5))
    task = {f"cell.{name}" for name in ("weight_ih", "weight_hh", "bias")}
    meta = {f"cell.meta_lstm.{n}" for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    learner = wg.Learner(network, start={"cell.*": "fresh"})
    assert set(learner.theta0) == task
    assert set(learner.phi) == meta | {"cell.projection.weight"}
    one, two = learner.start(1), learner.start(2)
    for name in task:
        assert not torch.equal(one[name], two[name])
        assert one[name].abs().max() <= 5**-0.5


# --- warps and modulation


@pytest.mark.parametrize("name", OMNIGLOT_WARPS)
def test_the_warps_of_the_ablation(name: str):
    warp = OMNIGLOT_WARPS[name](4)
    x = draw(3, 4, 6, 6)
    assert warp(x).shape == x.shape
    model = warp_convnet(1, 3, image_size=8, widths=(4, 4), warp=OMNIGLOT_WARPS[name])
    learner = wg.Learner(model)
    own = {f"warp{i}.{n}" for i in (1, 2) for n, _ in warp.named_parameters()}
    film = {n for n in own if ".film." in n}
    assert (name == "two-layer+bn+res+film") == bool(film)
    assert set(learner.phi) == own - film
    assert set(learner.theta0) == film | {n for n, _ in model.named_parameters() if not n.startswith("warp")}
    assert_every_gradient(model, draw(6, 1, 8, 8), 3)


def test_the_composition_of_the_ablation_warps():
    x = draw(3, 4, 6, 6)
    bn_res_relu = OMNIGLOT_WARPS["conv3x3+bn+res+relu"](4)
    branch = bn_res_relu.body.branch
    expected = torch.relu(x + branch.norm(branch.conv(x)))
    torch.testing.assert_close(bn_res_relu(x), expected, rtol=0, atol=0)
    two_layer = OMNIGLOT_WARPS["two-layer+bn+res+film"](4)
    parts = two_layer.branch
    assert (parts.conv1.out_channels, parts.conv.out_channels) == (8, 4)
    nn.init.normal_(parts.film.scale)
    hidden = parts.film(torch.relu(parts.norm1(parts.conv1(x))))
    torch.testing.assert_close(two_layer(x), x + parts.norm(parts.conv(hidden)), rtol=0, atol=0)
    assert isinstance(OMNIGLOT_WARPS["conv3x3"](4), nn.Conv2d)
    assert OMNIGLOT_WARPS["conv1x1"](4).kernel_size == (1, 1)


def test_the_warp_of_appendix_j():
    warp = feed_forward_warp(6, hidden=3, residual=True)
    x = draw(5, 6)
    expected = x + warp.branch.linear(torch.tanh(warp.branch.linear1(x)))
    torch.testing.assert_close(warp(x), expected, rtol=0, atol=0)
    model = nn.Sequential(nn.Linear(6, 6), warp)
    assert set(wg.Learner(model).theta0) == {"0.weight", "0.bias"}


@pytest.mark.parametrize(("shape", "dim"), [((2, 3), 1), ((2, 3, 4, 4), 1), ((2, 5, 3), -1)])
@pytest.mark.parametrize("kind", [Scale, partial(FiLM, embedding=2)])
def test_modulation_is_the_identity_at_zero_and_per_channel_elsewhere(kind, shape, dim):
    layer, h = kind(3, dim=dim), draw(*shape)
    assert torch.equal(layer(h), h)
    if isinstance(layer, Scale):
        scale, shift = draw(3), draw(3) / 2
        layer.scale.data, layer.shift.data = scale, shift
    else:
        layer.embedding.data = draw(2)
        scale, shift = (layer.projection.weight @ draw(2)).detach().split(3)
    out = layer(h).movedim(dim, 0)
    for channel, before in enumerate(h.movedim(dim, 0)):
        torch.testing.assert_close(out[channel], before * (1 + scale[channel]) + shift[channel])
    layer.reset_parameters()
    assert torch.equal(layer(h), h)


def test_scale_without_shift():
    assert [name for name, _ in Scale(3, shift=False).named_parameters()] == ["scale"]


def test_a_film_embedding_is_adapted_from_zero_and_its_projections_are_meta_learned():
    warp = partial(
        convolutional_warp,
        hidden=6,
        batch_norm=True,
        residual=True,
        film=partial(FiLM, embedding=2),
    )
    model = warp_convnet(1, 3, image_size=8, widths=(4,), warp=warp)
    model.warp1.branch.film.embedding.data.fill_(9.0)
    learner = wg.Learner(model, start={"*film": "zero"})
    assert {n for n in learner.theta0 if "film" in n} == {"warp1.branch.film.embedding"}
    assert "warp1.branch.film.projection.weight" in learner.phi
    assert torch.equal(learner.start(0)["warp1.branch.film.embedding"], torch.zeros(2))
    # At e = 0 the projection learns through the step that e takes: exact reaches it.
    assert_every_gradient(model, draw(6, 1, 8, 8), 3, start={"*film": "zero"})


# --- identity


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(4, 4), (3, 4)),
        (nn.Linear(4, 4, bias=False), (3, 4)),
        (nn.Conv1d(4, 4, 3, padding=1), (3, 4, 7)),
        (nn.Conv2d(4, 4, 1), (3, 4, 6, 6)),
        (nn.Conv2d(4, 4, 3, padding="same"), (3, 4, 6, 6)),
        (nn.Conv2d(4, 4, (3, 5), padding=(2, 2), dilation=(2, 1)), (3, 4, 8, 8)),
        (nn.Conv2d(4, 4, 3, padding=1, groups=2, padding_mode="reflect"), (3, 4, 6, 6)),
        (nn.Conv3d(2, 2, 3, padding=1), (1, 2, 4, 4, 4)),
        (Scale(4), (3, 4)),
        (convolutional_warp(4, hidden=8, batch_norm=True, residual=True), (3, 4, 6, 6)),
        (convolutional_warp(4, hidden=8, residual=True), (3, 4, 6, 6)),
        (feed_forward_warp(4, hidden=8, residual=True), (3, 4)),
        (Residual(nn.Sequential(nn.Linear(4, 4), nn.Tanh())), (3, 4)),
        (nn.Sequential(nn.Linear(4, 4), nn.Identity(), Scale(4)), (3, 4)),
    ],
    ids=str,
)
def test_identity_is_exact(layer: nn.Module, shape: tuple[int, ...]):
    layer = copy.deepcopy(layer).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x = draw(*shape, dtype=torch.float64)
    assert not torch.equal(layer(x), x)
    assert identity_(layer) is layer
    torch.testing.assert_close(layer(x), x, rtol=0, atol=1e-14)


def test_a_residual_warp_with_a_last_relu_is_the_identity_on_what_a_relu_puts_out():
    warp = OMNIGLOT_WARPS["conv3x3+bn+res+relu"](4)
    identity_(warp.body)
    x = draw(3, 4, 6, 6).relu()
    assert torch.equal(warp(x), x)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.Linear(3, 4), "width changes"),
        (nn.Conv2d(3, 4, 3, padding=1), "number of channels"),
        (nn.Conv2d(4, 4, 2), "kernel size is even"),
        (nn.Conv2d(4, 4, 3), "stride or padding"),
        (nn.Conv2d(4, 4, 3, padding=1, stride=2), "stride or padding"),
        (nn.ConvTranspose2d(4, 4, 1), "no choice of its parameters"),
        (nn.BatchNorm2d(4), "no choice of its parameters"),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU()), "in front of it"),
        (Residual(nn.Linear(4, 4), nn.Linear(4, 4)), "shortcut"),
        (Residual(nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())), "no weight to set to zero"),
        (Residual(nn.Sequential(nn.Tanh())), "no weight to set to zero"),
        (Residual(nn.BatchNorm1d(4, affine=False)), "no weight to set to zero"),
    ],
    ids=str,
)
def test_identity_refuses_what_cannot_be_exact(layer: nn.Module, words: str):
    with pytest.raises(wg.WarpgradError, match=words):
        identity_(layer)


# --- errors


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: convolutional_warp(4, kernel_size=2), "must be odd"),
        (lambda: convolutional_warp(4, film=Scale), "hidden= too"),
        (lambda: conv_block(1, 1, order=("norm", "norm")), "at most once"),
        (lambda: conv_block(1, 1, order=("dropout",)), "at most once"),
        (lambda: warp_convnet(1, 2, widths=()), "at least one block"),
        (lambda: warp_convnet(1, 2, image_size=4, widths=(2, 2, 2)), "4×4 cannot pass"),
        (lambda: warp_convnet(1, 2, warp_blocks=5), "there are 4 blocks"),
        (lambda: warp_resnet(1, 2, widths=()), "at least one block"),
        (lambda: WarpLSTM(1, 2, pairs=0), "at least one pair"),
        (lambda: WarpHyperCell(1, 2, task="gru"), "choose rnn or lstm"),
        (lambda: WarpHyperCell(3, 2)(torch.zeros(1, 4)), r"reads \(batch, 3\)"),
        (lambda: WarpHyperNetwork(WarpHyperCell(3, 2))(torch.zeros(1, 3)), "three dimensions"),
        (lambda: WarpHyperNetwork(WarpHyperCell(3, 2))(torch.zeros(0, 1, 3)), "at least one time"),
        (lambda: Scale(0), "width must be at least 1"),
        (lambda: FiLM(2, embedding=0), "embedding must be at least 1"),
    ],
)
def test_errors_name_what_is_wrong(call, words: str):
    with pytest.raises(wg.WarpgradError, match=words):
        call()
