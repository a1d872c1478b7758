"""Interleaving warps into any model, and compressing any model into a warp with weak task layers."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import warpgrad as wg
from warpgrad.keys import generator
from warpgrad.layers import FiLM, Scale, convolutional_warp, feed_forward_warp, warp_convnet
from warpgrad.layers.augmentation import Chain, compress, conv_warp, interleave, linear_warp, output_width, sized
from warpgrad.model.partition import is_warp


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator("augmentation", *shape))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def plain_convnet() -> nn.Sequential:
    return warp_convnet(1, 3, image_size=8, widths=(4, 5), warp=None)


class Tree(nn.Module):
    """A user's own residual network: nested, with functional steps and a second argument in one of its blocks."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(width, width, 3, padding=1)
            self.norm = nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, width, 3, padding=1)

        def forward(self, h: torch.Tensor, gain: float = 1.0) -> torch.Tensor:
            return h + gain * self.conv2(F.relu(self.norm(self.conv1(h))))

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.layers = nn.ModuleList([Tree.Block(width), Tree.Block(width)])
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        for layer in self.layers:
            h = layer(h, gain=0.5)
        return self.head(h.mean((2, 3)))


def names(model: nn.Module) -> set[str]:
    return {name for name, _ in model.named_parameters()}


def both(prefix: str) -> set[str]:
    return {f"{prefix}.weight", f"{prefix}.bias"}


def assert_meta_step(model: nn.Module, inputs: torch.Tensor, classes: int) -> wg.Learner:
    """A learner that takes one step under the exact objective, with a gradient for every parameter."""
    targets = torch.arange(len(inputs)) % classes
    learner = wg.Learner(model)
    task = wg.SupervisedTask(inputs, targets, F.cross_entropy)
    adaptation = wg.Adaptation(learner, wg.SGD(lr=0.1), task, 0)
    step = wg.Exact().step(adaptation, adaptation.start())
    assert set(step.transition.gradient) == set(learner.theta0)
    assert set(step.phi) == set(learner.phi)
    assert all(torch.isfinite(g).all() for g in [*step.transition.gradient.values(), *step.phi.values()])
    assert all(g.abs().sum() > 0 for n, g in step.phi.items() if not n.endswith("projection.weight"))
    return learner


# --- interleave


def test_a_sequence_gets_a_warp_after_every_layer_but_the_last():
    warped = interleave(mlp(), linear_warp)
    learner = assert_meta_step(warped, draw(6, 3), 2)
    assert set(learner.theta0) == both("0.task") | both("2.task") | both("4")
    assert set(learner.phi) == both("0.warp") | both("2.warp")
    assert learner.phi["0.warp.weight"].shape == (5, 5)
    assert learner.phi["2.warp.weight"].shape == (4, 4)
    assert type(warped[0]) is nn.Sequential


def test_a_warp_stands_directly_behind_its_module():
    model = mlp()
    warped = interleave(model, linear_warp)
    x = draw(6, 3)
    h = torch.tanh(warped[0].warp(model[0](x)))
    h = torch.tanh(warped[2].warp(model[2](h)))
    torch.testing.assert_close(warped(x), model[4](h), rtol=0, atol=0)


def test_blocks_of_a_convnet():
    plain = plain_convnet()
    learner = assert_meta_step(interleave(plain, conv_warp(3)), draw(6, 1, 8, 8), 3)
    assert set(learner.phi) == both("block1.warp") | both("block2.warp")
    assert learner.phi["block2.warp.weight"].shape == (5, 5, 3, 3)
    strong = interleave(plain, conv_warp(1, hidden=7, batch_norm=True, residual=True))
    assert "block2.warp.branch.conv1.weight" in wg.Learner(strong).phi


def test_interleave_changes_nothing_of_its_input():
    model = Tree().eval()
    before, tree = copy.deepcopy(model.state_dict()), str(model)
    warped = interleave(model, conv_warp(3), after=["stem", "layers.*.conv1"])
    with torch.no_grad():
        for parameter in warped.parameters():
            parameter.zero_()
    assert str(model) == tree
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    wg.Learner(model, warp=())
    with pytest.raises(wg.WarpgradError, match="no warp parameters"):
        wg.Learner(model)


def test_new_layers_take_device_precision_and_mode_of_the_model():
    warped = interleave(mlp().double().eval(), linear_warp)
    assert all(parameter.dtype == torch.float64 for parameter in warped.parameters())
    assert not any(child.training for child in warped.modules())


