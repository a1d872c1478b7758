"""Continual tasks: which data is seen when, how the meta-loss weighs it, what is refused."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F

import warpgrad as wg
from tests.support.continual_problems import Marked, N, T, double_task, learner, marked, smooth_net
from tests.support.problems import Recorder
from warpgrad.adaptation.base import Adaptation
from warpgrad.algorithms.method import Method
from warpgrad.errors import WarpgradError
from warpgrad.keys import generator
from warpgrad.tasks.continual import WEIGHTINGS, ContinualTask, TensorSubTask, Weighting


@pytest.mark.parametrize("order", [None, (2, 0, 1)])
def test_adaptation_sees_training_data_of_the_current_sub_task_alone(order: tuple[int, ...] | None) -> None:
    task = marked(order)
    expected = [place for place in (order or (0, 1, 2)) for _ in range(N)]
    assert [task.subtask(k) for k in range(T * N)] == expected
    for k, place in enumerate(expected):
        inputs, _ = task.adapt_batch(k)
        assert inputs.shape == (2, 1)
        assert inputs.unique().tolist() == [10.0 * place]
    assert task.steps == T * N
    assert [k for k in range(T * N) if task.switches(k)] == [N, 2 * N]


def test_adapting_never_asks_a_finished_or_future_sub_task_for_anything() -> None:
    task = marked()
    adaptation = Adaptation(wg.Learner(smooth_net().float(), start={"*": "fixed"}), wg.SGD(0.01), task, 0)
    point = adaptation.start()
    for k in range(T * N):
        for part in task.subtasks:
            part.asked.clear()  # type: ignore[attr-defined]
        point = adaptation.step(point).after
        asked = {part.place: part.asked for part in task.subtasks if part.asked}  # type: ignore[attr-defined]
        assert asked == {k // N: ["train"]}


@pytest.mark.parametrize("order", [None, (2, 0, 1)])
def test_the_meta_batch_holds_validation_data_of_the_seen_sub_tasks(order: tuple[int, ...] | None) -> None:
    task = marked(order)
    sequence = order or (0, 1, 2)
    for k in range(T * N):
        t = k // N
        inputs, targets, weights = task.meta_batch(k)
        assert inputs.shape == targets.shape == (T, 3, 1)
        seen = [10.0 * place + 1 for place in sequence[: t + 1]]
        assert inputs[:, 0, 0].tolist() == seen + [seen[-1]] * (T - 1 - t), "only seen sub-tasks, and padding"
        assert (weights > 0).tolist() == [place < t or place == T - 1 for place in range(T)], "current: the last"


@pytest.mark.parametrize("weighting", [weighting for weighting in WEIGHTINGS if weighting != "current"])
def test_theta0_is_judged_on_validation_data_of_all_sub_tasks_alike(weighting: Weighting) -> None:
    inputs, targets, weights = marked((2, 0, 1), weighting=weighting).start_batch(0)
    assert inputs.shape == targets.shape == (T, 3, 1)
    assert inputs[:, 0, 0].tolist() == [21.0, 1.0, 11.0]
    assert weights.tolist() == pytest.approx([1 / T] * T)


def test_theta0_is_judged_on_what_a_family_draws_for_it() -> None:
    drawn = lambda place, draw: (torch.full((7, 1), float(place)), torch.rand(7, 1, generator=draw))  # noqa: E731
    task = marked((2, 0, 1), start=drawn)
    inputs, targets, _ = task.start_batch(0)
    assert inputs[:, :, 0].tolist() == [[place] * 7 for place in (2.0, 0.0, 1.0)]
    assert torch.equal(targets, task.start_batch(0)[1])
    assert not torch.equal(targets, task.with_seed(1).start_batch(0)[1])


def test_the_current_weighting_looks_at_one_sub_task() -> None:
    task = marked(weighting="current")
    assert task.start_batch(0)[0].unique().tolist() == [1.0], "at the start that is the first one"
    for k in range(T * N):
        inputs, _, weights = task.meta_batch(k)
        assert inputs.unique().tolist() == [10.0 * (k // N) + 1]
        assert weights.tolist() == [1.0]


def test_beyond_the_end_the_last_sub_task_goes_on() -> None:
    task = marked()
    assert task.subtask(T * N) == T - 1
    assert task.weights(T * N) == task.weights(T * N - 1)
    assert not task.switches(T * N)


def test_batches_are_functions_of_seed_and_step() -> None:
    task = double_task(5)
    for first, second in ((task, task), (task, double_task(5))):
        assert all(torch.equal(a, b) for a, b in zip(first.meta_batch(6), second.meta_batch(6), strict=True))
        assert torch.equal(first.adapt_batch(6)[0], second.adapt_batch(6)[0])
    assert not torch.equal(task.meta_batch(6)[0], task.meta_batch(7)[0])
    assert not torch.equal(task.meta_batch(6)[0], task.with_seed(9).meta_batch(6)[0])


# The weights


def test_balanced_weights_give_every_sub_task_the_same_sum() -> None:
    task = marked()
    sums = torch.tensor([task.weights(k) for k in range(T * N)], dtype=torch.float64).sum(dim=0)
    torch.testing.assert_close(sums, torch.ones(T, dtype=torch.float64), rtol=0, atol=1e-14)


def test_appearances_are_as_the_prose_counts_them() -> None:
    """The first sub-task appears nT times in the meta-objective, the last one n times."""
    task = marked()
    seen = Counter(place for k in range(T * N) for place in range(T) if task.weights(k)[place] > 0)
    assert seen == {0: N * T, 1: N * (T - 1), 2: N}


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        ("balanced", [(1 / 12, 0, 0), (1 / 12, 1 / 8, 0), (1 / 12, 1 / 8, 1 / 4)]),
        ("printed", [(1 / 12, 0, 0), (1 / 8, 1 / 8, 0), (1 / 4, 1 / 4, 1 / 4)]),
        ("mean", [(1, 0, 0), (1 / 2, 1 / 2, 0), (1 / 3, 1 / 3, 1 / 3)]),
        ("current", [(1, 0, 0), (0, 1, 0), (0, 0, 1)]),
    ],
)
def test_weights_by_hand(weighting: Weighting, expected: list[tuple[float, ...]]) -> None:
    task = marked(weighting=weighting)
    for stage, row in enumerate(expected):
        assert task.weights(stage * N) == task.weights(stage * N + N - 1) == pytest.approx(row, abs=1e-15)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_the_meta_loss_is_the_sum_as_written(weighting: Weighting) -> None:
    """Σ_{i≤t} w_i L_task(θ, D_i), each term a loss of its own at the same θ."""
    task, model = double_task(1, weighting, (1, 2, 0)), learner()
    forward = model.bind(model.start(0), model.buffers())
    for k in (0, N, 2 * N + 1):
        t = k // N + 1
        total = torch.zeros((), dtype=torch.float64)
        for i in range(1, t + 1):
            batch = task.subtasks[task.order[i - 1]].draw("validation", 2, generator(1, k, "meta", i - 1))
            weight = {"balanced": 1 / (N * (T - i + 1)), "printed": 1 / (N * (T - t + 1)), "mean": 1 / t}.get(
                weighting, float(i == t)
            )
            total = total + weight * task.loss(forward, batch)
        torch.testing.assert_close(task.meta_loss(forward, task.meta_batch(k)), total, rtol=1e-13, atol=0)


# What is refused


@pytest.mark.parametrize("order", [(), (0, 0, 1), (0, 3), (-1, 0)])
def test_orders_that_cannot_be_learned_are_refused(order: tuple[int, ...]) -> None:
    with pytest.raises(WarpgradError, match="each at most once"):
        marked(order)


def test_other_mistakes_are_named() -> None:
    with pytest.raises(WarpgradError, match="weighting='fair' is unknown"):
        marked(weighting="fair")  # type: ignore[arg-type]
    with pytest.raises(WarpgradError, match="at least 1"):
        ContinualTask([Marked(0)], F.mse_loss, steps_per_subtask=0, batch_size=1)
    with pytest.raises(WarpgradError, match="2 inputs and 3 targets"):
        TensorSubTask((torch.zeros(2, 1), torch.zeros(3, 1)))
    with pytest.raises(WarpgradError, match="not a permutation"):
        marked().with_order((0, 1))
    method = Method(wg.Learner(smooth_net().float()), wg.SGD(0.1), wg.InPlace())
    with pytest.raises(WarpgradError, match="needs validation batches"):
        wg.Online(steps=1, tasks=1).meta_step(method, [marked()], [0], Recorder())
