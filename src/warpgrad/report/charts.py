"""Charts as data: `curves` draws named series with their bands, `panels` a grid of small plots; both give a `Figure`.

Nothing outside this file and `figures.py` draws: whoever has something to show describes it in these few classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from warpgrad.errors import WarpgradError, require
from warpgrad.report.blocks import Figure
from warpgrad.report.figures import appearances, canvas, house_style, save_png
from warpgrad.statistics.estimates import SEEDS_FOR_A_CLAIM
from warpgrad.statistics.intervals import t_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

_DOTTED = (0, (2, 2))
_GREY, _BLACK = "#59616b", "#1c2127"
FEW = 12
"""So many points are shown one by one."""


@dataclass(frozen=True)
class Series:
    """One method's curve. `low` and `high` are the ends of its band, None for a bare line."""

    name: str
    x: NDArray[np.float64]
    centre: NDArray[np.float64]
    low: NDArray[np.float64] | None = None
    high: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        for values in (self.centre, self.low, self.high):
            if values is not None and values.shape != self.x.shape:
                raise WarpgradError(
                    f"series '{self.name}' has x of shape {self.x.shape} but y of shape {values.shape}; "
                    "give one value for each x."
                )

    @classmethod
    def line(cls, name: str, x: ArrayLike, y: ArrayLike) -> Self:
        """One run: no band."""
        return cls(name, np.asarray(x, np.float64), np.asarray(y, np.float64))

    @classmethod
    def quartiles(cls, name: str, x: ArrayLike, samples: ArrayLike) -> Self:
        """Median and inter-quartile range of samples [runs, points]; below four runs the band is their whole range."""
        values = _samples(name, samples)
        few = len(values) < SEEDS_FOR_A_CLAIM
        low, centre, high = np.percentile(values, [0, 50, 100] if few else [25, 50, 75], axis=0)
        band = (low, high) if len(values) > 1 else (None, None)
        return cls(name, np.asarray(x, np.float64), centre, *band)

    @classmethod
    def mean(cls, name: str, x: ArrayLike, samples: ArrayLike, *, level: float = 0.95) -> Self:
        """Mean of samples [seeds, points], each already a mean over tasks, with Student's t interval at each point.

        With too few seeds for a claim there is no band: an interval of two seeds would cover the whole figure.
        """
        values = _samples(name, samples)
        centre = values.mean(axis=0)
        if len(values) < SEEDS_FOR_A_CLAIM:
            return cls(name, np.asarray(x, np.float64), centre)
        intervals = [t_interval(column, level) for column in values.T]
        low, high = np.array([(interval.low, interval.high) for interval in intervals]).T
        return cls(name, np.asarray(x, np.float64), centre, low, high)


@dataclass(frozen=True)
class Reference:
    """A horizontal line with a label, such as the paper's number; in the colour of `method` where it is one's own."""

    label: str
    value: float
    method: str | None = None


@dataclass(frozen=True)
class Mark:
    """A vertical line with a label: a place on the x axis that the reader has to know.

    With a `height` it is a point, drawn as a star there, such as a figure that the paper states for that place.
    """

    label: str
    value: float
    height: float | None = None


@dataclass(frozen=True)
class Line:
    """One line of a panel, or points where it has a `marker` and no `dash`."""

    points: ArrayLike
    """[n, 2], or [n, 3] on a surface; none where the line stands in a legend alone."""
    colour: str
    label: str = ""
    """For the legend; lines without one are not in it."""
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
    title_colour: str = _BLACK
    note: str = ""
    """A few words in the lower left corner."""
    x_label: str = ""
    y_label: str = ""
    log_y: bool = False
    spans: Sequence[Span] = ()
    contours: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None
    """x, y and heights of a map, [n, m] each."""
    surface: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None
    """The same, drawn in three dimensions."""
    image: ArrayLike | None = None
    """Pixels; lines are in their coordinates."""
    plane: bool = False
    """Both axes are coordinates of one plane: a unit is as long on both."""
    edge: float | None = None
    """The axes are the square from −edge to edge, without ticks."""


