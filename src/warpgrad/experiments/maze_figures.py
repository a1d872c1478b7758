"""Figures of the maze experiment: return against updates, and an episode as a film strip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from warpgrad.experiments.base import Group
from warpgrad.experiments.maze_results import learning_curves
from warpgrad.maze.rendering import picture
from warpgrad.maze.rules import Maze
from warpgrad.report.charts import Series, draw_series
from warpgrad.report.figures import appearances, canvas, house_style, save

PAPER = ((60_000, 160.0, "Warp-RNN"), (100_000, 125.0, "best baseline"), (200_000, 150.0, "best baseline"))
"""(updates, mean return, whose): what the paper states."""

PIXELS = 8
_LETTER = "#3d454e"


def return_curves(groups: Sequence[Group], references: Mapping[str, float]) -> bytes | None:
    """Median and inter-quartile range over runs, with the paper's horizons marked; None without a point.

    The axis of updates is logarithmic, so that short runs and the paper's horizons fit into one figure.
    """
    found = [(group.label, *learning_curves(group)) for group in groups]
    series = [Series.quartiles(label, updates, values) for label, updates, values in found if len(updates)]
    if not series:
        return None
    looks = appearances([one.name for one in series])
    with house_style():
        figure = canvas(7.2, 4.6)
        axes = figure.add_subplot()
        for one in series:
            draw_series(axes, one, looks[one.name])
        for name, value in references.items():
            axes.axhline(value, color="#8a929b", linewidth=1.0, linestyle=(0, (2, 2)), zorder=1.5)
            axes.annotate(name, (1.0, value), xycoords=("axes fraction", "data"), xytext=(-4, 2), ha="right",
                          textcoords="offset points", fontsize=8, color=_LETTER)  # fmt: skip
        _mark_horizons(axes)
        axes.set(xlabel="updates of θ", ylabel="mean return of an episode", xscale="log")
        axes.set_xlim(min(float(one.x[0]) for one in series), 1.2 * PAPER[-1][0])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}".replace(",", " "))
        figure.legend(loc="outside lower center", ncols=min(4, len(series)), handlelength=2.2)
        return save(figure)


def _mark_horizons(axes: Axes) -> None:
    for updates, value, whose in PAPER:
        axes.axvline(updates, color="#8a929b", linewidth=0.8, linestyle=(0, (1, 3)), zorder=1.2)
        axes.plot([updates], [value], marker="*", color="#1c2127", markersize=9, linestyle="none", zorder=5)
        axes.annotate(f"paper, {whose} ~{value:.0f}", (updates, value), xytext=(-6, 6), ha="right",
                      textcoords="offset points", fontsize=8, color=_LETTER)  # fmt: skip


def film_strip(maze: Maze, film: Mapping[str, Any], frames: int = 8) -> bytes:
    """One frame per way to the goal: the search first, then the returns; the last frame may end without a find."""
    ends = [*film["found"], len(film["places"]) - 1]
    begins = [0, *(end + 1 for end in film["found"])]
    ways = [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin <= end][:frames]
    with house_style():
        columns = min(4, len(ways))
        rows = -(-len(ways) // columns)
        figure = canvas(1.8 * columns, 2.05 * rows)
        for number, (begin, end) in enumerate(ways):
            axes = figure.add_subplot(rows, columns, number + 1)
            axes.imshow(picture(maze, film["goal"], film["places"][begin], PIXELS))
            cells = [*film["places"][begin : end + 1], *([film["goal"]] if end in film["found"] else [])]
            path = (maze.cells[np.array(cells)] + 0.5) * PIXELS - 0.5
            axes.plot(path[:, 1], path[:, 0], color="#c1272d", linewidth=1.3, alpha=0.75)
            told = f"{end - begin + 1} steps" if end in film["found"] else "not found"
            axes.set_title(f"t = {begin}: {told}", fontsize=8, loc="center", pad=3)
            axes.set_axis_off()
        return save(figure)
