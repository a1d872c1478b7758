"""Traced computations: bit for bit those of the stack, and given up wherever they could not be."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.fx import Graph
from torch.fx.experimental.proxy_tensor import make_fx

import warpgrad as wg
from tests.algorithms.test_backend import INITIALISERS, RULES
from tests.support.problems import Recorder, conv_batch_norm, make_task, mlp, relu_max_pool
from warpgrad.adaptation import traced as recording
from warpgrad.adaptation.traced import simplify


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Everything is traced when it is first computed."""
    monkeypatch.setattr(recording, "PATIENCE", 1)


def kinds(algorithm):
    """What an algorithm has computed, each with its graph or None."""
    return list(algorithm.backend.graphs.kinds.values())


def same_bits(backends, algorithm, method, tasks):
    """Two meta-steps by each of two backends, whose gradients must be equal; returns the algorithm of the second."""
    seen = []
    for backend in backends:
        own, recorder = algorithm(backend), Recorder()
        for step in range(2):
            own.meta_step(method, tasks, [place + 10 * step for place in range(len(tasks))], recorder)
        seen.append(recorder.seen)
    for (other, expected), (group, found) in zip(*seen, strict=True):
        assert group == other
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    return own


def compare(algorithm, method, tasks):
    """The stack and the traced stack, which must have run traced whatever it computed."""
    own = same_bits(("batched", "traced"), algorithm, method, tasks)
    assert kinds(own)
    assert all(kind.run is not None for kind in kinds(own))


@pytest.mark.parametrize("rule", RULES)
def test_every_rule(rule):
    method = wg.Method(wg.Learner(mlp()), RULES[rule](), wg.Exact(), wg.Leap())
    tasks = [make_task(mlp, seed) for seed in range(3)]
    compare(lambda backend: wg.Online(steps=3, tasks=3, backend=backend, chunk=2), method, tasks)


@pytest.mark.parametrize("initialiser", INITIALISERS)
def test_every_initialiser(initialiser):
    method = wg.Method(wg.Learner(mlp()), wg.SGD(0.1), wg.Exact(), INITIALISERS[initialiser]())
    tasks = [make_task(mlp, seed) for seed in range(3)]
    compare(lambda backend: wg.Online(steps=2, tasks=3, backend=backend), method, tasks)


@pytest.mark.parametrize("objective", [None, wg.Exact, wg.Approximate, wg.InPlace])
def test_every_objective_offline(objective):
    method = wg.Method(wg.Learner(mlp()), wg.SGD(0.1, momentum=0.9), objective and objective(), wg.Leap())
    tasks = [make_task(mlp, seed) for seed in range(3)]
    compare(lambda backend: wg.Offline(steps=4, tasks=3, samples=5, backend=backend, chunk=4), method, tasks)


def test_unrolled_and_continual():
    tasks = [make_task(mlp, seed) for seed in range(3)]
    method = wg.Method(wg.Learner(mlp()), wg.SGD(wg.Learned(0.1)))
    compare(lambda backend: wg.Unrolled(steps=3, tasks=3, backend=backend), method, tasks)
    stream = wg.Method(wg.Learner(mlp()), wg.SGD(0.1), wg.InPlace(), wg.MultiTask())
    compare(lambda backend: wg.Continual(tasks=3, batches=1, backend=backend), stream, tasks)


def test_long_unrolling_is_not_traced():
    method, algorithm = wg.Method(wg.Learner(mlp()), wg.SGD(0.1)), wg.Unrolled(steps=20, tasks=2, backend="traced")
    algorithm.meta_step(method, [make_task(mlp, seed) for seed in range(2)], [0, 1], Recorder())
    assert kinds(algorithm) == []


def test_batch_norm_statistics_move_as_they_do_untraced():
    method = wg.Method(wg.Learner(conv_batch_norm()), wg.SGD(0.1), wg.Exact(), wg.Leap())
    tasks = [make_task(conv_batch_norm, seed) for seed in range(2)]
    compare(lambda backend: wg.Online(steps=3, tasks=2, backend=backend), method, tasks)


class Scaled(nn.Module):
    """A model with a number, a constant parameter and, if asked, a decision of its own."""

    def __init__(self, decides: bool = False) -> None:
        super().__init__()
        self.body, self.warp = nn.Linear(3, 4), wg.Warp(nn.Linear(4, 2))
        self.offset = nn.Parameter(torch.ones(2), requires_grad=False)
        self.temperature = 1.0
        self.decides = decides

    def forward(self, x):
        hidden = self.warp(self.body(x).tanh())
        if self.decides and self.offset.sum() > 0:
            hidden = 2 * hidden
        return self.temperature * hidden + self.offset


