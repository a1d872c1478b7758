"""The 2-D loss surfaces of the synthetic experiment (App. D).

f(x1, x2) = b1 (a1 − x1)² exp(−x1² − (x2 + a2)²) − b2 (x1/s − x1³ − x2⁵) exp(−x1² − x2²)
            − b3 exp(−(x1 + a3)² − x1²)

with s from 1…10, each a from {−1, 0, 1} and each b from −5…5. As printed, the third term depends on x1 alone;
`form="peaks"` has x2² in place of the second x1².
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import grad, jacrev, vmap

from warpgrad.analysis import jacobian
from warpgrad.analysis.geometry import Omega
from warpgrad.errors import require
from warpgrad.experiments.synthetic.config import Form
from warpgrad.keys import fold, generator
from warpgrad.model.learner import Forward
from warpgrad.tasks.base import Task, TaskFamily

EDGE = 3.0
"""Starts are drawn uniformly from the square (−EDGE, EDGE)²."""


def surface(position: Tensor, coefficients: Tensor) -> Tensor:
    """Evaluate f at positions [..., 2] for coefficients [..., 8] = (s, a1, a2, a3, b1, b2, b3, peaks)."""
    x1, x2 = position.unbind(-1)
    s, a1, a2, a3, b1, b2, b3, peaks = coefficients.unbind(-1)
    square1, square2 = x1.square(), x2.square()
    first = b1 * (a1 - x1).square() * torch.exp(-square1 - (x2 + a2).square())
    second = b2 * (x1 / s - x1 * square1 - x2 * square2.square()) * torch.exp(-square1 - square2)
    third = b3 * torch.exp(-(x1 + a3).square() - square1 - peaks * (square2 - square1))
    return first - second - third


def draw_coefficients(seed: int, form: Form = "printed") -> Tensor:
    """Draw coefficients from the seed; all b = 0, a surface without features, is as likely as any other."""
    draw = generator(seed, "surface")
    s = torch.randint(1, 11, (1,), generator=draw)
    a = torch.randint(-1, 2, (3,), generator=draw)
    b = torch.randint(-5, 6, (3,), generator=draw)
    return torch.cat([s, a, b, torch.tensor([int(form == "peaks")])]).to(torch.get_default_dtype())


class SurfaceTask(Task):
    """Descend one surface: the model's output is the position, and both losses are the height there."""

    stack_key = "surface"

    def __init__(self, coefficients: Tensor, name: str = "surface") -> None:
        self.coefficients = coefficients
        self.name = name

    def adapt_batch(self, k: int) -> Tensor:
        del k
        return self.coefficients

    meta_batch = adapt_batch

    def loss(self, forward: Forward, batch: Tensor) -> Tensor:
        return surface(forward(), batch)


class SurfaceFamily(TaskFamily):
    """Meta-batches of one or several new surfaces, each repeated once per start: the copies begin at different places
    and are trained separately."""

    def __init__(self, form: Form = "printed", surfaces: int = 1) -> None:
        require(form in ("printed", "peaks"), f"form={form!r} is unknown; choose printed or peaks.")
        require(surfaces >= 1, f"surfaces={surfaces}: a meta-batch needs at least 1 surface.")
        self.form = form
        self.surfaces = surfaces

    def sample(self, seed: int) -> SurfaceTask:
        return SurfaceTask(draw_coefficients(seed, self.form), name=f"surface {seed}")

    def meta_batch(self, seed: int, size: int) -> list[Task]:
        starts, left = divmod(size, self.surfaces)
        require(
            not left and starts,
            f"{size} tasks cannot be shared equally by {self.surfaces} surfaces; make the number of tasks a multiple.",
        )
        # The first of several surfaces is the one that is drawn if there is only one.
        keys = [fold(seed, "surface"), *(fold(seed, "surface", place) for place in range(1, self.surfaces))]
        return [task for key in keys for task in [self.sample(key)] * starts]


