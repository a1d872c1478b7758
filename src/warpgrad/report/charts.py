"""Curves of named methods: a centre line with a band, beside the paper's numbers where there are any."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from numpy.typing import ArrayLike, NDArray

from warpgrad.errors import WarpgradError
from warpgrad.report.figures import Appearance, appearances, canvas, house_style, save
from warpgrad.statistics.estimates import SEEDS_FOR_A_CLAIM
from warpgrad.statistics.intervals import t_interval

_DOTTED = (0, (2, 2))
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
    """A vertical line with a label: a place on the x axis that the reader has to know."""

    label: str
    value: float


def curves(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    references: Sequence[Reference] = (),
    marks: Sequence[Mark] = (),
    size: tuple[float, float] = (7.2, 4.0),
    path: Path | None = None,
) -> bytes:
    """All series on one pair of axes, as PNG; also written to `path` where one is given."""
    if not series:
        raise WarpgradError("a figure of curves needs at least one series.")
    names = [one.name for one in series]
    if len(set(names)) < len(names):
        raise WarpgradError(f"two curves of a figure share a name: {', '.join(names)}; name each once.")
    _positive(series, log_x, log_y)
    looks = appearances(names + [line.method for line in references if line.method is not None])
    # About 0.07 inches a letter and half an inch for the line beside it; more rows of names make the figure higher.
    beside = max(1, int(size[0] / (0.07 * max(map(len, names)) + 0.5)))
    rows = math.ceil(len(series) / beside)
    with house_style():
        figure = canvas(size[0], size[1] + 0.2 * (rows - 1))
        axes = figure.add_subplot()
        for one in series:
            draw_series(axes, one, looks[one.name])
        for line in references:
            colour = looks[line.method].colour if line.method is not None else "#59616b"
            _draw_reference(axes, line, colour)
        for mark in marks:
            axes.axvline(mark.value, color="#59616b", linewidth=1.0, linestyle=_DOTTED, zorder=1.5)
            _label(axes, mark.label, (mark.value, 0.0), ("data", "axes fraction"), (4, 4))
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
        return save(figure, path)


def draw_series(axes: Axes, one: Series, look: Appearance) -> None:
    """A curve and its band, for figures that draw more than `curves` does."""
    # Few points are shown as such; a line of one would be invisible.
    marker = "o" if len(one.x) <= FEW else None
    label = _plain(one.name)
    axes.plot(one.x, one.centre, color=look.colour, linestyle=look.dash, label=label, marker=marker, markersize=4)
    if one.low is not None and one.high is not None:
        axes.fill_between(one.x, one.low, one.high, color=look.colour, alpha=0.16, linewidth=0)


def _draw_reference(axes: Axes, line: Reference, colour: str) -> None:
    axes.axhline(line.value, color=colour, linewidth=1.0, linestyle=_DOTTED, zorder=1.5)
    # On the left: curves end near what they are compared with, and begin away from it.
    _label(axes, line.label, (0.0, line.value), ("axes fraction", "data"), (4, 2))


def _label(
    axes: Axes, text: str, place: tuple[float, float], coordinates: tuple[str, str], apart: tuple[int, int]
) -> None:
    axes.annotate(
        _plain(text), place, xycoords=coordinates, xytext=apart,
        textcoords="offset points", ha="left", va="bottom", fontsize=8, color="#3d454e",
        path_effects=[withStroke(linewidth=2.5, foreground="white")],
    )  # fmt: skip


def _plain(text: str) -> str:
    """Text as it stands: a dollar sign in a name must not begin a formula."""
    return text.replace("$", r"\$")


def _samples(name: str, samples: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise WarpgradError(f"series '{name}' needs samples [runs, points], not shape {values.shape}.")
    return values


def _positive(series: Sequence[Series], log_x: bool, log_y: bool) -> None:
    """A logarithmic axis has no place for zero; bands are clipped at the axis, lines must not be."""
    for one in series:
        for axis, wanted, values in (("x", log_x, one.x), ("y", log_y, one.centre)):
            if wanted and bool((values <= 0).any()):
                raise WarpgradError(
                    f"series '{one.name}' has {axis} values that are not positive; draw that axis linearly."
                )
