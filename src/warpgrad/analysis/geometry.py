"""The metric that warp-layers induce (Eqs. 7-10), for an explicit warp Ω on flat parameters.

A step along −Δθ in P is, to first order, a step along −G⁻¹∇L(γ) in W, with γ = Ω(θ) and G⁻¹ = [DΩ][DΩ]ᵀ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import grad, jacrev, vmap
from torch.nn.functional import linear, pad

from warpgrad.errors import NonFiniteError, WarpgradError, require
from warpgrad.model.learner import Learner
from warpgrad.tensors import Tensors, shapes

Omega = Callable[[Tensor], Tensor]
"""γ = Ω(θ): one flat vector to another, in operations that `torch.func` can map and differentiate."""

NativeLoss = Callable[[Tensor], Tensor]
"""L(γ): the loss on the flat parameters of the model without warp-layers, a scalar."""


def jacobian(omega: Omega, theta: Tensor) -> Tensor:
    """Compute DΩ(θ), [size of γ, size of θ]; differentiable in θ and in whatever Ω is made of.

    Example:
        >>> analysis.jacobian(lambda theta: 2 * theta, torch.ones(2))
        tensor([[2., 0.],
                [0., 2.]])
    """
    return cast(Tensor, jacrev(omega)(theta))


def metric_inverse(omega: Omega, theta: Tensor) -> Tensor:
    """Compute G⁻¹ = [DΩ][DΩ]ᵀ at γ = Ω(θ) (Eq. 8), with which the warp preconditions gradients in W.

    Example:
        >>> analysis.metric_inverse(lambda theta: 2 * theta, torch.ones(2)).diagonal()
        tensor([4., 4.])
    """
    derivative = jacobian(omega, theta)
    return derivative @ derivative.mT


def condition_number(metric: Tensor) -> Tensor:
    """Return largest over smallest eigenvalue of a symmetric [..., d, d], G or G⁻¹; ∞ if it is degenerate.

    Example:
        >>> analysis.condition_number(torch.diag(torch.tensor([1.0, 4.0])))
        tensor(4.)
    """
    spectrum = _spectrum(metric)
    smallest, largest = spectrum[..., 0], spectrum[..., -1]
    return torch.where(smallest > 0, largest / torch.where(smallest > 0, smallest, 1.0), torch.inf)


def is_positive_definite(metric: Tensor, *, tolerance: float | None = None) -> Tensor:
    """Return whether [..., d, d] is symmetric with all eigenvalues above `tolerance` times the largest magnitude.

    By default the tolerance is 10·d·ε of the dtype, which rounding in the product [DΩ][DΩ]ᵀ can make of a zero.

    Example:
        >>> analysis.is_positive_definite(torch.diag(torch.tensor([1.0, 0.0])))
        tensor(False)
    """
    if tolerance is None:
        tolerance = 10 * metric.shape[-1] * torch.finfo(metric.dtype).eps
    spectrum = _spectrum(metric)
    size = spectrum.abs().amax(-1)
    symmetric = (metric - metric.mT).abs().amax((-2, -1)) <= tolerance * size
    return symmetric & (spectrum[..., 0] > tolerance * size)


def _spectrum(metric: Tensor) -> Tensor:
    if not torch.isfinite(metric).all():
        raise NonFiniteError("the metric has NaN or infinite entries: Ω or θ has diverged.")
    return cast(Tensor, torch.linalg.eigvalsh(metric))


@dataclass(frozen=True)
class PushForward:
    """γ = Ω(θ), the gradient Δθ = ∇(L ∘ Ω)(θ) in P (Eq. 7) and its image Δγ = DΩ Δθ = G⁻¹ ∇L(γ) in W (Eq. 8).

    Example:
        >>> pushed = analysis.pushed_forward(lambda gamma: gamma.sum(), lambda theta: 2 * theta, torch.ones(2))
        >>> pushed.gamma, pushed.delta_theta
        (tensor([2., 2.]), tensor([2., 2.]))
    """

    gamma: Tensor
    delta_theta: Tensor
    delta_gamma: Tensor


def pushed_forward(loss: NativeLoss, omega: Omega, theta: Tensor) -> PushForward:
    """Compute Δθ by backpropagation through Ω, as adaptation does, and Δγ by pushing it forward with DΩ.

    Example:
        >>> analysis.pushed_forward(lambda gamma: gamma.sum(), lambda theta: 2 * theta, torch.ones(2)).delta_gamma
        tensor([4., 4.])
    """
    delta_theta: Tensor = grad(lambda place: loss(omega(place)))(theta)
    return PushForward(omega(theta), delta_theta, jacobian(omega, theta) @ delta_theta)


def ideal_step(loss: NativeLoss, omega: Omega, theta: Tensor, alpha: float) -> Tensor:
    """Compute γ − α G⁻¹ ∇L(γ) at γ = Ω(θ), the argument of L in Eq. 10. For a given γ, find θ with `invert`.

    Example:
        >>> analysis.ideal_step(lambda gamma: gamma.sum(), lambda theta: 2 * theta, torch.ones(2), alpha=0.5)
        tensor([0., 0.])
    """
    pushed = pushed_forward(loss, omega, theta)
    return pushed.gamma - alpha * pushed.delta_gamma


def taylor_error(loss: NativeLoss, omega: Omega, theta: Tensor, alpha: float) -> Tensor:
    """Compute (L ∘ Ω)(θ − αΔθ) − L(γ − αΔγ), which falls as α² by Eq. 9 and is 0 for an affine Ω.

    Example:
        >>> analysis.taylor_error(lambda gamma: gamma.square().sum(), lambda theta: 2 * theta, torch.ones(2), 0.1)
        tensor(0.)
    """
    pushed = pushed_forward(loss, omega, theta)
    return loss(omega(theta - alpha * pushed.delta_theta)) - loss(pushed.gamma - alpha * pushed.delta_gamma)


def as_vector(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return θ as the flat vector that an explicit Ω takes, in the order of its names.

    Example:
        >>> analysis.as_vector({"w": torch.ones(2, 2), "b": torch.zeros(1)})
        tensor([1., 1., 1., 1., 0.])
    """
    return torch.cat([tensor.reshape(-1) for tensor in tensors.values()])


