"""KFAC: natural gradient descent with a Kronecker-factored Fisher matrix (Martens and Grosse 2015; for convolutions
Grosse and Martens 2016).

For a layer with inputs a (1 appended for the bias) and gradients g of −log p for its outputs, the layer's block
of the Fisher matrix is taken as A ⊗ G with A = E[a aᵀ] and G = E[g gᵀ]; its step is G⁻¹ ∇ A⁻¹.

It needs activations and gradients inside the network, so it is no pure rule: it is an adaptation of its own that
steps along preconditioned gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor

from warpgrad.adaptation import Adaptation, Inner, Point, Transition
from warpgrad.baselines.kfac_curvlinops import library_factors
from warpgrad.baselines.kfac_factors import (
    Fisher,
    Likelihood,
    Seen,
    batch_factors,
    factored_layers,
    parameter_name,
    watched,
)
from warpgrad.errors import WarpgradError
from warpgrad.keys import fold, generator
from warpgrad.learner import Learner
from warpgrad.rules import SGD
from warpgrad.tasks.base import Task
from warpgrad.tensors import Tensors, gradients, leaves


@dataclass(frozen=True)
class KFAC:
    """Settings. The task loss must be the mean over examples of −log p(y | model output)."""

    lr: float
    """α, for every parameter."""
    likelihood: Likelihood = "categorical"
    """p: a softmax over the outputs, or a Gaussian of variance 1 around them."""
    fisher: Fisher = "sampled"
    """Over which y the gradients g are taken: one drawn from the model per example, all of them weighted by the
    model's probabilities (a backward pass for each output), or the observed one."""
    factors: Literal["own", "curvlinops"] = "own"
    """Who estimates A and G: this package, or curvlinops (extra `kfac`). Their steps are equal but for rounding."""
    damping: float = 0.03
    """λ, divided between A and G so that A ⊗ G gains about λI."""
    decay: float = 0.95
    """How much of the factors is kept at each new estimate; the first ones count as a plain mean."""
    estimate_every: int = 1
    """Steps between estimates of the factors."""
    invert_every: int = 5
    """Steps between inversions."""
    clip: float | None = 0.1
    """Largest α² ∇ᵀF⁻¹∇, about twice the KL divergence of a step; longer steps are shortened. None never does."""

    def __post_init__(self) -> None:
        if self.damping < 0 or not 0 <= self.decay < 1 or (self.clip is not None and self.clip <= 0):
            raise WarpgradError(
                f"KFAC(damping={self.damping}, decay={self.decay}, clip={self.clip}): damping is at least 0, decay at "
                "least 0 and below 1, clip above 0 or None."
            )
        if min(self.estimate_every, self.invert_every) < 1:
            raise WarpgradError("KFAC: estimate_every and invert_every are at least 1 step.")


class KFACAdaptation(Adaptation):
    """One task under adaptation, with every linear layer's and convolution's gradient preconditioned.

    Other parameters (batch-norm) keep their gradient. The factors are part of the point's state, so a trajectory can be
    taken up anywhere. The inverses are recomputed in the first step and then every `invert_every`.
    """

    def __init__(self, learner: Learner, task: Task, key: int, settings: KFAC) -> None:
        super().__init__(learner, SGD(settings.lr), task, key)
        self.settings = settings
        self.layers = factored_layers(learner)

    def step(self, point: Point) -> Transition:
        k = cast(int, point.k)
        theta = leaves(point.theta)
        estimates = k % self.settings.estimate_every == 0
        with watched(self.learner, self.layers) as seen:
            loss, buffers = self.task_loss(theta, point.buffers, k)
        self.check_finite(loss, "the task loss", k)
        state = dict(point.state)
        if estimates:
            self._estimate(point, seen, loss, state)
        (gradient,) = gradients(loss, theta, what="the task loss", allow_unused=self.learner.allow_unused)
        if k % self.settings.invert_every == 0:
            for name in self.layers:
                state.update(self._inverses(name, state[f"kfac/A/{name}"], state[f"kfac/G/{name}"]))
        with torch.no_grad():
            direction = self._preconditioned(gradient, state)
            new_theta, _ = self.update(direction, {}, point.theta)
        return self.transition(point, Inner(loss, gradient, theta, buffers), new_theta, state)

    def _estimate(self, point: Point, seen: Seen, loss: Tensor, state: Tensors) -> None:
        """Move the factors towards those of this batch."""
        settings, k = self.settings, cast(int, point.k)
        place = (self.key, k, "fisher")
        if settings.factors == "own":
            found = batch_factors(self.layers, seen, loss, settings.likelihood, settings.fisher, generator(*place))
        else:
            found = library_factors(
                self.learner,
                self.layers,
                point.theta,
                point.buffers,
                seen,
                settings.likelihood,
                settings.fisher,
                fold(*place),
            )
        estimates_before = k // settings.estimate_every
        kept = min(settings.decay, 1.0 - 1.0 / (estimates_before + 1))
        for name, factor in found.items():
            state_name = f"kfac/{name}"
            state[state_name] = torch.lerp(factor, state[state_name], kept) if state_name in state else factor

    def _inverses(self, name: str, inputs: Tensor, outputs: Tensor) -> Tensors:
        """(A + π√λ I)⁻¹ and (G + √λ/π I)⁻¹, π² the ratio of their mean eigenvalues."""
        sizes = [float(factor.diagonal().mean()) for factor in (inputs, outputs)]
        balance = math.sqrt(sizes[0] / sizes[1]) if min(sizes) > 0 else 1.0
        root = math.sqrt(self.settings.damping)
        return {
            f"kfac/inverse-A/{name}": _inverse(name, inputs, root * balance),
            f"kfac/inverse-G/{name}": _inverse(name, outputs, root / balance),
        }

    def _preconditioned(self, gradient: Tensors, state: Mapping[str, Tensor]) -> Tensors:
        direction = dict(gradient)
        for name, layer in self.layers.items():
            weight, bias = parameter_name(name, "weight"), parameter_name(name, "bias")
            matrix = gradient[weight].flatten(1)
            if layer.bias is not None:
                matrix = torch.cat([matrix, gradient[bias][:, None]], dim=1)
            moved = state[f"kfac/inverse-G/{name}"] @ matrix @ state[f"kfac/inverse-A/{name}"]
            if layer.bias is not None:
                direction[bias] = moved[:, -1]
                moved = moved[:, :-1]
            direction[weight] = moved.reshape(gradient[weight].shape)
        if self.settings.clip is None:
            return direction
        size = self.settings.lr**2 * sum(float((direction[name] * value).sum()) for name, value in gradient.items())
        scale = min(1.0, math.sqrt(self.settings.clip / size)) if size > 0 else 1.0
        return {name: value * scale for name, value in direction.items()}


def _inverse(name: str, factor: Tensor, damping: float) -> Tensor:
    damped = factor + damping * torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    triangle, failed = torch.linalg.cholesky_ex(damped)
    if failed:
        raise WarpgradError(f"a factor of layer '{name}' cannot be inverted: raise KFAC's damping.")
    return torch.cholesky_inverse(triangle)
