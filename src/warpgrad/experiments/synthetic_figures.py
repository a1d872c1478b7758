"""Figures of the synthetic experiment, from an evaluation alone: descents on native and warped surfaces, what Ω does
to the plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from torch import Tensor, nn

from warpgrad.experiments.minima import minima
from warpgrad.experiments.synthetic_setup import omega_of
from warpgrad.report.figures import canvas, house_style, save
from warpgrad.tasks.surfaces import EDGE, surface

COLOURS = {"plain": "#111111", "adam_tuned": "#e69f00", "warp_matched": "#d6007f"}
_SIDE = 121

Path = NDArray[np.float64]
"""Places on a surface, [K+1, 2]."""


@dataclass(frozen=True)
class Example:
    """One held-out surface and the descents from one start on it."""

    coefficients: Tensor
    theta: Path
    """WarpGrad's θ's."""
    paths: Mapping[str, Path]
    """Column -> where on the surface it goes; all begin at x0."""
    final: Mapping[str, float]
    """Column -> height at the end."""

    def heights(self, path: Path) -> NDArray[np.float64]:
        found: NDArray[np.float64] = surface(torch.from_numpy(path), self.coefficients.double()).numpy()
        return found


def kept_omega(evaluation: Mapping[str, Any], hidden: int) -> nn.Module:
    """Ω of a run."""
    return omega_of(hidden, evaluation["omega"])


def kept_examples(evaluation: Mapping[str, Any], omega: nn.Module) -> list[Example]:
    """The descents that a run has kept, WarpGrad's brought to the surface by Ω."""
    found = []
    for kept in evaluation["examples"]:
        paths = {name: np.array(path) for name, path in kept["paths"].items()}
        theta = paths["warp_matched"]
        paths["warp_matched"] = omega(torch.from_numpy(theta).float()).double().numpy()
        found.append(Example(torch.tensor(kept["coefficients"]), theta, paths, kept["final"]))
    return found


def descents(shown: Sequence[Example], labels: Mapping[str, str]) -> bytes:
    """Contours of native surfaces with the descents from x0; `labels` says which columns, and what they are called."""
    with house_style():
        figure = canvas(3.1 * len(shown), 3.75)
        for place, example in enumerate(shown):
            _descents_panel(figure.add_subplot(1, len(shown), place + 1), example, list(labels))
        keys = [Line2D([], [], color=COLOURS[name], linewidth=2.2, label=label) for name, label in labels.items()]
        keys.append(Line2D([], [], linestyle="", marker="o", color="white", markeredgecolor="black", label="start"))
        keys.append(Line2D([], [], linestyle="", marker="x", color="black", label="minimum"))
        figure.legend(handles=keys, loc="outside lower center", ncols=len(keys))
        return save(figure)


def _descents_panel(axes: Axes, example: Example, columns: Sequence[str]) -> None:
    grid = _grid()
    heights = surface(grid, example.coefficients).numpy()
    x, y = grid[..., 0].numpy(), grid[..., 1].numpy()
    axes.contourf(x, y, heights, levels=24, cmap="Blues_r", alpha=0.9)
    axes.contour(x, y, heights, levels=12, colors="white", linewidths=0.4, alpha=0.7)
    for name in columns:
        path, colour = example.paths[name], COLOURS[name]
        axes.plot(*path.T, color="white", linewidth=3.2, alpha=0.8)
        axes.plot(*path.T, color=colour, linewidth=1.7)
        axes.plot(*path[-1], "*", color=colour, markeredgecolor="white", markersize=12, markeredgewidth=0.7, zorder=6)
    (points,) = minima(example.coefficients[None])
    axes.plot(*points.numpy().T, "x", color="black", markersize=5, markeredgewidth=1.1, zorder=5)
    axes.plot(*example.paths["plain"][0], "o", color="white", markeredgecolor="black", markersize=6.5, zorder=7)
    axes.set(xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), xticks=[-3, 0, 3], yticks=[-3, 0, 3], aspect="equal")
    ends = " · ".join(f"{example.final[name]:.2f}".replace("-", "−") for name in columns)
    axes.set_title(ends, fontsize=8.5, loc="center", fontweight="normal")
    axes.grid(visible=False)


