"""Meta-objectives for the warp: from a point on a trajectory to the gradient for φ.

All three share one step: they take the inner gradient once, and hand back both the next point of the
trajectory and g_φ, so Algorithm 1 pays for the inner gradient once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from warpgrad.adaptation.base import (
    ADAPT_BATCH,
    META_BATCH,
    Adaptation,
    Computation,
    Point,
    Source,
    Transition,
    following,
)
from warpgrad.adaptation.trajectory import ObjectiveStep
from warpgrad.errors import require
from warpgrad.model.learner import Learner
from warpgrad.rules.base import Rule
from warpgrad.tensors import Groups, Tensors


@dataclass(frozen=True)
class StartSample:
    """L_meta(θ_0; φ) and its gradient; no step is taken, so a rule has no part in it.

    Example:
        >>> objectives.StartSample(torch.tensor(1.0), learner.phi).rule
        {}
    """

    meta_loss: Tensor
    phi: Tensors
    rule: Tensors = field(default_factory=dict)


class Objective(Computation[ObjectiveStep]):
    """How a point (τ, θ_k) judges the warp.

    Example:
        >>> issubclass(wg.Exact, wg.Objective), wg.Exact.stops_gradient, wg.Approximate.stops_gradient
        (True, False, True)
    """

    reads: tuple[tuple[Source, int], ...] = ((ADAPT_BATCH, 0), (META_BATCH, 0))

    stops_gradient: bool
    """Whether the inner step is a constant in the objective: then nothing that acts only through it can be learned."""

    needs_trajectory: bool = False
    """Whether it looks at more than single points, by `remember` or `at_start`: then it is for Algorithm 1 alone."""

    @abstractmethod
    def step(self, adaptation: Adaptation, point: Point) -> ObjectiveStep:
        """The adaptation step at `point` and the gradients of this objective there."""

    def meta_loss(
        self, adaptation: Adaptation, theta: Mapping[str, Tensor], buffers: Mapping[str, Tensor], before: Point
    ) -> Tensor:
        """L_meta at the θ that the step from `before` led to; one entry per task in a stack."""
        return adaptation.meta_loss(theta, buffers, before.k)

    def at_start(self, adaptation: Adaptation, start: Point) -> StartSample | None:
        """A sample at θ_0 itself, which Algorithm 1 adds to those of the steps; by default there is none.

        Eq. 11 judges where a step leads, never where the first one begins.
        """
        del adaptation, start
        return None

    def groups(self, result: ObjectiveStep) -> Groups:
        transition = result.transition
        return {
            "losses": {"task": transition.loss, "meta": result.meta_loss},
            "gradient": transition.gradient,
            **transition.after.groups(),
            "phi": result.phi,
            "rule": result.rule,
        }

    def result(self, groups: Groups, point: Point) -> ObjectiveStep:
        losses, after = groups["losses"], Point.of(following(point.k), groups)
        transition = Transition(point, losses["task"], groups["gradient"], after)
        return ObjectiveStep(transition, losses["meta"], groups["phi"], groups["rule"])

    def check(self, learner: Learner, rule: Rule) -> None:
        """Refuse parts that could never learn under this objective."""
        name = type(self).__name__
        require(
            not self.stops_gradient or not rule.meta,
            f"the rule learns {', '.join(rule.meta)}, but {name} stops the gradient of the inner step, so it "
            "would never change; use Exact(), or a fixed value.",
        )
        require(
            learner.phi or rule.meta,
            f"{name} has nothing to learn: the model has no warp parameters and the rule learns none; "
            "add warp-layers, or pass objective=None to learn an initialisation alone.",
        )