def curves(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    alt: str = "",
    caption: str = "",
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    references: Sequence[Reference] = (),
    marks: Sequence[Mark] = (),
    size: tuple[float, float] = (7.2, 4.0),
    path: Path | None = None,
) -> Figure:
    """All series on one pair of axes; the PNG is also written to `path` where one is given.

    `alt` says in words what is shown; where it is left out, what is drawn against what.
    """
    require(series, "a figure of curves needs at least one series.")
    names = [one.name for one in series]
    require(len(set(names)) == len(names), f"two curves of a figure share a name: {', '.join(names)}; name each once.")
    _positive(series, log_x, log_y)
    looks = appearances(names + [line.method for line in references if line.method is not None])
    # About 0.07 inches a letter and half an inch for the line beside it; more rows of names make the figure higher.
    beside = max(1, int(size[0] / (0.07 * max(map(len, names)) + 0.5)))
    rows = math.ceil(len(series) / beside)
    with house_style():
        figure = canvas(size[0], size[1] + 0.2 * (rows - 1))
        axes = figure.add_subplot()
        for one in series:
            look = looks[one.name]
            # Few points are shown as such; a line of one would be invisible.
            axes.plot(one.x, one.centre, color=look.colour, linestyle=look.dash, label=_plain(one.name), markersize=4,
                      marker="o" if len(one.x) <= FEW else None)  # fmt: skip
            if one.low is not None and one.high is not None:
                axes.fill_between(one.x, one.low, one.high, color=look.colour, alpha=0.16, linewidth=0)
        for line in references:
            colour = looks[line.method].colour if line.method is not None else _GREY
            axes.axhline(line.value, color=colour, linewidth=1.0, linestyle=_DOTTED, zorder=1.5)
            # On the left: curves end near what they are compared with, and begin away from it.
            _label(axes, line.label, (0.0, line.value), ("axes fraction", "data"), (4, 2))
        for mark in marks:
            axes.axvline(mark.value, color=_GREY, linewidth=1.0, linestyle=_DOTTED, zorder=1.5)
            if mark.height is None:
                _label(axes, mark.label, (mark.value, 0.0), ("data", "axes fraction"), (4, 4))
            else:
                axes.plot([mark.value], [mark.height], marker="*", color=_BLACK, markersize=9, linestyle="none")
                _label(axes, mark.label, (mark.value, mark.height), ("data", "data"), (-6, 6), align="right")
        if log_x:
            axes.set_xscale("log", nonpositive="clip")
        if log_y:
            axes.set_yscale("log", nonpositive="clip")
        axes.set(xlabel=_plain(x_label), ylabel=_plain(y_label), title=_plain(title))
        axes.margins(x=0.02)
        places = sorted({float(x) for one in series for x in one.x})
        if len(places) <= FEW and not log_x and all(place.is_integer() for place in places):
            axes.set_xticks(places)  # layers, tasks, sub-tasks: there is nothing between them
        if len(series) > 1:
            figure.legend(
                loc="outside lower center", ncols=math.ceil(len(series) / rows), handlelength=2.2, columnspacing=1.6
            )
        return Figure(save_png(figure, path), alt or f"{y_label or title} against {x_label}.", caption)


