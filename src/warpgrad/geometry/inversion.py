"""Solving Ω(θ) = γ for many γ at once: Newton's method, then path following."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.func import jacrev, vmap
from torch.nn.functional import pad

from warpgrad.errors import WarpgradError
from warpgrad.geometry.metric import Omega
from warpgrad.tensors import shapes


@dataclass(frozen=True)
class Inverse:
    """Solutions of Ω(θ) = γ, one per row, and ‖Ω(θ) − γ‖; rows that are not converged hold the best that was found."""

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
    solution but for exceptional starts; give such an Ω the target as the start. A row is converged where
    ‖Ω(θ) − γ‖ ≤ tolerance·ε·(1 + ‖γ‖), with ε that of the dtype.

    What bites: where Ω folds there are several solutions, of which this is one; and an Ω that is not onto has
    none for some γ: look at `converged`.
    """
    if gamma.ndim != 2 or gamma.shape != start.shape:
        raise WarpgradError(f"invert(...) needs γ and start of one shape [n, d], not {shapes((gamma, start))}.")
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
    """Newton on gap(unknown, *constants) = 0 for every row, halving a step until the gap's norm falls.

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
    """Where the path of `invert` meets s = 1, or how far it came: steps along the tangent, pulled back by Newton."""

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
    """Zero Jacobians where Ω has none: such a row stalls and is counted, instead of stopping all the others."""
    return torch.where(torch.isfinite(slopes).all(-1).all(-1)[:, None, None], slopes, 0.0)
