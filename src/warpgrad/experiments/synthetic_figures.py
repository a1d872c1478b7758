"""Figures of the synthetic experiment: surfaces in 3-D with both descents, a grid of held-out tasks, curves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray
from torch import Tensor

from warpgrad.experiments.synthetic_evaluation import Descent, Test
from warpgrad.report.figures import canvas, house_style, save
from warpgrad.tasks.surfaces import EDGE, surface

GD_COLOUR, WARP_COLOUR = "#111111", "#d6007f"
_SIDE = 70


@dataclass(frozen=True)
class Example:
    """One held-out surface and one start on it, with plain descent and descent through Ω."""

    coefficients: Tensor
    gd: NDArray[np.float64]
    theta: NDArray[np.float64]
    gamma: NDArray[np.float64]
    gd_heights: NDArray[np.float64]
    warp_heights: NDArray[np.float64]


def examples(test: Test, columns: dict[str, Descent], places: list[int]) -> list[Example]:
    """The descents from the same point x0 of the starts at these places."""
    found = []
    with torch.no_grad():
        for place in places:
            theta = columns["warp_matched"].thetas[:, place]
            found.append(
                Example(
                    test.coefficients[place],
                    columns["gd"].thetas[:, place].double().numpy(),
                    theta.double().numpy(),
                    test.omega(theta).double().numpy(),
                    columns["gd"].heights[:, place].double().numpy(),
                    columns["warp_matched"].heights[:, place].double().numpy(),
                )
            )
    return found


def clearest(test: Test, columns: dict[str, Descent], matched: Tensor, count: int) -> list[int]:
    """One start each of the surfaces on which descent through Ω ends furthest below plain descent.

    Only starts from which both descents stay inside the square that is drawn.
    """
    with torch.no_grad():
        paths = torch.cat([columns["gd"].thetas, test.omega(columns["warp_matched"].thetas)])
    inside = (paths.abs() <= EDGE).all(dim=-1).all(dim=0)
    drops = columns["gd"].heights[-1] - columns["warp_matched"].heights[-1]
    gain = torch.where(matched & inside, drops, -torch.inf)
    starts = test.config.test_starts
    best = gain.reshape(-1, starts).max(dim=1)
    surfaces = best.values.argsort(descending=True)[:count]
    return [int(place) * starts + int(best.indices[place]) for place in surfaces]


def surfaces_3d(test: Test, shown: list[Example]) -> bytes:
    """Top: the surface as Ω makes it look from θ-space; bottom: the native one; both descents on each."""
    with house_style():
        figure = canvas(3.0 * len(shown), 6.0)
        for place, example in enumerate(shown):
            _surface_3d(figure, (2, len(shown), place + 1), test, example, warped=True)
            _surface_3d(figure, (2, len(shown), len(shown) + place + 1), test, example, warped=False)
        return save(figure)


def _surface_3d(figure: Canvas, where: tuple[int, int, int], test: Test, example: Example, *, warped: bool) -> None:
    axes = figure.add_subplot(*where, projection="3d", computed_zorder=False)
    grid = _grid()
    with torch.no_grad():
        at = test.omega(grid) if warped else grid
        heights = surface(at, example.coefficients).numpy()
    axes.plot_surface(grid[..., 0].numpy(), grid[..., 1].numpy(), heights, cmap="viridis", alpha=0.75, linewidth=0,
                      rstride=2, cstride=2, antialiased=True, zorder=1)  # fmt: skip
    lift = 0.02 * float(np.ptp(heights))
    if warped:
        _path_3d(axes, example.theta, example.warp_heights + lift, WARP_COLOUR)
        axes.set_title("warped surface, f(Ω(θ))", fontsize=8)
    else:
        _path_3d(axes, example.gd, example.gd_heights + lift, GD_COLOUR)
        _path_3d(axes, example.gamma, example.warp_heights + lift, WARP_COLOUR)
        axes.set_title("native surface, f(x)", fontsize=8)
    axes.set(xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), xticks=[-3, 0, 3], yticks=[-3, 0, 3])
    axes.tick_params(labelsize=6, pad=-2)
    axes.view_init(elev=42, azim=-60)


def _path_3d(axes: object, path: NDArray[np.float64], heights: NDArray[np.float64], colour: str) -> None:
    axes.plot(*path.T, heights, color=colour, linewidth=1.6, zorder=5)  # type: ignore[attr-defined]
    axes.scatter(*path[:1].T, heights[:1], color=colour, s=14, zorder=6)  # type: ignore[attr-defined]
    axes.scatter(*path[-1:].T, heights[-1:], color=colour, s=34, marker="*", zorder=6)  # type: ignore[attr-defined]


def task_grid(shown: list[Example], columns: int = 4) -> bytes:
    """Contours of held-out surfaces with both descents from the same x0."""
    rows = -(-len(shown) // columns)
    grid = _grid()
    with house_style():
        figure = canvas(2.0 * columns, 2.0 * rows)
        for place, example in enumerate(shown):
            axes = figure.add_subplot(rows, columns, place + 1)
            heights = surface(grid, example.coefficients).numpy()
            axes.contourf(grid[..., 0].numpy(), grid[..., 1].numpy(), heights, levels=18, cmap="viridis", alpha=0.85)
            axes.plot(*example.gd.T, color=GD_COLOUR, linewidth=1.4)
            axes.plot(*example.gamma.T, color=WARP_COLOUR, linewidth=1.4)
            axes.plot(*example.gd[0], "o", color="white", markeredgecolor="black", markersize=5)
            axes.plot(*example.gd[-1], "*", color=GD_COLOUR, markersize=8)
            axes.plot(*example.gamma[-1], "*", color=WARP_COLOUR, markersize=8)
            axes.set(xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), xticks=[], yticks=[])
            axes.set_title(f"{example.gd_heights[-1]:.2f} | {example.warp_heights[-1]:.2f}", fontsize=7.5, loc="center")
            axes.grid(visible=False)
        return save(figure)


def warp_grid(test: Test) -> bytes:
    """Where Ω takes a square grid."""
    lines = torch.linspace(-EDGE, EDGE, 25)
    fine = torch.linspace(-EDGE, EDGE, 200)
    with house_style(), torch.no_grad():
        figure = canvas(4.2, 4.2)
        axes = figure.add_subplot()
        for value in lines:
            for path in (torch.stack([value.expand(200), fine], -1), torch.stack([fine, value.expand(200)], -1)):
                axes.plot(*test.omega(path).numpy().T, color="#3b6ea5", linewidth=0.7)
        square = EDGE * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]])
        axes.plot(*square.T, color="#888888", linewidth=1.2, linestyle="--")
        axes.set(xlabel="γ1", ylabel="γ2", title="Ω of a square grid", aspect="equal")
        axes.grid(visible=False)
        return save(figure)


def _grid() -> Tensor:
    axis = torch.linspace(-EDGE, EDGE, _SIDE)
    return torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1)
