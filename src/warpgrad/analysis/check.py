"""Check that the meta-gradient is right for a model, a task and a rule, before a long run.

    print(wg.check(learner, task, rule, wg.Exact()))

The gradients that meta-training would use are compared with central differences along one random direction,

    ⟨∇L, v⟩  ≈  (L(φ + εv) − L(φ − εv)) / 2ε,

in double precision, on a copy of the learner. A model with an operation whose derivative is wrong fails here, not after
a week of training.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpgrad.adaptation.adapt import check_parts
from warpgrad.adaptation.base import Adaptation, Point
from warpgrad.errors import WarpgradError, expect
from warpgrad.keys import fold, generator, isolated_rng
from warpgrad.model.forward_pass import copyable
from warpgrad.model.learner import Forward, Learner
from warpgrad.objectives import InPlace, Objective, UnrolledObjective
from warpgrad.rules import Rule
from warpgrad.tasks.base import Batch, Task, check_repeats
from warpgrad.tensors import Tensors, select

STEPS = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
"""Step sizes of the differences; the one that agrees best counts, because a ReLU may bend within a long one. At a bend
the gradient jumps, so the loss after a step jumps too, and a model with many activations has one within most steps."""
TOLERANCE = 1e-4


@dataclass(frozen=True)
class GradientComparison:
    """One gradient along one direction."""

    of: str
    """Which loss was differentiated, and with respect to what."""
    gradient: float
    differences: float
    error: float
    """Relative to the larger of the two, and to a thousandth of the gradient's norm where both are small."""


@dataclass(frozen=True)
class CheckReport:
    """The result of `check`, which raises if an error is above `tolerance`, so that every report is a good one."""

    comparisons: tuple[GradientComparison, ...]
    tolerance: float = TOLERANCE

    def __str__(self) -> str:
        rows = [f"{one.of:<44} {one.gradient:>14.6e} {one.differences:>14.6e} {one.error:>9.1e}" for one in
                self.comparisons]  # fmt: skip
        return "\n".join([f"{'':<44} {'gradient':>14} {'differences':>14} {'error':>9}", *rows])


def check(
    learner: Learner, task: Task, rule: Rule, objective: Objective | None = None, *, steps: int = 2, key: int = 0
) -> CheckReport:
    """Compare a learner's gradients on a task with finite differences in double precision; raise if they differ.

    Args:
        learner: It is copied, not changed.
        task: Any task of the family.
        rule: The rule that adapts.
        objective: L, whose gradient for φ and the rule is checked after one step; None checks the gradient of Eq. 1,
            through `steps` updates, for θ0, φ and the rule.
        steps: K of Eq. 1.
        key: Draws the direction, the dropout masks and the start.

    Example:
        >>> report = wg.check(learner, task, wg.SGD(0.1), wg.Exact())
        >>> [one.error < 1e-4 for one in report.comparisons]
        [True, True]
    """
    check_parts(learner, rule, steps, key)
    expect(task, Task, "task", "SupervisedTask(inputs, targets, F.mse_loss)")
    if objective is not None:
        expect(objective, Objective, "objective", "Exact()")
        objective.check(learner, rule)
    check_repeats(task)
    learner.check_module()
    with copyable(learner.module):
        learner, rule = copy.deepcopy(learner).to(torch.float64), copy.deepcopy(rule)
    rule.prepare(learner.theta0)
    adaptation = Adaptation(learner, rule, _InDouble(task), key)
    with isolated_rng(learner.device), learner.modes_kept(), torch.enable_grad():
        try:
            point = adaptation.step(adaptation.start()).after
        except WarpgradError as error:
            raise WarpgradError(f"the check in double precision could not be made: {error}") from error
        found = [_inner(adaptation, point)]
        found += _unrolled(adaptation, steps) if objective is None else _objective(adaptation, objective, point)
    for one in found:
        if not one.error <= TOLERANCE:
            raise WarpgradError(
                f"the {one.of} along a random direction is {one.gradient:.6e}, but differences give "
                f"{one.differences:.6e} (relative error {one.error:.1e}): an operation of the model or of the loss has "
                "a wrong derivative, or depends on more than its inputs; look for custom autograd functions, hooks and "
                "random draws outside torch. If it has very many ReLUs or maxima, one may bend between the points of "
                "the differences: try another key=."
            )
    return CheckReport(tuple(found))


def _inner(adaptation: Adaptation, point: Point) -> GradientComparison:
    inner = adaptation.inner(point)

    def loss(theta: Tensors) -> Tensor:
        return adaptation.task_loss(theta, point.buffers, point.k)[0]

    return _compared("gradient of the task loss for θ", inner.gradient, point.theta, loss, adaptation.key)


