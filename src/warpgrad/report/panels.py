"""Pictures as data: `panels` draws a grid of small plots, once for light pages and once for dark ones.

The plots are maps, surfaces, and images with lines. Only this file, `charts.py` and `figures.py` draw with matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from warpgrad.report.blocks import Figure
from warpgrad.report.figures import GROUND, INK, canvas, house_style, plain, save_png, themed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


@dataclass(frozen=True)
class Line:
    """One line of a panel, or points where it has a `marker` and no `dash`."""

    points: ArrayLike
    """[n, 2], or [n, 3] on a surface; empty if the line is only in a legend."""
    colour: str
    label: str = ""
    """Its text in the legend; lines without one are left out of it."""
    width: float = 1.2
    dash: str = "-"
    marker: str = ""
    marker_size: float = 5.0
    marker_edge: str | None = None
    alpha: float = 1.0


@dataclass(frozen=True)
class Span:
    """A shaded range of the x axis."""

    low: float
    high: float
    colour: str
    alpha: float


@dataclass(frozen=True)
class Panel:
    """One small plot: lines over shaded ranges, a contour map, or an image."""

    lines: Sequence[Line]
    title: str = ""
    title_colour: str = INK
    note: str = ""
    """A few words in the lower left corner."""
    x_label: str = ""
    y_label: str = ""
    log_y: bool = False
    spans: Sequence[Span] = ()
    contours: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None
    """The x, y and heights of a map, [n, m] each."""
    surface: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None
    """The same, drawn in three dimensions."""
    image: ArrayLike | None = None
    """Pixels; lines use pixel coordinates."""
    plane: bool = False
    """Whether both axes are coordinates of one plane, so that a unit is equally long on both."""
    edge: float | None = None
    """If given, both axes run from −edge to edge, without ticks."""


def panels(
    rows: Sequence[Sequence[Panel]],
    *,
    alt: str,
    size: tuple[float, float],
    caption: str = "",
    shared: bool = False,
    legend: Sequence[Line] = (),
) -> Figure:
    """Draw panels in rows and columns; with `shared`, all use the axes of the first, so that they can be compared.

    The legend shows the lines of `legend`, whose points are not drawn; without them there is no legend.
    """
    light, dark = (_drawn(rows, size, shared, legend, dark=dark) for dark in (False, True))
    return Figure(light, alt, caption, dark)


def _drawn(
    rows: Sequence[Sequence[Panel]], size: tuple[float, float], shared: bool, legend: Sequence[Line], *, dark: bool
) -> bytes:
    with house_style(dark=dark):
        figure = canvas(*size)
        first: Axes | None = None
        for row, own in enumerate(rows):
            for column, panel in enumerate(own):
                place = row * len(rows[0]) + column + 1
                kind = {} if panel.surface is None else {"projection": "3d", "computed_zorder": False}
                axes = figure.add_subplot(len(rows), len(rows[0]), place, sharex=first, sharey=first, **kind)
                first = (first or axes) if shared else None
                _draw_panel(axes, panel, dark)
        if legend:
            axes = figure.axes[0]
            handles = [_draw_line(axes, line, dark) for line in legend]
            figure.legend(handles=handles, loc="outside lower center", ncols=len(legend))
        return save_png(figure, colours=256)


def _draw_panel(axes: Axes, panel: Panel, dark: bool) -> None:
    if panel.contours is not None:
        axes.contourf(*panel.contours, levels=24, cmap="Blues_r", alpha=0.9)
        axes.contour(*panel.contours, levels=12, colors="white", linewidths=0.4, alpha=0.7, linestyles="solid")
    if panel.surface is not None:
        look = {"cmap": "viridis", "alpha": 0.75, "linewidth": 0, "rstride": 3, "cstride": 3, "zorder": 1}
        axes.plot_surface(*panel.surface, **look)  # type: ignore[attr-defined]
        axes.view_init(elev=42, azim=-60)  # type: ignore[attr-defined]
        # matplotlib's grey walls would be the brightest part of a dark picture.
        for name in "xyz":
            getattr(axes, f"{name}axis").set_pane_color((0.0, 0.0, 0.0, 0.0))
    for span in panel.spans:
        axes.axvspan(
            span.low, span.high, color=themed(span.colour, dark), alpha=span.alpha * (2 if dark else 1), linewidth=0
        )
    for line in panel.lines:
        _draw_line(axes, line, dark)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label, yscale="log" if panel.log_y else "linear")
    axes.set_title(panel.title, color=themed(panel.title_colour, dark))
    box = {"facecolor": GROUND[dark], "alpha": 0.85 if panel.note else 0.0, "edgecolor": "none", "pad": 1.5}
    axes.annotate(panel.note, (0.03, 0.03), xycoords="axes fraction", fontsize=7.5, zorder=8, bbox=box)
    if panel.plane:
        axes.set_aspect("equal")
        axes.grid(visible=False)
    if panel.edge is not None:
        axes.set(xlim=(-panel.edge, panel.edge), ylim=(-panel.edge, panel.edge), xticks=[], yticks=[])
    if panel.image is not None:
        axes.imshow(np.asarray(panel.image))
        axes.set_axis_off()


def _draw_line(axes: Axes, line: Line, dark: bool) -> Line2D:
    points = np.asarray(line.points)
    colour = themed(line.colour, dark)
    (drawn,) = axes.plot(
        *(points.T if points.size else ([], [])), color=colour, label=plain(line.label), linewidth=line.width,
        linestyle=line.dash, marker=line.marker, markersize=line.marker_size, alpha=line.alpha,
        markeredgecolor=line.marker_edge or colour,
    )  # fmt: skip
    return drawn
