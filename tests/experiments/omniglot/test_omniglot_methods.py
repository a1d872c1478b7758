"""The methods of the alphabets experiment as choices of parts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.data.tasks.test_alphabets import STILL
from tests.support.omniglot_runs import runs, store, tiny
from warpgrad.adaptation.adapt import adapt
from warpgrad.adaptation.base import Adaptation
from warpgrad.algorithms import Offline, Online, Unrolled
from warpgrad.algorithms.meta_optimiser import MetaOptimiser
from warpgrad.baselines.finetuning import JointTraining
from warpgrad.data import Alphabets, open_store
from warpgrad.data.tasks.alphabets import AlphabetTask, alphabet_tasks
from warpgrad.errors import WarpgradError
from warpgrad.experiments.methods import activation_sizes
from warpgrad.experiments.omniglot.config import OmniglotConfig
from warpgrad.experiments.omniglot.experiment import trained
from warpgrad.experiments.omniglot.methods import (
    network,
    recipe,
    starting_drawings,
    training_tasks,
    warped_learner,
)
from warpgrad.initialisers import FOMAML, Fixed, Leap, Reptile
from warpgrad.layers import OMNIGLOT_WARPS
from warpgrad.model.learner import Learner
from warpgrad.objectives import Approximate, Exact
from warpgrad.rules import SGD
from warpgrad.tasks.supervised import TaskList

__all__ = ["runs", "store", "tiny"]

DRAWINGS = torch.rand(20, 1, 28, 28, generator=torch.Generator().manual_seed(0))
"""What starts that keep the size of activations are measured on."""


def test_every_method_is_the_stated_choice_of_parts(tiny):
    def parts(**changes):
        chosen = recipe(tiny(**changes), DRAWINGS)
        method = chosen.method
        return type(chosen.algorithm), type(method.objective), type(method.initialiser), bool(method.learner.phi)

    nothing = type(None)
    assert parts(method="warp-leap") == (Offline, Exact, Leap, True)
    online = {"algorithm": "online", "share": 1.0}
    assert parts(method="warp-leap", objective="approximate", **online) == (Online, Approximate, Leap, True)
    assert parts(method="warp-leap", theta0="random") == (Offline, Exact, Fixed, True)
    assert parts(method="leap") == (Online, nothing, Leap, False)
    assert parts(method="reptile") == (Online, nothing, Reptile, False)
    assert parts(method="fomaml") == (Online, nothing, FOMAML, False)
    assert parts(method="maml") == (Unrolled, nothing, Fixed, False)
    assert parts(method="finetuning") == (JointTraining, nothing, Fixed, False)
    assert recipe(tiny(method="maml"), DRAWINGS).algorithm.steps == 2
    assert recipe(tiny(reduction="sum", share=0.7), DRAWINGS).algorithm.reduction == "sum"
    assert recipe(tiny(reduction="sum", share=0.7), DRAWINGS).algorithm.share == 0.7
    assert recipe(tiny(reduction="sum", **online), DRAWINGS).algorithm.reduction == "sum"
    assert not recipe(tiny(method="finetuning"), DRAWINGS).algorithm.averaged
    assert recipe(tiny(method="finetuning", averaged_steps=True), DRAWINGS).algorithm.averaged
    leap = recipe(tiny(method="warp-leap"), DRAWINGS).method.initialiser
    assert (leap.loss, leap.norm, leap.stabilise) == (True, True, True)
    alpha = recipe(tiny(learned_alpha=True), DRAWINGS)
    assert alpha.method.rule.meta["lr"].item() == pytest.approx(0.1)
    assert alpha.clip == {"rule": 0.001}
    assert alpha.optimiser["rule"]([torch.zeros(1)]).defaults["lr"] == 0.001


def test_all_methods_begin_at_the_same_weights(tiny):
    plain = network(tiny()).state_dict()
    for method in ("warp-leap", "leap", "maml", "finetuning"):
        weights = recipe(tiny(method=method), DRAWINGS).method.learner.theta0
        found = {name.removeprefix("body."): value for name, value in weights.items()}
        for name in found:
            if not name.startswith("heads"):
                assert torch.equal(found[name], plain[name]), (method, name)
    other = network(tiny(seed=1)).state_dict()
    assert not torch.equal(plain["block1.conv.weight"], other["block1.conv.weight"])


def test_finetuning_has_a_head_of_its_own_for_each_training_alphabet(tiny, store, runs):
    config = tiny(method="finetuning")
    learner = recipe(config, DRAWINGS).method.learner
    heads = learner.module.get_submodule("heads")
    assert len(heads) == config.tasks == 2
    assert heads[0].weight.data_ptr() != heads[1].weight.data_ptr()
    assert not torch.equal(heads[0].weight, heads[1].weight)
    alphabets = Alphabets(store, 0, config.protocol)
    names = alphabets.split(2).train
    tasks = training_tasks(config, alphabet_tasks(alphabets, names, batch_size=6))
    for task in tasks.meta_batch(3, 5):
        assert names[task.head] == task.name
    tested, _ = trained(config, runs["finetuning"])
    assert {policy for name, policy in tested.starts.items() if name.startswith("head")} == {"fresh"}
    assert not torch.equal(tested.start(1)["head.weight"], tested.start(2)["head.weight"])
    assert torch.equal(tested.start(1)["block1.conv.weight"], tested.start(2)["block1.conv.weight"])
    begun = network(config).state_dict()["block1.conv.weight"]
    assert not torch.equal(tested.theta0["block1.conv.weight"], begun)


@pytest.mark.parametrize("warp", sorted(OMNIGLOT_WARPS))
def test_every_warp_architecture_takes_a_meta_step(tiny, store, warp):
    config = tiny(warp=warp, steps=2, meta_batch=1)
    learner = _one_meta_step(config, store)
    begun = warped_learner(config, DRAWINGS)
    assert learner.phi
    assert all(bool(torch.isfinite(value).all()) for value in learner.phi.values())
    assert any(not torch.equal(value, begun.phi[name]) for name, value in learner.phi.items())
    if warp.endswith("film"):
        embeddings = [name for name, policy in learner.starts.items() if policy == "zero"]
        assert embeddings
        assert all(".film." in name for name in embeddings)
        assert not set(embeddings) & set(learner.learned)
        assert all(float(learner.start(0)[name].abs().sum()) == 0.0 for name in embeddings)


def test_a_random_initialisation_is_never_changed_and_the_warp_is(tiny, store):
    config = tiny(theta0="random", steps=2)
    learner = _one_meta_step(config, store)
    plain = network(config).state_dict()
    assert all(torch.equal(value, plain[name]) for name, value in learner.theta0.items())
    assert not torch.equal(learner.phi["warp1.weight"], warped_learner(config, DRAWINGS).phi["warp1.weight"])


def test_an_identity_warp_begins_as_the_plain_network(tiny):
    config = tiny(warp="conv3x3", warp_init="identity")
    learner, plain = warped_learner(config), network(config)
    images = torch.rand(3, 1, 28, 28)
    forward = learner.bind(learner.start(0), learner.buffers(), training=True)
    torch.testing.assert_close(forward(images), plain(images))
    with pytest.raises(WarpgradError, match="cannot be made the identity"):
        warped_learner(tiny(warp="conv3x3+relu", warp_init="identity"))


@pytest.mark.parametrize("warp", sorted(OMNIGLOT_WARPS))
def test_scaled_warps_begin_at_the_size_of_activations_and_own_ones_do_not(tiny, warp):
    """θ0 is that of the plain network; what reaches the head measures what it does without warps."""
    config = tiny(warp=warp, filters=16)
    learner = warped_learner(config, DRAWINGS)
    sizes = activation_sizes(learner.module, DRAWINGS)
    assert sizes["after"] == pytest.approx(sizes["before"], rel=2e-3)
    bare = activation_sizes(network(config), DRAWINGS)["head"]
    assert sizes["head"] == pytest.approx(bare, rel=0.25)
    plain = network(config).state_dict()
    assert all(torch.equal(value, plain[name]) for name, value in learner.theta0.items() if "film" not in name)
    own = activation_sizes(warped_learner(tiny(warp=warp, filters=16, warp_init="own")).module, DRAWINGS)
    if warp in ("conv3x3", "conv3x3+relu"):
        assert own["head"] < bare / 3
    with pytest.raises(WarpgradError, match="pass the inputs"):
        warped_learner(config)


def test_starting_drawings_are_keyed_and_come_from_every_training_alphabet_alike(tiny, store):
    alphabets = Alphabets(store, 0, tiny().protocol)
    drawings = starting_drawings(tiny(), alphabets)
    assert drawings.shape == (200, 1, 28, 28)
    assert torch.equal(drawings, starting_drawings(tiny(method="leap"), alphabets))
    assert len(starting_drawings(tiny(tasks=3), alphabets)) == 3 * 67
    assert not torch.equal(drawings, starting_drawings(tiny(seed=1), Alphabets(store, 1, tiny().protocol)))


@pytest.mark.parametrize(("averaged", "updates"), [(False, 9), (True, 3)])
def test_finetuning_steps_once_per_task_batch(tiny, store, averaged, updates):
    """Three tasks × K = 3 steps; as an option one per round, on the mean."""
    config = tiny(method="finetuning", averaged_steps=averaged)
    chosen = recipe(config)
    tasks = training_tasks(config, _tasks(config, store)).meta_batch(0, config.meta_batch)
    groups = []
    chosen.algorithm.meta_step(chosen.method, tasks, [0, 1, 2], lambda group, _: groups.append(group))
    assert groups == ["theta0"] * updates


def test_with_the_sum_the_online_row_moves_the_warp_as_many_times_further_as_there_are_points(tiny, store):
    moved = {}
    for reduction in ("mean", "sum"):
        config = tiny(algorithm="online", share=1.0, reduction=reduction, meta_lr=0.001, warp_init="own")
        learner, begun = _one_meta_step(config, store), warped_learner(config)
        moved[reduction] = sum(float((learner.phi[name] - value).detach().norm()) for name, value in begun.phi.items())
    assert moved["sum"] == pytest.approx(config.steps * config.meta_batch * moved["mean"], rel=0.05)


@pytest.mark.parametrize(("policy", "chance"), [("running", True), ("corrected", False), ("batch", False)])
def test_corrected_statistics_score_after_two_steps_where_running_ones_are_at_chance(tiny, store, policy, chance):
    """A learner whose θ0 already knows the alphabet: only batch-norm at test can spoil its first scores."""
    config = tiny(method="leap", filters=8, batch_norm=policy)
    alphabets = Alphabets(store, 0, config.protocol)
    task = AlphabetTask(alphabets[alphabets.split(2).test[0]], batch_size=24, ranges=STILL)
    learner = recipe(config).method.learner
    assert learner.batch_norm == policy
    taught = adapt(learner, task, rule=SGD(0.1), steps=150)
    learner.module.load_state_dict(taught.state_dict(), strict=False)
    _, curve = adapt(learner, task.with_seed(1), rule=SGD(0.01), steps=2, curve=True)
    accuracy = curve.scores[-1]["accuracy"]
    assert (accuracy <= 1.5 / 6) if chance else (accuracy >= 4 / 6), accuracy


def test_channels_last_changes_the_layout_and_not_the_numbers(tiny):
    config = tiny(filters=5)
    images, labels = torch.rand(4, 1, 28, 28, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    found = []
    for channels_last in (False, True):
        learner = Learner(network(config).double(), warp=(), channels_last=channels_last)
        theta = {name: value.detach().contiguous().requires_grad_() for name, value in learner.theta0.items()}
        loss = F.cross_entropy(learner.bind(theta, learner.buffers())(images), labels)
        found.append(torch.autograd.grad(loss, list(theta.values())))
    torch.testing.assert_close(found[0], found[1])
    used = {}
    for name in ("block1", "block2"):
        conv = learner.module.get_submodule(f"{name}.conv")
        conv.register_forward_pre_hook(lambda own, _, name=name: used.update({name: own.weight}))
    learner.bind(theta, learner.buffers())(images)
    assert used["block2"].is_contiguous(memory_format=torch.channels_last)
    assert learner.theta0["block2.conv.weight"].is_contiguous(memory_format=torch.channels_last)
    # One input channel: both layouts fit, and the strides must say which.
    assert used["block1"].stride(1) == 1
    assert learner.module.block1.conv(images).is_contiguous(memory_format=torch.channels_last)


def test_batch_norm_follows_the_batch_in_adaptation_and_the_task_at_test(tiny, store):
    """Statistics are reset for every task, moved by adaptation alone, and used at test."""
    config = tiny()
    alphabets = Alphabets(store, 0, config.protocol)
    task = AlphabetTask(alphabets[alphabets.split(2).test[0]], batch_size=6)
    chosen = recipe(config, DRAWINGS).method
    learner = chosen.learner
    adaptation = Adaptation(learner, chosen.rule, task, 0)
    start = adaptation.start()
    mean, variance = "block1.norm.running_mean", "block1.norm.running_var"
    assert float(start.buffers[mean].abs().sum()) == 0.0
    assert torch.equal(start.buffers[variance], torch.ones(4))
    after = adaptation.step(start).after
    with torch.no_grad():
        images = task.adapt_batch(0)[0]
        pooled = F.max_pool2d(F.conv2d(images, start.theta["block1.conv.weight"], padding=1), 2)
    torch.testing.assert_close(after.buffers[mean], 0.1 * pooled.mean((0, 2, 3)))
    before = {name: value.clone() for name, value in after.buffers.items()}
    sample = Exact().step(adaptation, start)
    assert torch.equal(sample.transition.after.buffers[mean], after.buffers[mean])
    assert all(torch.equal(after.buffers[name], value) for name, value in before.items())
    # At test one image's output does not depend on the others in the batch; in adaptation it does.
    images = next(iter(task.test_batches()))[0]
    tested = [learner.bind(after.theta, after.buffers, training=False)(images[:count])[:2] for count in (2, 6)]
    torch.testing.assert_close(tested[0], tested[1])
    adapted = [learner.bind(after.theta, after.buffers)(images[:count])[:2] for count in (2, 6)]
    assert not torch.allclose(adapted[0], adapted[1], atol=1e-3)


def _tasks(config: OmniglotConfig, store) -> TaskList:
    alphabets = Alphabets(open_store(store.path), config.seed, config.protocol)
    return alphabet_tasks(alphabets, alphabets.split(config.tasks).train, batch_size=config.batch_size)


def _one_meta_step(config: OmniglotConfig, store) -> Learner:
    chosen = recipe(config, DRAWINGS)
    update = MetaOptimiser(chosen.method, chosen.optimiser, clip=chosen.clip)
    batch = _tasks(config, store).meta_batch(0, config.meta_batch)
    chosen.algorithm.meta_step(chosen.method, batch, list(range(len(batch))), update)
    return chosen.method.learner
