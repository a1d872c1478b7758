"""How smooth a surface is where a descent goes: the largest curvature that it meets.

The curvature at a point is the largest magnitude of an eigenvalue of the Hessian there. A descent through Ω meets two:
that of L(Ω(θ)) in θ's space, which is what it descends, and that of L in x's space, at the same places x = Ω(θ).

What bites: an Ω that does no more than shrink the plane by a factor c has c² of the curvature, and smooths nothing.
|det DΩ| is that c² where Ω only scales, so x's curvature times |det DΩ| is the third measure, `scaled`: below it, the
warp has bent the surface smooth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

from warpgrad.geometry import jacobian
from warpgrad.geometry.metric import Omega
from warpgrad.tasks.surfaces import surface

_CHUNK = 50_000
"""Points that are differentiated at once."""


@dataclass(frozen=True)
class Curvature:
    """The largest curvature along each of n descents, [n] each."""

    theta: Tensor
    x: Tensor
    scaled: Tensor


def hessian(omega: Omega, theta: Tensor, coefficients: Tensor) -> Tensor:
    """∇²(L ∘ Ω) at points [n, 2] of surfaces [n, 8]: [n, 2, 2]."""

    def warped(place: Tensor, own: Tensor) -> Tensor:
        return surface(omega(place), own)

    found: Tensor = vmap(jacrev(grad(warped)))(theta, coefficients)
    return found


def largest_eigenvalue(matrices: Tensor) -> Tensor:
    """The largest magnitude of an eigenvalue of symmetric [..., 2, 2], in closed form."""
    first, mixed, second = matrices[..., 0, 0], matrices[..., 0, 1], matrices[..., 1, 1]
    return (first + second).abs() / 2 + torch.hypot((first - second) / 2, mixed)


@torch.no_grad()
def met(omega: Omega | None, thetas: Tensor, coefficients: Tensor) -> Curvature:
    """The largest curvature along descents [K+1, n, 2] on surfaces [n, 8]; without Ω all three measures are one."""
    steps, count, _ = thetas.shape
    places, own = thetas.reshape(-1, 2), coefficients.repeat(steps, 1)
    found = []
    for begin in range(0, len(places), _CHUNK):
        place, surfaces = places[begin : begin + _CHUNK], own[begin : begin + _CHUNK]
        if omega is None:
            plain = largest_eigenvalue(hessian(lambda theta: theta, place, surfaces))
            found.append(torch.stack([plain, plain, plain]))
            continue
        theta = largest_eigenvalue(hessian(omega, place, surfaces))
        x = largest_eigenvalue(hessian(lambda theta: theta, omega(place), surfaces))
        areas = torch.linalg.det(vmap(lambda theta: jacobian(omega, theta))(place)).abs()
        found.append(torch.stack([theta, x, areas * x]))
    theta, x, scaled = torch.cat(found, dim=1).reshape(3, steps, count).amax(dim=1)
    return Curvature(theta, x, scaled)
