"""The record of a benchmark as tables: for the terminal, and with a figure of its curves in a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from warpgrad.errors import WarpgradError
from warpgrad.experiments.estimate import in_byte_unit, in_time_unit
from warpgrad.io import write_bytes
from warpgrad.report.figures import canvas, house_style, save_png
from warpgrad.report.looks import appearances

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
FIGURE = Path("figures/cost-growth.png")
"""The path of the figure, relative to the page."""
MEGABYTE = 1e6
PANELS_PER_ROW = 3
LABELS = {
    "K": "K, steps per task",
    "tasks": "tasks per meta-step",
    "η": "η, points per update of φ",
    "parameters": "parameters, θ and φ",
    "ranks": "ranks",
}
ALGORITHMS = {"online": "Algorithm 1", "offline": "Algorithm 2", "maml": "MAML"}
"""What the other panels call the methods whose memory is measured."""
VERDICTS = {True: "met", False: "missed", None: ""}


@dataclass(frozen=True)
class Columns:
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(record: Mapping[str, Any]) -> list[Columns]:
    """Return one table of ratios, and one for each other row that was measured."""
    found = []
    if record["figures"] or record["absent"]:
        found.append(_ratios(record))
    rows: Mapping[str, Callable[[Any], Columns]] = {
        "ranks": _ranks,
        "growth": _growth,
        "estimate": _estimate,
        "memory": _memory,
        "replay": _replay,
    }
    return found + [make(record[name]) for name, make in rows.items() if name in record]


def conditions(record: Mapping[str, Any]) -> str:
    """Describe the conditions of the measurement in one paragraph."""
    machine, versions = record["hardware"], record["versions"]
    scale = "small networks, a trial" if record["quick"] else "full size"
    finer = "".join(f" ({name}: {times} times as many)" for name, times in record.get("finer", {}).items())
    took = f" It took {in_time_unit(sum(record['seconds'].values()))} in all." if record.get("seconds") else ""
    return (
        f"{machine['cpu']}, {machine['threads']} thread, torch {versions['torch']}, warpgrad {versions['warpgrad']}; "
        f"{scale}; medians of {record['repetitions']} interleaved repetitions{finer} [smallest, largest].{took}"
    )


def markdown(record: Mapping[str, Any]) -> str:
    """Return all tables as text, with a link to the figure."""
    lines = [conditions(record), ""]
    lines += [f"{name}: {words}." for name, words in record["sizes"].items()]
    if "growth" in record:
        lines += ["", f"![The time of a meta-step against K, tasks, η, parameters and ranks]({FIGURE})"]
    for table in tables(record):
        lines += ["", f"**{table.title}**", "", _line(table.header), _line(("---",) * len(table.header))]
        lines += [_line(row) for row in table.rows]
    return "\n".join(lines) + "\n"


def write_page(path: Path, record: Mapping[str, Any]) -> None:
    """Put the tables between the two marks of a page and draw its figure, leaving the rest of the page as it is."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise WarpgradError(f"{path} has no place for the tables: it needs a line '{BEGIN}' and then a line '{END}'.")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    if "growth" in record:
        growth_figure(record, path.parent / FIGURE)
    write_bytes(path, f"{before}{BEGIN}\n\n{markdown(record)}\n{END}{after}".encode())


def _ratios(record: Mapping[str, Any]) -> Columns:
    header = ("row", "what", "ms", "against", "ms", "cost ratio", "target", "")
    rows = []
    for one in record["figures"]:
        ratio, target = one["ratio"], one["at_most"]
        rows.append(
            (
                one["row"],
                one["what"],
                f"{one['milliseconds']['median']:.3g}",
                one["against"],
                f"{one['milliseconds_against']['median']:.3g}",
                _spread(ratio),
                "" if target is None else f"≤ {target:.2f}",
                VERDICTS[one["met"]],
            )
        )
    rows += [(one["row"], "", "", name, "", "absent", "", one["reason"]) for name, one in record["absent"].items()]
    return Columns("Cost per (task, step), in units of what stands beside it: less is better", header, tuple(rows))


def _ranks(throughputs: Sequence[Mapping[str, Any]]) -> Columns:
    rows = tuple(
        (
            one["what"],
            f"{one['milliseconds']['median']:.3g}",
            f"{one['milliseconds_against']['median']:.3g}",
            _spread(one["ratio"]),
            f"≥ {one['at_least']:.2f}",
            VERDICTS[one["met"]],
        )
        for one in throughputs
    )
    title = "Throughput of 2 ranks of conv in units of 2 independent processes; wall-clock ms per (task, step) of both"
    return Columns(title, ("what", "ranks", "processes", "throughput ratio", "target", ""), rows)


def _growth(curves: Sequence[Mapping[str, Any]]) -> Columns:
    rows = []
    for curve in curves:
        places, times = curve["places"], curve["milliseconds"]
        ends = f"{times[0]['median']:.3g} → {times[-1]['median']:.3g}"
        spans = f"{places[0]:,} → {places[-1]:,}"
        rows.append((curve["axis"], curve["name"], spans, ends, f"{curve['exponent']:.2f}"))
    title = "Growth of a meta-step's time: p, if time grew like a power p between these ends"
    return Columns(title, ("against", "what", "from → to", "ms per meta-step", "p"), tuple(rows))


def _estimate(predictions: Sequence[Mapping[str, Any]]) -> Columns:
    units = {
        "seconds": ("time", in_time_unit),
        "peak_bytes": ("peak memory", in_byte_unit),
        "buffer_bytes": ("buffer", in_byte_unit),
    }
    rows = [
        (
            one["name"],
            words,
            show(one["predicted"][what]),
            show(one["real"][what]),
            _spread(one["ratios"][what]),
            f"within {one['within']:.0%}",
            VERDICTS[one["met"][what]],
        )
        for one in predictions
        for what, (words, show) in units.items()
        if one["ratios"][what] is not None
    ]
    header = ("configuration", "what", "predicted", "real", "ratio", "target", "")
    return Columns("What --estimate predicts against the run itself", header, tuple(rows))


def _memory(memory: Mapping[str, Any]) -> Columns:
    rows = []
    for peak in memory["peaks"]:
        base = next(one["bytes"] for one in memory["peaks"] if one["method"] == peak["method"])
        grown = (peak["bytes"] - base) / peak["theta_bytes"]
        rows.append((peak["method"], str(peak["steps"]), f"{peak['bytes'] / MEGABYTE:.0f}", f"{grown:.1f}"))
    verdict = "missed" if memory["online_grows"] else "met"
    title = f"Peak memory of a meta-step against K; no growth for online: {verdict}"
    return Columns(title, ("method", "K", "MB", "more than at the smallest K, in θ"), tuple(rows))


def _replay(replay: Mapping[str, Any]) -> Columns:
    rows = tuple(
        (place, f"{replay['write'][place]['median']:.3g}", f"{replay['read'][place]['median']:.3g}")
        for place in ("memory", "disk")  # a record that was read back has its keys in another order
    )
    title = f"Replay buffer of conv: {replay['entry_bytes']:,} bytes per entry; wall-clock ms per entry"
    return Columns(title, ("where", "write", "read back"), rows)


def _spread(one: Mapping[str, float]) -> str:
    return f"{one['median']:.2f} [{one['low']:.2f}, {one['high']:.2f}]"


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


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
    """Draw a panel for each axis of the row growth, and one of the row memory if it was measured; return the PNG."""
    panels = panels_of(record)
    rows = -(-len(panels) // PANELS_PER_ROW)
    with house_style():
        figure = canvas(10.2, 2.9 * rows)
        for place, panel in enumerate(panels, start=1):
            _draw(figure.add_subplot(rows, PANELS_PER_ROW, place), panel)
        return save_png(figure, path)


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
            lines.append(
                Line(ALGORITHMS[method], [one["steps"] for one in own], [one["bytes"] / MEGABYTE for one in own])
            )
        panels.append(Panel(LABELS["K"], "peak memory, MB", tuple(lines), None))
    return panels


def _draw(axes: Axes, panel: Panel) -> None:
    looks = appearances([line.name for line in panel.lines])
    for line in panel.lines:
        look = looks[line.name]
        stroke = (0, look.dash or None)
        axes.plot(line.x, line.y, color=look.colour, linestyle=stroke, label=line.name, marker="o", markersize=3.5)
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
    """Format a number to fit below a tick."""
    for unit, factor in (("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"
