"""Charts as data: a `Chart` is a description of named series with their bands.

A page passes it to the chart library in the reader's browser, where it can be hovered over, zoomed, smoothed, and
switched between a linear and a logarithmic axis. For documents, `Chart.image` draws the same description as a PNG.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike, NDArray

from warpgrad.errors import WarpgradError, printable, require
from warpgrad.report.blocks import Block, PageContext, render
from warpgrad.report.figures import INK, canvas, house_style, plain, save_png
from warpgrad.report.looks import Appearance, appearances
from warpgrad.statistics.estimates import SEEDS_FOR_A_CLAIM
from warpgrad.statistics.intervals import t_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DOTTED = (0, (2, 2))
_GREY = "#59616b"
_DIGITS = 5
"""Significant digits of the numbers behind a chart: more than the eye can see, yet few enough for a small page."""
FEW = 12
"""Up to this many points are drawn with a marker each."""
Seeds = Sequence[int | str]
SIZE = (7.2, 4.4)
"""Size in inches of a chart in a document."""


@dataclass(frozen=True)
class Series:
    """One curve; `low` and `high` are the edges of its band, or None for a bare line."""

    name: str
    x: NDArray[np.float64]
    centre: NDArray[np.float64]
    low: NDArray[np.float64] | None = None
    high: NDArray[np.float64] | None = None
    method: str = ""
    """The method it belongs to: all curves of a method share its colour and are hidden together. Defaults to the
    series' name."""
    dashing: int = 0
    """Tells several curves of one method apart."""
    runs: Mapping[str, NDArray[np.float64]] | None = None
    """Seed -> the curve of that run, which the reader can switch on."""
    points: bool = False
    """Whether to draw points only, without a line joining them."""

    def __post_init__(self) -> None:
        for values in (self.centre, self.low, self.high):
            if values is not None and values.shape != self.x.shape:
                raise WarpgradError(
                    f"series '{self.name}' has x of shape {self.x.shape} but y of shape {values.shape}; "
                    "give one value for each x."
                )

    @classmethod
    def line(cls, name: str, x: ArrayLike, y: ArrayLike, *, method: str = "", dashing: int = 0) -> Self:
        """Make the series of a single run, which has no band."""
        return cls(name, np.asarray(x, np.float64), np.asarray(y, np.float64), method=method, dashing=dashing)

    @classmethod
    def quartiles(
        cls, name: str, x: ArrayLike, samples: ArrayLike, *, method: str = "", dashing: int = 0, seeds: Seeds = ()
    ) -> Self:
        """Make a series of the median and quartiles of samples [runs, points]; below four runs, of their whole range.

        If the `seeds` of the runs are given, the reader can switch on the curve of each run.
        """
        values = _samples(name, samples)
        few = len(values) < SEEDS_FOR_A_CLAIM
        low, centre, high = np.percentile(values, [0, 50, 100] if few else [25, 50, 75], axis=0)
        band: tuple[Any, Any] = (low, high) if len(values) > 1 else (None, None)
        runs = _by_seed(seeds, values)
        return cls(name, np.asarray(x, np.float64), centre, *band, method=method, dashing=dashing, runs=runs)

    @classmethod
    def mean(
        cls,
        name: str,
        x: ArrayLike,
        samples: ArrayLike,
        *,
        level: float = 0.95,
        method: str = "",
        dashing: int = 0,
        seeds: Seeds = (),
    ) -> Self:
        """Make a series of the mean of samples [seeds, points], with Student's t interval at each point.

        Each sample is already a mean over tasks. With too few seeds for a claim there is no band: an interval of two
        seeds would cover the whole chart. If the `seeds` are given, the reader can switch on the curve of each.
        """
        values = _samples(name, samples)
        band: tuple[Any, Any] = (None, None)
        if len(values) >= SEEDS_FOR_A_CLAIM:
            intervals = [t_interval(column, level) for column in values.T]
            band = tuple(np.array([(interval.low, interval.high) for interval in intervals]).T)
        runs = _by_seed(seeds, values)
        return cls(
            name, np.asarray(x, np.float64), values.mean(axis=0), *band, method=method, dashing=dashing, runs=runs
        )

    @property
    def whose(self) -> str:
        return self.method or self.name

    def look(self, looks: Mapping[str, Appearance]) -> Appearance:
        return looks[self.whose].turned(self.dashing)


