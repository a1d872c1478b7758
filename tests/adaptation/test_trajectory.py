"""The one loop over steps: what its segments hold, and when a step is taken."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import warpgrad as wg
from tests.support import ROOT
from tests.support.problems import Recorder, make_task, mlp, relative_error
from warpgrad.adaptation.stacked import BatchedAdaptation
from warpgrad.adaptation.traced import traced_at_once
from warpgrad.adaptation.trajectory import Segment, Trajectory
from warpgrad.errors import WarpgradError
from warpgrad.initialisers import Initialiser

K, RATE = 4, 0.1


class Counting(wg.Adaptation):
    """Counts the steps that were taken."""

    taken = 0

    def step(self, point: wg.Point) -> wg.Transition:
        self.taken += 1
        return super().step(point)


def adaptation(seed: int = 1) -> Counting:
    torch.manual_seed(0)
    return Counting(wg.Learner(mlp()), wg.SGD(RATE), make_task(mlp, seed), 7)


def test_its_segments_are_the_steps_of_the_adaptation() -> None:
    own = adaptation()
    point = own.start()
    for k, segment in enumerate(Trajectory(adaptation(), K)):
        transition = own.step(point)
        assert (segment.point.k, segment.after.k, segment.last) == (k, k + 1, k == K - 1)
        assert torch.equal(segment.loss, transition.loss)
        assert all(torch.equal(value, transition.after.theta[name]) for name, value in segment.after.theta.items())
        assert segment.sample is None
        assert segment.theta0 is None
        point = transition.after


def test_it_stands_where_the_last_segment_ends() -> None:
    trajectory = Trajectory(adaptation(), K)
    assert trajectory.point is trajectory.start
    assert [next(trajectory).after is trajectory.point for _ in range(K)] == [True] * K
    assert list(trajectory) == [], "it ends after K steps, and stays there"
    assert [point.k for point in Trajectory(adaptation(), K).points()] == list(range(K + 1))


def test_a_step_is_taken_when_it_is_asked_for_and_one_ahead_only_for_the_next_loss() -> None:
    for initialiser, ahead in ((wg.Fixed(), 0), (wg.Reptile(), 0), (wg.Leap(loss=False), 0), (wg.Leap(), 1)):
        own = adaptation()
        trajectory = Trajectory(own, K, initialiser=initialiser)
        assert own.taken == 0
        for k in range(K):
            assert next(trajectory).point.k == k
            assert own.taken == min(k + 1 + ahead, K)


class Drops(Initialiser):
    """Contributes L(θ_{k+1}) − L(θ_k), and at the end the number of steps, for every parameter."""

    needs_next_loss = True

    def wants_segment(self, k: int) -> bool:
        return k != 1

    def increment(self, theta, after, loss, next_loss, gradient):  # type: ignore[no-untyped-def]
        return {name: (next_loss - loss).expand(value.shape) for name, value in theta.items()}

    def final(self, adaptation, start, last, steps):  # type: ignore[no-untyped-def]
        return {name: torch.full_like(value, steps) for name, value in start.theta.items()}


@pytest.mark.parametrize("objective", [None, wg.Exact()])
def test_every_segment_comes_with_its_own_contribution(objective: wg.Objective | None) -> None:
    own = adaptation()
    segments = list(Trajectory(own, K, objective=objective, initialiser=Drops()))
    end = segments[-1].after
    losses = [float(segment.loss) for segment in segments]
    losses.append(float(own.task_loss(end.theta, end.buffers, K)[0].detach()))
    for k, segment in enumerate(segments):
        assert (segment.sample is None) == (objective is None)
        if k == 1:
            assert segment.theta0 is None
            continue
        assert segment.theta0 is not None
        expected = losses[k + 1] - losses[k] + (K if segment.last else 0)
        for value in segment.theta0.theta0.values():
            assert float(value.mean()) == pytest.approx(expected, rel=1e-12)


def test_a_stack_is_its_tasks_side_by_side() -> None:
    torch.manual_seed(0)
    learner, tasks = wg.Learner(mlp()), [make_task(mlp, seed) for seed in (1, 2)]
    parts = {"objective": wg.Exact(), "initialiser": wg.Leap()}
    stack = BatchedAdaptation(learner, wg.SGD(RATE), tasks, [7, 8])
    together = list(Trajectory(stack, K, **parts))  # type: ignore[arg-type]
    alone: list[list[Segment]] = [
        list(Trajectory(wg.Adaptation(learner, wg.SGD(RATE), task, key), K, **parts))  # type: ignore[arg-type]
        for task, key in zip(tasks, (7, 8), strict=True)
    ]
    for k, segment in enumerate(together):
        for place, own in enumerate(stack.split(segment.theta0.theta0)):  # type: ignore[union-attr]
            assert relative_error(own, alone[place][k].theta0.theta0) < 1e-10  # type: ignore[union-attr]
        total = {name: alone[0][k].sample.phi[name] + alone[1][k].sample.phi[name] for name in learner.phi}  # type: ignore[union-attr]
        assert relative_error(segment.sample.phi, total) < 1e-10  # type: ignore[union-attr]


def test_the_objective_of_the_guide_keeps_snapshots_in_every_backend() -> None:
    """The snippet of docs/extending.md: loop, stack and recording agree, and the snapshot matters."""
    guide = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    (snippet,) = [text for text in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "def remember" in text]
    names: dict[str, Any] = {"wg": wg, "learner": wg.Learner(mlp()), "task": make_task(mlp, 0)}
    exec(snippet, names)
    tasks = [make_task(mlp, seed) for seed in (1, 2)]
    found = {}
    with traced_at_once():
        for backend in ("loop", "batched", "traced", "plain"):
            torch.manual_seed(0)
            objective = wg.Exact() if backend == "plain" else names["Steady"]()
            recorder = Recorder()
            algorithm = wg.Online(steps=8, tasks=2, backend="loop" if backend == "plain" else backend)  # type: ignore[arg-type]
            algorithm.meta_step(wg.Method(wg.Learner(mlp()), wg.SGD(RATE), objective), tasks, [0, 1], recorder)
            (found[backend],) = recorder.of("phi")
    assert relative_error(found["batched"], found["loop"]) < 1e-10
    assert relative_error(found["traced"], found["loop"]) < 1e-10
    assert relative_error(found["plain"], found["loop"]) > 1e-4


def test_a_trajectory_needs_a_step() -> None:
    with pytest.raises(WarpgradError, match="steps=0: it must be at least 1"):
        Trajectory(adaptation(), 0)
