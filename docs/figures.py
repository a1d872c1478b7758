"""The figures of README.md and of "How WarpGrad works": the one drawn from records, the other from descents of its own.

python docs/figures.py             draw them anew
python docs/figures.py --check     only say which of them differ
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.patches import Ellipse
from torch import Tensor
from torch.func import grad, vmap

from warpgrad.analysis import metric_inverse

matplotlib.use("Agg")

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"

WARP, ADAM, PLAIN, OTHER = "#d6007f", "#b35900", "#1a1a1a", "#5b7fa6"
STEPS = 20
WARPED_STEP = 0.2
SIDE = 101
STYLE = {
    "svg.hashsalt": "warpgrad",
    "svg.fonttype": "path",
    "figure.facecolor": "white",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.titleweight": "bold",
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
}


# The front figure, from results/synthetic-long.json and results/bench.json


def front() -> bytes:
    """Two answers at a glance: does a meta-learned warp descend faster, and what does meta-training hold in memory?"""
    with matplotlib.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.3), layout="constrained")
        _descent(left)
        _memory(right)
        return _saved(figure)


def _saved(figure: Any) -> bytes:
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return drawn.getvalue()


def _descent(axes: Any) -> None:
    runs = json.loads((ROOT / "results" / "synthetic-long.json").read_bytes())["runs"]
    runs = [run for run in runs if run["label"] == "WarpGrad"]
    shown = {"plain": ("gradient descent", PLAIN), "adam_tuned": ("Adam, tuned", ADAM), "warp": ("WarpGrad", WARP)}
    for name, (label, colour) in shown.items():
        curves = np.array([run["evaluation"]["curves"][name] for run in runs])
        mean, deviation = curves.mean(0), curves.std(0, ddof=1) / math.sqrt(len(curves))
        steps = np.arange(len(mean))
        axes.fill_between(steps, mean - 2 * deviation, mean + 2 * deviation, color=colour, alpha=0.15, linewidth=0)
        axes.plot(steps, mean, color=colour, linewidth=2)
        axes.plot([], [], color=colour, label=label)
    axes.legend(frameon=False)
    axes.set(xlabel="steps on a new surface", ylabel="loss")
    axes.set_title(f"Unseen loss surfaces, {len(runs)} seeds")


def _memory(axes: Any) -> None:
    peaks = json.loads((ROOT / "results" / "bench.json").read_bytes())["memory"]["peaks"]
    for method, label, colour in (("maml", "MAML", OTHER), ("online", "WarpGrad, Algorithm 1", WARP)):
        own = [(peak["steps"], peak["bytes"]) for peak in peaks if peak["method"] == method]
        base = own[0][1]
        steps, more = [step for step, _ in own], [(size - base) / 1e6 for _, size in own]
        axes.plot(steps, more, color=colour, linewidth=2, marker="o", markersize=4)
        axes.annotate(
            label,
            (steps[-1], more[-1]),
            xytext=(-8, 6 if method == "online" else -8),
            textcoords="offset points",
            color=colour,
            ha="right",
        )
    axes.set_xscale("log")
    axes.set_xticks([10, 20, 40, 80, 160, 320, 640], ["10", "20", "40", "80", "160", "320", "640"])
    axes.minorticks_off()
    axes.set(xlabel="steps of adaptation, K", ylabel="MB more than at K = 10")
    axes.set_title("Peak memory of a meta-step")


# The geometry, on a bent valley


def valley(place: Tensor) -> Tensor:
    """f(x): a bent valley, steep across and flat along, with its minimum at (1.2, −0.224)."""
    return 0.5 * (place[..., 0] - 1.2) ** 2 + 4 * (place[..., 1] - _floor(place[..., 0])) ** 2


def _floor(along: Tensor) -> Tensor:
    return 0.4 * along**2 - 0.8


def omega(theta: Tensor) -> Tensor:
    """Ω(θ), by hand: θ₁ runs along the valley, θ₂ across it, where steps are shortened by √8."""
    return torch.stack([theta[..., 0], _floor(theta[..., 0]) + theta[..., 1] / math.sqrt(8)], -1)


def inverse(place: Tensor) -> Tensor:
    """θ with Ω(θ) = x, so that both descents begin at the same place."""
    return torch.stack([place[..., 0], (place[..., 1] - _floor(place[..., 0])) * math.sqrt(8)], -1)


def descent(loss: Callable[[Tensor], Tensor], starts: Tensor, lr: float) -> Tensor:
    """Gradient descent from every start: [steps + 1, starts, 2]."""
    slope = vmap(grad(loss))
    path = [starts]
    for _ in range(STEPS):
        path.append(path[-1] - lr * slope(path[-1]))
    return torch.stack(path)


def final(path: Tensor) -> float:
    """The mean height at the end; infinite where a descent left the finite numbers."""
    return float(valley(path[-1]).mean().nan_to_num(math.inf))


def geometry() -> bytes:
    """Three views of one warp: descents in the native space and in its own, and the metric that it induces."""
    starts = torch.tensor([[-1.8, 1.6], [-0.6, -1.4], [1.7, 1.9]])
    sizes = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.14, 0.2)
    best = min(sizes, key=lambda lr: final(descent(valley, starts, lr)))
    plain = descent(valley, starts, best)
    thetas = descent(lambda theta: valley(omega(theta)), inverse(starts), WARPED_STEP)
    side = torch.linspace(-2.5, 2.5, SIDE)
    grid = torch.stack(torch.meshgrid(side, side, indexing="xy"), -1)
    wide = 3 * grid
    with matplotlib.rc_context(STYLE):
        figure, (native, own, metric) = plt.subplots(1, 3, figsize=(10.5, 3.9), layout="constrained")
        levels = np.geomspace(0.02, 120, 14)
        shade = partial(plt.Axes.contourf, levels=levels, cmap="Blues_r", norm="log", extend="both", alpha=0.75)
        for axes, places, heights, title in (
            (native, grid, valley(grid), "x-space: the valley"),
            (own, wide, valley(omega(wide)), "θ-space: the same valley through Ω"),
            (metric, grid, valley(grid), "Ω of a square grid, and the metric"),
        ):
            shade(axes, places[..., 0], places[..., 1], heights)
            edge = float(places.max())
            axes.set(title=title, xticks=[], yticks=[], aspect="equal", xlim=(-edge, edge), ylim=(-edge, edge))
        for place in range(len(starts)):
            _path(native, plain[:, place], PLAIN)
            _path(native, omega(thetas)[:, place], WARP)
            _path(own, thetas[:, place], WARP)
        own.set(xlim=(-5, 5), ylim=(-4, 6))
        native.plot([], [], color=PLAIN, label=f"gradient descent, {final(plain):.2f} after {STEPS} steps")
        native.plot([], [], color=WARP, label=f"through the warp, {final(omega(thetas)):.2f}")
        native.legend(loc="lower left", fontsize=8, framealpha=0.9)
        for value in torch.linspace(-7, 7, 15):
            metric.plot(*omega(torch.stack([side, value.expand(SIDE)], -1)).T, color=WARP, linewidth=0.6)
        for value in torch.linspace(-2.5, 2.5, 11):
            metric.plot(*omega(torch.stack([value.expand(SIDE), 3 * side], -1)).T, color=WARP, linewidth=0.6)
        for theta in torch.cartesian_prod(torch.linspace(-1.8, 1.8, 5), torch.linspace(-4, 4, 3)):
            spectrum, vectors = torch.linalg.eigh(metric_inverse(omega, theta))
            length, breadth = (0.5 * spectrum.sqrt()).flip(0).tolist()
            angle = math.degrees(math.atan2(float(vectors[1, 1]), float(vectors[0, 1])))
            centre = omega(theta).tolist()
            metric.add_patch(Ellipse(centre, length, breadth, angle=angle, fill=False, color=PLAIN, linewidth=1.2))
        return _saved(figure)


def _path(axes: Any, path: Tensor, colour: str) -> None:
    axes.plot(*path.T, color="white", linewidth=3)
    axes.plot(*path.T, color=colour, linewidth=1.4, marker=".", markersize=4)
    axes.plot(*path[0], marker="o", color="white", markeredgecolor="black", markersize=5)
    axes.plot(*path[-1], marker="*", color=colour, markeredgecolor="white", markersize=11)


DRAWN = {"front.svg": front, "geometry.svg": geometry}


def main() -> int:
    options = argparse.ArgumentParser(description="Draw the figures of the documents.")
    options.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a figure differs")
    check = options.parse_args().check
    stale = [name for name, draw in DRAWN.items() if draw() != (FIGURES / name).read_bytes()] if check else []
    for name in stale:
        print(f"docs/figures/{name} is not what the records give: python docs/figures.py")
    for name, draw in () if check else DRAWN.items():
        (FIGURES / name).write_bytes(draw())
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
