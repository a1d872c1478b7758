"""Continual tasks: which data is seen when, how the meta-loss weighs it, and that stacks equal loops."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

import warpgrad as wg
from problems import Recorder, central_differences, point_after, relative_error
from warpgrad.adaptation import Adaptation
from warpgrad.batched import BatchedAdaptation
from warpgrad.errors import WarpgradError
from warpgrad.experiments.continual_families import (
    AlphabetSequences,
    SineMixtures,
    SineSubTask,
    alphabet_parts,
    draw_sine_mixture,
    half_squared_error,
    sine_mixture,
)
from warpgrad.keys import generator
from warpgrad.method import Method
from warpgrad.tasks.continual import WEIGHTINGS, ContinualTask, SubTask, TensorSubTask, Weighting

T, N = 3, 4


class Marked(SubTask):
    """Examples that say where they come from: 10·place, plus 1 where they are validation data; keeps who asked."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.asked: list[str] = []

    def draw(self, split: str, size: int, draw: Generator) -> tuple[Tensor, Tensor]:
        self.asked.append(split)
        value = 10.0 * self.place + (split == "validation")
        return torch.full((size, 1), value), torch.rand(size, 1, generator=draw)

    def test(self) -> tuple[Tensor, Tensor]:
        return torch.full((2, 1), 10.0 * self.place + 2), torch.zeros(2, 1)


def marked(order: tuple[int, ...] | None = None, weighting: Weighting = "balanced") -> ContinualTask:
    return ContinualTask(
        [Marked(place) for place in range(T)],
        F.mse_loss,
        steps_per_subtask=N,
        batch_size=2,
        meta_batch_size=3,
        order=order,
        weighting=weighting,
    )


def smooth_net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(1, 4), nn.Tanh(), wg.Warp(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4))), nn.Linear(4, 1)
    ).double()  # fmt: skip


def double_task(
    seed: int, weighting: Weighting = "balanced", order: tuple[int, ...] | None = None, *, pad: bool = True
) -> ContinualTask:
    """Regression in float64 with validation data of its own in each sub-task."""
    draw = generator(seed, "continual problem")

    def data(size: int) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(size, 1, generator=draw, dtype=torch.float64)
        return inputs, torch.randn(size, 1, generator=draw, dtype=torch.float64)

    return ContinualTask(
        [TensorSubTask(data(7), data(6)) for _ in range(T)],
        F.mse_loss,
        steps_per_subtask=N,
        batch_size=3,
        meta_batch_size=2,
        order=order,
        weighting=weighting,
        pad=pad,
        seed=seed,
        name=f"t{seed}",
    )


def learner() -> wg.Learner:
    torch.manual_seed(3)
    return wg.Learner(smooth_net(), start={"*": "fixed"})


# What is seen when


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
        assert (weights > 0).tolist() == [place <= t for place in range(T)]