@dataclass(frozen=True)
class Reference:
    """A horizontal line with a label, such as the paper's number; drawn in the colour of `method` if one is given."""

    label: str
    value: float
    method: str | None = None


@dataclass(frozen=True)
class Mark:
    """A vertical line with a label, at a value on the x axis that the reader should know.

    With a `height` there is also a star at that point, such as a number that the paper states for that value.
    """

    label: str
    value: float
    height: float | None = None


@dataclass(frozen=True)
class Chart(Block):
    """Several series on one pair of axes.

    `alt` describes in words what is shown; without it, the description says what is plotted against what.
    """

    series: Sequence[Series]
    x_label: str
    y_label: str
    alt: str = ""
    caption: str = ""
    title: str = ""
    log_x: bool = False
    log_y: bool = False
    """The initial scale of the axis; the reader can switch it."""
    references: Sequence[Reference] = ()
    marks: Sequence[Mark] = ()
    choices: Sequence[str] = ()
    """What 0, 1, … on the x axis stand for if they are not numbers."""
    first: Collection[str] = ()
    """The curves that are shown at first, where there are too many to tell apart; the reader can switch on the others.
    Empty means all."""

    def __post_init__(self) -> None:
        require(self.series, "a chart needs at least one series.")
        names = [one.name for one in self.series]
        require(
            len(set(names)) == len(names), f"two curves of a chart share a name: {', '.join(names)}; name each once."
        )
        _positive(self.series, self.log_x, self.log_y)

    @property
    def methods(self) -> list[str]:
        """The methods whose colours it needs."""
        return [*(one.whose for one in self.series), *(line.method for line in self.references if line.method)]

    @property
    def seeds(self) -> list[str]:
        """The seeds of the single runs that the reader can switch on."""
        return [seed for one in self.series for seed in one.runs or {}]

    @property
    def words(self) -> str:
        return self.alt or f"{self.y_label or self.title} against {self.x_label}."

    def render(self, context: PageContext) -> Markup:
        return render("chart.html", block=self, description=self._description(context.looks))

    def _description(self, looks: Mapping[str, Appearance]) -> Markup:
        """Return the chart as JSON for the page's script, escaped so that it cannot close the element it is in."""
        names = [one.name for one in self.series]
        # Where none of them has a curve, such as the loss of meta-training, all are shown.
        first = set(self.first).intersection(names) or names
        grids: dict[bytes, int] = {}
        x: list[list[float | None]] = []
        series = []
        for one in self.series:
            if one.x.tobytes() not in grids:
                grids[one.x.tobytes()] = len(x)
                x.append(_numbers(one.x))
            look = one.look(looks)
            band = {} if one.low is None or one.high is None else {"low": _numbers(one.low), "high": _numbers(one.high)}
            runs = {"runs": {seed: _numbers(own) for seed, own in one.runs.items()}} if one.runs else {}
            called = {"name": printable(one.name), "method": printable(one.whose)}
            drawn = {"colour": look.place, "dash": list(look.dash), "points": one.points or len(one.x) <= FEW}
            drawn["line"] = not one.points
            drawn["shown"] = one.name in first
            series.append({**called, **drawn, "x": grids[one.x.tobytes()], "y": _numbers(one.centre), **band, **runs})
        found = {
            "title": printable(self.title),
            "xLabel": printable(self.x_label),
            "yLabel": printable(self.y_label),
            "logX": self.log_x,
            "logY": self.log_y,
            "x": x,
            "series": series,
            "ticks": _whole(self.series) if not self.log_x else None,
            "choices": [printable(choice) for choice in self.choices],
            "references": [
                {
                    "label": printable(line.label),
                    "value": _number(line.value),
                    "colour": looks[line.method].place if line.method else None,
                }
                for line in self.references
            ],
            "marks": [
                {"label": printable(mark.label), "value": mark.value, "height": mark.height} for mark in self.marks
            ],
        }
        text = json.dumps(found, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))

    def image(self, looks: Mapping[str, Appearance] | None = None, size: tuple[float, float] = SIZE) -> bytes:
        """Draw the chart as a PNG for a document, in the colours of `looks` or else in the default ones."""
        looks = appearances(self.methods) if looks is None else looks
        names = [one.name for one in self.series]
        # About 0.07 inches per letter and half an inch for the line beside it; more rows of names make a taller image.
        beside = max(1, int(size[0] / (0.07 * max(map(len, names)) + 0.5)))
        rows = math.ceil(len(names) / beside)
        with house_style():
            figure = canvas(size[0], size[1] + 0.2 * (rows - 1))
            axes = figure.add_subplot()
            for one in self.series:
                _draw_series(axes, one, one.look(looks))
            for line in self.references:
                colour = looks[line.method].colour if line.method else _GREY
                axes.axhline(line.value, color=colour, linewidth=1.0, linestyle=_DOTTED, zorder=1.5)
                # On the left: curves end near what they are compared with, and start away from it.
                _label(axes, line.label, (0.0, line.value), ("axes fraction", "data"), (4, 2))
            for mark in self.marks:
                _draw_mark(axes, mark)
            if self.log_x:
                axes.set_xscale("log", nonpositive="clip")
            if self.log_y:
                axes.set_yscale("log", nonpositive="clip")
            axes.set(xlabel=plain(self.x_label), ylabel=plain(self.y_label), title=plain(self.title))
            axes.margins(x=0.02)
            if self.choices:
                axes.set_xticks(range(len(self.choices)), self.choices)
            elif not self.log_x and (places := _whole(self.series)) is not None:
                axes.set_xticks(places)
            if len(names) > 1:
                figure.legend(
                    loc="outside lower center", ncols=math.ceil(len(names) / rows), handlelength=2.2, columnspacing=1.6
                )
            return save_png(figure)


