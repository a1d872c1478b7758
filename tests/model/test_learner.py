"""Any module as a pure function of θ, φ and buffers: partition, purity, policies, keys."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import warpgrad as wg
from tests.support.problems import Recurrent, conv_batch_norm, make_task, mlp, point_after


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def names(group) -> set[str]:
    return set(group)


def test_partition_by_marker_by_pattern_and_by_predicate_agree():
    marked = net()
    assert wg.Warp(marked[2]) is marked[2]
    by_marker = wg.Learner(marked)
    by_pattern = wg.Learner(net(), warp="2")
    by_rest = wg.Learner(net(), task=["0.*", "4.weight", "4.bias"])
    by_predicate = wg.Learner(net(), warp=lambda name, module: module.in_features == module.out_features)
    for learner in (by_marker, by_pattern, by_rest, by_predicate):
        assert names(learner.phi) == {"2.weight", "2.bias"}
        assert names(learner.theta0) == {"0.weight", "0.bias", "4.weight", "4.bias"}


def test_patterns_reach_inside_a_tree():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1)

    class Tree(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer1, self.layer2, self.head = Block(), Block(), nn.Linear(1, 1)

    learner = wg.Learner(Tree(), warp="layer*.conv2")
    assert names(learner.phi) == {f"layer{i}.conv2.{kind}" for i in (1, 2) for kind in ("weight", "bias")}


def test_frozen_parameters_are_constant():
    module = net()
    module[0].requires_grad_(False)
    learner = wg.Learner(module, warp="2")
    assert names(learner.theta0) == {"4.weight", "4.bias"}
    assert learner.partition.constant == ("0.weight", "0.bias")
    other = wg.Learner(net(), warp="2", constant="0.bias")
    assert other.partition.constant == ("0.bias",)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "no warp parameters: wrap warp-layers in Warp"),
        ({"task": "0", "warp": "2"}, "parameter '4.weight' is in neither task= nor warp="),
        ({"task": ["0", "2", "4"], "warp": "2.weight"}, "parameter '2.weight' is in both task= and warp="),
        ({"warp": "layer2"}, "warp='layer2' matches no parameter"),
        ({"warp": "*"}, "no parameter is left to adapt"),
        ({"warp": "2", "batch_norm": "eval"}, "batch_norm='eval' is unknown"),
        ({"warp": "2", "start": {"0": "random"}}, "start policy 'random' of '0' is unknown"),
        ({"warp": "2", "start": {"2": "fresh"}}, "start pattern '2' matches no task parameter"),
    ],
)
def test_a_bad_partition_names_the_parameter(options, words):
    with pytest.raises(wg.WarpgradError, match=words):
        wg.Learner(net(), **options)


def test_other_models_that_cannot_be_learned_are_refused():
    with pytest.raises(wg.WarpgradError, match="Tanh has no parameters"):
        wg.Learner(nn.Tanh(), warp=())
    with pytest.raises(wg.WarpgradError, match="'weight' has no shape yet"):
        wg.Learner(nn.LazyLinear(3), warp=())
    with pytest.raises(wg.WarpgradError, match=r"Warp\(...\) marks an nn.Module, not a Parameter"):
        wg.Warp(nn.Parameter(torch.ones(1)))

    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))

    with pytest.raises(wg.WarpgradError, match="no reset_parameters"):
        wg.Learner(Bare(), warp=(), start={"w": "fresh"})


class Tied(nn.Module):
    """Encoder and decoder share one weight."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode, self.mix = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.decode.weight = self.encode.weight

    def forward(self, x):
        return self.decode(torch.tanh(self.mix(self.encode(x))))


