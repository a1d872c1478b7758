"""The objective of the continual experiment: Eq. 11, with a choice of gradients for earlier sub-tasks.

φ affects the loss of an earlier sub-task in two ways: through the step that led to θ, and as part of the model F at θ.
The θ of later sub-tasks are constants on a trajectory, and there the second path preserves what was learned before by
learning less of it. So earlier sub-tasks can be given other terms, with the same values but other gradients; θ̄_i is θ
when sub-task i ended, of which the objective keeps a snapshot:

| credit     | an earlier sub-task i judges        | which is                                                      |
|------------|-------------------------------------|---------------------------------------------------------------|
| `full`     | F(θ; φ)                             | the prediction, as in Eq. 11                                  |
| `step`     | F(θ; sg[φ])                         | what the step did to it                                       |
| `movement` | F(θ; φ) − F(θ̄_i; φ) + sg[F(θ̄_i; φ)] | that, and what the model makes of the way θ has gone since θ̄_i |
| `direction` | the same, with θ̃ for the first θ  | the movement, and of the step its direction alone, several times |

Here θ̃ = sg[θ] + w(d̂ − sg[d̂]), where d̂ has the direction of the step and a constant length. Through its length a step
can protect earlier sub-tasks only by learning less of the current one, which later steps make up for; through its
direction it protects them permanently, at all later points (hence w), although only the next point judges it.

Warning: with `movement` or `direction` dropout draws different masks for the two ends of a movement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

import torch
from torch import Tensor

from warpgrad.adaptation.base import META_BATCH, Adaptation, Point, Role, Source
from warpgrad.errors import require
from warpgrad.model.learner import Forward
from warpgrad.objectives import Approximate, Exact, Objective, StartSample
from warpgrad.tasks.continual import ContinualTask, SeenExamples, per_subtask, predictions
from warpgrad.tensors import Tensors, detached, gradients

Credit = Literal["full", "step", "movement", "direction"]
CREDITS: tuple[Credit, ...] = ("full", "step", "movement", "direction")
MOVING: tuple[Credit, ...] = ("movement", "direction")
"""The credits that need the parameters at which earlier sub-tasks ended."""
STEPPING: tuple[Credit, ...] = ("step", "direction")
"""The credits that differentiate through the step, which therefore must not be held constant."""

SHORTEST = 1e-10
"""A step much shorter than this is credited in full, because a step of length 0 has no direction."""

START_LOSS = Role(
    "start_loss",
    Source("start_batch", lambda task, k: cast(ContinualTask, task).start_batch(k)),
    lambda task, forward, batch: task.meta_loss(forward, batch),
)
"""The weighted loss of all sub-tasks at θ_0, which no step led to."""


class _LookingBack(Objective):
    """The common part of `LookBack` and `ApproximateLookBack`, which differ only in how the step is differentiated."""

    def __init__(self, credit: Credit = "full", *, direction_weight: float = 5.0, judge_start: float = 0.0) -> None:
        """
        Args:
            credit: What φ is judged for on earlier sub-tasks: `full`, as in Eq. 11, the `step` alone, the `movement`
                since they ended, or that with the step's `direction` alone.
            direction_weight: w of `credit="direction"`: how much the direction of the step counts.
            judge_start: Weight of one more point, θ_0 before any step, on the task's `start_batch`; 0 for none. Eq. 11
                lets the loss at θ_0 grow as long as the first step takes it back, which other first steps do not.
        """
        require(credit in CREDITS, f"credit={credit!r} is unknown; choose one of {', '.join(CREDITS)}.")
        require(
            credit not in STEPPING or not self.stops_gradient,
            f"credit={credit!r} judges the step itself, which {type(self).__name__} holds constant: it would judge "
            "nothing; use LookBack(...), or credit='full' or 'movement'.",
        )
        require(
            0 < direction_weight < float("inf"),
            f"direction_weight={direction_weight}: a weight must be finite and above 0.",
        )
        require(0 <= judge_start < float("inf"), f"judge_start={judge_start}: a weight must be finite and at least 0.")
        self.credit, self.direction_weight, self.judge_start = credit, direction_weight, judge_start
        self.needs_trajectory = credit in MOVING or judge_start > 0

    def remember(self, adaptation: Adaptation, point: Point) -> Tensors:
        """Return θ̄_i for every sub-task that has ended; the parameters of the i-th are called `i/name`."""
        task = cast(ContinualTask, adaptation.task)
        if self.credit not in MOVING or not isinstance(point.k, int) or not task.ends_earlier(point.k):
            return point.memory
        place = len(point.memory) // len(point.theta)
        return {**point.memory, **{f"{place}/{name}": value for name, value in point.theta.items()}}

    def at_start(self, adaptation: Adaptation, start: Point) -> StartSample | None:
        """Return weight · ∇_φ L_meta(θ_0; φ), always with full credit because no step led to θ_0."""
        if not self.judge_start:
            return None
        learner = adaptation.learner
        loss = adaptation.evaluate_loss(START_LOSS, start.theta, start.buffers, start.k)[0]
        adaptation.check_finite(loss, "the meta loss", start.k)
        weighted = self.judge_start * loss.sum()
        (phi,) = gradients(weighted, learner.phi, what="the meta loss", allow_unused=learner.allow_unused)
        return StartSample(loss.detach(), phi)

    def meta_loss(
        self, adaptation: Adaptation, theta: Mapping[str, Tensor], buffers: Mapping[str, Tensor], before: Point
    ) -> Tensor:
        if self.credit == "full":
            return super().meta_loss(adaptation, theta, buffers, before)
        role = Role("meta_loss", META_BATCH, self._credited)
        return adaptation.evaluate_loss(role, theta, buffers, before.k, before.theta, before.memory)[0]

    def _credited(
        self, task: ContinualTask, forward: Forward, batch: SeenExamples, origin: Tensors, memory: Tensors
    ) -> Tensor:
        inputs, targets, weights = batch
        if len(inputs) == 1:
            return task.meta_loss(forward, batch)
        measure = task.measures["loss"]
        if self.credit == "step":
            outputs = predictions(forward.at(phi=detached(forward.phi)), inputs[:-1])
        else:
            after = by_direction(forward, origin, self.direction_weight) if self.credit == "direction" else forward
            outputs = moved_predictions(after, snapshots(memory, len(inputs) - 1), inputs[:-1])
        earlier = per_subtask(measure, outputs, targets[:-1])
        return (weights[:-1] * earlier).sum() + weights[-1] * measure(forward(inputs[-1]), targets[-1])


class LookBack(_LookingBack, Exact):
    """Eq. 11 on a sequence of sub-tasks, with a choice of gradients for earlier ones."""


class ApproximateLookBack(_LookingBack, Approximate):
    """Like `LookBack`, with the step held constant."""


def snapshots(memory: Mapping[str, Tensor], count: int) -> list[Tensors]:
    """Return θ̄_i of the sub-tasks that have ended, from what `remember` stored."""
    found: list[Tensors] = [{} for _ in range(count)]
    for path, value in memory.items():
        place, _, name = path.partition("/")
        found[int(place)][name] = value
    require(
        all(found),
        "earlier sub-tasks judge how far θ has moved since they ended, which only Algorithm 1 keeps, and a padded "
        "meta-batch has places for sub-tasks to come: use Online(...) and ContinualTask(..., pad=False).",
    )
    return found


def moved_predictions(forward: Forward, ended: list[Tensors], inputs: Tensor) -> Tensor:
    """Compute F(θ; φ) − F(θ̄_i; φ) + sg[F(θ̄_i; φ)] for examples [T, n, …].

    The values are those of `predictions`; the gradient for φ is that of how far they have moved since θ̄_i.
    """
    before = torch.stack([forward.at(theta)(own) for theta, own in zip(ended, inputs, strict=True)])
    return predictions(forward, inputs) + (before.detach() - before)


def by_direction(forward: Forward, origin: Mapping[str, Tensor], weight: float) -> Forward:
    """Return the model at θ̃ = sg[θ] + weight · (d̂ − sg[d̂]), with d = θ − origin the step that led to θ and
    d̂ = d · sg‖d‖ / ‖d‖: the same values, but gradients only through the direction of the step."""
    step = {name: value - origin[name] for name, value in forward.theta.items()}
    square = torch.stack([part.square().sum() for part in step.values()]).sum() + SHORTEST**2
    turned = weight * square.detach().sqrt() * square.rsqrt()
    theta = {}
    for name, part in step.items():
        scaled = turned * part
        theta[name] = forward.theta[name].detach() + (scaled - scaled.detach())
    return forward.at(theta)