def _draw_series(axes: Axes, one: Series, look: Appearance) -> None:
    # Few points get markers; a line through a single point would be invisible.
    stroke = "none" if one.points else (0, look.dash or None)
    axes.plot(one.x, one.centre, color=look.colour, linestyle=stroke, label=plain(one.name),
              markersize=4, marker="o" if one.points or len(one.x) <= FEW else None)  # fmt: skip
    if one.low is not None and one.high is not None:
        axes.fill_between(one.x, one.low, one.high, color=look.colour, alpha=0.16, linewidth=0)


def _draw_mark(axes: Axes, mark: Mark) -> None:
    axes.axvline(mark.value, color=_GREY, linewidth=1.0, linestyle=_DOTTED, zorder=1.5)
    if mark.height is None:
        _label(axes, mark.label, (mark.value, 0.0), ("data", "axes fraction"), (4, 4))
    else:
        axes.plot([mark.value], [mark.height], marker="*", color=INK, markersize=9, linestyle="none")
        _label(axes, mark.label, (mark.value, mark.height), ("data", "data"), (-6, 6), align="right")


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
        plain(text), place, xycoords=coordinates, xytext=apart,
        textcoords="offset points", ha=align, va="bottom", fontsize=8, color="#3d454e",
        path_effects=[withStroke(linewidth=2.5, foreground="white")],
    )  # fmt: skip


def _whole(series: Sequence[Series]) -> list[float] | None:
    """Return the x values if they are few integers, such as layers, tasks or sub-tasks; otherwise None.

    There is nothing between such values, so the ticks go exactly there.
    """
    places = sorted({float(x) for one in series for x in one.x})
    return places if len(places) <= FEW and all(place.is_integer() for place in places) else None


def _numbers(values: NDArray[np.float64]) -> list[float | None]:
    return [_number(value) for value in values.tolist()]


def _number(value: float) -> float | None:
    """Return a value for JSON: None if it is not finite, an integer if it is integral."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _by_seed(seeds: Seeds, values: NDArray[np.float64]) -> dict[str, NDArray[np.float64]] | None:
    """Return seed -> values, with runs that share a seed numbered, or None if there are not several runs."""
    if len(values) < 2 or len(seeds) != len(values):
        return None
    found: dict[str, NDArray[np.float64]] = {}
    for seed, own in zip(seeds, values, strict=True):
        again = sum(name.split(" ")[0] == str(seed) for name in found)
        found[f"{seed} ({again + 1})" if again else str(seed)] = own
    return found


def _samples(name: str, samples: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(samples, dtype=np.float64)
    require(
        values.ndim == 2 and values.size, f"series '{name}' needs samples [runs, points], not shape {values.shape}."
    )
    return values


def _positive(series: Sequence[Series], log_x: bool, log_y: bool) -> None:
    """Check that lines on a logarithmic axis are positive; bands are clipped at the axis, lines must not be."""
    for one in series:
        for axis, wanted, values in (("x", log_x, one.x), ("y", log_y, one.centre)):
            require(
                not (wanted and (values <= 0).any()),
                f"series '{one.name}' has {axis} values that are not positive; make that axis linear.",
            )
