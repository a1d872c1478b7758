"""How methods do on held-out sequences: every sub-task's score after every step, and what it says about forgetting.

With L_t,i the loss of the i-th learned sub-task after t sub-tasks, per task:

| score        | is                                                                                            |
|--------------|-----------------------------------------------------------------------------------------------|
| `new`        | mean over i of L_i,i: each sub-task right after its own steps                                 |
| `old`        | mean over t > 1 of the mean over i < t of L_t,i: earlier sub-tasks whenever a later one ends  |
| `final`      | mean over i of L_T,i                                                                          |
| `forgetting` | mean over i < T of L_T,i − min_{t ≥ i} L_t,i: how far the end lies above the best             |
| `transfer`   | mean over i < T of L_i,i − L_T,i: backward transfer, positive where later steps helped        |

For accuracies the signs of the last two are turned, so that they mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from warpgrad.adaptation import Point, Transition
from warpgrad.baselines.ewc import OnlineEWC
from warpgrad.batched import BatchedAdaptation
from warpgrad.experiments.continual_setup import ContinualConfig, family
from warpgrad.keys import fold
from warpgrad.learner import Learner
from warpgrad.rules import SGD
from warpgrad.tasks.continual import ContinualTask, per_subtask
from warpgrad.tensors import Tensors, stack_trees

ORDERS = ("sequential", "shuffled")
SCORES = ("new", "old", "final", "forgetting", "transfer")
_CHUNK = 25


class Stepper(Protocol):
    """What adapts: an engine itself, or a baseline around one."""

    def start(self) -> Point: ...

    def step(self, point: Point) -> Transition: ...


@dataclass(frozen=True)
class Curves:
    """Scores of all sub-tasks along adaptation."""

    steps: list[int]
    """After how many steps they were read."""
    scores: dict[str, Tensor]
    """Measure -> [tasks, steps, sub-tasks], sub-tasks in the order of learning, float64."""


def held_out(config: ContinualConfig, order: str, count: int) -> list[ContinualTask]:
    """Held-out tasks in the order of meta-training or in the other one; the same for all methods of a seed."""
    source = family(config, config.split)
    found = []
    for place in range(count):
        task = cast(ContinualTask, source.sample(fold(config.seed, config.split, place)))
        found.append(task if order == "sequential" else task.with_order(config.order))
    return found


def stepper(config: ContinualConfig, adaptation: BatchedAdaptation) -> Stepper:
    if config.method != "ewc":
        return adaptation
    task = cast(ContinualTask, adaptation.task)
    return OnlineEWC(
        adaptation,
        strength=config.strength,
        decay=config.decay,
        ends=[k for k in range(config.steps_per_subtask * config.subtasks) if task.switches(k)],
        likelihood="gaussian" if config.family == "sine" else "categorical",
    )


def points(config: ContinualConfig, learner: Learner, tasks: Sequence[ContinualTask]) -> Iterator[Point]:
    """The stacked points θ_0 … θ_K of some tasks."""
    adapting = stepper(config, BatchedAdaptation(learner, SGD(config.lr), tasks, range(len(tasks))))
    point = adapting.start()
    yield point
    for _ in range(config.steps_per_subtask * config.subtasks):
        point = adapting.step(point).after
        yield point


def learning_curves(
    config: ContinualConfig, learner: Learner, tasks: Sequence[ContinualTask], every: int | None = None
) -> Curves:
    """Adapt to all tasks; scores after every `every` steps, and whenever a sub-task ends."""
    n = config.steps_per_subtask
    steps = [k for k in range(n * config.subtasks + 1) if k % n == 0 or (every is not None and k % every == 0)]
    chunks = []
    for begin in range(0, len(tasks), _CHUNK):
        chosen = tasks[begin : begin + _CHUNK]
        examples = stack_trees([_in_order(task) for task in chosen])
        rows = [
            _scores(learner, chosen[0], point, examples)
            for point in points(config, learner, chosen)
            if point.k in steps
        ]
        chunks.append({name: torch.stack([row[name] for row in rows], dim=1) for name in rows[0]})
    scores = {name: torch.cat([chunk[name] for chunk in chunks]).double().cpu() for name in chunks[0]}
    return Curves(steps, scores)


def summarise(scores: Tensor, steps: Sequence[int], ends: Sequence[int], *, higher: bool) -> dict[str, Tensor]:
    """The five scores of each task, from [tasks, steps, sub-tasks]; `higher` where more is better."""
    sign = -1.0 if higher else 1.0
    table = scores[:, [steps.index(end) for end in ends]]
    own = table.diagonal(dim1=1, dim2=2)
    last = table[:, -1]
    count = len(ends)
    best = torch.stack([(sign * table[:, i:, i]).amin(dim=1) for i in range(count - 1)], dim=1)
    old = torch.stack([table[:, t, :t].mean(dim=1) for t in range(1, count)], dim=1)
    return {
        "new": own.mean(dim=1),
        "old": old.mean(dim=1),
        "final": last.mean(dim=1),
        "forgetting": (sign * last[:, :-1] - best).mean(dim=1),
        "transfer": sign * (own - last)[:, :-1].mean(dim=1),
    }


def evaluation(config: ContinualConfig, learner: Learner) -> dict[str, Any]:
    """The content of evaluation.json."""
    metrics: dict[str, float] = {}
    orders: dict[str, Any] = {}
    for order in ORDERS:
        tasks = held_out(config, order, config.test_tasks)
        curves = learning_curves(config, learner, tasks, config.test_every)
        per_task = {name: _summary(config, curves, name) for name in curves.scores}
        metrics |= {
            f"{order}/{measure}/{name}": float(value.mean())
            for measure, found in per_task.items()
            for name, value in found.items()
        }
        loss = curves.scores["loss"]
        orders[order] = {
            "steps": curves.steps,
            "order": list(tasks[0].order),
            "curves": {name: values.mean(dim=0).tolist() for name, values in curves.scores.items()},
            "log_curves": loss.log10().mean(dim=0).tolist(),
            "log_seen": _seen(loss, curves.steps, config.steps_per_subtask).log10().mean(dim=0).tolist(),
            "per_task": {
                measure: {name: value.tolist() for name, value in found.items()} for measure, found in per_task.items()
            },
        }
    return {"metrics": metrics, "orders": orders}


def validation(config: ContinualConfig) -> Callable[[Learner], Mapping[str, float]]:
    """Scores on validation tasks in the order of meta-training, for the curve against meta-steps."""
    held_back = ContinualConfig(**{**vars(config), "split": "validation"})
    tasks = held_out(held_back, "sequential", config.validation_tasks)

    def validate(learner: Learner) -> Mapping[str, float]:
        curves = learning_curves(config, learner, tasks)
        return {
            f"{measure}/{name}": float(value.mean())
            for measure in curves.scores
            for name, value in _summary(config, curves, measure).items()
        }

    return validate


def _summary(config: ContinualConfig, curves: Curves, measure: str) -> dict[str, Tensor]:
    n = config.steps_per_subtask
    ends = range(n, n * config.subtasks + 1, n)
    return summarise(curves.scores[measure], curves.steps, ends, higher=measure == "accuracy")


def _in_order(task: ContinualTask) -> tuple[Tensor, Tensor]:
    """Test examples [sub-tasks, n, …], sub-tasks in the order of learning."""
    inputs, targets = zip(*(task.subtasks[place].test() for place in task.order), strict=True)
    return torch.stack(inputs), torch.stack(targets)


def _scores(learner: Learner, task: ContinualTask, point: Point, examples: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Measure -> [tasks, sub-tasks]."""

    def one(theta: Tensors, buffers: Tensors, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        forward = learner.bind(theta, buffers, training=False)
        return {name: per_subtask(measure, forward, inputs, targets) for name, measure in task.measures.items()}

    with torch.no_grad():
        return torch.vmap(one)(point.theta, point.buffers, *examples)


def _seen(loss: Tensor, steps: Sequence[int], per_subtask: int) -> Tensor:
    """[tasks, steps]: the mean over the current and all earlier sub-tasks, from [tasks, steps, sub-tasks]."""
    seen = [max(1, -(-k // per_subtask)) for k in steps]
    return torch.stack([loss[:, place, :count].mean(dim=1) for place, count in enumerate(seen)], dim=1)