def meta_gradient(algorithm, method):
    recorder = Recorder()
    algorithm.meta_step(method, [make_task(mlp, seed) for seed in range(2)], [0, 1], recorder)
    return recorder.seen[0][1]


def check(algorithm, method):
    expected = meta_gradient(wg.Online(steps=2, tasks=2, backend="batched"), method)
    found = meta_gradient(algorithm, method)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_changed_settings_and_constants_reach_the_graph():
    module, algorithm = Scaled().double(), wg.Online(steps=2, tasks=2, backend="traced")
    method = wg.Method(wg.Learner(module), wg.SGD(0.1), wg.Exact())
    check(algorithm, method)
    before = kinds(algorithm)
    check(algorithm, method)
    assert kinds(algorithm) == before  # nothing was traced anew
    with torch.no_grad():
        module.offset += 1
    check(algorithm, method)
    assert kinds(algorithm) == before  # constants go into a graph like all tensors
    module.temperature = 2.0
    check(algorithm, method)
    method.rule.lr = 0.2
    check(algorithm, method)


def test_settings_that_never_rest_are_given_up():
    module, algorithm = Scaled().double(), wg.Online(steps=2, tasks=2, backend="traced")
    method = wg.Method(wg.Learner(module), wg.SGD(0.1), wg.Exact())
    traced = []
    for step in range(recording.VERSIONS + 2):
        module.temperature = 1.0 + step
        check(algorithm, method)
        traced.append(all(kind.run is not None for kind in kinds(algorithm)))
    assert traced == [True] * recording.VERSIONS + [False, False]


def test_decisions_on_values_are_not_traced(caplog):
    module, algorithm = Scaled(decides=True).double(), wg.Online(steps=2, tasks=2, backend="traced")
    method = wg.Method(wg.Learner(module), wg.SGD(0.1), wg.Exact())
    with caplog.at_level(logging.INFO, logger="warpgrad"):
        check(algorithm, method)
    assert "steps are not traced" in caplog.text
    with torch.no_grad():
        module.offset.neg_()
    check(algorithm, method)
    assert all(kind.run is None for kind in kinds(algorithm))


def test_a_graph_with_other_numbers_is_refused(monkeypatch, caplog):
    def wrong(graph: Graph) -> None:
        simplify(graph)
        node = next(node for node in graph.nodes if node.target is torch.ops.aten.tanh.default)
        node.target = torch.ops.aten.sigmoid.default

    monkeypatch.setattr(recording, "simplify", wrong)
    method = wg.Method(wg.Learner(Scaled().double()), wg.SGD(0.1), wg.Exact())
    with caplog.at_level(logging.INFO, logger="warpgrad"):
        check(wg.Online(steps=2, tasks=2, backend="traced"), method)
    assert "their graph gives different numbers" in caplog.text


def test_a_number_that_is_not_finite_is_named_as_ever():
    method = wg.Method(wg.Learner(mlp()), wg.SGD(0.1), wg.Exact())
    algorithm = wg.Online(steps=2, tasks=2, backend="traced")
    meta_gradient(algorithm, method)
    with torch.no_grad():
        next(iter(method.learner.phi.values())).fill_(float("nan"))
    messages = []
    for own in (algorithm, wg.Online(steps=2, tasks=2, backend="loop")):
        with pytest.raises(wg.NonFiniteError) as caught:
            meta_gradient(own, method)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def compare_with_loop(algorithm, method, tasks):
    """The loop and `auto`, which leaves convolutions unstacked; returns what it computed, with a graph or None."""
    own = same_bits(("loop", "auto"), algorithm, method, tasks)
    return list(own.backend.alone.kinds.values())


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("make", [conv_batch_norm, relu_max_pool])
@pytest.mark.parametrize(
    ("algorithm", "objective", "initialiser"),
    [
        (lambda backend: wg.Online(steps=3, tasks=2, backend=backend), wg.Exact, wg.Leap),
        (lambda backend: wg.Online(steps=3, tasks=2, backend=backend), wg.Approximate, wg.MAML),
        (lambda backend: wg.Offline(steps=3, tasks=2, samples=1, backend=backend), wg.Exact, wg.Leap),
        (lambda backend: wg.Offline(steps=3, tasks=2, samples=4, backend=backend), wg.InPlace, wg.Reptile),
        (lambda backend: wg.Unrolled(steps=3, tasks=2, backend=backend), None, wg.Fixed),
    ],
)
def test_convolutions_are_traced_task_by_task(make, algorithm, objective, initialiser, channels_last):
    learner = wg.Learner(make(), warp=None if objective else (), channels_last=channels_last)
    method = wg.Method(learner, wg.SGD(0.1, momentum=0.9), objective and objective(), initialiser())
    found = compare_with_loop(algorithm, method, [make_task(make, seed) for seed in range(2)])
    assert found
    assert all(kind.run is not None for kind in found)