def test_tied_weights_move_together_and_cannot_be_split():
    learner = wg.Learner(Tied(), warp="mix")
    assert "decode.weight" not in learner.theta0
    assert "encode.weight" in learner.theta0
    x = torch.randn(5, 3)
    task = wg.SupervisedTask(x, torch.randn(5, 3), F.mse_loss)
    adapted = wg.adapt(learner, task, rule=wg.SGD(0.1), steps=2)
    assert adapted.decode.weight is adapted.encode.weight
    twin = Tied()
    twin.load_state_dict(learner.module.state_dict())
    optimiser = torch.optim.SGD([p for n, p in twin.named_parameters() if not n.startswith("mix")], 0.1)
    for _ in range(2):
        optimiser.zero_grad()
        F.mse_loss(twin(x), task.adapt_batch(0)[1]).backward()
        optimiser.step()
    torch.testing.assert_close(adapted(x), twin(x))
    with pytest.raises(wg.WarpgradError, match=r"'decode.weight' is tied to 'encode.weight'"):
        wg.Learner(Tied(), warp="decode")


def test_an_unused_parameter_is_named_or_gets_zero():
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare, self.warp = nn.Linear(3, 2), nn.Linear(3, 2), wg.Warp(nn.Linear(2, 2))

        def forward(self, x):
            return self.warp(self.used(x))

    task = wg.SupervisedTask(torch.randn(4, 3), torch.randn(4, 2), F.mse_loss)
    strict = wg.Adaptation(wg.Learner(Spare()), wg.SGD(0.1), task, 0)
    with pytest.raises(wg.WarpgradError, match=r"parameter 'spare.weight' gets no gradient from the task loss"):
        strict.step(strict.start())
    lenient = wg.Adaptation(wg.Learner(Spare(), allow_unused=True), wg.SGD(0.1), task, 0)
    begin = lenient.start()
    after = wg.Exact().step(lenient, begin).transition.after
    assert torch.equal(after.theta["spare.weight"], begin.theta["spare.weight"])

    class Idle(Spare):
        def forward(self, x):
            return self.used(x) + self.spare(x)

    idle = wg.Adaptation(wg.Learner(Idle()), wg.SGD(0.1), task, 0)
    with pytest.raises(wg.WarpgradError, match=r"the meta loss depends on none of warp.weight, warp.bias"):
        wg.Approximate().step(idle, idle.start())


def test_losses_that_cannot_be_used_are_named():
    module = nn.Sequential(nn.Linear(3, 2), wg.Warp(nn.Linear(2, 2)))
    x, y = torch.randn(4, 3), torch.randn(4, 2)

    def step(task):
        adaptation = wg.Adaptation(wg.Learner(module), wg.SGD(0.1), task, 0)
        adaptation.step(adaptation.start())

    with pytest.raises(wg.WarpgradError, match=r"loss of task 'supervised' must be a scalar tensor, not shape"):
        step(wg.SupervisedTask(x, y, lambda a, b: (a - b).square()))
    with pytest.raises(wg.WarpgradError, match="must be a scalar tensor, not float"):
        step(wg.SupervisedTask(x, y, lambda a, b: 1.0))
    with pytest.raises(wg.WarpgradError, match=r"the task loss depends on none of 0.weight"):
        step(wg.SupervisedTask(x, y, lambda a, b: (a.detach() - b).square().mean()))
    with pytest.raises(wg.WarpgradError, match=r"task 'wide' failed in loss at step 0 .*\(4, 7\)"):
        step(wg.SupervisedTask(torch.randn(4, 7), y, F.mse_loss, name="wide"))
    with pytest.raises(wg.WarpgradError, match="task 'none' is empty: its training data has no examples"):
        wg.SupervisedTask(x[:0], y[:0], F.mse_loss, name="none")
    with pytest.raises(wg.WarpgradError, match="4 inputs but 3 targets"):
        wg.SupervisedTask(x, y[:3], F.mse_loss)
    with pytest.raises(wg.WarpgradError, match="batch_size=0"):
        wg.SupervisedTask(x, y, F.mse_loss, batch_size=0)
    with pytest.raises(wg.WarpgradError, match="at least one task"):
        wg.TaskList([])
    with pytest.raises(wg.NonFiniteError, match="the task loss of task 'supervised' is nan at step 0"):
        step(wg.SupervisedTask(x * float("nan"), y, F.mse_loss))


