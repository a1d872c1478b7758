"""Objectives against float64 differences, unrolled references and their definitions."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

import warpgrad as wg
from tests.support.problems import (
    conv_batch_norm,
    make_task,
    mlp,
    point_after,
    recurrent,
    relative_error,
    relu_max_pool,
)
from warpgrad.tensors import select

RULES = {
    "sgd": lambda: wg.SGD(0.3),
    "momentum": lambda: wg.SGD(0.3, momentum=0.8),
    "nesterov": lambda: wg.SGD(0.3, momentum=0.8, nesterov=True, weight_decay=0.1),
    "adam": lambda: wg.Adam(0.3, eps=0.1),
    "clipped": lambda: wg.Clip(wg.SGD(0.3), norm=0.05),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("make", [mlp, recurrent])
def test_exact_equals_central_differences(make, rule, gradient_error):
    learner = wg.Learner(make())
    adaptation = wg.Adaptation(learner, RULES[rule](), make_task(make), key=1)
    point = point_after(adaptation, 3)
    objective = wg.Exact()
    found = objective.step(adaptation, point).phi
    assert gradient_error(found, lambda: float(objective.step(adaptation, point).meta_loss), learner.phi) < 1e-6


@pytest.mark.parametrize("rule", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("policy", ["running", "corrected", "batch", "frozen"])
def test_exact_equals_central_differences_with_batch_norm(policy, rule, gradient_error):
    module = conv_batch_norm()
    for child in module.modules():
        if isinstance(child, torch.nn.BatchNorm2d):  # statistics that "frozen" can be seen to use
            child.running_mean.normal_(std=0.3)
            child.running_var.uniform_(0.5, 2.0)
    learner = wg.Learner(module, batch_norm=policy)
    adaptation = wg.Adaptation(learner, RULES[rule](), make_task(conv_batch_norm), key=1)
    point = point_after(adaptation, 2)
    found = wg.Exact().step(adaptation, point).phi
    assert gradient_error(found, lambda: float(wg.Exact().step(adaptation, point).meta_loss), learner.phi) < 1e-6


@pytest.mark.parametrize("make", [relu_max_pool, mlp])
def test_exact_equals_an_unrolled_reference(make):
    """The same objective written out with the module and autograd alone, for nets that differences cannot check."""
    module = make()
    learner = wg.Learner(module)
    task = make_task(make)
    adaptation = wg.Adaptation(learner, wg.SGD(0.2), task, key=1)
    point = point_after(adaptation, 2)
    found = wg.Exact().step(adaptation, point)

    buffers = {name: value.clone() for name, value in point.buffers.items()}
    theta = {name: value.clone().requires_grad_() for name, value in point.theta.items()}
    inputs, targets = task.adapt_batch(2)
    loss = F.mse_loss(functional_call(module, {**theta, **learner.phi, **buffers}, (inputs,)), targets)
    slopes = torch.autograd.grad(loss, list(theta.values()), create_graph=True)
    moved = {name: value - 0.2 * slope for (name, value), slope in zip(theta.items(), slopes, strict=True)}
    inputs, targets = task.meta_batch(2)
    meta = F.mse_loss(functional_call(module, {**moved, **learner.phi, **buffers}, (inputs,)), targets)
    expected = torch.autograd.grad(meta, list(learner.phi.values()))

    assert abs(float(found.meta_loss - meta.detach())) < 1e-12
    assert relative_error(found.phi, dict(zip(learner.phi, expected, strict=True))) < 1e-10


@pytest.mark.parametrize("make", [mlp, conv_batch_norm, recurrent])
def test_approximate_is_its_definition_and_differs_from_exact(make):
    learner = wg.Learner(make())
    rule = wg.SGD(0.3, momentum=0.8)
    adaptation = wg.Adaptation(learner, rule, make_task(make), key=1)
    point = point_after(adaptation, 2)
    approximate = wg.Approximate().step(adaptation, point)

    after = adaptation.step(point).after
    loss = adaptation.meta_loss(after.theta, after.buffers, 2)
    expected = dict(zip(learner.phi, torch.autograd.grad(loss, list(learner.phi.values())), strict=True))
    assert relative_error(approximate.phi, expected) < 1e-14

    exact = wg.Exact().step(adaptation, point)
    assert float(exact.meta_loss) == pytest.approx(float(approximate.meta_loss), abs=1e-14)
    # The second-order term is really there: at these step sizes it is a sizeable part of the gradient.
    assert relative_error(approximate.phi, exact.phi) > 1e-2
    for name, value in exact.transition.after.theta.items():
        torch.testing.assert_close(value, approximate.transition.after.theta[name], rtol=0, atol=1e-14)


def test_exact_equals_approximate_when_no_step_is_felt():
    """As α → 0 the two objectives meet; the difference is of order α."""
    learner = wg.Learner(mlp())
    gaps = []
    for lr in (1e-2, 1e-3):
        adaptation = wg.Adaptation(learner, wg.SGD(lr), make_task(mlp), key=1)
        point = adaptation.start()
        gaps.append(
            relative_error(wg.Approximate().step(adaptation, point).phi, wg.Exact().step(adaptation, point).phi)
        )
    assert gaps[1] == pytest.approx(gaps[0] / 10, rel=0.1)


def test_in_place_is_one_backward_pass_for_both_gradients():
    learner = wg.Learner(mlp())
    adaptation = wg.Adaptation(learner, wg.SGD(0.1), make_task(mlp), key=1)
    point = point_after(adaptation, 2)
    found = wg.InPlace().step(adaptation, point)

    theta = {name: value.clone().requires_grad_() for name, value in point.theta.items()}
    loss, _ = adaptation.task_loss(theta, point.buffers, 2)
    slopes = torch.autograd.grad(loss, [*theta.values(), *learner.phi.values()])
    expected = dict(zip([*theta, *learner.phi], slopes, strict=True))
    assert relative_error(found.transition.gradient, select(expected, theta)) < 1e-14
    assert relative_error(found.phi, select(expected, learner.phi)) < 1e-14
    assert float(found.meta_loss) == float(loss.detach())


class TwoLosses(wg.SupervisedTask):
    """Adapts by squared error, is judged by absolute error and a penalty."""

    def meta_loss(self, forward, batch):
        inputs, targets = batch
        prediction = forward(inputs)
        return (prediction - targets).abs().mean() + prediction.square().mean()


def test_task_and_meta_loss_may_differ(gradient_error):
    learner = wg.Learner(mlp())
    adaptation = wg.Adaptation(learner, wg.SGD(0.3), make_task(mlp, kind=TwoLosses), key=1)
    point = point_after(adaptation, 2)
    for objective in (wg.Exact(), wg.InPlace()):
        found = objective.step(adaptation, point)
        judged = partial(objective.step, adaptation, point)
        assert gradient_error(found.phi, lambda judged=judged: float(judged().meta_loss), learner.phi) < 1e-6
        inner = adaptation.inner(point)
        assert relative_error(found.transition.gradient, inner.gradient) < 1e-14


@pytest.mark.parametrize("rule", [lambda lr: wg.SGD(lr), lambda lr: wg.Adam(lr, eps=0.1)])
def test_a_learned_step_size_gets_its_exact_gradient(rule, gradient_error):
    learner = wg.Learner(mlp())
    own = rule(wg.Learned(0.2))
    own.prepare(learner.theta0)
    adaptation = wg.Adaptation(learner, own, make_task(mlp), key=1)
    point = point_after(adaptation, 2)
    found = wg.Exact().step(adaptation, point).rule
    assert gradient_error(found, lambda: float(wg.Exact().step(adaptation, point).meta_loss), own.meta) < 1e-6


def test_no_graph_outlives_a_step():
    learner = wg.Learner(mlp())
    adaptation = wg.Adaptation(learner, wg.SGD(0.1, momentum=0.9), make_task(mlp), key=1)
    for objective in (wg.Exact(), wg.Approximate(), wg.InPlace()):
        step = objective.step(adaptation, adaptation.start())
        after = step.transition.after
        left = [*after.theta.values(), *after.state.values(), *step.phi.values(), step.meta_loss]
        left += [step.transition.loss, *step.transition.gradient.values()]
        assert not any(value.requires_grad for value in left)


@pytest.mark.parametrize("objective", [wg.Exact, wg.Approximate, wg.InPlace])
def test_the_meta_loss_leaves_the_tasks_statistics_untouched(objective):
    module = conv_batch_norm()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    adaptation = wg.Adaptation(wg.Learner(module), wg.SGD(0.1), make_task(conv_batch_norm), key=1)
    point = point_after(adaptation, 1)
    kept = {name: value.clone() for name, value in point.buffers.items()}
    plain = adaptation.step(point).after.buffers
    found = objective().step(adaptation, point).transition.after.buffers
    for name, value in kept.items():
        assert torch.equal(point.buffers[name], value)
        assert torch.equal(found[name], plain[name])
    assert any(not torch.equal(found[name], kept[name]) for name in kept)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
