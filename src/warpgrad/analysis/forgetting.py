"""How a learner does on sequences of sub-tasks: the score of every sub-task after every step, and what was forgotten.

    curves = learning_curves(learner, wg.SGD(0.01), tasks)        # tasks: ContinualTasks of one kind
    found = forgetting_scores(curves)["loss"]                     # {"old": [tasks], "forgetting": [tasks], ...}

With L_t,i the loss of the i-th learned sub-task after t sub-tasks, per task:

| score        | is                                                                                            |
|--------------|-----------------------------------------------------------------------------------------------|
| `new`        | mean over i of L_i,i: each sub-task right after its own steps                                 |
| `old`        | mean over t > 1 of the mean over i < t of L_t,i: earlier sub-tasks whenever a later one ends  |
| `final`      | mean over i of L_T,i                                                                          |
| `forgetting` | mean over i < T of L_T,i − min_{t ≥ i} L_t,i: how far the end lies above the best             |
| `transfer`   | mean over i < T of L_i,i − L_T,i: backward transfer, positive where later steps helped        |

For measures of which more is better the signs of the last two are turned, so that they mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from warpgrad.adaptation.base import Point
from warpgrad.adaptation.stacked import BatchedAdaptation
from warpgrad.adaptation.trajectory import Stepper, Trajectory
from warpgrad.errors import require
from warpgrad.model.learner import Learner
from warpgrad.rules import Rule
from warpgrad.tasks.continual import ContinualTask, per_subtask, predictions
from warpgrad.tensors import Tensors, stack_trees

SCORES = ("new", "old", "final", "forgetting", "transfer")
_CHUNK = 25
"""The number of tasks that are adapted to at once."""


MakeStepper = Callable[[BatchedAdaptation], Stepper]


@dataclass(frozen=True)
class Curves:
    """Scores of all sub-tasks along adaptation."""

    steps: list[int]
    """The numbers of steps after which the scores were measured."""
    ends: list[int]
    """The numbers of steps after which each sub-task ends."""
    scores: dict[str, Tensor]
    """Measure -> [tasks, steps, sub-tasks], sub-tasks in the order of learning, float64."""


def points(
    learner: Learner, rule: Rule, tasks: Sequence[ContinualTask], make_stepper: MakeStepper | None = None
) -> Iterator[Point]:
    """Yield the stacked points θ_0 … θ_K of several tasks."""
    adaptation = BatchedAdaptation(learner, rule, tasks, range(len(tasks)))
    stepper: Stepper = adaptation if make_stepper is None else make_stepper(adaptation)
    return Trajectory(stepper, tasks[0].steps).points()


def learning_curves(
    learner: Learner,
    rule: Rule,
    tasks: Sequence[ContinualTask],
    *,
    every: int | None = None,
    make_stepper: MakeStepper | None = None,
) -> Curves:
    """Adapt to all tasks, and score them after every `every` steps and whenever a sub-task ends.

    Args:
        learner: θ0 and φ.
        rule: The update rule of adaptation.
        tasks: Tasks with as many sub-tasks and steps each, and test examples of one shape.
        every: Steps between scores; only at the ends of sub-tasks if None.
        make_stepper: Makes a stepper of the adaptation, for a baseline that changes its steps.
    """
    require(tasks, "learning_curves(...) needs at least one task.")
    n, total = tasks[0].steps_per_subtask, tasks[0].steps
    steps = [k for k in range(total + 1) if k % n == 0 or (every is not None and k % every == 0)]
    chunks = []
    for begin in range(0, len(tasks), _CHUNK):
        chosen = tasks[begin : begin + _CHUNK]
        examples = stack_trees([_in_order(task) for task in chosen])
        rows = [
            _scores(learner, chosen[0], point, examples)
            for point in points(learner, rule, chosen, make_stepper)
            if point.k in steps
        ]
        chunks.append({name: torch.stack([row[name] for row in rows], dim=1) for name in rows[0]})
    scores = {name: torch.cat([chunk[name] for chunk in chunks]).double().cpu() for name in chunks[0]}
    return Curves(steps, list(range(n, total + 1, n)), scores)


def forgetting_scores(curves: Curves, higher: Collection[str] = ("accuracy",)) -> dict[str, dict[str, Tensor]]:
    """Return measure -> score -> [tasks]; `higher` names the measures of which more is better."""
    return {name: summarise(curves, name, higher=name in higher) for name in curves.scores}


def summarise(curves: Curves, measure: str, *, higher: bool) -> dict[str, Tensor]:
    """Compute the five scores of each task."""
    require(len(curves.ends) >= 2, "a task with one sub-task has nothing to forget; give tasks at least two.")
    sign = -1.0 if higher else 1.0
    table = curves.scores[measure][:, [curves.steps.index(end) for end in curves.ends]]
    own = table.diagonal(dim1=1, dim2=2)
    last = table[:, -1]
    count = len(curves.ends)
    best = torch.stack([(sign * table[:, i:, i]).amin(dim=1) for i in range(count - 1)], dim=1)
    old = torch.stack([table[:, t, :t].mean(dim=1) for t in range(1, count)], dim=1)
    return {
        "new": own.mean(dim=1),
        "old": old.mean(dim=1),
        "final": last.mean(dim=1),
        "forgetting": (sign * last[:, :-1] - best).mean(dim=1),
        "transfer": sign * (own - last)[:, :-1].mean(dim=1),
    }


def _in_order(task: ContinualTask) -> tuple[Tensor, Tensor]:
    """Stack test examples [sub-tasks, n, …], with sub-tasks in the order of learning."""
    inputs, targets = zip(*(task.subtasks[place].test() for place in task.order), strict=True)
    return torch.stack(inputs), torch.stack(targets)


def _scores(learner: Learner, task: ContinualTask, point: Point, examples: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Compute the scores of all sub-tasks at a point: measure -> [tasks, sub-tasks]."""

    def one(theta: Tensors, buffers: Tensors, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        forward = learner.bind(theta, buffers, training=False)
        outputs = predictions(forward, inputs)
        return {name: per_subtask(measure, outputs, targets) for name, measure in task.measures.items()}

    with torch.no_grad():
        return torch.vmap(one)(point.theta, point.buffers, *examples)