def test_the_current_weighting_looks_at_one_sub_task() -> None:
    task = marked(weighting="current")
    for k in range(T * N):
        inputs, _, weights = task.meta_batch(k)
        assert inputs.unique().tolist() == [10.0 * (k // N) + 1]
        assert weights.tolist() == [1 / N]


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
        ("current", [(1 / 4, 0, 0), (0, 1 / 4, 0), (0, 0, 1 / 4)]),
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
                weighting, float(i == t) / N
            )
            total = total + weight * task.loss(forward, batch)
        torch.testing.assert_close(task.meta_loss(forward, task.meta_batch(k)), total, rtol=1e-13, atol=0)


# Inside Eq. 11


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_the_exact_objective_matches_central_differences(weighting: Weighting) -> None:
    task, model, rule = double_task(2, weighting), learner(), wg.SGD(0.2)
    adaptation = Adaptation(model, rule, task, 0)
    point = point_after(adaptation, 2 * N + 1)
    found = wg.Exact().step(adaptation, point)

    def objective() -> float:
        theta = {name: value.clone().requires_grad_() for name, value in point.theta.items()}
        loss = task.loss(model.bind(theta, point.buffers), task.adapt_batch(2 * N + 1))
        slopes = torch.autograd.grad(loss, list(theta.values()))
        moved = {
            name: (value - 0.2 * slope).detach() for (name, value), slope in zip(theta.items(), slopes, strict=True)
        }
        return task.meta_loss(model.bind(moved, point.buffers), task.meta_batch(2 * N + 1)).item()

    assert float(found.meta_loss) == pytest.approx(objective(), rel=1e-13)
    assert relative_error(found.phi, central_differences(objective, model.phi)) < 1e-8


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_points_of_different_sub_tasks_stack_to_the_sum_of_the_loop(weighting: Weighting) -> None:
    model, rule = learner(), wg.SGD(0.2)
    tasks = [double_task(seed, weighting) for seed in (1, 2, 2, 3)]
    steps = (0, N, 2 * N + 2, N - 1)
    singles = [Adaptation(model, rule, task, 0) for task in tasks]
    points = [point_after(single, k) for single, k in zip(singles, steps, strict=True)]
    looped = [wg.Exact().step(single, point) for single, point in zip(singles, points, strict=True)]
    stack = BatchedAdaptation(model, rule, tasks, [0] * 4)
    stacked = wg.Exact().step(stack, stack.stack(points))
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
        wg.Online(steps=T * N, tasks=3, engine="loop", reduction="sum"),
        wg.Offline(steps=T * N, tasks=3, samples=None, engine="batched", chunk=5, reduction="sum"),
    ):
        recorder = Recorder()
        algorithm.meta_step(Method(learner(), wg.SGD(0.2), wg.Exact()), tasks, [0, 1, 2], recorder)
        (gradient,) = recorder.of("phi")
        found.append(gradient)
    assert relative_error(found[1], found[0]) < 1e-10


def test_padding_changes_shapes_and_no_number() -> None:
    model, rule = learner(), wg.SGD(0.2)
    padded, bare = double_task(2), double_task(2, pad=False)
    for k in (0, N, 2 * N):
        assert padded.meta_batch(k)[0].shape == (T, 2, 1)
        assert bare.meta_batch(k)[0].shape == (k // N + 1, 2, 1)
        found = [
            wg.Exact().step(one, point_after(one, k))
            for one in (Adaptation(model, rule, task, 0) for task in (padded, bare))
        ]
        assert relative_error(found[0].phi, found[1].phi) < 1e-13
    assert padded.stack_key != bare.stack_key


def test_without_padding_tasks_in_step_still_stack() -> None:
    tasks = [double_task(seed, pad=False) for seed in (1, 2, 3)]
    found = []
    for engine in ("loop", "batched"):
        recorder = Recorder()
        algorithm = wg.Online(steps=T * N, tasks=3, engine=engine)  # type: ignore[arg-type]
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
    assert curve.scores[1]["accuracy"] == pytest.approx(
        sum(float(wg.tasks.accuracy(module(x), y)) for x, y in task.test_batches()) / 2
    )


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
    with pytest.raises(WarpgradError, match="not another order"):
        marked().with_order((0, 1))
    method = Method(wg.Learner(smooth_net().float()), wg.SGD(0.1), wg.InPlace())
    with pytest.raises(WarpgradError, match="needs validation batches"):
        wg.Online(steps=1, tasks=1).meta_step(method, [marked()], [0], Recorder())


# Mixtures of sines (App. J)


def test_the_mixture_of_sines_by_hand() -> None:
    x = torch.tensor([-5.0, -1.3, 0.0, 4.2], dtype=torch.float64)
    a1, b1, a2, b2, offset = coefficients = (2.5, 0.4, 0.7, 2.9, -1.5)
    expected = []
    for value in x.tolist():
        alpha = 1.0 / (1.0 + math.exp(-(value + offset)))
        expected.append(alpha * a1 * math.sin(value - b1) + (1.0 - alpha) * a2 * math.sin(value - b2))
    torch.testing.assert_close(sine_mixture(x, coefficients), torch.tensor(expected, dtype=torch.float64))


def test_the_loss_is_half_the_mean_squared_error() -> None:
    assert float(half_squared_error(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0]))) == pytest.approx(5.0 / 4.0)


