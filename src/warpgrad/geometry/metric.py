"""The metric that warp-layers induce (Eqs. 7-10), for an explicit warp Ω on flat parameters.

A step along −Δθ in P is, to first order, a step along −G⁻¹∇L(γ) in W, with γ = Ω(θ) and G⁻¹ = [DΩ][DΩ]ᵀ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.func import grad, jacrev

from warpgrad.errors import NonFiniteError

Omega = Callable[[Tensor], Tensor]
"""γ = Ω(θ): one flat vector to another, in operations that `torch.func` can map and differentiate."""

NativeLoss = Callable[[Tensor], Tensor]
"""L(γ): the loss on the flat parameters of the model without warp-layers, a scalar."""


def jacobian(omega: Omega, theta: Tensor) -> Tensor:
    """DΩ(θ), [size of γ, size of θ]; differentiable in θ and in whatever Ω is made of."""
    return cast(Tensor, jacrev(omega)(theta))


def metric_inverse(omega: Omega, theta: Tensor) -> Tensor:
    """G⁻¹ = [DΩ][DΩ]ᵀ at γ = Ω(θ) (Eq. 8): what the warp preconditions gradients with in W."""
    derivative = jacobian(omega, theta)
    return derivative @ derivative.mT


def condition_number(metric: Tensor) -> Tensor:
    """Largest over smallest eigenvalue of a symmetric [..., d, d], for G and G⁻¹ alike; ∞ where it is degenerate."""
    spectrum = _spectrum(metric)
    smallest, largest = spectrum[..., 0], spectrum[..., -1]
    return torch.where(smallest > 0, largest / torch.where(smallest > 0, smallest, 1.0), torch.inf)


def is_positive_definite(metric: Tensor, *, tolerance: float | None = None) -> Tensor:
    """Whether [..., d, d] is symmetric with all eigenvalues above `tolerance` times the largest magnitude.

    By default the tolerance is 10·d·ε of the dtype, what rounding in the product [DΩ][DΩ]ᵀ can leave of a zero.
    """
    if tolerance is None:
        tolerance = 10 * metric.shape[-1] * torch.finfo(metric.dtype).eps
    spectrum = _spectrum(metric)
    size = spectrum.abs().amax(-1)
    symmetric = (metric - metric.mT).abs().amax((-2, -1)) <= tolerance * size
    return symmetric & (spectrum[..., 0] > tolerance * size)


def _spectrum(metric: Tensor) -> Tensor:
    if not torch.isfinite(metric).all():
        raise NonFiniteError("the metric holds NaN or infinite entries: Ω or θ has left the finite numbers.")
    return cast(Tensor, torch.linalg.eigvalsh(metric))


@dataclass(frozen=True)
class PushForward:
    """γ = Ω(θ), the gradient Δθ = ∇(L ∘ Ω)(θ) in P (Eq. 7) and its image Δγ = DΩ Δθ = G⁻¹ ∇L(γ) in W (Eq. 8)."""

    gamma: Tensor
    delta_theta: Tensor
    delta_gamma: Tensor


def pushed_forward(loss: NativeLoss, omega: Omega, theta: Tensor) -> PushForward:
    """Δθ by backpropagation through Ω, as adaptation does it, and Δγ by pushing it forward with DΩ."""
    delta_theta: Tensor = grad(lambda place: loss(omega(place)))(theta)
    return PushForward(omega(theta), delta_theta, jacobian(omega, theta) @ delta_theta)


def ideal_step(loss: NativeLoss, omega: Omega, theta: Tensor, alpha: float) -> Tensor:
    """γ − α G⁻¹ ∇L(γ) at γ = Ω(θ), the argument of L in Eq. 10. For a given γ, find θ with `invert`."""
    pushed = pushed_forward(loss, omega, theta)
    return pushed.gamma - alpha * pushed.delta_gamma


def taylor_error(loss: NativeLoss, omega: Omega, theta: Tensor, alpha: float) -> Tensor:
    """(L ∘ Ω)(θ − αΔθ) − L(γ − αΔγ): what Eq. 9 says falls as α²; 0 where Ω is affine."""
    pushed = pushed_forward(loss, omega, theta)
    return loss(omega(theta - alpha * pushed.delta_theta)) - loss(pushed.gamma - alpha * pushed.delta_gamma)
