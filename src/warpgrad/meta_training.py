"""`meta_train`: the one entry that composes the parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from warpgrad.algorithms.base import Algorithm
from warpgrad.initialisers.base import Initialiser
from warpgrad.initialisers.fixed import Fixed
from warpgrad.keys import fold, isolated_rng
from warpgrad.learner import Learner
from warpgrad.meta_optimiser import MetaOptimiser, OptimiserFactory, ScheduleFactory
from warpgrad.method import Group, Method
from warpgrad.objectives.base import Objective
from warpgrad.rules.base import Rule
from warpgrad.tasks.base import TaskFamily


def meta_train(
    learner: Learner,
    tasks: TaskFamily,
    *,
    algorithm: Algorithm,
    rule: Rule,
    objective: Objective | None = None,
    initialiser: Initialiser | None = None,
    weight: float = 1.0,
    optimiser: OptimiserFactory | Mapping[Group, OptimiserFactory],
    clip: float | Mapping[Group, float] | None = None,
    schedule: ScheduleFactory | None = None,
    meta_steps: int,
    seed: int = 0,
    callback: Callable[[int, dict[str, float]], None] | None = None,
) -> list[dict[str, float]]:
    """Meta-learn φ and θ0 in place; returns the mean losses of every meta-step."""
    method = Method(learner, rule, objective, initialiser or Fixed(), weight)
    update = MetaOptimiser(method, optimiser, clip=clip, schedule=schedule)
    history: list[dict[str, float]] = []
    with isolated_rng(learner.device):
        for step in range(meta_steps):
            key = fold(seed, step)
            batch = tasks.meta_batch(key, algorithm.tasks)
            keys = [fold(key, "task", index) for index in range(len(batch))]
            history.append(algorithm.meta_step(method, batch, keys, update))
            update.end_meta_step()
            if callback is not None:
                callback(step, history[-1])
    return history
