"""A page for runs of any experiment: results, curves, settings, and how to reproduce each number.

Pages about a single experiment are built by that experiment, from the same blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from warpgrad.errors import WarpgradError, require
from warpgrad.report.blocks import (
    Block,
    Collapsible,
    Figure,
    Gallery,
    Heading,
    Note,
    Section,
    Tile,
    Tiles,
    dotted,
)
from warpgrad.report.forest import Forest, ForestRow
from warpgrad.report.metric_curves import by_method, is_number, metric_charts
from warpgrad.report.page import Page
from warpgrad.report.provenance import UNKNOWN, configuration, meta_step_range, repetition, time_of
from warpgrad.report.runs import Run
from warpgrad.report.tables import Cell, Column, Table, Value
from warpgrad.statistics.estimates import mean_interval, paired_difference
from warpgrad.statistics.formatting import count, duration, number, shared_digits


def run_page(runs: Sequence[Run]) -> Page:
    """Build one page for these runs, grouped by experiment and preset."""
    require(runs, "a report needs at least one run directory.")
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.title, []).append(run)
    methods = ", ".join(by_method(runs))
    if len(groups) == 1:
        # A user's own run that names no preset is known by its folder.
        title = runs[0].path.name if len(runs) == 1 and not runs[0].preset else next(iter(groups))
        page = Page(title, f"{count(len(runs), 'run')}: {methods}.")
        return page.add(*(Section(title, blocks) for title, blocks in _parts(runs)))
    page = Page(f"{len(groups)} experiments", f"{count(len(runs), 'run')}: {methods}.")
    for title, own in groups.items():
        section = Section(title)
        for heading, blocks in _parts(own):
            section.add(Heading(heading), *blocks)
        page.add(section)
    return page


def _parts(runs: Sequence[Run]) -> list[tuple[str, list[Block]]]:
    parts: list[tuple[str, list[Block]]] = [("Results", _results(runs))]
    curves = metric_charts(by_method(runs), diagnostics=True)
    if curves:
        parts.append(("Curves", [Gallery(curves)]))
    figures = _figures(runs)
    if figures:
        parts.append(("Figures", figures))
    parts.append(("Configuration", configuration(runs)))
    parts.append(("How to repeat it", repetition(runs)))
    return parts


def _results(runs: Sequence[Run]) -> list[Block]:
    methods = by_method(runs)
    # Scores on held-out tasks come first.
    places = {"test": 0, "validation": 1}
    metrics = sorted(
        dict.fromkeys(name for run in runs for name in _final(run)),
        key=lambda name: places.get(name.partition("/")[0], 2),
    )
    # The same number of digits for a whole column, so that its values can be compared at a glance.
    digits = {name: shared_digits(*(final[name] for final in map(_final, runs) if name in final)) for name in metrics}
    rows = [
        [method, len(own), meta_step_range(own), time_of(own), *(_cell(own, name, digits[name]) for name in metrics)]
        for method, own in methods.items()
    ]
    seconds = [run.summary["wall_seconds"] for run in runs if is_number(run.summary.get("wall_seconds"))]
    took = Tile("Wall time, all runs" if len(runs) > 1 else "Wall time", duration(sum(seconds)) if seconds else UNKNOWN)
    counts = [
        Tile("Runs", str(len(runs)), f"preset `{runs[0].preset}`" if runs[0].preset else ""),
        Tile("Methods", str(len(methods))),
        Tile("Meta-seeds", str(len({run.seed for run in runs}))),
    ]
    # With a single run there is nothing to count.
    final = [Tile(name, number(value, digits[name])) for name, value in _final(runs[0]).items() if math.isfinite(value)]
    final.sort(key=lambda tile: metrics.index(tile.label))
    tiles = [*(counts if len(runs) > 1 or not final else final[:3]), took]
    columns: list[Column | str] = ["Method", "Runs", "Steps", Column("Wall time", "per run"), *metrics]
    notes = [Note(f"{run.name}: {note}", "warning") for run in runs for note in run.notes]
    stops = [Note(f"{run.name}: stopped ({run.summary['stopped']}).") for run in runs if run.summary.get("stopped")]
    seeds = len({run.seed for run in runs})
    table = Table(columns, rows, "Final metrics: the mean over meta-seeds." if seeds > 1 else "Final metrics.")
    return [*_headline(methods, metrics), Tiles(tiles), table, *_differences(methods, metrics), *notes, *stops]


def _headline(methods: Mapping[str, Sequence[Run]], metrics: Sequence[str]) -> list[Block]:
    """Compare several methods on one axis, by the first metric that all of them have."""
    for metric in metrics:
        found = {method: _scores(own, metric) for method, own in methods.items()}
        if len(found) > 1 and all(found.values()):
            rows = [ForestRow(method, mean_interval(own, name=metric)) for method, own in found.items()]
            better = " (lower is better)" if "loss" in metric else ""
            digits = shared_digits(*(row.estimate.mean for row in rows))
            return [Forest(rows, f"{metric} of every method at the end{better}", digits=digits)]
    return []


def _scores(runs: Sequence[Run], metric: str) -> dict[Any, dict[Any, float]]:
    """Return meta-seed -> run -> the final value of a metric; empty if a run lacks it or its value is not finite.

    Runs are nested in meta-seeds because two runs of one meta-seed are no more independent than two of its tasks.
    """
    nested: dict[Any, dict[Any, float]] = {}
    for run in runs:
        value = _final(run).get(metric, math.nan)
        if not math.isfinite(value):
            return {}
        nested.setdefault(run.seed, {})[run.path] = value
    return nested


def _differences(methods: Mapping[str, Sequence[Run]], metrics: Sequence[str]) -> list[Block]:
    """Compare every other method with the first, paired over the meta-seeds that both have, if there are several."""
    (first, own), *others = methods.items()
    rows: list[list[Cell]] = []
    for name, theirs in others:
        cells = [_difference((name, theirs), (first, own), metric) for metric in metrics]
        if any(cell is not None for cell in cells):
            rows.append([name, *cells])
    if not rows:
        return []
    return [Table(["Method", *metrics], rows, f"Differences from {first}: the mean over the same meta-seeds, paired.")]


def _difference(one: tuple[str, Sequence[Run]], other: tuple[str, Sequence[Run]], metric: str) -> Cell:
    by_seed: list[dict[Any, list[float]]] = []
    for _, runs in (one, other):
        found: dict[Any, list[float]] = {}
        for run in runs:
            if math.isfinite(value := _final(run).get(metric, math.nan)):
                found.setdefault(run.seed, []).append(value)
        by_seed.append(found)
    common = [seed for seed in by_seed[0] if seed in by_seed[1]]
    if len(common) < 2:
        return None
    first, second = ({seed: {metric: math.fsum(own[seed]) / len(own[seed])} for seed in common} for own in by_seed)
    return Value.of(paired_difference(first, second, names=(one[0], other[0])))


def _final(run: Run) -> dict[str, float]:
    values = dotted(run.summary.get("metrics") or {})
    return {name: float(value) for name, value in values.items() if is_number(value)}


def _cell(runs: Sequence[Run], metric: str, digits: int | None) -> Cell:
    found = [(run, _final(run)[metric]) for run in runs if metric in _final(run)]
    if not found:
        return None
    lost = sum(not math.isfinite(value) for _, value in found)
    if lost:
        return f"not finite in {lost} of {count(len(found), 'run')}"
    return Value.of(mean_interval(_scores([run for run, _ in found], metric), name=metric), digits=digits)


def _figures(runs: Sequence[Run]) -> list[Block]:
    folded: list[Block] = []
    for run in runs:
        figures: list[Figure] = []
        for file in run.figures:
            try:
                figures.append(Figure(file.read_bytes(), f"{file.stem}, {run.name}.", f"{file.stem}, {run.name}."))
            except WarpgradError as error:
                raise WarpgradError(f"{file}: {error}") from error
        if figures:
            folded.append(Collapsible(run.name, [Gallery(figures)], open=len(runs) == 1))
    return folded