def test_the_forward_is_pure():
    module = conv_batch_norm()
    learner = wg.Learner(module)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    theta, buffers = learner.start(0), learner.buffers()
    kept = {name: value.clone() for name, value in buffers.items()}
    forward = learner.bind(theta, buffers)
    x = torch.randn(5, 1, 4, 4, dtype=torch.float64)
    first = forward(x)
    assert all(torch.equal(value, kept[name]) for name, value in buffers.items())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert int(forward.buffers["2.num_batches_tracked"]) == 1
    forward(x)
    assert int(forward.buffers["2.num_batches_tracked"]) == 2
    assert torch.equal(learner.bind(theta, buffers)(x), first)


def test_batch_norm_policies():
    x = torch.randn(6, 1, 4, 4, dtype=torch.float64)
    module = conv_batch_norm()
    module[2].running_mean.fill_(0.7)
    module[2].running_var.fill_(3.0)
    outputs = {}
    for policy in ("running", "batch", "frozen"):
        learner = wg.Learner(module, batch_norm=policy)
        buffers = learner.buffers()
        trained = learner.bind(learner.start(0), buffers)
        outputs[policy] = trained(x)
        tested = learner.bind(learner.start(0), buffers, training=False)(x)
        twin = conv_batch_norm()
        twin.load_state_dict(module.state_dict())
        twin.train(policy != "frozen")
        torch.testing.assert_close(outputs[policy], twin(x))
        if policy == "running":
            assert float(buffers["2.running_mean"].sum()) == 0.0
            assert not torch.allclose(tested, outputs[policy])
            assert not torch.equal(trained.buffers["2.running_mean"], buffers["2.running_mean"])
        else:
            assert torch.equal(tested, outputs[policy])
        if policy == "frozen":
            assert torch.equal(trained.buffers["2.running_mean"], module[2].running_mean)
    assert torch.equal(outputs["running"], outputs["batch"])
    assert not torch.allclose(outputs["batch"], outputs["frozen"])


def one_batch_norm():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2)).double()


def test_corrected_statistics_are_means_over_the_batches_alone():
    """After n batches with momentum m, batch i weighs m (1 − m)^(n − i) / (1 − (1 − m)^n): as here."""
    module = one_batch_norm()
    learner = wg.Learner(module, warp=(), batch_norm="corrected")
    theta, buffers = learner.start(0), learner.buffers()
    unseen = torch.randn(5, 1, 4, 4, dtype=torch.float64)
    assert torch.isfinite(learner.bind(theta, buffers, training=False)(unseen)).all()
    batches = [torch.randn(6, 1, 4, 4, dtype=torch.float64) + place for place in range(3)]
    for batch in batches:
        forward = learner.bind(theta, buffers)
        forward(batch)
        buffers = forward.buffers
    momentum = module[1].momentum
    weights = [momentum * (1 - momentum) ** (2 - place) for place in range(3)]
    inside = [module[0](batch).detach() for batch in batches]
    mean, variance = (
        sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)
        for values in ([x.mean((0, 2, 3)) for x in inside], [x.var((0, 2, 3)) for x in inside])
    )
    twin = one_batch_norm()
    twin.load_state_dict(module.state_dict())
    twin[1].running_mean.copy_(mean)
    twin[1].running_var.copy_(variance)
    expected = twin.eval()(unseen)
    torch.testing.assert_close(learner.bind(theta, buffers, training=False)(unseen), expected)
    torch.testing.assert_close(learner.adapted(theta, buffers)(unseen), expected)
    uncorrected = wg.Learner(module, warp=(), batch_norm="running").bind(theta, buffers, training=False)
    assert not torch.allclose(uncorrected(unseen), expected)


def test_a_cumulative_average_needs_no_correction():
    module = one_batch_norm()
    module[1].momentum = None
    learner = wg.Learner(module, warp=(), batch_norm="corrected")
    forward = learner.bind(learner.start(0), learner.buffers())
    forward(torch.randn(6, 1, 4, 4, dtype=torch.float64))
    unseen = torch.randn(5, 1, 4, 4, dtype=torch.float64)
    outputs = [
        wg.Learner(module, warp=(), batch_norm=policy).bind(learner.start(0), forward.buffers, training=False)(unseen)
        for policy in ("running", "corrected")
    ]
    assert torch.equal(*outputs)


