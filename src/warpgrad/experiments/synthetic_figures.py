"""Figures of the synthetic experiment, from an evaluation alone: descents on native and warped surfaces, what Ω does
to the plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from torch import Tensor, nn

from warpgrad.experiments.minima import minima
from warpgrad.experiments.synthetic_evaluation import descend
from warpgrad.experiments.synthetic_setup import SyntheticConfig, omega_of, rule, rule_at_test, tuned_lr
from warpgrad.report.figures import canvas, house_style, save
from warpgrad.tasks.surfaces import EDGE, surface

COLOURS = {"sgd_tuned": "#111111", "adam_tuned": "#b35900", "warp": "#d6007f"}
"""The columns that are drawn."""
_SIDE = 121

Places = NDArray[np.float64]
"""Places on a surface, [K+1, starts, 2]."""


@dataclass(frozen=True)
class Example:
    """One held-out surface and the descents from all its starts."""

    coefficients: Tensor
    starts: Places
    """x0, [starts, 2]."""
    theta: Places
    """WarpGrad's θ's, from θ0 = x0."""
    paths: Mapping[str, Places]
    """Column -> where on the surface it goes."""
    final: Mapping[str, float]
    """Column -> mean height at the end."""

    def heights(self, places: Places) -> NDArray[np.float64]:
        found: NDArray[np.float64] = surface(torch.from_numpy(places), self.coefficients.double()).numpy()
        return found


def redrawn(evaluation: Mapping[str, Any], config: SyntheticConfig) -> tuple[nn.Module, list[Example]]:
    """Ω of a run, and the descents on the surfaces that its evaluation names, taken again from what is kept of them."""
    omega = omega_of(config.hidden, evaluation["omega"])
    rules = {name: rule(config, name, tuned_lr(config, name)) for name in ("sgd", "adam")}
    found = []
    for kept in evaluation["examples"]:
        starts = torch.tensor(kept["starts"])
        coefficients = torch.tensor(kept["coefficients"])
        go = partial(descend, starts=starts, coefficients=coefficients.expand(len(starts), -1), steps=config.steps)
        thetas = go(omega, rule_at_test(config)).thetas
        paths = {f"{name}_tuned": go(None, own).thetas.double().numpy() for name, own in rules.items()}
        paths["warp"] = omega(thetas).double().numpy()
        final = {name: float(np.mean(kept["final"][name])) for name in COLOURS}
        found.append(Example(coefficients, starts.double().numpy(), thetas.double().numpy(), paths, final))
    return omega, found


def descents(shown: Sequence[Example], labels: Mapping[str, str]) -> bytes:
    """A row for each surface: contours and all descents, a column for each method; `labels` says what it is called."""
    with house_style():
        figure = canvas(2.5 * len(labels), 2.5 * len(shown) + 0.6)
        for row, example in enumerate(shown):
            for column, (name, label) in enumerate(labels.items()):
                axes = figure.add_subplot(len(shown), len(labels), row * len(labels) + column + 1)
                _descents_panel(axes, example, name)
                if row == 0:
                    axes.set_title(label, loc="center", color=COLOURS[name])
        white = {"linestyle": "", "marker": "o", "color": "white", "markeredgecolor": "black"}
        keys = [
            Line2D([], [], **white, markersize=4, label="x0"),  # type: ignore[arg-type]
            Line2D([], [], color=COLOURS["warp"], linestyle=":", label="x0 moved to Ω(x0)"),
            Line2D([], [], linestyle="", marker="*", markersize=9, color="#666666", label="after the last step"),
            Line2D([], [], linestyle="", marker="x", color="black", label="minimum"),
        ]
        figure.legend(handles=keys, loc="outside lower center", ncols=len(keys))
        return save(figure)


def _descents_panel(axes: Axes, example: Example, name: str) -> None:
    grid, colour, paths = _grid(), COLOURS[name], example.paths[name]
    heights = surface(grid, example.coefficients).numpy()
    x, y = grid[..., 0].numpy(), grid[..., 1].numpy()
    axes.contourf(x, y, heights, levels=24, cmap="Blues_r", alpha=0.9)
    axes.contour(x, y, heights, levels=12, colors="white", linewidths=0.4, alpha=0.7, linestyles="solid")
    for start, path in zip(example.starts, paths.swapaxes(0, 1), strict=True):
        axes.plot(*path.T, color="white", linewidth=2.6, alpha=0.75)
        axes.plot(*path.T, color=colour, linewidth=1.4)
        axes.plot(*np.stack([start, path[0]]).T, color=colour, linewidth=1.2, linestyle=":")
    axes.plot(*example.starts.T, "o", color="white", markeredgecolor="black", markersize=3.6, markeredgewidth=0.8)
    (points,) = minima(example.coefficients[None])
    axes.plot(*points.numpy().T, "x", color="black", markersize=6, markeredgewidth=1.3, zorder=5)
    axes.plot(*paths[-1].T, "*", color=colour, markeredgecolor="white", markersize=9, markeredgewidth=0.6, zorder=6)
    axes.set(xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), xticks=[], yticks=[], aspect="equal")
    mean = f"mean loss {example.final[name]:.2f}".replace("-", "−")
    axes.text(0.03, 0.03, mean, transform=axes.transAxes, fontsize=7.5, zorder=8,
              bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.5})  # fmt: skip
    axes.grid(visible=False)


def surfaces_3d(omega: nn.Module, shown: Sequence[Example]) -> bytes:
    """Top: WarpGrad on the surface as Ω makes it look from θ-space; bottom: gradient descent on the native one; both
    from the same numbers, θ0 = x0."""
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
    name, title = ("sgd_tuned", "native surface, f(x)") if omega is None else ("warp", "warped surface, f(Ω(θ))")
    places = example.paths[name]
    lifted = example.heights(places) + 0.02 * float(np.ptp(heights))
    for start in range(places.shape[1]):
        drawn = places if omega is None else example.theta
        # What leaves the square would be drawn beside the surface.
        kept = (np.abs(drawn[:, start]) <= EDGE).all(axis=1)
        _path_3d(axes, drawn[kept, start], lifted[kept, start], COLOURS[name])
    axes.set_title(title, fontsize=8)
    axes.set(xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), xticks=[-3, 0, 3], yticks=[-3, 0, 3])
    axes.tick_params(labelsize=6, pad=-2)
    axes.view_init(elev=42, azim=-60)


def _path_3d(axes: object, path: Places, heights: NDArray[np.float64], colour: str) -> None:
    axes.plot(*path.T, heights, color=colour, linewidth=1.2, zorder=5)  # type: ignore[attr-defined]
    axes.scatter(*path[:1].T, heights[:1], color=colour, s=8, zorder=6)  # type: ignore[attr-defined]
    axes.scatter(*path[-1:].T, heights[-1:], color=colour, s=24, marker="*", zorder=6)  # type: ignore[attr-defined]


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
