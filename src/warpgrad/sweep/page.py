"""The page of a sweep: the best trials, the metric against each setting, and the best so far."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial

from warpgrad.experiments.search_space import Choices, Space
from warpgrad.report import (
    Chart,
    Code,
    Collapsible,
    Column,
    Gallery,
    KeyValues,
    Note,
    Page,
    Paragraph,
    Section,
    Series,
    Table,
    Tile,
    Tiles,
    Value,
)
from warpgrad.report.blocks import Block
from warpgrad.report.tables import Cell, Sized
from warpgrad.statistics.formatting import count, duration, number
from warpgrad.sweep.results import Sweep, SweepPaths, state_of, summary, trial_name, value_text
from warpgrad.sweep.space import sentence, space_to_json


def study_page(sweep: Sweep, trials: Sequence[FrozenTrial], places: SweepPaths, command: str) -> Page:
    """Build the page of a sweep; `command` is the command line that repeats or continues it."""
    search = "random search" if sweep.search == "random" else "TPE"
    title = f"Sweep of {sweep.experiment.name}: {sweep.config.method}"
    subtitle = (
        f"{count(len(trials), 'trial')} by {search}, preset {sweep.config.preset}, seed {sweep.config.seed}, judged "
        f"by {sweep.metric} on the validation split ({sweep.direction})."
    )
    return Page(title, subtitle).add(
        _headline(sweep, trials),
        _table(sweep, trials),
        _progress(sweep, trials),
        _test(sweep, places),
        _repetition(sweep, command),
    )


def _headline(sweep: Sweep, trials: Sequence[FrozenTrial]) -> Section:
    best = sweep.ranked(trials)[0]
    assert best.value is not None
    tiles = [
        Tile(f"Best {sweep.metric}", number(best.value), f"{trial_name(best.number)}, validation split"),
        Tile("Trials", str(len(trials)), summary(trials)),
        *(Tile(name, value_text(sweep.chosen(best)[name]), sentence(space)) for name, space in sweep.space.items()),
    ]
    charts = [_scatter(sweep, trials, name, space) for name, space in sweep.space.items()]
    return Section("The best trial", [Tiles(tiles), Gallery(charts)])


def _test(sweep: Sweep, places: SweepPaths) -> Section:
    caution = Note(
        "The best of many trials looks better on the validation split than it is, and more so with more trials. "
        "The result to report is that of a new run on the test split, with other seeds."
    )
    code = Code(f"warpgrad run {sweep.experiment.name} --config {places.best} --seed 1", "The best settings, tested")
    return Section("Test the best settings", [caution, code])


def _table(sweep: Sweep, trials: Sequence[FrozenTrial]) -> Section:
    columns: list[Column | str] = [
        "Trial",
        Column(sweep.metric, best="lowest" if sweep.direction == "minimise" else "highest"),
        *sweep.space,
        "Training",
    ]
    rows: list[list[Cell]] = [
        [
            trial_name(trial.number),
            Value(trial.value),
            *map(value_text, sweep.chosen(trial).values()),
            Sized(duration(trial.user_attrs["seconds"]), trial.user_attrs["seconds"]),
        ]
        for trial in sweep.ranked(trials)
    ]
    shown_rows = 20
    blocks: list[Block] = [Table(columns, rows[:shown_rows], "Complete trials, best first, on the validation split.")]
    if len(rows) > shown_rows:
        rest = Table(columns, rows[shown_rows:], "The other complete trials.")
        blocks.append(Collapsible(f"{count(len(rows) - shown_rows, 'more trial')}", [rest]))
    others: list[list[Cell]] = [
        [
            trial_name(trial.number),
            state_of(trial),
            # A trial that another process has just started may not have its settings yet.
            *(value_text(sweep.chosen(trial).get(name, "–")) for name in sweep.space),
            trial.user_attrs.get("error", ""),
        ]
        for trial in trials
        if state_of(trial) != "complete"
    ]
    if others:
        names: list[Column | str] = ["Trial", "State", *sweep.space, Column("Why", words=True)]
        blocks.append(Collapsible(f"{count(len(others), 'trial')} without a value", [Table(names, others)]))
    return Section("Trials", blocks)


def _scatter(sweep: Sweep, trials: Sequence[FrozenTrial], name: str, space: Space) -> Chart:
    """Draw complete trials as dots, the best one apart; pruned and failed ones, which have no value, at the worst."""
    tried: dict[str, list[tuple[float, float]]] = {"complete": [], "pruned": [], "failed": [], "running": []}
    for trial in (*sweep.ranked(trials), *(one for one in trials if state_of(one) != "complete")):
        if name in trial.params:
            chosen = sweep.chosen(trial)[name]
            place = float(space.choices.index(chosen) if isinstance(space, Choices) else chosen)
            tried[state_of(trial)].append((place, math.nan if trial.value is None else trial.value))
    best, *others = tried["complete"]
    worst = tried["complete"][-1][1]
    shown = {
        "the best trial": [best],
        "complete": others,
        **{state: [(place, worst) for place, _ in tried[state]] for state in ("pruned", "failed")},
    }
    series = []
    for label, points in shown.items():
        if points:
            x, y = np.array(points, np.float64).T
            series.append(Series(label, x, y, points=True))
    without = " Pruned and failed trials have no value and are shown at the worst one." if len(series) > 2 else ""
    return Chart(
        series,
        x_label=name,
        y_label=sweep.metric,
        log_x=not isinstance(space, Choices) and space.log,
        choices=[value_text(value) for value in space.choices] if isinstance(space, Choices) else (),
        alt=f"{sweep.metric} of each trial against its {name}.",
        caption=f"`{name}`, {sentence(space)}.{without}",
    )


def best_so_far(sweep: Sweep, trials: Sequence[FrozenTrial]) -> NDArray[np.float64]:
    """Return the best value up to each trial; NaN before the first complete one."""
    values = [trial.value if state_of(trial) == "complete" else None for trial in trials]
    best = np.fmin if sweep.direction == "minimise" else np.fmax
    found: NDArray[np.float64] = best.accumulate(np.array(values, dtype=np.float64))
    return found


def _progress(sweep: Sweep, trials: Sequence[FrozenTrial]) -> Section:
    best = best_so_far(sweep, trials)
    known = np.isfinite(best)
    chart = Chart(
        [Series.line("best so far", np.arange(1, len(best) + 1)[known], best[known])],
        x_label="trials",
        y_label=f"best {sweep.metric}",
        alt=f"Best {sweep.metric} after each trial.",
        caption="By trial number. Where the line still falls or rises at its end, more trials may find better "
        "settings.",
    )
    return Section("Best so far", [chart])


def _repetition(sweep: Sweep, command: str) -> Section:
    return Section(
        "Repeat",
        [
            Paragraph(
                "The same command resumes the sweep, or does nothing if it is complete. Every trial is an ordinary "
                "run directory, with its settings, metrics, versions and command."
            ),
            Code(command, "The sweep"),
            Collapsible("The space", [KeyValues(space_to_json(sweep.space))]),
        ],
    )