def from_vector(vector: Tensor, like: Mapping[str, Tensor]) -> Tensors:
    """Split a vector into tensors with the names and shapes of `like`; the inverse of `as_vector`, differentiable.

    Example:
        >>> analysis.from_vector(torch.arange(3.0), {"w": torch.zeros(2), "b": torch.zeros(1)})
        {'w': tensor([0., 1.]), 'b': tensor([2.])}
    """
    sizes = [tensor.numel() for tensor in like.values()]
    require(
        vector.shape == (sum(sizes),),
        f"a flat vector of {sum(sizes)} numbers is needed, not shape {tuple(vector.shape)}.",
    )
    parts = zip(like.items(), torch.split(vector, sizes), strict=True)
    return {name: part.reshape(tensor.shape) for (name, tensor), part in parts}


def linear_omega(learner: Learner) -> Omega:
    """Return Ω of a model whose warp-layers are linear, x ↦ T x + t, each directly after a linear task layer.

    γ has θ's names in θ's order: W ↦ T W and b ↦ T b + t for a warped layer, everything else as it is. The model
    at θ equals the same model without warp-layers at γ. DΩ is constant and, with parameters sorted by column of W,
    block-diagonal with a block T per column. Ω reads φ when it is called and is differentiable in it.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2), wg.Warp(nn.Linear(2, 2)))
        >>> omega = analysis.linear_omega(wg.Learner(net))
        >>> tuple(analysis.jacobian(omega, torch.zeros(6)).shape)
        (6, 6)
    """
    warps = _linear_warps(learner)

    def omega(theta: Tensor) -> Tensor:
        gamma = from_vector(theta, learner.theta0)
        for path, warp in warps.items():
            weight, bias = f"{path}.weight", f"{path}.bias"
            gamma[weight] = warp.weight @ gamma[weight]
            if bias in gamma:
                gamma[bias] = linear(gamma[bias], warp.weight, warp.bias)
        return as_vector(gamma)

    return omega