def surfaces_3d(omega: nn.Module, shown: Sequence[Example]) -> bytes:
    """Top: the surface as Ω makes it look from θ-space; bottom: the native one; plain descent and WarpGrad on each."""
    with house_style():
        figure = canvas(3.0 * len(shown), 6.0)
        for place, example in enumerate(shown):
            _surface_3d(figure, (2, len(shown), place + 1), omega, example)
            _surface_3d(figure, (2, len(shown), len(shown) + place + 1), None, example)
        return save(figure)


def _surface_3d(figure: Canvas, where: tuple[int, int, int], omega: nn.Module | None, example: Example) -> None:
    axes = figure.add_subplot(*where, projection="3d", computed_zorder=False)
    grid = _grid()
    heights = surface(grid if omega is None else omega(grid), example.coefficients).numpy()
    axes.plot_surface(grid[..., 0].numpy(), grid[..., 1].numpy(), heights, cmap="viridis", alpha=0.75, linewidth=0,
                      rstride=3, cstride=3, antialiased=True, zorder=1)  # fmt: skip
    lift = 0.02 * float(np.ptp(heights))
    warped = example.heights(example.paths["warp_matched"]) + lift
    if omega is not None:
        _path_3d(axes, example.theta, warped, COLOURS["warp_matched"])
        axes.set_title("warped surface, f(Ω(θ))", fontsize=8)
    else:
        _path_3d(axes, example.paths["plain"], example.heights(example.paths["plain"]) + lift, COLOURS["plain"])
        _path_3d(axes, example.paths["warp_matched"], warped, COLOURS["warp_matched"])
        axes.set_title("native surface, f(x)", fontsize=8)
    axes.set(xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), xticks=[-3, 0, 3], yticks=[-3, 0, 3])
    axes.tick_params(labelsize=6, pad=-2)
    axes.view_init(elev=42, azim=-60)


def _path_3d(axes: object, path: Path, heights: NDArray[np.float64], colour: str) -> None:
    axes.plot(*path.T, heights, color=colour, linewidth=1.6, zorder=5)  # type: ignore[attr-defined]
    axes.scatter(*path[:1].T, heights[:1], color=colour, s=14, zorder=6)  # type: ignore[attr-defined]
    axes.scatter(*path[-1:].T, heights[-1:], color=colour, s=34, marker="*", zorder=6)  # type: ignore[attr-defined]


def warped_grid(omega: nn.Module) -> bytes:
    """A square grid of θ's, and where Ω takes it."""
    lines = torch.linspace(-EDGE, EDGE, 25)
    fine = torch.linspace(-EDGE, EDGE, 200)
    square = EDGE * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]])
    with house_style():
        figure = canvas(7.6, 4.2)
        first: Axes | None = None
        for place, (title, image) in enumerate((("θ", nn.Identity()), ("Ω(θ)", omega))):
            axes = figure.add_subplot(1, 2, place + 1, sharex=first, sharey=first)
            first = first or axes
            for value in lines:
                across, along = value.expand(len(fine)), fine
                for path, colour in (((across, along), "#0072b2"), ((along, across), "#c1272d")):
                    axes.plot(*image(torch.stack(path, -1)).numpy().T, color=colour, linewidth=0.7)
            axes.plot(*square.T, color="#8a929b", linewidth=1.2, linestyle="--")
            axes.set(title=title, aspect="equal")
            axes.grid(visible=False)
        return save(figure)


def _grid() -> Tensor:
    axis = torch.linspace(-EDGE, EDGE, _SIDE)
    return torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1)