@pytest.mark.parametrize(
    ("build", "make", "after", "shape"),
    [
        (mlp, linear_warp, None, (6, 3)),
        (mlp, sized(partial(feed_forward_warp, hidden=7, residual=True)), None, (6, 3)),
        (mlp, lambda name, m: nn.Linear(5, 5), "1", (6, 3)),
        (plain_convnet, conv_warp(3), None, (6, 1, 8, 8)),
        (Tree, conv_warp(1), ["stem", "layers.*.conv1"], (6, 1, 8, 8)),
        (Tree, conv_warp(3), lambda name, m: isinstance(m, nn.Conv2d), (6, 1, 8, 8)),
        (Tree, conv_warp(3, hidden=6, batch_norm=True, residual=True), "layers.?", (6, 1, 8, 8)),
        (Tree, sized(Scale), ["stem", "layers.*.norm", "head"], (6, 1, 8, 8)),
    ],
    ids=["linear", "residual", "after tanh", "convnet", "tree 1x1", "tree 3x3", "tree blocks", "tree scale"],
)
def test_identity_warps_leave_the_plain_model(build, make, after, shape):
    model, x = build(), draw(*shape)
    warped = interleave(model, make, after=after, identity=True)
    with torch.no_grad():
        torch.testing.assert_close(warped(x), copy.deepcopy(model)(x), rtol=0, atol=1e-6)
    assert wg.Learner(warped).phi


def test_warps_keep_their_own_initialisation_unless_asked():
    model, x = mlp(), draw(6, 3)
    assert not torch.allclose(interleave(model, linear_warp)(x), model(x), atol=1e-3)


def test_identity_warps_leave_the_gradient_of_the_plain_model():
    model, x, y = mlp(), draw(6, 3), torch.arange(6) % 2
    warped = interleave(model, linear_warp, identity=True)
    F.cross_entropy(model(x), y).backward()
    F.cross_entropy(warped(x), y).backward()
    own = dict(warped.named_parameters())
    for name, parameter in model.named_parameters():
        place, kind = name.split(".")
        twin = own[name if place == "4" else f"{place}.task.{kind}"]
        torch.testing.assert_close(twin.grad, parameter.grad, rtol=0, atol=1e-7)


def test_a_tree_keeps_its_forward_and_the_rest_of_its_names():
    model = Tree()
    warped = interleave(model, conv_warp(3), after=["stem", "layers.?"])
    assert type(warped) is Tree
    learner = assert_meta_step(warped, draw(6, 1, 8, 8), 3)
    assert set(learner.phi) == both("stem.warp") | both("layers.0.warp") | both("layers.1.warp")
    moved = {name: name.replace("stem.", "stem.task.") for name in names(model)}
    for i in "01":
        moved = {
            name: new.replace(f"layers.{i}.", f"layers.{i}.task.") if name.startswith(f"layers.{i}.") else new
            for name, new in moved.items()
        }
    assert set(learner.theta0) == set(moved.values())
    # A block that is called with more than its input cannot be in a plain nn.Sequential.
    assert type(warped.layers[0]) is Chain
    assert type(warped.stem) is nn.Sequential


def test_a_pattern_is_not_tried_inside_what_it_fits_but_a_predicate_is():
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), nn.Linear(3, 2))
    outer = wg.Learner(interleave(model, linear_warp, after="0*"))
    assert set(outer.phi) == both("0.warp")
    nested = wg.Learner(interleave(model, linear_warp, after=lambda name, m: name.startswith("0")))
    assert set(nested.phi) == both("0.warp") | both("0.task.0.warp") | both("0.task.1.warp")
    assert nested.module(draw(2, 3)).shape == (2, 2)


def test_a_layer_used_in_two_places_stays_tied_and_a_shared_block_is_changed_once():
    shared = nn.Linear(3, 3)
    warped = interleave(nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(3, 2)), linear_warp)
    assert warped[0].task is warped[2].task
    assert set(wg.Learner(warped).phi) == both("0.warp") | both("2.warp")
    block = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    twice = interleave(nn.Sequential(block, block), linear_warp, after="*.0")
    assert twice[0] is twice[1]
    assert set(wg.Learner(twice).phi) == both("0.0.warp")
    assert type(twice[0][0].task) is nn.Linear


def test_a_warp_that_marks_its_own_parts_keeps_its_task_embedding():
    make = sized(
        partial(convolutional_warp, hidden=6, residual=True, film=partial(FiLM, embedding=2)),
    )
    learner = assert_meta_step(interleave(Tree(), make, after="stem"), draw(6, 1, 8, 8), 3)
    assert "stem.warp.branch.film.embedding" in learner.theta0
    assert "stem.warp.branch.film.projection.weight" in learner.phi
    assert "stem.warp.branch.conv1.weight" in learner.phi


