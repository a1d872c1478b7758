"""θ_0 itself as a point that judges the warp."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from warpgrad.adaptation.base import Adaptation, Point
from warpgrad.tensors import Tensors, gradients


@dataclass(frozen=True)
class JudgedStart:
    """L_meta(θ_0; φ) and its gradient; no step is taken, so a rule has no part in it."""

    meta_loss: Tensor
    phi: Tensors
    rule: Tensors


def judged_start(adaptation: Adaptation, start: Point, weight: float) -> JudgedStart:
    """weight · ∇_φ L_meta(θ_0; φ), on what the task hands out as its `start_batch`.

    Eq. 11 judges where a step leads, never where the first one begins: a warp may let the loss at θ_0 grow as long as
    the first step takes it back. That holds for the first steps of meta-training, not for others.
    """
    learner = adaptation.learner
    loss = adaptation.start_loss(start)
    adaptation.check_finite(loss, "the meta loss", start.k)
    (phi,) = gradients(weight * loss.sum(), learner.phi, what="the meta loss", allow_unused=learner.allow_unused)
    return JudgedStart(loss.detach(), phi, {})