class Position(nn.Module):
    """The task-learner: a point in the plane, seen through an explicit warp Ω; γ = Ω(θ)."""

    def __init__(self, omega: nn.Module | None = None) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.empty(2))
        self.omega = omega or nn.Identity()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw a starting point, x ~ U(−3, 3)²."""
        nn.init.uniform_(self.theta, -EDGE, EDGE)

    def forward(self) -> Tensor:
        output: Tensor = self.omega(self.theta)
        return output


class ResidualOmega(nn.Module):
    """Ω(θ) = θ + g(θ) with g a tanh net of two layers that starts at zero.

    It starts as plain gradient descent and covers the whole plane; a tanh net without the residual covers a
    quarter of the square of starts.
    """

    def __init__(self, hidden: int = 30) -> None:
        super().__init__()
        self.g = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 2))
        last = self.g[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, theta: Tensor) -> Tensor:
        shift: Tensor = self.g(theta)
        return theta + shift


RADIUS = 0.1
CURVATURE = 1e-2
_GRID = 121
_NEWTON_STEPS = 30


def minima(coefficients: Tensor) -> list[Tensor]:
    """Find the minima [m, 2] of each surface: grid points below their eight neighbours, refined by Newton's method."""
    coefficients = coefficients.double()
    axis = torch.linspace(-EDGE, EDGE, _GRID, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1)
    candidates = [grid[1:-1, 1:-1][_lowest(surface(grid, own))] for own in coefficients]
    counts = torch.tensor([len(points) for points in candidates])
    owners = torch.repeat_interleave(torch.arange(len(coefficients)), counts)
    points, kept = _polished(torch.cat(candidates), coefficients[owners])
    return [_distinct(points[kept & (owners == place)]) for place in range(len(coefficients))]


def reached(positions: Tensor, found: Tensor) -> Tensor:
    """Return which positions [..., 2] lie within `RADIUS` of one of the minima [n, 2]."""
    gaps = torch.cdist(positions.double().reshape(-1, 2), found)
    return (gaps.min(dim=1).values < RADIUS).reshape(positions.shape[:-1])


def _lowest(heights: Tensor) -> Tensor:
    """Return which inner points of a grid lie below all eight neighbours."""
    around = heights.unfold(0, 3, 1).unfold(1, 3, 1).flatten(2)[..., [0, 1, 2, 3, 5, 6, 7, 8]]
    return heights[1:-1, 1:-1] < around.amin(dim=-1)


def _polished(points: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Refine candidates [n, 2] by Newton's method, and return them with a mask of those that are minima."""
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


_CHUNK = 50_000
"""The number of points that are differentiated at once."""


@dataclass(frozen=True)
class Curvature:
    """The largest curvature along each of n descents, [n] each."""

    theta: Tensor
    x: Tensor
    scaled: Tensor


def hessian(omega: Omega, theta: Tensor, coefficients: Tensor) -> Tensor:
    """Compute ∇²(L ∘ Ω) at points [n, 2] of surfaces [n, 8]: [n, 2, 2]."""

    def warped(place: Tensor, own: Tensor) -> Tensor:
        return surface(omega(place), own)

    found: Tensor = vmap(jacrev(grad(warped)))(theta, coefficients)
    return found


def largest_eigenvalue(matrices: Tensor) -> Tensor:
    """Return the largest magnitude of the eigenvalues of symmetric matrices [..., 2, 2], in closed form."""
    first, mixed, second = matrices[..., 0, 0], matrices[..., 0, 1], matrices[..., 1, 1]
    return (first + second).abs() / 2 + torch.hypot((first - second) / 2, mixed)


@torch.no_grad()
def met(omega: Omega | None, thetas: Tensor, coefficients: Tensor) -> Curvature:
    """Return the largest curvature along descents [K+1, n, 2] on surfaces [n, 8]; without Ω, all measures agree."""
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