def _objective(adaptation: Adaptation, objective: Objective, point: Point) -> list[GradientComparison]:
    learner, rule = adaptation.learner, adaptation.rule
    sample = adaptation.compute(objective, point)
    after = sample.transition.after

    def loss() -> Tensor:
        if isinstance(objective, InPlace):
            return adaptation.in_place_loss(point.theta, point.buffers, point.k)
        if objective.stops_gradient:
            return objective.meta_loss(adaptation, after.theta, after.buffers, point)
        return adaptation.compute(objective, point).meta_loss

    name = type(objective).__name__
    return [
        *_in_place(f"gradient of {name} for φ", sample.phi, learner.phi, loss, adaptation.key),
        *_in_place(f"gradient of {name} for the rule", sample.rule, rule.meta, loss, adaptation.key),
    ]


def _unrolled(adaptation: Adaptation, steps: int) -> list[GradientComparison]:
    learner, rule, through = adaptation.learner, adaptation.rule, UnrolledObjective(steps)
    start = adaptation.start()
    step = adaptation.compute(through, start)

    def at(theta: Tensors) -> Tensor:
        moved = Point(start.k, {**start.theta, **theta}, start.buffers, start.state)
        return adaptation.compute(through, moved).meta_loss

    def loss() -> Tensor:
        return adaptation.compute(through, start).meta_loss

    begin = select(start.theta, learner.learned)
    found = (
        [_compared(f"gradient through {steps} steps for θ0", step.theta0, begin, at, adaptation.key)] if begin else []
    )
    found += _in_place(f"gradient through {steps} steps for φ", step.phi, learner.phi, loss, adaptation.key)
    return found + _in_place(f"gradient through {steps} steps for the rule", step.rule, rule.meta, loss, adaptation.key)


def _in_place(
    of: str, gradient: Tensors, parameters: Mapping[str, Tensor], loss: Callable[[], Tensor], key: int
) -> list[GradientComparison]:
    """Compare the gradient for parameters that the loss reads in place, which are moved and put back."""
    if not gradient:
        return []
    own = {name: value.detach().clone() for name, value in parameters.items()}

    def put(values: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in values.items():
                parameters[name].copy_(value)

    def moved(values: Tensors) -> Tensor:
        put(values)
        try:
            return loss()
        finally:
            put(own)

    return [_compared(of, gradient, own, moved, key)]


def _compared(
    of: str, gradient: Mapping[str, Tensor], at: Mapping[str, Tensor], loss: Callable[[Tensors], Tensor], key: int
) -> GradientComparison:
    draw = generator(fold(key, "direction", of))
    direction = {
        name: torch.randn(value.shape, generator=draw, dtype=torch.float64).to(value)
        for name, value in gradient.items()
    }
    slope = float(sum((gradient[name] * direction[name]).sum() for name in gradient))
    norm = float(sum(value.square().sum() for value in gradient.values())) ** 0.5
    best = GradientComparison(of, slope, float("nan"), float("inf"))
    for step in STEPS:
        above, below = (
            float(loss({name: at[name] + sign * step * direction[name] for name in gradient}).detach())
            for sign in (1, -1)
        )
        difference = (above - below) / (2 * step)
        size = max(abs(slope), abs(difference), 1e-3 * norm, 1e-12)
        error = abs(slope - difference) / size
        if error < best.error:
            best = GradientComparison(of, slope, difference, error)
    return best


class _InDouble(Task):
    """A task with its batches in double precision."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.name, self.steps, self.stack_key = task.name, task.steps, task.stack_key

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)  # attributes that a user-defined objective reads from its tasks

    @property
    def one_loss(self) -> bool:
        return self._task.one_loss

    def adapt_batch(self, k: int) -> Batch:
        return _doubled(self._task.adapt_batch(k))

    def meta_batch(self, k: int) -> Batch:
        return _doubled(self._task.meta_batch(k))

    def loss(self, forward: Forward, batch: Batch) -> Tensor:
        return self._task.loss(forward, batch)

    def meta_loss(self, forward: Forward, batch: Batch) -> Tensor:
        return self._task.meta_loss(forward, batch)


def _doubled(tree: Any) -> Any:
    """Return the same batch with its floating-point tensors in double precision, whatever else is in it."""
    if isinstance(tree, Tensor):
        return tree.double() if tree.is_floating_point() else tree
    if isinstance(tree, Mapping):
        return type(tree)({name: _doubled(value) for name, value in tree.items()})  # type: ignore[call-arg]
    if isinstance(tree, tuple | list):
        parts = [_doubled(value) for value in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree
