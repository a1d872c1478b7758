"""The page of a sweep: the best trials, the metric against each setting, and the best so far."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from optuna.trial import FrozenTrial

from warpgrad.experiments.search_space import Choices, Space
from warpgrad.report import (
    Code,
    Collapsible,
    Column,
    Figure,
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
    canvas,
    curves,
    house_style,
    save_png,
)
from warpgrad.report.blocks import Block
from warpgrad.report.figures import PALETTE
from warpgrad.report.tables import Cell
from warpgrad.statistics.formatting import count, number
from warpgrad.sweep.results import Sweep, SweepPaths, state_of, summary, trial_name, value_text
from warpgrad.sweep.space import sentence, space_to_json

LONG_LABEL = 12
"""Letters of a choice from which on choices no longer fit side by side."""


def study_page(sweep: Sweep, trials: Sequence[FrozenTrial], places: SweepPaths, command: str) -> Page:
    """`command` is the one that repeats the sweep, or goes on with it."""
    search = "random search" if sweep.search == "random" else "TPE"
    title = f"Sweep of {sweep.experiment.name}: {sweep.config.method}"
    subtitle = (
        f"{count(len(trials), 'trial')} by {search}, preset {sweep.config.preset}, seed {sweep.config.seed}, judged "
        f"by {sweep.metric} on the validation split ({sweep.direction})."
    )
    return Page(title, subtitle).add(
        _headline(sweep, trials, places),
        _table(sweep, trials),
        Section(
            "Value against each setting",
            [Gallery([_scatter(sweep, trials, name, space) for name, space in sweep.space.items()])],
        ),
        _progress(sweep, trials),
        _repetition(sweep, command),
    )


def _headline(sweep: Sweep, trials: Sequence[FrozenTrial], places: SweepPaths) -> Section:
    best = sweep.ranked(trials)[0]
    assert best.value is not None
    tiles = [
        Tile(f"Best {sweep.metric}", number(best.value), f"{trial_name(best.number)}, validation split"),
        Tile("Trials", str(len(trials)), summary(trials)),
        *(Tile(name, value_text(sweep.chosen(best)[name]), sentence(space)) for name, space in sweep.space.items()),
    ]
    caution = Note(
        "The best of many trials looks better on the validation split than it is, and the more so the more there "
        "were. Its result is that of a new run on the test split, with other seeds."
    )
    code = Code(f"warpgrad run {sweep.experiment.name} --config {places.best} --seed 1", "The best settings, tested")
    return Section("The best trial", [Tiles(tiles), caution, code])


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
            f"{trial.user_attrs['seconds']:.0f} s",
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
            # A trial that another process has just begun may not have its values yet.
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


def _scatter(sweep: Sweep, trials: Sequence[FrozenTrial], name: str, space: Space) -> Figure:
    """Every complete trial a dot, the best one ringed; pruned and failed ones stand on the axis."""
    tried: dict[str, list[tuple[float, float]]] = {"complete": [], "pruned": [], "failed": [], "running": []}
    for trial in (*sweep.ranked(trials), *(one for one in trials if state_of(one) != "complete")):
        if name in trial.params:
            chosen = sweep.chosen(trial)[name]
            place = float(space.choices.index(chosen) if isinstance(space, Choices) else chosen)
            tried[state_of(trial)].append((place, math.nan if trial.value is None else trial.value))
    with house_style():
        figure = canvas(4.3, 3.1)
        axes: Axes = figure.add_subplot()
        axes.plot(*zip(*tried["complete"], strict=True), "o", color=PALETTE[1], markersize=4, alpha=0.75)
        axes.plot(*tried["complete"][0], "o", color=PALETTE[0], markersize=9, fillstyle="none")
        for state, marker in (("pruned", "|"), ("failed", "x")):
            at = [place for place, _ in tried[state]]
            height, to_axis = [0.02] * len(at), axes.get_xaxis_transform()
            axes.plot(at, height, marker, color=PALETTE[7], markersize=6, linestyle="none", transform=to_axis)
        if isinstance(space, Choices):
            labels = [value_text(value) for value in space.choices]
            axes.set_xticks(range(len(labels)), labels)
            if max(map(len, labels)) > LONG_LABEL:
                axes.tick_params(axis="x", labelrotation=15)
            axes.set_xlim(-0.5, len(space.choices) - 0.5)
        else:
            if space.log:
                axes.set_xscale("log")
            axes.set_xlim(space.low, space.high)
        axes.set(xlabel=name, ylabel=sweep.metric)
        image = save_png(figure)
    marks = "Ringed: the best trial. On the axis: pruned (|) and failed (×) trials."
    return Figure(image, f"{sweep.metric} of each trial against its {name}.", f"`{name}`, {sentence(space)}. {marks}")


def best_so_far(sweep: Sweep, trials: Sequence[FrozenTrial]) -> NDArray[np.float64]:
    """After each trial, the best value until then; NaN before the first."""
    values = [trial.value if state_of(trial) == "complete" else None for trial in trials]
    best = np.fmin if sweep.direction == "minimise" else np.fmax
    found: NDArray[np.float64] = best.accumulate(np.array(values, dtype=np.float64))
    return found


def _progress(sweep: Sweep, trials: Sequence[FrozenTrial]) -> Section:
    best = best_so_far(sweep, trials)
    known = np.isfinite(best)
    figure = curves(
        [Series.line("best so far", np.arange(1, len(best) + 1)[known], best[known])],
        x_label="trials",
        y_label=f"best {sweep.metric}",
        size=(7.2, 3.2),
        alt=f"Best {sweep.metric} after each trial.",
        caption="By trial number. Where the line still falls or rises at its end, more trials may find better "
        "settings.",
    )
    return Section("Best so far", [figure])


def _repetition(sweep: Sweep, command: str) -> Section:
    return Section(
        "Repeat",
        [
            Paragraph(
                "The same command goes on with the sweep, or does nothing where it is done. Every trial is an ordinary "
                "run directory, with its settings, metrics, versions and command."
            ),
            Code(command, "The sweep"),
            Collapsible("The space", [KeyValues(space_to_json(sweep.space))]),
        ],
    )
