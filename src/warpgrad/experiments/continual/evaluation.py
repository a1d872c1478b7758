"""The tasks that runs of the continual experiment are tested on, and the content of their evaluation.json.

Levels are given twice: as the loss, and as its logarithm, because the paper's figures are averages of log-losses. The
mean of a loss over tasks is dominated by the few worst ones; the mean of its logarithm is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from warpgrad.adaptation.stacked import BatchedAdaptation
from warpgrad.adaptation.trajectory import Stepper
from warpgrad.analysis.forgetting import Curves, MakeStepper, forgetting_scores, learning_curves, points
from warpgrad.baselines.ewc import OnlineEWC
from warpgrad.experiments.continual.config import ContinualConfig
from warpgrad.experiments.continual.families import EDGE, SineSubTask, sine_mixture
from warpgrad.experiments.continual.methods import family
from warpgrad.keys import fold
from warpgrad.model.learner import Learner
from warpgrad.rules import SGD
from warpgrad.tasks.continual import ContinualTask

ORDERS = ("sequential", "shuffled")
LOG_LOSS = "log10 loss"
SELECTED = "loss/old"
"""The validation score that selects the weights if `patience` is set; over both orders, to favour neither."""
_LEAST = 1e-12
"""The lower bound of losses before their logarithm is taken."""
_DRAWN = 101
"""The number of inputs at which predictions are kept."""


def held_out(config: ContinualConfig, order: str, count: int) -> list[ContinualTask]:
    """Return held-out tasks in the order of meta-training or in the other one, the same for all methods of a seed."""
    source = family(config, config.split)
    found = []
    for place in range(count):
        task = cast(ContinualTask, source.sample(fold(config.seed, config.split, place)))
        found.append(task if order == "sequential" else task.with_order(config.order))
    return found


def make_stepper(config: ContinualConfig) -> MakeStepper | None:
    """Return what wraps the adaptation of a method that does more than SGD, or None for plain SGD."""
    if config.method != "ewc":
        return None

    def consolidating(adaptation: BatchedAdaptation) -> Stepper:
        task = cast(ContinualTask, adaptation.task)
        return OnlineEWC(
            adaptation,
            strength=config.strength,
            decay=config.decay,
            ends=[k for k in range(task.steps) if task.switches(k)],
            likelihood="gaussian" if config.family == "sine" else "categorical",
        )

    return consolidating


def curves_of(
    config: ContinualConfig, learner: Learner, tasks: Sequence[ContinualTask], every: int | None = None
) -> Curves:
    """Compute learning curves of the task's measures and of the log-loss."""
    found = learning_curves(learner, SGD(config.lr), tasks, every=every, make_stepper=make_stepper(config))
    logarithms = found.scores["loss"].clamp(min=_LEAST).log10()
    return replace(found, scores={**found.scores, LOG_LOSS: logarithms})


def evaluation(config: ContinualConfig, learner: Learner) -> dict[str, Any]:
    """Return the content of evaluation.json."""
    metrics: dict[str, float] = {}
    orders: dict[str, Any] = {}
    for order in ORDERS:
        tasks = held_out(config, order, config.test_tasks)
        curves = curves_of(config, learner, tasks, config.test_every)
        per_task = forgetting_scores(curves)
        metrics |= _means(order, per_task)
        seen = _seen(curves.scores["loss"], curves.steps, config.steps_per_subtask)
        orders[order] = {
            "steps": curves.steps,
            "order": list(tasks[0].order),
            "curves": {name: values.mean(dim=0).tolist() for name, values in curves.scores.items()},
            "log_seen": seen.clamp(min=_LEAST).log10().mean(dim=0).tolist(),
            "per_task": {
                measure: {name: value.tolist() for name, value in found.items()} for measure, found in per_task.items()
            },
        }
        if config.family == "sine":
            orders[order]["prediction"] = prediction(config, learner, tasks[0])
    return {"metrics": metrics, "orders": orders}


def prediction(config: ContinualConfig, learner: Learner, task: ContinualTask) -> dict[str, Any]:
    """Return the predictions on a sine task before its first sub-task and after each, with the target, for plotting."""
    parts = [cast(SineSubTask, part) for part in task.subtasks]
    x = torch.linspace(-EDGE, EDGE, _DRAWN, device=config.device)[:, None]
    outputs = []
    for point in points(learner, SGD(config.lr), [task], make_stepper(config)):
        if isinstance(point.k, int) and point.k % config.steps_per_subtask == 0:
            theta, buffers = ({name: value[0] for name, value in tree.items()} for tree in (point.theta, point.buffers))
            with torch.no_grad():
                outputs.append(learner.bind(theta, buffers, training=False)(x)[:, 0].tolist())
    inputs = x[:, 0].cpu().numpy()
    return {
        "x": inputs.tolist(),
        "target": sine_mixture(inputs, parts[0].coefficients).tolist(),
        "outputs": outputs,
        "intervals": [[part.low, part.high] for part in parts],
    }


def validation(config: ContinualConfig) -> Callable[[Learner], Mapping[str, float]]:
    """Return a function that scores a learner on validation tasks in both orders, and its loss at θ0.

    Unless `judge_start` is set, no objective contains the loss at θ0 itself, so it is recorded here.
    """
    held_back = ContinualConfig(**{**vars(config), "split": "validation"})
    tasks = {order: held_out(held_back, order, config.validation_tasks) for order in ORDERS}

    def validate(learner: Learner) -> Mapping[str, float]:
        found: dict[str, float] = {}
        for order, own in tasks.items():
            curves = curves_of(config, learner, own)
            found |= _means(order, forgetting_scores(curves))
            found["loss/start"] = float(curves.scores["loss"][:, 0].mean())
        found[SELECTED] = sum(found[f"{order}/loss/old"] for order in ORDERS) / len(ORDERS)
        return found

    return validate


def _means(order: str, per_task: Mapping[str, Mapping[str, Tensor]]) -> dict[str, float]:
    return {
        f"{order}/{measure}/{name}": float(value.mean())
        for measure, found in per_task.items()
        for name, value in found.items()
    }


def _seen(loss: Tensor, steps: Sequence[int], per_subtask: int) -> Tensor:
    """Average losses [tasks, steps, sub-tasks] over the current and all earlier sub-tasks: [tasks, steps]."""
    seen = [max(1, -(-k // per_subtask)) for k in steps]
    return torch.stack([loss[:, place, :count].mean(dim=1) for place, count in enumerate(seen)], dim=1)