def test_coefficients_fill_their_ranges() -> None:
    drawn = torch.tensor([draw_sine_mixture(seed) for seed in range(2000)], dtype=torch.float64)
    low = torch.tensor([0.1, 0.0, 0.1, 0.0, -5.0], dtype=torch.float64)
    high = torch.tensor([5.0, math.pi, 5.0, math.pi, 5.0], dtype=torch.float64)
    fractions = (drawn - low) / (high - low)
    assert 0.0 <= float(fractions.min()) < 0.01
    assert 0.99 < float(fractions.max()) <= 1.0
    assert (fractions.mean(dim=0) - 0.5).abs().max() < 0.03
    assert len({tuple(row) for row in drawn.tolist()}) == 2000


def test_sub_tasks_are_the_five_parts_of_the_interval_and_share_one_function() -> None:
    task = SineMixtures(5, 10, steps_per_subtask=20, batch_size=5).sample(3)
    coefficients = draw_sine_mixture(3)
    for k in range(100):
        low = -5.0 + 2.0 * (k // 20)
        inputs, targets = task.adapt_batch(k)
        assert inputs.shape == (5, 1)
        assert low <= float(inputs.min()) <= float(inputs.max()) <= low + 2.0
        torch.testing.assert_close(targets, sine_mixture(inputs, coefficients))
    tested = torch.cat([inputs for inputs, _ in task.test_batches()])[:, 0]
    torch.testing.assert_close(tested, torch.linspace(-4.9, 4.9, 50))
    first = task.subtasks[0]
    assert isinstance(first, SineSubTask)
    assert (first.low, first.high) == (-5.0, -3.0)


# Characters of alphabets


@pytest.fixture(scope="module")
def parts() -> dict[str, list[object]]:
    return dict(alphabet_parts(0, 4, 6, ""))  # type: ignore[arg-type]


def test_no_alphabet_is_in_two_parts(parts: dict[str, list[object]]) -> None:
    names = [alphabet.name for part in parts.values() for alphabet in part]  # type: ignore[attr-defined]
    assert len(names) == len(set(names)) == 4
    assert all(parts.values())


def test_class_incremental_sequences_give_every_character_a_label_of_its_own(parts: dict[str, list[object]]) -> None:
    family = AlphabetSequences(parts["train"], 2, "class", steps_per_subtask=3, batch_size=4)  # type: ignore[arg-type]
    task = family.sample(11)
    labels = [set(targets.tolist()) for _, targets in task.test_batches()]
    assert [len(own) for own in labels] == [2, 2, 2]
    assert set.union(*labels) == set(range(6))
    for k in range(9):
        inputs, targets = task.adapt_batch(k)
        assert inputs.shape == (4, 196)
        assert set(targets.tolist()) <= labels[k // 3]
    assert labels != [set(targets.tolist()) for _, targets in family.sample(12).test_batches()]


def test_domain_incremental_sequences_count_from_0_in_each_sub_task(parts: dict[str, list[object]]) -> None:
    task = AlphabetSequences(parts["train"], 3, "domain", steps_per_subtask=3, batch_size=4).sample(1)  # type: ignore[arg-type]
    assert [sorted(set(targets.tolist())) for _, targets in task.test_batches()] == [[0, 1, 2]] * 2


def test_drawings_that_judge_are_never_adapted_to(parts: dict[str, list[object]]) -> None:
    task = AlphabetSequences(parts["train"], 2, "class", steps_per_subtask=1, batch_size=400).sample(5)  # type: ignore[arg-type]
    for k in range(3):
        seen = {tuple(row) for row in task.adapt_batch(k)[0].tolist()}
        judged = {tuple(row) for row in task.meta_batch(k)[0][k].tolist()}
        assert len(seen) == 30, "two characters by fifteen hands"
        assert len(judged) == 10, "the same two by five other hands"
        assert not seen & judged
