"""Continual tasks inside Eq. 11: central differences, stacks that equal loops, padding."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import warpgrad as wg
from tests.support.continual_problems import N, T, double_task, learner
from tests.support.problems import Recorder, point_after, relative_error
from warpgrad.adaptation.base import Adaptation, Point
from warpgrad.adaptation.stacked import BatchedAdaptation
from warpgrad.algorithms.method import Method
from warpgrad.experiments.continual.objective import CREDITS, Credit, LookBack
from warpgrad.keys import generator
from warpgrad.tasks.continual import WEIGHTINGS, ContinualTask, TensorSubTask, Weighting
from warpgrad.tensors import Tensors


def stepped(model: wg.Learner, task: ContinualTask, point: Point, k: int, rate: float) -> Tensors:
    """θ − α ∇L_task(θ; φ), outside any graph."""
    theta = {name: value.clone().requires_grad_() for name, value in point.theta.items()}
    loss = task.loss(model.bind(theta, point.buffers), task.adapt_batch(k))
    slopes = torch.autograd.grad(loss, list(theta.values()))
    return {name: (value - rate * slope).detach() for (name, value), slope in zip(theta.items(), slopes, strict=True)}


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_the_exact_objective_matches_central_differences(weighting: Weighting, gradient_error) -> None:
    task, model, rule = double_task(2, weighting), learner(), wg.SGD(0.2)
    adaptation = Adaptation(model, rule, task, 0)
    point = point_after(adaptation, 2 * N + 1)
    found = wg.Exact().step(adaptation, point)

    def objective() -> float:
        moved = stepped(model, task, point, 2 * N + 1, 0.2)
        return task.meta_loss(model.bind(moved, point.buffers), task.meta_batch(2 * N + 1)).item()

    assert float(found.meta_loss) == pytest.approx(objective(), rel=1e-13)
    assert gradient_error(found.phi, objective, model.phi) < 1e-8


def test_with_credit_for_the_step_earlier_terms_hold_the_warp_of_the_model_constant(gradient_error) -> None:
    """Central differences of Σ_{i<t} w_i L(θ'(φ); φ₀) + w_t L(θ'(φ); φ), where θ' is the step and φ₀ does not move."""
    k, rate = 2 * N + 1, 0.2
    task, model, before = double_task(2), learner(), learner()
    adaptation = Adaptation(model, wg.SGD(rate), task, 0)
    point = point_after(adaptation, k)
    found = LookBack("step").step(adaptation, point)
    inputs, targets, weights = task.meta_batch(k)

    def objective() -> float:
        moved = stepped(model, task, point, k, rate)
        judges = [*[before.bind(moved, point.buffers)] * (T - 1), model.bind(moved, point.buffers)]
        terms = [F.mse_loss(judge(x), y) for judge, x, y in zip(judges, inputs, targets, strict=True)]
        return (weights * torch.stack(terms)).sum().item()

    full = wg.Exact().step(adaptation, point)
    assert float(found.meta_loss) == pytest.approx(float(full.meta_loss), rel=1e-13), "the loss itself is the same"
    assert gradient_error(found.phi, objective, model.phi) < 1e-8
    assert relative_error(found.phi, full.phi) > 1e-2


def test_every_credit_is_full_credit_while_there_is_nothing_to_look_back_to() -> None:
    model = learner()
    found = []
    for credit in CREDITS:
        adaptation = Adaptation(model, wg.SGD(0.2), double_task(2, pad=False), 0)
        found.append(LookBack(credit).step(adaptation, point_after(adaptation, N - 1)).phi)
    assert all(relative_error(other, found[0]) < 1e-13 for other in found)


def test_theta0_is_judged_with_full_credit_because_no_step_led_there() -> None:
    model = learner()
    found = []
    for credit in CREDITS:
        adaptation = Adaptation(model, wg.SGD(0.2), double_task(2), 0)
        sample = LookBack(credit, judge_start=0.5).at_start(adaptation, adaptation.start())
        assert sample is not None
        found.append(sample.phi)
    assert all(relative_error(other, found[0]) == 0 for other in found)
    assert all(value.abs().sum() > 0 for value in found[0].values())