def test_an_adapted_model_is_plain_torch_where_it_can_be():
    learner = wg.Learner(interleave(mlp(), linear_warp))
    task = wg.SupervisedTask(draw(6, 3), torch.arange(6) % 2, F.cross_entropy)
    fitted = wg.adapt(learner, task, rule=wg.SGD(lr=0.1), steps=2)
    assert {type(child).__module__.split(".")[0] for child in fitted.modules()} == {"torch"}


# --- width


def test_width_is_read_from_the_last_layer_that_has_one():
    block = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
    assert output_width("block", block) == 6
    assert output_width("block", nn.Sequential(block, nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7)))) == 7
    assert output_width("block", nn.Embedding(10, 8)) == 8
    assert output_width("block", nn.Sequential(nn.Conv1d(1, 9, 1), nn.GroupNorm(3, 9))) == 9
    with pytest.raises(wg.WarpgradError, match=r"width of 'act' \(Tanh\) is unknown"):
        output_width("act", nn.Tanh())


# --- compress


def test_compress_leaves_exactly_the_new_layers_to_the_task():
    model = Tree()
    compressed = compress(model, sized(Scale), after=["stem", "layers.*.conv1", "head"])
    learner = assert_meta_step(compressed, draw(6, 1, 8, 8), 3)
    places = ("stem", "layers.0.conv1", "layers.1.conv1", "head")
    assert set(learner.theta0) == {f"{p}.task.{kind}" for p in places for kind in ("scale", "shift")}
    assert set(learner.phi) == names(compressed) - set(learner.theta0)
    assert len(learner.phi) == len(names(model))
    assert names(model) == names(Tree())
    x = draw(6, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(compressed(x), copy.deepcopy(model)(x), rtol=0, atol=0)


def test_compress_a_sequence_by_default_and_with_any_layer():
    learner = assert_meta_step(compress(mlp(), sized(Scale)), draw(6, 3), 2)
    assert set(learner.theta0) == {f"{i}.task.{kind}" for i in (0, 2) for kind in ("scale", "shift")}
    linear = wg.Learner(compress(mlp(), lambda name, module: nn.Linear(2, 2), after="4"))
    assert set(linear.theta0) == both("4.task")
    assert set(linear.phi) == both("0") | both("2") | both("4.warp")


def test_compress_with_embeddings_adapts_the_embeddings_alone():
    learner = assert_meta_step(compress(mlp(), sized(partial(FiLM, embedding=2))), draw(6, 3), 2)
    assert set(learner.theta0) == {"0.task.embedding", "2.task.embedding"}
    assert {"0.task.projection.weight", "2.task.projection.weight"} < set(learner.phi)


def test_compress_drops_marks_that_would_claim_the_new_layers():
    model = wg.Warp(mlp())
    learner = wg.Learner(compress(model, sized(Scale), after="0"))
    assert set(learner.theta0) == {"0.task.scale", "0.task.shift"}
    assert is_warp(model)


def test_compress_marks_a_parameter_of_a_module_that_holds_a_new_layer():
    class Token(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.zeros(3))
            self.body = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x + self.token)

    model = nn.Sequential(Token(), nn.Linear(3, 2))
    inside = wg.Learner(compress(model, sized(Scale), after="0.body"))
    assert set(inside.theta0) == {"0.body.task.scale", "0.body.task.shift"}
    assert "0.token" in inside.phi


# --- errors


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: interleave(Tree(), conv_warp(3)), "not clear where new layers belong in a Tree"),
        (lambda: interleave(nn.Sequential(nn.Linear(2, 2)), linear_warp), "no module of the Sequential"),
        (lambda: interleave(mlp(), linear_warp, after=lambda name, module: False), "no module"),
        (lambda: interleave(Tree(), conv_warp(3), after="layer.0"), "did you mean 'layers.0'"),
        (lambda: interleave(Tree(), conv_warp(3), after="layers"), "'layers': a ModuleList does not return"),
        (
            lambda: interleave(nn.Sequential(nn.LSTM(2, 2), nn.Linear(2, 2)), linear_warp),
            "a LSTM does not return",
        ),
        (lambda: interleave(mlp(), linear_warp, after="1"), "width of '1'"),
        (lambda: interleave(mlp(), lambda name, module: None), "must return an nn.Module for '0'"),
        (lambda: compress(mlp(), lambda name, module: 3), "make_task must return an nn.Module"),
        (lambda: compress(Tree(), sized(Scale)), "after="),
        (
            lambda: interleave(mlp(), lambda name, m: nn.Linear(5, 4), after="0", identity=True),
            "cannot be made the identity",
        ),
        (lambda: interleave(mlp(), conv_warp(2)), "must be odd"),
    ],
)
def test_errors_name_what_is_wrong(call, words: str):
    with pytest.raises(wg.WarpgradError, match=words):
        call()
