"""Every few-shot method against its definition: a network written out in plain operations, and its derivatives."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.few_shot_store import few_shot_store
from tests.support.problems import Recorder, relative_error
from warpgrad.adaptation.base import Adaptation
from warpgrad.algorithms import Online, Unrolled
from warpgrad.data.tasks.episodes import EpisodeShape, FewShotImageFamily, FewShotImages
from warpgrad.errors import WarpgradError
from warpgrad.experiments.few_shot.experiment import FewShot
from warpgrad.experiments.few_shot.methods import network, recipe, warped_network
from warpgrad.initialisers import FOMAML, MAML, Fixed, Reptile
from warpgrad.keys import generator
from warpgrad.layers.baselines import TransformedLinear, cavia_net, t_net
from warpgrad.objectives import Exact

EXPERIMENT = FewShot()
SHAPE = (3, 16, 16)
STEPS = 2
KEY = 11


def config_of(method: str, **changes):
    own = {"steps": STEPS, "filters": 3, "ways": 3, "inner_lr": 0.3, **changes}
    return EXPERIMENT.config("small", method=method, **({"context": 4} if method == "cavia" else {}), **own)


def moved(module: nn.Module) -> nn.Module:
    """In float64, away from every identity and zero that would make parts of a proof trivial."""
    module.double()
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.add_(0.1 * torch.randn(value.shape, generator=generator("moved", name), dtype=torch.float64))
    return module


def prepared(method: str, **changes):
    """A recipe in float64 at general weights."""
    chosen = recipe(config_of(method, **changes), SHAPE)
    moved(chosen.method.learner.module)
    chosen.method.rule.prepare(chosen.method.learner.theta0)
    with torch.no_grad():
        for name, value in chosen.method.rule.meta.items():
            value.add_(0.05 * torch.randn(value.shape, generator=generator("rule", name), dtype=torch.float64))
    return chosen


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    images = FewShotImages(few_shot_store(tmp_path_factory.mktemp("store") / "s", size=16))
    return FewShotImageFamily(images, "train", EpisodeShape(3, 2, 3), dtype=torch.float64).sample(0)


def forward(weights, x, context=None):
    """The network of App. H in plain operations, by the names of its weights."""
    for block in range(1, 5):
        kernel = weights[f"block{block}.conv.weight"]
        if (transform := weights.get(f"block{block}.transform.weight")) is not None:
            # T W as one linear map.
            kernel = torch.einsum("ab,bihw->aihw", transform[:, :, 0, 0], kernel)
        x = F.conv2d(x, kernel, padding=1)
        mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)
        scale, offset = (weights[f"block{block}.norm.{part}"][:, None, None] for part in ("weight", "bias"))
        x = (x - mean) / (variance + 1e-5).sqrt() * scale + offset
        if f"block{block}.film.projection.weight" in weights:
            gamma, beta = (weights[f"block{block}.film.projection.weight"] @ context).chunk(2)
            x = x * (1 + gamma[:, None, None]) + beta[:, None, None]
        x = F.max_pool2d(x.relu(), 2)
        if f"warp{block}.weight" in weights:
            x = F.conv2d(x, weights[f"warp{block}.weight"], weights[f"warp{block}.bias"], padding=1)
    logits = x.flatten(1) @ weights["head.weight"].T + weights["head.bias"]
    return logits @ weights["head.transform.weight"].T if "head.transform.weight" in weights else logits


def loss(weights, batch):
    images, labels = batch
    context = weights.get("block3.film.embedding")
    return F.cross_entropy(forward(weights, images, context), labels)


def leaves(tensors):
    return {name: value.detach().clone().requires_grad_() for name, value in tensors.items()}


def gradient(value, tensors, **options):
    found = torch.autograd.grad(value, list(tensors.values()), allow_unused=True, **options)
    return {
        name: torch.zeros_like(tensor) if slope is None else slope
        for (name, tensor), slope in zip(tensors.items(), found, strict=True)
    }


def descended(method: str, theta, slope, rule, noise):
    """One step by the definition of the method."""
    if method == "meta-sgd":
        return {name: value - rule[name] * slope[name] for name, value in theta.items()}
    if method == "meta-curvature":
        new = {}
        for name, value in theta.items():
            product = torch.ones(1, 1, dtype=torch.float64)
            for side in ("out", "in", "filter"):
                if f"{name}/{side}" in rule:
                    product = torch.kron(product, rule[f"{name}/{side}"])
            new[name] = value - 0.3 * (product @ slope[name].flatten()).reshape(value.shape)
        return new
    new = {}
    for name, value in theta.items():
        mask = 1.0
        if method == "mt-nets" and (name.endswith("conv.weight") or name.startswith("head")):
            key = f"{name.split('.')[0]}.mask.noise"
            mask = torch.sigmoid((rule[key] + noise[key]) / 0.5).reshape(-1, *[1] * (value.ndim - 1))
        new[name] = value - 0.3 * mask * slope[name]
    return new


def reference(chosen, method: str, task):
    """Gradients of L_meta(θ_K) for θ0, φ and the rule by the definition."""
    learner = chosen.method.learner
    begin = leaves({name: value.double() for name, value in learner.start(KEY).items() if "noise" not in name})
    noise = {name: value.double() for name, value in learner.start(KEY).items() if "noise" in name}
    phi, rule = leaves(learner.phi), leaves(chosen.method.rule.meta)
    theta = begin
    for _ in range(STEPS):
        slope = gradient(loss({**theta, **phi}, task.support), theta, create_graph=True)
        theta = descended(method, theta, slope, rule, noise)
    final = loss({**theta, **phi}, task.query)
    of_theta = gradient(final, begin, retain_graph=True)
    learned = {name: of_theta[name] for name in learner.learned}
    return learned, gradient(final, phi, retain_graph=True) if phi else {}, gradient(final, rule) if rule else {}


def found(chosen, task):
    seen = Recorder()
    chosen.algorithm.meta_step(chosen.method, [task], [KEY], seen)
    return {group: (seen.of(group) or [{}])[0] for group in ("theta0", "phi", "rule")}


@pytest.mark.parametrize("method", ["maml", "anil", "meta-sgd", "meta-curvature", "t-nets", "mt-nets", "cavia"])
def test_the_unrolled_methods_are_the_derivatives_of_their_definitions(method, task):
    chosen = prepared(method)
    assert isinstance(chosen.algorithm, Unrolled)
    ours = found(chosen, task)
    for group, expected in zip(("theta0", "phi", "rule"), reference(chosen, method, task), strict=True):
        assert set(ours[group]) == set(expected), group
        if expected:
            assert relative_error(ours[group], expected) < 1e-9, group


def trajectory(chosen, task):
    """θ_0 … θ_K of plain descent, outside any graph."""
    learner = chosen.method.learner
    points = [leaves(learner.start(KEY))]
    for _ in range(STEPS):
        slope = gradient(loss({**points[-1], **learner.phi}, task.support), points[-1])
        points.append(leaves({name: value - 0.3 * slope[name] for name, value in points[-1].items()}))
    return points


def test_first_order_maml_and_reptile_are_their_definitions(task):
    chosen = prepared("fomaml")
    assert isinstance(chosen.method.initialiser, FOMAML)
    last = trajectory(chosen, task)[-1]
    assert relative_error(found(chosen, task)["theta0"], gradient(loss(last, task.query), last)) < 1e-9
    chosen = prepared("reptile")
    assert isinstance(chosen.method.initialiser, Reptile)
    points = trajectory(chosen, task)
    expected = {name: value.detach() - points[-1][name].detach() for name, value in points[0].items()}
    assert relative_error(found(chosen, task)["theta0"], expected) < 1e-9


def test_warp_maml_learns_the_warp_by_eq_11_and_the_start_by_maml(task):
    chosen = prepared("warp-maml")
    assert isinstance(chosen.algorithm, Online)
    assert isinstance(chosen.method.objective, Exact)
    assert isinstance(chosen.method.initialiser, MAML)
    ours = found(chosen, task)
    phi = leaves(chosen.method.learner.phi)
    total = torch.zeros((), dtype=torch.float64)
    for theta in trajectory(chosen, task)[:STEPS]:
        slope = gradient(loss({**theta, **phi}, task.support), theta, create_graph=True)
        total = total + loss({**{n: v.detach() - 0.3 * slope[n] for n, v in theta.items()}, **phi}, task.query) / STEPS
    assert relative_error(ours["phi"], gradient(total, phi)) < 1e-9
    of_theta, through_all_steps, _ = reference(chosen, "warp-maml", task)
    assert relative_error(ours["theta0"], of_theta) < 1e-9
    assert relative_error(ours["phi"], through_all_steps) > 1e-3


def test_the_initialisation_objective_of_warp_maml_never_reaches_the_warp(task):
    chosen = prepared("warp-maml")
    ours = found(chosen, task)
    alone = found(dataclasses.replace(chosen, method=dataclasses.replace(chosen.method, initialiser=Fixed())), task)
    assert not alone["theta0"]
    assert ours["theta0"]
    for name, value in alone["phi"].items():
        assert torch.equal(value, ours["phi"][name])


def test_what_is_adapted_and_what_is_not():
    names = [f"block{b}.{part}" for b in range(1, 5) for part in ("conv.weight", "norm.weight", "norm.bias")]
    head = ["head.weight", "head.bias"]
    for method in ("maml", "fomaml", "reptile", "meta-sgd", "meta-curvature"):
        learner = recipe(config_of(method), SHAPE).method.learner
        assert (set(learner.theta0), set(learner.phi)) == ({*names, *head}, set())
    warped = recipe(config_of("warp-maml"), SHAPE).method.learner
    assert set(warped.theta0) == {*names[3:], *head}
    warps = {f"warp{block}.{part}" for block in (2, 3, 4) for part in ("weight", "bias")}
    assert set(warped.phi) == {*names[:3], *warps}
    anil = recipe(config_of("anil"), SHAPE).method.learner
    assert (set(anil.theta0), set(anil.phi)) == (set(head), set(names))
    transforms = {f"{place}.transform.weight" for place in ("block1", "block2", "block3", "block4", "head")}
    t_nets = recipe(config_of("t-nets"), SHAPE).method.learner
    assert (set(t_nets.theta0), set(t_nets.phi)) == ({*names, *head}, transforms)
    masked = recipe(config_of("mt-nets"), SHAPE).method
    noise = {f"{place}.mask.noise" for place in ("block1", "block2", "block3", "block4", "head")}
    assert set(masked.learner.theta0) == {*names, *head, *noise}
    assert set(masked.learner.learned) == {*names, *head}
    assert set(masked.rule.meta) == noise
    cavia = recipe(config_of("cavia"), SHAPE).method.learner
    assert list(cavia.theta0) == ["block3.film.embedding"]
    assert cavia.learned == ()
    assert set(cavia.phi) == {*names, *head, "block3.film.projection.weight"}


def test_every_method_begins_as_the_same_network(task):
    config = config_of("maml")
    plain = network(config, SHAPE)
    images = task.query[0].float()
    expected = plain(images)
    begun = [warped_network(config, SHAPE), t_net(network(config, SHAPE)), t_net(network(config, SHAPE), masks=True)]
    for module in (*begun, cavia_net(network(config, SHAPE), context=4)):
        torch.testing.assert_close(module(images), expected, rtol=1e-5, atol=1e-6)
    own = warped_network(config_of("warp-maml", warp_init="own"), SHAPE)
    assert not torch.allclose(own(images), expected, atol=1e-3)
    other = network(config_of("maml", seed=1), SHAPE)
    assert not torch.equal(other.get_submodule("head").weight, plain.get_submodule("head").weight)


def test_t_nets_at_the_identity_take_the_first_step_of_maml(task):
    """T W with T = I: the same gradient for W, so the same θ after one step."""
    after = {}
    for method in ("maml", "t-nets"):
        chosen = recipe(config_of(method), SHAPE)
        chosen.method.learner.module.double()
        adaptation = Adaptation(chosen.method.learner, chosen.method.rule, task, KEY)
        after[method] = adaptation.step(adaptation.start()).after.theta
    assert relative_error(after["t-nets"], after["maml"]) < 1e-12


def test_masks_are_drawn_by_the_key_of_the_task():
    learner = recipe(config_of("mt-nets"), SHAPE).method.learner
    first, again, other = (learner.start(key)["block2.mask.noise"] for key in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_papers_network():
    """App. H on 84×84 images: 128 filters, 5×5×128 features, warps of 128 filters after the last three blocks."""
    learner = recipe(EXPERIMENT.config("paper"), (3, 84, 84)).method.learner
    children = dict(learner.module.named_children())
    assert list(children) == ["block1", "block2", "warp2", "block3", "warp3", "block4", "warp4", "flatten", "head"]
    parts = [type(part) for part in children["block2"]]
    assert parts == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.MaxPool2d]
    assert children["head"].weight.shape == (5, 5 * 5 * 128)
    assert children["warp3"].weight.shape == (128, 128, 3, 3)
    assert learner.batch_norm == "batch"


def test_nets_that_cannot_be_changed_are_refused():
    with pytest.raises(WarpgradError, match="'block9'"):
        cavia_net(network(config_of("maml"), SHAPE), block=9)
    with pytest.raises(WarpgradError, match="'body' has no convolution"):
        t_net(nn.Sequential(OrderedDict(body=nn.Sequential(nn.ReLU()))))
    with pytest.raises(WarpgradError, match="16×8"):
        network(config_of("maml"), (3, 16, 8))
    layer = TransformedLinear(3, 2)
    x = torch.randn(4, 3)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))