def _linear_warps(learner: Learner) -> dict[str, nn.Linear]:
    """Return the warp-layer behind every warped task layer, by the task layer's name."""
    module = learner.module
    warps: dict[str, nn.Linear] = {}
    left = set(learner.phi)
    for path, container in module.named_modules():
        if type(container).forward is not nn.Sequential.forward:
            continue
        children = [(f"{path}.{name}" if path else name, child) for name, child in container.named_children()]
        for (task_name, task), (warp_name, warp) in pairwise(children):
            theta = {f"{task_name}.{name}" for name, _ in task.named_parameters()}
            phi = {f"{warp_name}.{name}" for name, _ in warp.named_parameters()}
            both = type(task) is nn.Linear and type(warp) is nn.Linear
            if both and theta <= set(learner.theta0) and phi <= left and len(phi) <= len(theta):
                warps[task_name] = cast(nn.Linear, warp)
                left -= phi
    if left:
        raise WarpgradError(
            f"Ω has no explicit linear form because of '{min(left)}': every warp-layer must be an nn.Linear directly "
            "after an nn.Linear of θ in an nn.Sequential, with a bias only where that layer has one too."
        )
    require(
        len(list(module.named_parameters(remove_duplicate=False))) <= len(list(module.parameters())),
        "Ω has no explicit linear form for a model with tied parameters; untie them.",
    )
    return warps


@dataclass(frozen=True)
class Inverse:
    """Solutions of Ω(θ) = γ, one per row, and ‖Ω(θ) − γ‖; rows that are not converged hold the best that was found.

    Example:
        >>> found = analysis.invert(lambda theta: 2 * theta, torch.ones(1, 2), start=torch.zeros(1, 2))
        >>> found.theta, bool(found.converged)
        (tensor([[0.5000, 0.5000]]), True)
    """

    theta: Tensor
    residual: Tensor
    converged: Tensor


@torch.no_grad()
def invert(
    omega: Omega, gamma: Tensor, start: Tensor, *, steps: int = 100, path_steps: int = 400, tolerance: float = 1e2
) -> Inverse:
    """Solve Ω(θ) = γ for many γ at once, all [n, d]: damped Newton, then path following for the rows it misses.

    Newton, of at most `steps`, stalls where Ω folds (DΩ singular) between start and solution. Those rows follow the
    zeros of s(Ω(θ) − γ) + (1 − s)(θ − start) from s = 0 to 1, around turning points, for at most `path_steps`
    (0: not at all). For Ω(θ) = θ + g(θ) with bounded g, such as a residual tanh network, that path leads to a
    solution except for exceptional starts; give such an Ω the target as the start. A row is converged where
    ‖Ω(θ) − γ‖ ≤ tolerance·ε·(1 + ‖γ‖), with ε that of the dtype.

    Warning: where Ω folds there are several solutions, of which this is one; and an Ω that is not onto has
    none for some γ: look at `converged`.

    Example:
        >>> analysis.invert(lambda theta: theta + theta.tanh(), torch.zeros(1, 2), torch.ones(1, 2)).converged
        tensor([True])
    """
    require(
        gamma.ndim == 2 and gamma.shape == start.shape,
        f"invert(...) needs γ and start of one shape [n, d], not {shapes((gamma, start))}.",
    )
    bound = tolerance * torch.finfo(gamma.dtype).eps * (1 + gamma.norm(dim=1))

    def gap(theta: Tensor, target: Tensor) -> Tensor:
        return omega(theta) - target

    theta, residual = _newton(gap, start, (gamma,), steps, bound)
    left = torch.nonzero(~(residual <= bound)).squeeze(1)
    if path_steps and len(left):
        end = _followed(omega, gamma[left], start[left], path_steps, bound[left])
        retried, distance = _newton(gap, end, (gamma[left],), steps, bound[left])
        better = ~(residual[left] <= distance)
        theta[left[better]], residual[left[better]] = retried[better], distance[better]
    return Inverse(theta, residual, residual <= bound)


