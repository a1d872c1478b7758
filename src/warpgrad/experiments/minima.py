"""Where the minima of a surface are: what "reaches a minimum" means in the synthetic experiment.

A minimum is a point inside the square of starts with gradient 0 and both curvatures above `CURVATURE`; a descent
reaches it when it ends within `RADIUS` of it. Surfaces without such a point are left out of that measure.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

from warpgrad.tasks.surfaces import EDGE, surface

RADIUS = 0.1
CURVATURE = 1e-2
_GRID = 121
_NEWTON_STEPS = 30


def minima(coefficients: Tensor) -> list[Tensor]:
    """The minima [m, 2] of each surface: grid points below their eight neighbours, polished by Newton's method."""
    coefficients = coefficients.double()
    axis = torch.linspace(-EDGE, EDGE, _GRID, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1)
    candidates = [grid[1:-1, 1:-1][_lowest(surface(grid, own))] for own in coefficients]
    counts = torch.tensor([len(points) for points in candidates])
    owners = torch.repeat_interleave(torch.arange(len(coefficients)), counts)
    points, kept = _polished(torch.cat(candidates), coefficients[owners])
    return [_distinct(points[kept & (owners == place)]) for place in range(len(coefficients))]


def reached(positions: Tensor, found: Tensor) -> Tensor:
    """Which positions [..., 2] lie within `RADIUS` of one of the minima [n, 2]."""
    gaps = torch.cdist(positions.double().reshape(-1, 2), found)
    return (gaps.min(dim=1).values < RADIUS).reshape(positions.shape[:-1])


def _lowest(heights: Tensor) -> Tensor:
    """Which inner points of a grid lie below all eight neighbours."""
    inner = heights[1:-1, 1:-1]
    lowest = torch.ones_like(inner, dtype=torch.bool)
    for i in (0, 1, 2):
        for j in (0, 1, 2):
            if (i, j) != (1, 1):
                lowest &= inner < heights[i : i + _GRID - 2, j : j + _GRID - 2]
    return lowest


def _polished(points: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Candidates [n, 2] after Newton's method, and which of them are minima."""
    slope, curvature = vmap(grad(surface)), vmap(jacrev(grad(surface)))
    origin = points
    for _ in range(_NEWTON_STEPS):
        values, vectors = torch.linalg.eigh(curvature(points, coefficients))
        # |curvature| instead of curvature: the step goes downhill even where the surface is not convex yet.
        downhill = (vectors.mT @ slope(points, coefficients)[..., None]) / values.abs().clamp_min(1e-3)[..., None]
        points = points - (vectors @ downhill)[..., 0].clamp(-0.05, 0.05)
    curvatures = torch.linalg.eigvalsh(curvature(points, coefficients))
    flat = slope(points, coefficients).norm(dim=1) < 1e-8
    near = (points - origin).abs().amax(dim=1) < 0.5
    inside = points.abs().amax(dim=1) < EDGE
    return points, flat & near & inside & (curvatures[:, 0] > CURVATURE)


def _distinct(points: Tensor) -> Tensor:
    kept: list[Tensor] = []
    for point in points:
        if all((point - other).norm() > 1e-3 for other in kept):
            kept.append(point)
    return torch.stack(kept) if kept else points[:0]
