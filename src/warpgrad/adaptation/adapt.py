"""`adapt`: use what was meta-learned. K steps on a new task, then a plain module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar, overload

import torch
from torch import Tensor, nn

from warpgrad.adaptation.base import Adaptation, Point
from warpgrad.adaptation.trajectory import Trajectory
from warpgrad.errors import WarpgradError, refuse_if
from warpgrad.keys import fold, isolated_rng
from warpgrad.model.learner import Learner
from warpgrad.rules.base import Rule
from warpgrad.tasks.base import Task

M = TypeVar("M", bound=nn.Module)
"""The class of the user's module."""


@dataclass
class LearningCurve:
    """What happened on the way: the task loss of every step, and test scores at the steps asked for.

    Example:
        >>> _, curve = wg.adapt(learner, task, rule=wg.SGD(0.1), steps=4, curve=True, test_every=2)
        >>> len(curve.losses), curve.tested_at
        (4, [0, 2, 4])
    """

    losses: list[float] = field(default_factory=list)
    """L_task of the batch of step k, before that step."""
    tested_at: list[int] = field(default_factory=list)
    """How many steps had been taken when the scores below were read."""
    scores: list[dict[str, float]] = field(default_factory=list)
    """Mean of `task.metrics` over the test batches."""


@overload
def adapt(
    learner: Learner[M], task: Task, *, rule: Rule, steps: int, key: int = ..., curve: Literal[False] = ...
) -> M: ...
@overload
def adapt(
    learner: Learner[M],
    task: Task,
    *,
    rule: Rule,
    steps: int,
    key: int = ...,
    curve: Literal[True],
    test_every: int | None = ...,
) -> tuple[M, LearningCurve]: ...
def adapt(
    learner: Learner[M],
    task: Task,
    *,
    rule: Rule,
    steps: int,
    key: int = 0,
    curve: bool = False,
    test_every: int | None = None,
) -> M | tuple[M, LearningCurve]:
    """Adapt θ to `task` with φ fixed; return a module of the user's own class with θ_K in it.

    The module runs, saves and exports without this library, and shares no memory with the learner.

    Args:
        learner: The meta-learned learner; it is not changed.
        task: The new task.
        rule: The rule that it was meta-trained with.
        steps: K.
        key: Seed of dropout masks and of parameters that start fresh.
        curve: Also return the learning curve.
        test_every: Test after every so many steps and at both ends; None tests at the end alone.

    Example:
        >>> fitted = wg.adapt(learner, task, rule=wg.SGD(0.1), steps=5)
        >>> type(fitted).__name__, tuple(fitted(x).shape)
        ('Sequential', (8, 1))
    """
    refuse_if(test_every is not None and not curve, "test_every is about the learning curve: pass curve=True too.")
    refuse_if(test_every is not None and test_every < 1, f"test_every={test_every}: test after at least 1 step.")
    adaptation = Adaptation(learner, rule, task, key)
    record = LearningCurve()
    with isolated_rng(learner.device), learner.modes_kept(), torch.enable_grad():
        trajectory = Trajectory(adaptation, steps)
        if test_every is not None:
            _test(record, learner, task, trajectory.start)
        for segment in trajectory:
            record.losses.append(float(segment.loss))
            due = test_every is not None and len(record.losses) % test_every == 0
            if curve and (due or segment.last):
                _test(record, learner, task, segment.after)
    module = learner.adapted(trajectory.point.theta, trajectory.point.buffers)
    return (module, record) if curve else module


def evaluate(
    learner: Learner, task: Task, theta: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
) -> dict[str, float]:
    """Mean of `task.metrics` over the test batches at θ, in test mode.

    Example:
        >>> sorted(wg.evaluate(learner, task, learner.theta0, learner.buffers()))
        ['loss']
    """
    scores: list[dict[str, float]] = []
    with torch.no_grad():
        for batch in task.test_batches():
            scores.append(task.metrics(learner.bind(theta, buffers, training=False), batch))
    if not scores:
        return {}
    return {name: sum(score[name] for score in scores) / len(scores) for name in scores[0]}


def score(learner: Learner, tasks: Iterable[Task], *, rule: Rule, steps: int, key: int = 0) -> dict[str, float]:
    """Adapt to each of some held-out tasks; the mean of their test scores after K steps.

    Example:
        >>> scores = wg.score(learner, [task, task], rule=wg.SGD(0.1), steps=5)
        >>> scores["loss"] < wg.score(learner, [task], rule=wg.SGD(0.1), steps=1)["loss"]
        True
    """
    totals: dict[str, float] = {}
    count = 0
    for count, task in enumerate(tasks, start=1):
        _, record = adapt(learner, task, rule=rule, steps=steps, key=fold(key, count), curve=True)
        for name, value in record.scores[-1].items():
            totals[name] = totals.get(name, 0.0) + value
    if count == 0:
        raise WarpgradError("score(...) needs at least one task.")
    return {name: value / count for name, value in totals.items()}


def _test(record: LearningCurve, learner: Learner, task: Task, point: Point) -> None:
    assert isinstance(point.k, int)
    record.tested_at.append(point.k)
    record.scores.append(evaluate(learner, task, point.theta, point.buffers))