def panels(
    rows: Sequence[Sequence[Panel]],
    *,
    alt: str,
    size: tuple[float, float],
    caption: str = "",
    shared: bool = False,
    legend: Sequence[Line] = (),
) -> Figure:
    """Panels in rows and columns; with `shared`, all have the axes of the first, so that they can be compared.

    The legend shows the lines of `legend`, whose points are not drawn; without them there is none.
    """
    with house_style():
        figure = canvas(*size)
        first: Axes | None = None
        for row, own in enumerate(rows):
            for column, panel in enumerate(own):
                place = row * len(rows[0]) + column + 1
                kind = {} if panel.surface is None else {"projection": "3d", "computed_zorder": False}
                axes = figure.add_subplot(len(rows), len(rows[0]), place, sharex=first, sharey=first, **kind)
                first = (first or axes) if shared else None
                _draw_panel(axes, panel)
        if legend:
            axes = figure.axes[0]
            handles = [_draw_line(axes, line) for line in legend]
            figure.legend(handles=handles, loc="outside lower center", ncols=len(legend))
        return Figure(save_png(figure), alt, caption)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    if panel.contours is not None:
        axes.contourf(*panel.contours, levels=24, cmap="Blues_r", alpha=0.9)
        axes.contour(*panel.contours, levels=12, colors="white", linewidths=0.4, alpha=0.7, linestyles="solid")
    if panel.surface is not None:
        look = {"cmap": "viridis", "alpha": 0.75, "linewidth": 0, "rstride": 3, "cstride": 3, "zorder": 1}
        axes.plot_surface(*panel.surface, **look)  # type: ignore[attr-defined]
        axes.view_init(elev=42, azim=-60)  # type: ignore[attr-defined]
    for span in panel.spans:
        axes.axvspan(span.low, span.high, color=span.colour, alpha=span.alpha, linewidth=0)
    for line in panel.lines:
        _draw_line(axes, line)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label, yscale="log" if panel.log_y else "linear")
    axes.set_title(panel.title, color=panel.title_colour)
    box = {"facecolor": "white", "alpha": 0.85 if panel.note else 0.0, "edgecolor": "none", "pad": 1.5}
    axes.annotate(panel.note, (0.03, 0.03), xycoords="axes fraction", fontsize=7.5, zorder=8, bbox=box)
    if panel.plane:
        axes.set_aspect("equal")
        axes.grid(visible=False)
    if panel.edge is not None:
        axes.set(xlim=(-panel.edge, panel.edge), ylim=(-panel.edge, panel.edge), xticks=[], yticks=[])
    if panel.image is not None:
        axes.imshow(np.asarray(panel.image))
        axes.set_axis_off()


def _draw_line(axes: Axes, line: Line) -> Line2D:
    points = np.asarray(line.points)
    (drawn,) = axes.plot(
        *(points.T if points.size else ([], [])), color=line.colour, label=_plain(line.label), linewidth=line.width,
        linestyle=line.dash, marker=line.marker, markersize=line.marker_size, alpha=line.alpha,
        markeredgecolor=line.marker_edge or line.colour,
    )  # fmt: skip
    return drawn


def _label(
    axes: Axes,
    text: str,
    place: tuple[float, float],
    coordinates: tuple[str, str],
    apart: tuple[int, int],
    align: Literal["left", "right"] = "left",
) -> None:
    from matplotlib.patheffects import withStroke

    axes.annotate(
        _plain(text), place, xycoords=coordinates, xytext=apart,
        textcoords="offset points", ha=align, va="bottom", fontsize=8, color="#3d454e",
        path_effects=[withStroke(linewidth=2.5, foreground="white")],
    )  # fmt: skip


def _plain(text: str) -> str:
    """Text as it stands: a dollar sign in a name must not begin a formula."""
    return text.replace("$", r"\$")


def _samples(name: str, samples: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(samples, dtype=np.float64)
    require(
        values.ndim == 2 and values.size, f"series '{name}' needs samples [runs, points], not shape {values.shape}."
    )
    return values


def _positive(series: Sequence[Series], log_x: bool, log_y: bool) -> None:
    """A logarithmic axis has no place for zero; bands are clipped at the axis, lines must not be."""
    for one in series:
        for axis, wanted, values in (("x", log_x, one.x), ("y", log_y, one.centre)):
            require(
                not (wanted and (values <= 0).any()),
                f"series '{one.name}' has {axis} values that are not positive; draw that axis linearly.",
            )