def test_dropout_is_keyed_and_leaves_the_callers_random_state_alone():
    module = nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5), wg.Warp(nn.Linear(50, 2)))
    learner = wg.Learner(module)
    task = wg.SupervisedTask(torch.randn(4, 3), torch.randn(4, 2), F.mse_loss)

    def losses(key):
        adaptation = wg.Adaptation(learner, wg.SGD(0.1), task, key)
        point = adaptation.start()
        return [adaptation.task_loss(point.theta, point.buffers, k)[0].item() for k in (0, 0, 1)]

    first, again, later = losses(1)
    assert first == again != later
    assert losses(1)[0] == first != losses(2)[0]
    forward = learner.bind(learner.start(0), {}, key=3)
    ones = torch.ones(1, 3)
    assert not torch.equal(forward(ones), forward(ones))  # two calls in one loss: two masks
    tested = learner.bind(learner.start(0), {}, training=False)
    assert torch.equal(tested(ones), tested(ones))

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    unkeyed = learner.bind(learner.start(0), {})
    assert not torch.equal(unkeyed(ones), unkeyed(ones))
    torch.manual_seed(5)
    wg.adapt(learner, task, rule=wg.SGD(0.1), steps=2)
    assert torch.equal(torch.rand(3), expected)


def test_start_policies():
    learner = wg.Learner(net(), warp="2", start={"0": "fixed", "4": "fresh", "4.bias": "zero"})
    assert learner.learned == ()
    first, again, other = learner.start(1), learner.start(1), learner.start(2)
    assert torch.equal(first["0.weight"], learner.theta0["0.weight"])
    assert torch.equal(first["4.weight"], again["4.weight"])
    assert not torch.equal(first["4.weight"], other["4.weight"])
    assert torch.equal(other["4.bias"], torch.zeros(2))
    assert float(first["4.weight"].abs().max()) <= 0.5  # nn.Linear's own draw: within ±1/√4


def test_recurrent_modules_see_the_weights_they_are_given():
    module = Recurrent().double()
    learner = wg.Learner(module)
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    doubled = {name: 2 * value for name, value in learner.start(0).items()}
    twin = Recurrent().double()
    twin.load_state_dict({**module.state_dict(), **doubled})
    torch.testing.assert_close(learner.bind(doubled, {})(x), twin(x))


def test_attention_has_a_second_order():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    module = nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 2)).double()
    learner = wg.Learner(module, warp="0.self_attn")
    x = torch.randn(4, 3, 8, dtype=torch.float64)
    task = wg.SupervisedTask(x, torch.randn(4, 2, dtype=torch.float64), F.mse_loss)
    adaptation = wg.Adaptation(learner, wg.SGD(0.1), task, 0)
    exact = wg.Exact().step(adaptation, adaptation.start()).phi
    approximate = wg.Approximate().step(adaptation, adaptation.start()).phi
    assert not torch.allclose(exact["0.self_attn.in_proj_weight"], approximate["0.self_attn.in_proj_weight"])


@pytest.mark.parametrize("objective", [wg.Exact, wg.Approximate])
def test_an_identity_warp_is_the_plain_learner(objective):
    """Adapted side by side, a net with identity warp-layers and the net without them take the same steps."""
    plain = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    eye = nn.Linear(4, 4).double()
    with torch.no_grad():
        eye.weight.copy_(torch.eye(4))
        eye.bias.zero_()
    warped = nn.Sequential(plain[0], wg.Warp(eye), plain[1], plain[2])
    task = make_task(mlp)
    one = wg.Adaptation(wg.Learner(warped), wg.SGD(0.1, momentum=0.9), task, 0)
    two = wg.Adaptation(wg.Learner(plain, warp=()), wg.SGD(0.1, momentum=0.9), task, 0)
    found, expected = point_after(one, 5), point_after(two, 5)
    for name, other in (("0.weight", "0.weight"), ("3.weight", "2.weight"), ("3.bias", "2.bias")):
        torch.testing.assert_close(found.theta[name], expected.theta[other], rtol=1e-12, atol=1e-14)
    step = objective().step(one, found)
    assert float(step.transition.loss) == pytest.approx(float(two.step(expected).loss), abs=1e-13)
