"""The warps of App. F: composition, modulation, identity, errors."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

import warpgrad as wg
from tests.support.layer_problems import assert_every_gradient, draw
from warpgrad.layers import (
    OMNIGLOT_WARPS,
    FiLM,
    Residual,
    Scale,
    WarpHyperCell,
    WarpHyperNetwork,
    WarpLSTM,
    conv_block,
    convolutional_warp,
    feed_forward_warp,
    identity_,
    keep_variance_,
    warp_convnet,
    warp_resnet,
)


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
    bounded = feed_forward_warp(6, hidden=3, residual=True, branch_activation=nn.Tanh)
    bounded.load_state_dict(warp.state_dict())
    torch.testing.assert_close(bounded(x), x + torch.tanh(expected - x))
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


# --- starts that keep the size of activations


@pytest.mark.parametrize("name", OMNIGLOT_WARPS)
@pytest.mark.parametrize("width", [3, 16, 64])
@pytest.mark.parametrize("side", [1, 6])
def test_a_warp_of_the_ablation_begins_at_the_size_of_what_it_sees(name: str, width: int, side: int):
    """On 1×1 images too, where eight of nine places of a kernel see padding; behind a ReLU, as in the network."""
    torch.manual_seed(width)
    warp = OMNIGLOT_WARPS[name](width)
    drawn = {key: value.clone() for key, value in warp.state_dict().items()}
    x = 0.3 * draw(40, width, side, side).relu()
    assert keep_variance_(warp, x) is warp
    out = warp.train()(x)
    assert rms(out) == pytest.approx(rms(x), rel=1e-3)
    kept = {key: value for key, value in warp.state_dict().items() if "num_batches" not in key and "running" not in key}
    last = [key for key, value in kept.items() if not torch.equal(value, drawn[key])]
    if "res" in name:
        assert torch.equal(out, x)
        assert set(last) == {key for key in kept if key.endswith("branch.norm.weight")}
    elif name == "scaling":
        assert last == []
    else:
        weight = next(key for key in last if key.endswith("weight"))
        factor = float(kept[weight].norm() / drawn[weight].norm())
        torch.testing.assert_close(kept[weight], factor * drawn[weight])
        assert all(float(kept[key].abs().sum()) == 0 for key in last if key != weight)
        assert abs(factor - 1) > 0.1


def test_batch_norms_own_statistics_and_modes_are_left_alone():
    warp = OMNIGLOT_WARPS["conv3x3+bn+relu"](4).eval()
    keep_variance_(warp, draw(8, 4, 6, 6))
    assert not warp.training
    assert torch.equal(warp.body.norm.running_mean, torch.zeros(4))
    assert int(warp.body.norm.num_batches_tracked) == 0


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(4, 9), (7, 4)),
        (nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4), nn.LeakyReLU()), (7, 4)),
        (nn.Sequential(nn.Linear(4, 4), Scale(4), nn.ReLU()), (7, 4)),
        (nn.Sequential(nn.Linear(4, 4), Residual(nn.Linear(4, 4))), (7, 4)),
        (Residual(nn.Linear(4, 6), nn.Linear(4, 6)), (7, 4)),
        (nn.Conv2d(4, 8, 3, stride=2, groups=2), (2, 4, 9, 9)),
    ],
    ids=str,
)
def test_other_modules_keep_the_size_of_activations_too(layer: nn.Module, shape: tuple[int, ...]):
    layer, x = copy.deepcopy(layer), draw(*shape)
    keep_variance_(layer, x)
    assert rms(layer(x)) == pytest.approx(rms(x), rel=1e-3)


@pytest.mark.parametrize(
    ("layer", "x", "words"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Tanh()), draw(5, 4), "not in proportion to a weight"),
        (nn.Sequential(Residual(nn.Linear(4, 4)), nn.ReLU()), draw(5, 4), "before it and .* after it"),
        (nn.Linear(4, 4), torch.zeros(5, 4), "root mean square is 0 before it"),
        (nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU()), None, "before it and 0 after it"),
    ],
    ids=["tanh", "residual relu", "zeros", "dead"],
)
def test_what_cannot_keep_the_size_of_activations_is_refused(layer: nn.Module, x: torch.Tensor | None, words: str):
    if x is None:
        nn.init.constant_(layer[0].weight, -1.0)
        x = torch.ones(5, 4)
    with pytest.raises(wg.WarpgradError, match=words):
        keep_variance_(layer, x)


def rms(x: torch.Tensor) -> float:
    return float(x.detach().square().mean().sqrt())


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
