"""Earlier sub-tasks that judge how far their predictions have moved since they ended: `credit="movement"`, and with
`credit="direction"` what of it the step's direction has brought about."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import warpgrad as wg
from tests.experiments.continual.test_continual_objective import stepped
from tests.support.continual_problems import N, T, double_task, learner
from tests.support.problems import Recorder, point_after, relative_error
from warpgrad.adaptation.base import Adaptation, Point
from warpgrad.adaptation.traced import traced_at_once
from warpgrad.algorithms.backend import BackendName
from warpgrad.algorithms.method import Method
from warpgrad.errors import WarpgradError
from warpgrad.experiments.continual.objective import (
    CREDITS,
    STEPPING,
    ApproximateLookBack,
    Credit,
    LookBack,
    by_direction,
)
from warpgrad.model.learner import Forward
from warpgrad.objectives import Objective
from warpgrad.tasks.continual import ContinualTask
from warpgrad.tensors import Tensors

K, RATE = 2 * N + 1, 0.2
"""A step of the third sub-task, with two to look back to."""


def moving() -> ContinualTask:
    return double_task(2, pad=False)


def mark(point: Point, place: int) -> Tensors:
    prefix = f"{place}/"
    return {name.removeprefix(prefix): value for name, value in point.memory.items() if name.startswith(prefix)}


@pytest.mark.parametrize("objective", [LookBack("movement"), ApproximateLookBack("movement")])
def test_the_gradient_is_that_of_the_movement(objective: Objective, gradient_error) -> None:
    """Central differences of Σ_{i<t} w_i L(F(θ'; φ) − F(θ̄_i; φ) + F(θ̄_i; φ₀)) + w_t L(F(θ'; φ)), where θ' is the step
    of φ (of φ₀ under the approximate objective) and φ₀ does not move."""
    task, model, before = moving(), learner(), learner()
    adaptation = Adaptation(model, wg.SGD(RATE), task, 0)
    point = point_after(adaptation, K, objective)
    found = objective.step(adaptation, point)
    inputs, targets, weights = task.meta_batch(K)

    def expected() -> float:
        moved = stepped(model if isinstance(objective, LookBack) else before, task, point, K, RATE)
        outputs = [model.bind(moved, point.buffers)(x) for x in inputs]
        for place in range(T - 1):
            ended, x = mark(point, place), inputs[place]
            outputs[place] += before.bind(ended, point.buffers)(x) - model.bind(ended, point.buffers)(x)
        terms = [F.mse_loss(output, target) for output, target in zip(outputs, targets, strict=True)]
        return (weights * torch.stack(terms)).sum().item()

    full = type(objective)("full").step(adaptation, point)
    assert float(found.meta_loss) == pytest.approx(float(full.meta_loss), rel=1e-13), "the loss itself is the same"
    assert gradient_error(found.phi, expected, model.phi) < 1e-8
    assert relative_error(found.phi, full.phi) > 1e-2


def test_by_direction_the_length_of_a_step_is_a_constant(gradient_error) -> None:
    """As above with θ̃ = θ'(φ₀) + w(d̂(φ) − d̂(φ₀)) for θ' in the terms of earlier sub-tasks, where d̂ is the step of φ at
    the length of φ₀'s."""
    task, model, before, objective = moving(), learner(), learner(), LookBack("direction")
    adaptation = Adaptation(model, wg.SGD(RATE), task, 0)
    point = point_after(adaptation, K, objective)
    found = objective.step(adaptation, point)
    inputs, targets, weights = task.meta_batch(K)
    reached = stepped(before, task, point, K, RATE)
    length = norm({name: value - point.theta[name] for name, value in reached.items()})

    def expected() -> float:
        moved = stepped(model, task, point, K, RATE)
        step = {name: value - point.theta[name] for name, value in moved.items()}
        turned = {
            name: value + objective.direction_weight * (length / norm(step) * step[name] - (value - point.theta[name]))
            for name, value in reached.items()
        }
        outputs = [model.bind(turned, point.buffers)(x) for x in inputs[:-1]]
        for place, x in enumerate(inputs[:-1]):
            ended = mark(point, place)
            outputs[place] += before.bind(ended, point.buffers)(x) - model.bind(ended, point.buffers)(x)
        outputs.append(model.bind(moved, point.buffers)(inputs[-1]))
        terms = [F.mse_loss(output, target) for output, target in zip(outputs, targets, strict=True)]
        return (weights * torch.stack(terms)).sum().item()

    movement = LookBack("movement").step(adaptation, point)
    assert float(found.meta_loss) == pytest.approx(float(movement.meta_loss), rel=1e-13), "the loss itself is the same"
    assert gradient_error(found.phi, expected, model.phi) < 1e-8
    assert relative_error(found.phi, movement.phi) > 1e-2


def norm(tensors: Tensors) -> torch.Tensor:
    return torch.cat([value.flatten() for value in tensors.values()]).norm()


def outputs_along(length: float, dtype: torch.dtype) -> tuple[Forward, Tensors, torch.Tensor, torch.Tensor]:
    """A model that a step of this length led to, where from, the length with a graph, and inputs."""
    model = learner()
    model.module.to(dtype)
    origin = model.start(0)
    stretch = torch.tensor(length, dtype=dtype, requires_grad=True)
    theta = {name: value + stretch * torch.randn_like(value) for name, value in origin.items()}
    return model.bind(theta, model.buffers()), origin, stretch, torch.randn(5, 1, dtype=dtype)


