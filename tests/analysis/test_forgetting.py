"""Scores of forgetting for anybody's sequences of data sets."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import warpgrad as wg
from warpgrad.analysis.forgetting import Curves, forgetting_scores, learning_curves
from warpgrad.baselines import OnlineEWC
from warpgrad.tasks import ContinualTask, TensorSubTask


def sequence(seed: int, **options) -> ContinualTask:
    """Three linear maps from two numbers to one, 12 examples each."""
    draw = torch.Generator().manual_seed(seed)
    parts = []
    for _ in range(3):
        x = torch.randn(12, 2, generator=draw, dtype=torch.float64)
        parts.append(TensorSubTask((x, x @ torch.randn(2, 1, generator=draw, dtype=torch.float64))))
    return ContinualTask(parts, F.mse_loss, steps_per_subtask=4, batch_size=6, seed=seed, **options)


def test_curves_of_own_data_are_those_of_adapt_step_by_step():
    learner, rule = wg.Learner(nn.Linear(2, 1).double(), warp=()), wg.SGD(0.1)
    tasks = [sequence(seed, order=(2, 0, 1)) for seed in range(2)]
    curves = learning_curves(learner, rule, tasks, every=1)
    assert curves.steps == list(range(13))
    assert curves.ends == [4, 8, 12]
    for place, task in enumerate(tasks):
        for k in (0, 4, 7, 12):
            module = wg.adapt(learner, task, rule=rule, steps=k) if k else learner.module
            losses = [F.mse_loss(module(x), y) for x, y in (task.subtasks[own].test() for own in task.order)]
            torch.testing.assert_close(curves.scores["loss"][place, k], torch.stack(losses).detach())
    found = forgetting_scores(curves)["loss"]
    table = curves.scores["loss"][:, [4, 8, 12]]
    torch.testing.assert_close(found["final"], table[:, 2].mean(dim=1))
    torch.testing.assert_close(found["old"], (table[:, 1, 0] + table[:, 2, :2].mean(dim=1)) / 2)
    assert (found["forgetting"] > 0).all()


def test_a_baseline_around_adaptation_is_scored_in_the_same_way():
    learner, rule = wg.Learner(nn.Linear(2, 1).double(), warp=()), wg.SGD(0.1)
    tasks = [sequence(seed) for seed in range(4)]

    def consolidating(strength: float):
        return lambda adaptation: OnlineEWC(adaptation, strength=strength, ends=[4, 8], likelihood="gaussian")

    plain = learning_curves(learner, rule, tasks)
    without, held = (
        learning_curves(learner, rule, tasks, make_stepper=consolidating(strength)) for strength in (0.0, 1e6)
    )
    torch.testing.assert_close(without.scores["loss"], plain.scores["loss"])
    # Held fast, the first sub-task is neither forgotten nor anything else learned.
    torch.testing.assert_close(held.scores["loss"][:, -1, 0], held.scores["loss"][:, 1, 0], rtol=0.05, atol=1e-3)
    assert forgetting_scores(held)["loss"]["forgetting"].mean() < forgetting_scores(plain)["loss"]["forgetting"].mean()


def test_a_part_of_the_sub_tasks_is_tested_on_what_it_learns():
    task = sequence(0, order=(2, 0))
    assert len(list(task.test_batches())) == 2
    assert torch.equal(next(iter(task.test_batches()))[0], task.subtasks[0].test()[0])


def test_what_cannot_be_scored_or_built_is_named():
    with pytest.raises(wg.WarpgradError, match="at least one task"):
        learning_curves(wg.Learner(nn.Linear(2, 1), warp=()), wg.SGD(0.1), [])
    with pytest.raises(wg.WarpgradError, match="nothing to forget"):
        forgetting_scores(Curves([0, 1], [1], {"loss": torch.zeros(1, 2, 1)}))
    x = torch.zeros(3, 2)
    with pytest.raises(wg.WarpgradError, match="is a Tensor; give TensorSubTask"):
        ContinualTask([x, x], F.mse_loss, steps_per_subtask=1, batch_size=1)
    with pytest.raises(wg.WarpgradError, match=r"train data must be a pair of tensors, \(inputs, targets\)"):
        TensorSubTask(x)
    part = TensorSubTask((x, x))
    with pytest.raises(wg.WarpgradError, match="integers of at least 1"):
        ContinualTask([part], F.mse_loss, steps_per_subtask=1.5, batch_size=1)