def _newton(
    gap: Callable[..., Tensor], begin: Tensor, constants: tuple[Tensor, ...], steps: int, bound: Tensor
) -> tuple[Tensor, Tensor]:
    """Run Newton's method on gap(unknown, *constants) = 0 for every row, halving a step until the gap's norm falls.

    The pseudo-inverse gives the shortest step where unknowns outnumber equations, and a finite one where the
    Jacobian is singular. A row that no step improves stays where it is.
    """
    unknown = begin.clone()
    active = torch.ones_like(bound, dtype=torch.bool)
    for _ in range(steps):
        value = vmap(gap)(unknown, *constants)
        size = value.norm(dim=1)
        active = active & (size > bound)
        if not active.any():
            break
        slopes = _finite(vmap(jacrev(gap))(unknown, *constants))
        direction = (torch.linalg.pinv(slopes) @ value.unsqueeze(-1)).squeeze(-1)
        length = torch.ones_like(bound)
        for _ in range(30):
            trial = unknown - length.unsqueeze(1) * direction
            better = vmap(gap)(trial, *constants).norm(dim=1) <= (1 - 1e-4 * length) * size
            if (better | ~active).all():
                break
            length = torch.where(better, length, length / 2)
        active = active & better
        unknown = torch.where(active.unsqueeze(1), trial, unknown)
    return unknown, vmap(gap)(unknown, *constants).norm(dim=1)


def _followed(omega: Omega, gamma: Tensor, start: Tensor, steps: int, bound: Tensor) -> Tensor:
    """Follow the path of `invert` to s = 1, or as far as it goes, by steps along the tangent and Newton corrections."""

    def homotopy(place: Tensor, target: Tensor, origin: Tensor) -> Tensor:
        theta, s = place[:-1], place[-1]
        return s * (omega(theta) - target) + (1 - s) * (theta - origin)

    def tangent(place: Tensor) -> Tensor:
        return cast(Tensor, torch.linalg.svd(_finite(vmap(jacrev(homotopy))(place, gamma, start)))[2][:, -1])

    place = pad(start, (0, 1))
    heading = pad(torch.zeros_like(start), (0, 1), value=1.0)
    length = torch.full_like(bound, 0.1)
    arrived = torch.zeros_like(bound, dtype=torch.bool)
    for _ in range(steps):
        direction = tangent(place)
        direction = direction * torch.where((direction * heading).sum(1) < 0, -1.0, 1.0).unsqueeze(1)
        ahead, missed = _newton(homotopy, place + length.unsqueeze(1) * direction, (gamma, start), 4, bound)
        # A sharp turn or a long jump means that another branch was hit: take it shorter.
        straight = (tangent(ahead) * direction).sum(1).abs() > 0.9
        kept = (missed <= bound) & straight & ((ahead - place).norm(dim=1) < 2 * length) & ~arrived
        ends = kept & (ahead[:, -1] >= 1)
        part = torch.where(ends, (1 - place[:, -1]) / (ahead[:, -1] - place[:, -1]), 1.0).unsqueeze(1)
        place = torch.where(kept.unsqueeze(1), place + part * (ahead - place), place)
        heading = torch.where(kept.unsqueeze(1), direction, heading)
        length = torch.where(kept, 1.5 * length, length / 2)
        arrived = arrived | ends
        if arrived.all():
            break
    return place[:, :-1]


def _finite(slopes: Tensor) -> Tensor:
    """Replace Jacobians that are not finite by zero: such a row stalls and is counted, and the others go on."""
    return torch.where(torch.isfinite(slopes).all(-1).all(-1)[:, None, None], slopes, 0.0)