def test_a_longer_step_in_the_same_direction_changes_nothing_by_direction() -> None:
    forward, origin, stretch, inputs = outputs_along(0.3, torch.float64)
    outputs, plain = by_direction(forward, origin, 3.0)(inputs), forward(inputs)
    assert torch.equal(outputs, plain), "the same numbers"
    (along,) = torch.autograd.grad(outputs.square().sum(), stretch, retain_graph=True)
    (expected,) = torch.autograd.grad(plain.square().sum(), stretch)
    assert abs(along) < 1e-12 * abs(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_there_was_no_step_its_direction_has_a_finite_gradient(dtype: torch.dtype) -> None:
    forward, origin, stretch, inputs = outputs_along(0.0, dtype)
    (along,) = torch.autograd.grad(by_direction(forward, origin, 3.0)(inputs).square().sum(), stretch)
    assert torch.isfinite(along)


def test_settings_that_judge_nothing_are_refused() -> None:
    with pytest.raises(WarpgradError, match="direction_weight=0: a weight must be finite and above 0"):
        LookBack("direction", direction_weight=0)
    with pytest.raises(WarpgradError, match="judge_start=-1: a weight must be finite and at least 0"):
        LookBack(judge_start=-1)
    for credit in STEPPING:
        with pytest.raises(WarpgradError, match="judges the step itself, which ApproximateLookBack holds constant"):
            ApproximateLookBack(credit)


def test_what_has_not_moved_judges_nothing() -> None:
    """At θ̄_i and with hardly a step to take, earlier sub-tasks have no gradient; under full credit they do."""
    task, model, rule, objective = moving(), learner(), wg.SGD(1e-14), LookBack("movement")
    adaptation = Adaptation(model, rule, task, 0)
    point = point_after(adaptation, K, objective)
    found = objective.step(adaptation, point)
    inputs, targets, weights = task.meta_batch(K)
    alone = weights[-1] * F.mse_loss(model.bind(point.theta, point.buffers)(inputs[-1]), targets[-1])
    slopes = torch.autograd.grad(alone, list(model.phi.values()))
    expected = dict(zip(model.phi, slopes, strict=True))
    assert relative_error(found.phi, expected) < 1e-12
    assert relative_error(LookBack("full").step(adaptation, point).phi, expected) > 1e-2


def test_a_point_carries_theta_of_every_sub_task_that_ended() -> None:
    model, objective = learner(), LookBack("movement")
    adaptation = Adaptation(model, wg.SGD(RATE), moving(), 0)
    for k, count in ((0, 0), (N - 1, 0), (N, 1), (2 * N - 1, 1), (2 * N, 2), (T * N, 2)):
        assert len(point_after(adaptation, k, objective).memory) == count * len(model.theta0)
    point = point_after(adaptation, K, objective)
    for place in range(T - 1):
        ended = point_after(adaptation, (place + 1) * N).theta
        assert all(torch.equal(value, ended[name]) for name, value in mark(point, place).items())
    assert not point_after(adaptation, K, LookBack("step")).memory, "other credits need none"
    current = Adaptation(model, wg.SGD(RATE), double_task(2, "current"), 0)
    assert not point_after(current, K, objective).memory, "nothing looks back"


@pytest.mark.parametrize("credit", CREDITS)
def test_stacked_and_recorded_trajectories_are_the_loops(credit: Credit) -> None:
    tasks = [double_task(seed, pad=False) for seed in (1, 2, 3)]
    found: dict[BackendName, Tensors] = {}
    with traced_at_once():
        for backend in ("loop", "batched", "traced"):
            recorder = Recorder()
            algorithm = wg.Online(steps=T * N, tasks=3, backend=backend)
            method = Method(learner(), wg.SGD(RATE), LookBack(credit, judge_start=0.5))
            algorithm.meta_step(method, tasks, [0, 1, 2], recorder)
            (found[backend],) = recorder.of("phi")
    assert relative_error(found["batched"], found["loop"]) < 1e-10
    assert relative_error(found["traced"], found["loop"]) < 1e-10


@pytest.mark.parametrize("objective", [LookBack("movement"), LookBack(judge_start=0.5)])
def test_algorithms_that_see_single_points_refuse_it_in_a_sentence(objective: Objective) -> None:
    method = Method(learner(), wg.SGD(RATE), objective)
    for algorithm in (wg.Offline(steps=T * N, tasks=2, backend="loop"), wg.Continual(tasks=2, batches=1)):
        with pytest.raises(WarpgradError, match=r"only Algorithm 1 keeps: use Online\(\.\.\.\)"):
            algorithm.meta_step(method, [moving(), moving()], [0, 1], Recorder())


@pytest.mark.parametrize("pad", [True, False])
def test_points_without_snapshots_are_refused_in_a_sentence(pad: bool) -> None:
    adaptation = Adaptation(learner(), wg.SGD(RATE), double_task(2, pad=pad), 0)
    with pytest.raises(WarpgradError, match=r"only Algorithm 1 keeps.*pad=False"):
        LookBack("movement").step(adaptation, point_after(adaptation, K))
