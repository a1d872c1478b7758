"""The batched backend equals the loop, and gives way to it where it cannot be used."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import warpgrad as wg
from tests.support.problems import Position, Quadratic, Recorder, conv_batch_norm, make_task, mlp, relative_error
from warpgrad.algorithms import backend as probe

RULES = {
    "sgd": lambda: wg.SGD(0.1),
    "momentum": lambda: wg.SGD(0.1, momentum=0.9),
    "adam": lambda: wg.Adam(0.05, eps=0.1),
    "clip": lambda: wg.Clip(wg.SGD(0.1), norm=0.05),
    "learned": lambda: wg.SGD(wg.Learned(0.1)),
}
INITIALISERS = {
    "none": wg.Fixed,
    "leap": wg.Leap,
    "reptile": wg.Reptile,
    "fomaml": wg.FOMAML,
    "maml": wg.MAML,
    "multi-task": wg.MultiTask,
    "prior": lambda: wg.GaussianPrior(wg.Leap(), std=0.1),
}


def both(algorithm, method, tasks):
    """The meta-gradients of the loop and of the stack."""
    results = []
    for backend in ("loop", "batched"):
        recorder = Recorder()
        own = algorithm(backend)
        own.meta_step(method, tasks, list(range(len(tasks))), recorder)
        results.append(recorder)
    return results


def compare(loop, batched):
    assert [group for group, _ in loop.seen] == [group for group, _ in batched.seen]
    for (_, expected), (_, found) in zip(loop.seen, batched.seen, strict=True):
        assert relative_error(found, expected) < 1e-10


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chunk", [2, 64])
def test_online_with_every_rule(rule, chunk):
    method = wg.Method(wg.Learner(mlp()), RULES[rule](), wg.Exact(), wg.Reptile())
    tasks = [make_task(mlp, seed) for seed in range(5)]
    compare(*both(lambda backend: wg.Online(steps=3, tasks=5, backend=backend, chunk=chunk), method, tasks))


@pytest.mark.parametrize("initialiser", INITIALISERS)
@pytest.mark.parametrize("objective", [wg.Exact, wg.Approximate, wg.InPlace])
def test_online_with_every_initialiser_and_objective(initialiser, objective):
    method = wg.Method(wg.Learner(mlp()), wg.SGD(0.1), objective(), INITIALISERS[initialiser]())
    tasks = [make_task(mlp, seed) for seed in range(3)]
    compare(*both(lambda backend: wg.Online(steps=3, tasks=3, backend=backend), method, tasks))


@pytest.mark.parametrize("interleave", [False, True])
def test_offline_stacks_points_of_different_steps(interleave):
    method = wg.Method(wg.Learner(mlp()), wg.SGD(0.1, momentum=0.9), wg.Exact(), wg.Leap())
    tasks = [make_task(mlp, seed) for seed in range(3)]

    def algorithm(backend):
        return wg.Offline(steps=4, tasks=3, samples=5, interleave=interleave, backend=backend, chunk=4)

    compare(*both(algorithm, method, tasks))


def test_unrolled_and_continual():
    tasks = [make_task(mlp, seed) for seed in range(3)]
    method = wg.Method(wg.Learner(mlp()), wg.SGD(wg.Learned(0.1)))
    compare(*both(lambda backend: wg.Unrolled(steps=3, tasks=3, backend=backend), method, tasks))
    stream = wg.Method(wg.Learner(mlp()), wg.SGD(0.1), wg.InPlace(), wg.MultiTask())
    compare(*both(lambda backend: wg.Continual(tasks=3, batches=1, backend=backend), stream, tasks))


def test_batch_norm_statistics_are_kept_per_task():
    learner = wg.Learner(conv_batch_norm())
    method = wg.Method(learner, wg.SGD(0.1), wg.Exact(), wg.Leap())
    tasks = [make_task(conv_batch_norm, seed) for seed in range(3)]
    compare(*both(lambda backend: wg.Online(steps=3, tasks=3, backend=backend), method, tasks))
    stack = wg.BatchedAdaptation(learner, method.rule, tasks, [0, 1, 2])
    found = stack.split(stack.step(stack.start()).after.buffers)
    for place, task in enumerate(tasks):
        single = wg.Adaptation(learner, method.rule, task, place)
        for name, value in single.step(single.start()).after.buffers.items():
            torch.testing.assert_close(found[place][name], value)


def test_dropout_goes_to_the_loop_with_a_line_in_the_log(caplog):
    module = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), wg.Warp(nn.Linear(4, 2))).double()
    method = wg.Method(wg.Learner(module), wg.SGD(0.1), wg.Exact())
    tasks = [make_task(mlp, seed) for seed in range(3)]
    with caplog.at_level(logging.INFO, logger="warpgrad"):
        found, expected = Recorder(), Recorder()
        wg.Online(steps=2, tasks=3).meta_step(method, tasks, [1, 2, 3], found)
        wg.Online(steps=2, tasks=3, backend="loop").meta_step(method, tasks, [1, 2, 3], expected)
    compare(expected, found)
    assert "one by one" in caplog.text
    with pytest.raises(wg.WarpgradError, match="backend='batched' cannot be used"):
        wg.Online(steps=2, tasks=3, backend="batched").meta_step(method, tasks, [1, 2, 3], Recorder())


def test_a_loss_that_hides_state_is_caught_by_the_probe(caplog):
    class Hidden(Quadratic):
        def loss(self, forward, batch):
            return super().loss(forward, batch) + (forward() * self.c).sum()

    warp = nn.Linear(3, 3).double()
    method = wg.Method(wg.Learner(Position(torch.ones(3, dtype=torch.float64), warp)), wg.SGD(0.1), wg.Exact())
    with caplog.at_level(logging.INFO, logger="warpgrad"):
        wg.Online(steps=2, tasks=2).meta_step(method, [Hidden(0), Hidden(1)], [1, 2], Recorder())
    assert "stacking changes the numbers" in caplog.text


def test_convolutions_on_a_cpu_are_left_to_the_loop():
    algorithm = wg.Online(steps=1, tasks=2)
    method = wg.Method(wg.Learner(conv_batch_norm()), wg.SGD(0.1), wg.Exact())
    tasks = [make_task(conv_batch_norm, seed) for seed in range(2)]
    assert not algorithm.backend.stacks(method, tasks, [0, 1])
    small = wg.Method(wg.Learner(mlp()), wg.SGD(0.1), wg.Exact())
    assert wg.Online(steps=1, tasks=2).backend.stacks(small, [make_task(mlp, s) for s in range(2)], [0, 1])


def test_a_nan_names_its_own_task_in_a_stack():
    tasks = [make_task(mlp, seed, batch_size=None) for seed in range(3)]
    tasks[1].adapt_batch(0)[1].fill_(float("nan"))  # the whole of the task's data, not a copy
    stack = wg.BatchedAdaptation(wg.Learner(mlp()), wg.SGD(0.1), tasks, [0, 1, 2])
    with pytest.raises(wg.NonFiniteError, match="task 't1' is nan at step 0"):
        stack.step(stack.start())


class Single(wg.SupervisedTask):
    """Data in single precision, and a loss that is a product with a matrix in single precision."""

    def loss(self, forward, batch):
        inputs, targets = batch
        return ((forward(inputs) - targets) @ torch.eye(2)).square().mean()


def in_single_precision(kind, seed):
    inputs, targets = make_task(mlp, seed, batch_size=None).adapt_batch(0)
    return kind(inputs.float(), targets.float(), nn.functional.mse_loss)


def test_the_probe_is_not_fooled_by_single_precision(monkeypatch):
    """Where units sit at their threshold, single precision would flip some of them and refuse a stack that is right."""
    monkeypatch.setattr(probe, "TOLERANCE_SINGLE", 0.0)
    method = wg.Method(wg.Learner(mlp().float()), wg.SGD(0.1), wg.Exact())
    assert (
        probe.why_not_stackable(method, [in_single_precision(wg.SupervisedTask, seed) for seed in range(2)], [0, 1])
        is None
    )
    assert all(value.dtype == torch.float32 for value in method.learner.phi.values())


def test_the_probe_keeps_to_the_precision_that_a_loss_insists_on():
    method = wg.Method(wg.Learner(mlp().float()), wg.SGD(0.1), wg.Exact())
    tasks = [in_single_precision(Single, seed) for seed in range(2)]
    assert probe.why_not_stackable(method, tasks, [0, 1]) is None
    in_double = wg.Method(wg.Learner(mlp()), wg.SGD(0.1), wg.Exact())
    with pytest.raises(wg.WarpgradError, match="failed in loss"):  # so the probe had to keep to single precision
        wg.Online(steps=1, tasks=2, backend="loop").meta_step(in_double, tasks, [0, 1], Recorder())
