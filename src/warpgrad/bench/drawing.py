"""The curves of a record as one figure: time against all that a meta-step grows with, and memory against K."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from warpgrad.report.figures import appearances, canvas, house_style, save

COLUMNS = 3
MEGABYTE = 1e6
LABELS = {
    "K": "K, steps per task",
    "tasks": "tasks per meta-step",
    "η": "η, points per update of φ",
    "parameters": "parameters, θ and φ",
    "ranks": "ranks",
}


@dataclass(frozen=True)
class Line:
    """One curve of a panel, with the ends of its spread where it has one."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Panel:
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    slope: float | None
    """Of a guide on the log axes: 1 for in proportion, −1 for inversely so, None for no guide."""


def growth_figure(record: Mapping[str, Any], path: Path | None = None) -> bytes:
    """A panel for each axis of the row growth, and one of the row memory where it was measured; as PNG."""
    panels = panels_of(record)
    rows = -(-len(panels) // COLUMNS)
    with house_style():
        figure = canvas(10.2, 2.9 * rows)
        for place, panel in enumerate(panels, start=1):
            _draw(figure.add_subplot(rows, COLUMNS, place), panel)
        return save(figure, path)


def panels_of(record: Mapping[str, Any]) -> list[Panel]:
    found: dict[str, list[Line]] = {}
    for curve in record["growth"]:
        columns = {end: [time[end] for time in curve["milliseconds"]] for end in ("median", "low", "high")}
        line = Line(curve["name"], curve["places"], columns["median"], columns["low"], columns["high"])
        found.setdefault(curve["axis"], []).append(line)
    slopes = {"η": None, "ranks": -1.0}
    panels = [
        Panel(LABELS[axis], "ms per meta-step", tuple(lines), slopes.get(axis, 1.0)) for axis, lines in found.items()
    ]
    if "memory" in record:
        peaks = record["memory"]["peaks"]
        lines = []
        for method in dict.fromkeys(one["method"] for one in peaks):
            own = [one for one in peaks if one["method"] == method]
            lines.append(Line(method, [one["steps"] for one in own], [one["bytes"] / MEGABYTE for one in own]))
        panels.append(Panel(LABELS["K"], "peak memory, MB", tuple(lines), None))
    return panels


def _draw(axes: Axes, panel: Panel) -> None:
    looks = appearances([line.name for line in panel.lines])
    for line in panel.lines:
        look = looks[line.name]
        axes.plot(line.x, line.y, color=look.colour, linestyle=look.dash, label=line.name, marker="o", markersize=3.5)
        if line.low is not None and line.high is not None:
            axes.fill_between(line.x, line.low, line.high, color=look.colour, alpha=0.16, linewidth=0)
    if panel.slope is not None:
        first = panel.lines[0]
        guide = [first.y[0] * (x / first.x[0]) ** panel.slope for x in first.x]
        words = "in proportion" if panel.slope > 0 else "shared evenly"
        axes.plot(first.x, guide, color="#8a929b", linewidth=1.0, linestyle=(0, (2, 2)), label=words, zorder=1.5)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label, xscale="log", yscale="log")
    places = sorted({x for line in panel.lines for x in line.x})
    if len(places) <= 8:
        axes.set_xticks(places)
        axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axis.set_minor_formatter(NullFormatter())
    axes.margins(0.06, 0.1)
    axes.legend(handlelength=1.8)


def short(value: float) -> str:
    """A number that fits below a tick."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