class Regular(nn.Module):
    """A convolutional model with something besides arithmetic in its forward pass."""

    def __init__(self, rate=0.0):
        super().__init__()
        self.body, self.dropout, self.rate = conv_batch_norm(), nn.Dropout(0.5), rate
        self.kept, self.last, self.count = [], None, 0

    def forward(self, x):
        hidden = self.body(x)
        return self.dropout(hidden) if self.rate else hidden


class Keeping(Regular):
    def forward(self, x):
        self.last = super().forward(x)
        return self.last


class Collecting(Regular):
    def forward(self, x):
        hidden = super().forward(x)
        self.kept.append(hidden.detach())
        return hidden


class Counting(Regular):
    def forward(self, x):
        self.count += 1
        return super().forward(x)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: Regular(rate=0.5), "torch's generator"),
        (Keeping, "attribute 'last'"),
        (Collecting, "attribute 'kept'"),
        (Counting, "attribute 'count'"),
    ],
)
def test_a_pass_that_does_more_than_compute_is_not_traced(model, reason, caplog):
    module = model()
    method = wg.Method(wg.Learner(module), wg.SGD(0.1), wg.Exact(), wg.Leap())
    tasks = [make_task(conv_batch_norm, seed) for seed in range(2)]
    with caplog.at_level(logging.INFO, logger="warpgrad"):
        found = compare_with_loop(lambda backend: wg.Online(steps=2, tasks=2, backend=backend), method, tasks)
    assert reason in caplog.text
    assert all(kind.run is None for kind in found)
    for left in (module.last, *module.kept):
        assert left is None or type(left) is torch.Tensor, "tensors without data are not left behind"


def test_hooks_are_called_as_without_graphs():
    module, called = conv_batch_norm(), []
    module[0].register_forward_hook(lambda *_: called.append(1))
    method = wg.Method(wg.Learner(module), wg.SGD(0.1), wg.Exact(), wg.Leap())
    tasks = [make_task(conv_batch_norm, seed) for seed in range(2)]
    assert compare_with_loop(lambda backend: wg.Online(steps=2, tasks=2, backend=backend), method, tasks) == []
    assert len(called) == 2 * 2 * 2 * (2 * 2 + 1), "backends, meta-steps, tasks; two losses a step, and Leap's last"


def test_what_changes_no_number_is_struck_out():
    graph, aten = Graph(), torch.ops.aten
    x = graph.placeholder("x")
    one = graph.call_function(aten.mul.Scalar, (graph.call_function(aten.detach.default, (x,)), 1))
    twice = graph.call_function(aten.mul.Scalar, (one, 2))
    again = graph.call_function(aten.mul.Scalar, (x, 2))
    graph.call_function(aten.neg.default, (x,))
    graph.output(graph.call_function(aten.add.Tensor, (twice, again)))
    simplify(graph)
    assert [str(node.target) for node in graph.nodes] == ["x", "aten.mul.Scalar", "aten.add.Tensor", "output"]


def test_views_that_undo_or_repeat_each_other_are_struck_out():
    def turned(x):
        again = x.t().t().view(2, 3).view(6).view(3, 2)
        return again.expand(3, 2).transpose(0, 1).transpose(0, 1) + x.view(6).view(3, 2), x.transpose(0, 1) * 2

    given = torch.randn(2, 3)
    with torch.no_grad():
        module = make_fx(turned, tracing_mode="fake")(given)
    simplify(module.graph)
    module.recompile()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(module(given), turned(given), strict=True))
    left = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    assert left == ["aten.view.default", "aten.add.Tensor", "aten.transpose.int", "aten.mul.Tensor"]