@pytest.mark.parametrize("credit", ["full", "step"])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_points_of_different_sub_tasks_stack_to_the_sum_of_the_loop(weighting: Weighting, credit: Credit) -> None:
    model, rule = learner(), wg.SGD(0.2)
    tasks, objective = [double_task(seed, weighting) for seed in (1, 2, 2, 3)], LookBack(credit)
    steps = (0, N, 2 * N + 2, N - 1)
    singles = [Adaptation(model, rule, task, 0) for task in tasks]
    points = [point_after(single, k) for single, k in zip(singles, steps, strict=True)]
    looped = [objective.step(single, point) for single, point in zip(singles, points, strict=True)]
    stack = BatchedAdaptation(model, rule, tasks, [0] * 4)
    stacked = objective.step(stack, stack.stack(points))
    expected = {name: sum((one.phi[name] for one in looped), torch.zeros(())) for name in stacked.phi}
    assert relative_error(stacked.phi, expected) < 1e-10
    for place, one in enumerate(looped):
        torch.testing.assert_close(stacked.meta_loss[place], one.meta_loss, rtol=1e-10, atol=0)
        for name, value in one.transition.after.theta.items():
            torch.testing.assert_close(stacked.transition.after.theta[name][place], value, rtol=1e-10, atol=1e-14)


def test_all_points_at_once_are_algorithm_1() -> None:
    """Offline with η = all points, stacked, gives the online loop's gradient."""
    tasks = [double_task(seed) for seed in (1, 2, 3)]
    found = []
    for algorithm in (
        wg.Online(steps=T * N, tasks=3, backend="loop", reduction="sum"),
        wg.Offline(steps=T * N, tasks=3, samples=None, backend="batched", chunk=5, reduction="sum"),
    ):
        recorder = Recorder()
        algorithm.meta_step(Method(learner(), wg.SGD(0.2), wg.Exact()), tasks, [0, 1, 2], recorder)
        (gradient,) = recorder.of("phi")
        found.append(gradient)
    assert relative_error(found[1], found[0]) < 1e-10


@pytest.mark.parametrize("credit", ["full", "step"])
def test_padding_changes_shapes_and_no_number(credit: Credit) -> None:
    model, rule = learner(), wg.SGD(0.2)
    padded, bare = double_task(2), double_task(2, pad=False)
    for k in (0, N, 2 * N):
        assert padded.meta_batch(k)[0].shape == (T, 2, 1)
        assert bare.meta_batch(k)[0].shape == (k // N + 1, 2, 1)
        found = [
            LookBack(credit).step(one, point_after(one, k))
            for one in (Adaptation(model, rule, task, 0) for task in (padded, bare))
        ]
        assert relative_error(found[0].phi, found[1].phi) < 1e-13
    assert padded.stack_key != bare.stack_key


def test_without_padding_tasks_in_step_still_stack() -> None:
    tasks = [double_task(seed, pad=False) for seed in (1, 2, 3)]
    found = []
    for backend in ("loop", "batched"):
        recorder = Recorder()
        algorithm = wg.Online(steps=T * N, tasks=3, backend=backend)  # type: ignore[arg-type]
        algorithm.meta_step(Method(learner(), wg.SGD(0.2), wg.Exact()), tasks, [0, 1, 2], recorder)
        found += recorder.of("phi")
    assert relative_error(found[1], found[0]) < 1e-10


def test_a_user_can_adapt_to_a_sequence_of_their_own_data_sets() -> None:
    draw = generator("user")
    parts = []
    for place in range(2):
        inputs = torch.randn(20 + place, 6, generator=draw) + 3.0 * place
        parts.append(TensorSubTask((inputs, (inputs[:, 0] > 3.0 * place).long())))
    task = ContinualTask(
        parts, F.cross_entropy, steps_per_subtask=15, batch_size=8, metrics={"accuracy": wg.tasks.accuracy}
    )
    model = wg.Learner(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)), warp=())
    module, curve = wg.adapt(model, task, rule=wg.SGD(0.5), steps=30, curve=True, test_every=30)
    assert curve.scores[1]["loss"] < curve.scores[0]["loss"]
    right = [float(wg.tasks.accuracy(module(x), y)) * len(x) for x, y in task.test_batches()]
    assert curve.scores[1]["accuracy"] == pytest.approx(sum(right) / 41)  # the mean over examples, 20 and 21
