"""`adapt`: use what was meta-learned, with K steps on a new task that return a plain module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar, overload

import torch
from torch import Tensor, nn

from warpgrad.adaptation.base import Adaptation, Point, error_line
from warpgrad.adaptation.trajectory import Trajectory
from warpgrad.errors import WarpgradError, expect, flag, integer, mapping, require, short_repr
from warpgrad.keys import fold, isolated_rng
from warpgrad.model.learner import Forward, Learner
from warpgrad.rules import Rule
from warpgrad.tasks.base import Batch, Task, TaskFamily
from warpgrad.tensors import shapes

M = TypeVar("M", bound=nn.Module)
"""The class of the user's module."""


@dataclass
class LearningCurve:
    """The course of an adaptation: the task loss of every step, and test scores at the requested steps.

    Example:
        >>> _, curve = wg.adapt(learner, task, rule=wg.SGD(0.1), steps=4, curve=True, test_every=2)
        >>> len(curve.losses), curve.tested_at
        (4, [0, 2, 4])
    """

    losses: list[float] = field(default_factory=list)
    """L_task on the batch of step k, before that step, for every k."""
    tested_at: list[int] = field(default_factory=list)
    """The numbers of steps after which `scores` were measured."""
    scores: list[dict[str, float]] = field(default_factory=list)
    """The means of `task.metrics` over the test examples, one for each entry of `tested_at`."""


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
        test_every: Steps between tests, which are also done at both ends; None tests at the end alone.

    Example:
        >>> fitted = wg.adapt(learner, task, rule=wg.SGD(0.1), steps=5)
        >>> type(fitted).__name__, tuple(fitted(x).shape)
        ('Sequential', (8, 1))
    """
    check_parts(learner, rule, steps, key)
    expect(task, Task, "task", "SupervisedTask(inputs, targets, F.mse_loss)", hint=_family_hint(task))
    flag(curve, "curve")
    require(curve or test_every is None, "test_every= applies to the learning curve: pass curve=True too.")
    if test_every is not None:
        integer(test_every, "test_every", at_least=1)
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
    """Return the mean of `task.metrics` over the test examples at θ, in test mode; empty without test batches.

    Example:
        >>> sorted(wg.evaluate(learner, task, learner.theta0, learner.buffers()))
        ['loss']
    """
    expect(learner, Learner, "learner", "Learner(model, warp=...)", hint=_module_hint(learner))
    expect(task, Task, "task", "SupervisedTask(inputs, targets, F.mse_loss)", hint=_family_hint(task))
    mapping(theta, "theta", "learner.theta0")
    mapping(buffers, "buffers", "learner.buffers()")
    scores: list[dict[str, float]] = []
    sizes: list[int] = []
    with torch.no_grad():
        for batch in task.test_batches():
            scores.append(_measured(task, learner.bind(theta, buffers, training=False), batch, len(scores)))
            sizes.append(task.examples(batch))
    return {name: _weighted([(one[name], size) for one, size in zip(scores, sizes, strict=True) if name in one])
            for name in dict.fromkeys(name for one in scores for name in one)}  # fmt: skip


@overload
def score(
    learner: Learner, tasks: Iterable[Task], *, rule: Rule, steps: int, key: int = ..., per_task: Literal[False] = ...
) -> dict[str, float]: ...
@overload
def score(
    learner: Learner, tasks: Iterable[Task], *, rule: Rule, steps: int, key: int = ..., per_task: Literal[True]
) -> list[dict[str, float]]: ...
def score(
    learner: Learner, tasks: Iterable[Task], *, rule: Rule, steps: int, key: int = 0, per_task: bool = False
) -> dict[str, float] | list[dict[str, float]]:
    """Adapt to each of several held-out tasks and return their test scores after K steps.

    A task's score is the mean over its test examples. Each metric is averaged over the tasks that have it; with
    `per_task`, the scores of every task are returned, in order.

    Example:
        >>> scores = wg.score(learner, [task, task], rule=wg.SGD(0.1), steps=5)
        >>> scores["loss"] < wg.score(learner, [task], rule=wg.SGD(0.1), steps=1)["loss"]
        True
    """
    check_parts(learner, rule, steps, key)
    flag(per_task, "per_task")
    if isinstance(tasks, Task | TaskFamily) or not isinstance(tasks, Iterable):
        raise WarpgradError(
            f"score(...) takes a list of tasks, not {short_repr(tasks)}; for a family, pass [family.sample(seed) for "
            "seed in range(100)]."
        )
    found: list[dict[str, float]] = []
    for count, task in enumerate(tasks, start=1):
        expect(task, Task, f"tasks[{count - 1}]", "SupervisedTask(...)")
        _, record = adapt(learner, task, rule=rule, steps=steps, key=fold(key, count), curve=True)
        if not record.scores[-1]:
            raise WarpgradError(
                f"task '{task.name}' (number {count - 1}) has no test batches, so it has no score: give it test data, "
                "e.g. SupervisedTask(..., test=(inputs, targets)), or leave it out."
            )
        found.append(record.scores[-1])
    if not found:
        raise WarpgradError("score(...) needs at least one task.")
    return found if per_task else mean_scores(found)


def mean_scores(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of every metric over the tasks that have it."""
    names = dict.fromkeys(name for one in scores for name in one)
    return {name: _weighted([(one[name], 1) for one in scores if name in one]) for name in names}


def check_parts(learner: Learner, rule: Rule, steps: int, key: int) -> None:
    """Check the types of the arguments that every adaptation has."""
    expect(learner, Learner, "learner", "Learner(model, warp=...)", hint=_module_hint(learner))
    expect(rule, Rule, "rule", "SGD(0.1)", hint=_optimiser_hint(rule))
    integer(steps, "steps", at_least=1)
    integer(key, "key")


def _module_hint(value: object) -> str:
    return "; make a learner of it: Learner(model, warp=...)" if isinstance(value, nn.Module) else ""


def _optimiser_hint(value: object) -> str:
    kind = value if isinstance(value, type) else type(value)
    if issubclass(kind, torch.optim.Optimizer):
        return "; warpgrad.SGD and warpgrad.Adam step like torch's, and can be differentiated"
    return ""


def _family_hint(value: object) -> str:
    if isinstance(value, TaskFamily):
        return "; one task of a family is family.sample(seed)"
    return "; for several, adapt to each" if isinstance(value, list | tuple) else ""


def _measured(task: Task, forward: Forward, batch: Batch, number: int) -> dict[str, float]:
    try:
        return task.metrics(forward, batch)
    except WarpgradError:
        raise
    except Exception as error:  # user code may raise anything
        raise WarpgradError(
            f"task '{task.name}' failed in metrics on test batch {number} of shapes {shapes(batch)}: "
            f"{error_line(error)}"
        ) from error


def _weighted(values: Sequence[tuple[float, int]]) -> float:
    """Return Σ n v / Σ n, or the plain mean where all weights are equal, so that equal batches round alike."""
    sizes = {size for _, size in values}
    if len(sizes) == 1:
        return sum(value for value, _ in values) / len(values)
    return sum(value * size for value, size in values) / sum(size for _, size in values)


def _test(record: LearningCurve, learner: Learner, task: Task, point: Point) -> None:
    assert isinstance(point.k, int)
    record.tested_at.append(point.k)
    record.scores.append(evaluate(learner, task, point.theta, point.buffers))
