"""The page of a sweep: the best trials, the metric against each setting, and the best so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

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
    save,
)
from warpgrad.report.blocks import Block
from warpgrad.report.figures import PALETTE
from warpgrad.report.tables import Cell
from warpgrad.statistics.formatting import count, number
from warpgrad.sweep.results import Outcome, Places, Sweep, best_so_far, ranked, shown, summary
from warpgrad.sweep.space import described, sentence

LONG_LABEL = 12
"""Letters of a choice from which on choices no longer fit side by side."""


def build_page(sweep: Sweep, outcomes: Sequence[Outcome], places: Places, command: str) -> Page:
    """`command` is the one that repeats the sweep, or goes on with it."""
    search = "random search" if sweep.search == "random" else "TPE"
    title = f"Sweep of {sweep.experiment.name}: {sweep.config.method}"
    subtitle = (
        f"{count(len(outcomes), 'trial')} by {search}, preset {sweep.config.preset}, seed {sweep.config.seed}, judged "
        f"by {sweep.metric} on the validation split ({sweep.direction})."
    )
    return Page(title, subtitle).add(
        _headline(sweep, outcomes, places),
        _table(sweep, outcomes),
        Section(
            "Value against each setting",
            [Gallery([_scatter(sweep, outcomes, name, space) for name, space in sweep.space.items()])],
        ),
        _progress(sweep, outcomes),
        _repetition(sweep, command),
    )


def _headline(sweep: Sweep, outcomes: Sequence[Outcome], places: Places) -> Section:
    best = ranked(outcomes, sweep.direction)[0]
    assert best.value is not None
    tiles = [
        Tile(f"Best {sweep.metric}", number(best.value), f"{best.name}, validation split"),
        Tile("Trials", str(len(outcomes)), summary(outcomes)),
        *(Tile(name, shown(best.chosen[name]), sentence(space)) for name, space in sweep.space.items()),
    ]
    caution = Note(
        "The best of many trials looks better on the validation split than it is, and the more so the more there "
        "were. Its result is that of a new run on the test split, with other seeds."
    )
    code = Code(f"warpgrad run {sweep.experiment.name} --config {places.best} --seed 1", "The best settings, tested")
    return Section("The best trial", [Tiles(tiles), caution, code])


def _table(sweep: Sweep, outcomes: Sequence[Outcome]) -> Section:
    columns: list[Column | str] = [
        "Trial",
        Column(sweep.metric, best="lowest" if sweep.direction == "minimise" else "highest"),
        *sweep.space,
        "Training",
    ]
    rows: list[list[Cell]] = [
        [
            outcome.name,
            Value(outcome.value),
            *(shown(outcome.chosen[name]) for name in sweep.space),
            None if outcome.seconds is None else f"{outcome.seconds:.0f} s",
        ]
        for outcome in ranked(outcomes, sweep.direction)
    ]
    shown_rows = 20
    blocks: list[Block] = [Table(columns, rows[:shown_rows], "Complete trials, best first, on the validation split.")]
    if len(rows) > shown_rows:
        rest = Table(columns, rows[shown_rows:], "The other complete trials.")
        blocks.append(Collapsible(f"{count(len(rows) - shown_rows, 'more trial')}", [rest]))
    others: list[list[Cell]] = [
        [outcome.name, outcome.state, *(_tried(outcome, name) for name in sweep.space), outcome.error or ""]
        for outcome in outcomes
        if outcome.value is None
    ]
    if others:
        names: list[Column | str] = ["Trial", "State", *sweep.space, Column("Why", words=True)]
        blocks.append(Collapsible(f"{count(len(others), 'trial')} without a value", [Table(names, others)]))
    return Section("Trials", blocks)


def _tried(outcome: Outcome, name: str) -> str:
    """A trial that another process has just begun may not have its values yet."""
    return shown(outcome.chosen[name]) if name in outcome.chosen else "–"


def _scatter(sweep: Sweep, outcomes: Sequence[Outcome], name: str, space: Space) -> Figure:
    """Every complete trial a dot, the best one ringed; pruned and failed ones stand on the axis."""
    tried = [outcome for outcome in outcomes if name in outcome.chosen]
    complete = [outcome for outcome in tried if outcome.value is not None]
    best = ranked(outcomes, sweep.direction)[0]
    with house_style():
        figure = canvas(4.3, 3.1)
        axes: Axes = figure.add_subplot()
        axes.plot(*_points(complete, name, space), "o", color=PALETTE[1], markersize=4, alpha=0.75, linestyle="none")
        axes.plot(*_points([best], name, space), "o", color=PALETTE[0], markersize=9, fillstyle="none")
        for state, marker in (("pruned", "|"), ("failed", "x")):
            places = [_place(outcome.chosen[name], space) for outcome in tried if outcome.state == state]
            at_the_axis = axes.get_xaxis_transform()
            axes.plot(
                places, [0.02] * len(places), marker, color=PALETTE[7], markersize=6, linestyle="none",
                transform=at_the_axis,
            )  # fmt: skip
        if isinstance(space, Choices):
            labels = [shown(value) for value in space.choices]
            axes.set_xticks(range(len(labels)), labels)
            if max(map(len, labels)) > LONG_LABEL:
                axes.tick_params(axis="x", labelrotation=15)
            axes.set_xlim(-0.5, len(space.choices) - 0.5)
        else:
            if space.log:
                axes.set_xscale("log")
            axes.set_xlim(space.low, space.high)
        axes.set(xlabel=name, ylabel=sweep.metric)
        image = save(figure)
    marks = "Ringed: the best trial. On the axis: pruned (|) and failed (×) trials."
    return Figure(image, f"{sweep.metric} of each trial against its {name}.", f"`{name}`, {sentence(space)}. {marks}")


def _points(outcomes: Sequence[Outcome], name: str, space: Space) -> tuple[list[float], list[float]]:
    values = [math.nan if outcome.value is None else outcome.value for outcome in outcomes]
    return [_place(outcome.chosen[name], space) for outcome in outcomes], values


def _place(value: Any, space: Space) -> float:
    return float(space.choices.index(value) if isinstance(space, Choices) else value)


def _progress(sweep: Sweep, outcomes: Sequence[Outcome]) -> Section:
    best = np.array(best_so_far(outcomes, sweep.direction))
    known = np.isfinite(best)
    trials = np.arange(1, len(best) + 1)[known]
    figure = curves(
        [Series.line("best so far", trials, best[known])],
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
            Collapsible("The space", [KeyValues(described(sweep.space))]),
        ],
    )
