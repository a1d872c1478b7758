"""The page of the maze experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from warpgrad.experiments.base import Group, Lines
from warpgrad.experiments.comparison import distinct
from warpgrad.experiments.comparison_page import experiment_page
from warpgrad.experiments.maze.results import (
    POINTS,
    REFERENCES,
    baseline_of,
    baseline_then,
    mean_of,
    metric,
    over_baseline,
    owed_to_memory,
    updates_of,
    validation_returns,
)
from warpgrad.maze.environment import picture
from warpgrad.maze.rules import Maze
from warpgrad.report import (
    Block,
    Cell,
    Chart,
    Collapsible,
    Column,
    Figure,
    Forest,
    ForestRow,
    Line,
    Mark,
    Note,
    Page,
    Panel,
    Paragraph,
    Reference,
    Section,
    Series,
    Table,
    Tile,
    Tiles,
    Value,
    panels,
)

PAPER = ((60_000, 160.0, "Warp-RNN"), (100_000, 125.0, "best baseline"), (200_000, 150.0, "best baseline"))
"""The paper's results: (updates, mean return, agent)."""

PIXELS = 8


def return_curves(groups: Sequence[Group], references: Mapping[str, float]) -> Chart | None:
    """Plot median and inter-quartile range over runs, with the paper's horizons marked; None without data.

    The axis of updates is logarithmic, so that short runs and the paper's horizons fit into one figure.
    """
    found = [(group, *validation_returns(group)) for group in groups]
    series = [
        Series.quartiles(group.label, updates, values, seeds=[run.seed for run in group.runs])
        for group, updates, values in found
        if len(updates)
    ]
    if not series:
        return None
    stated = ", ".join(f"~{value:.0f} at {updates // 1000} 000 updates ({whose})" for updates, value, whose in PAPER)
    return Chart(
        series,
        x_label="updates of θ",
        y_label="mean return of an episode",
        log_x=True,
        references=[Reference(label, value) for label, value in references.items()],
        marks=[Mark(f"~{value:.0f}", updates, value) for updates, value, _ in PAPER],
        alt="Mean return against updates for every agent.",
        caption="Return on validation episodes: median and inter-quartile range over runs (the whole range below "
        f"four), averaged down to {POINTS} points. Stars are what the paper states: {stated}.",
    )


def film_strip(maze: Maze, film: Mapping[str, Any], frames: int = 8, *, alt: str, caption: str = "") -> Figure:
    """Draw one frame per path to the goal: the search first, then the returns; the last may end without a find."""
    ends = [*film["found"], len(film["places"]) - 1]
    begins = [0, *(end + 1 for end in film["found"])]
    ways = [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin <= end][:frames]
    shown = []
    for begin, end in ways:
        found = end in film["found"]
        cells = [*film["places"][begin : end + 1], *([film["goal"]] if found else [])]
        path = (maze.cells[np.array(cells)] + 0.5) * PIXELS - 0.5
        title = f"t = {begin}: {f'{end - begin + 1} steps' if found else 'not found'}"
        pixels = picture(maze, film["goal"], film["places"][begin], PIXELS)
        shown.append(Panel([Line(path[:, ::-1], "#c1272d", width=1.3, alpha=0.75)], title, image=pixels))
    columns = min(4, len(shown))
    rows = [shown[begin : begin + columns] for begin in range(0, len(shown), columns)]
    return panels(rows, size=(1.8 * columns, 2.05 * len(rows)), alt=alt, caption=caption)


def build_page(groups: Sequence[Group], title: str) -> Page:
    groups = distinct(groups)
    config = groups[0].runs[0].config
    sections = [_headline(groups), _table(groups), _curves(groups), _films(groups)]
    sizes = f"{config['meta_steps']} updates on batches of {config['episodes']} episodes of {config['length']} steps"
    return experiment_page(groups, title, "Maze experiment (App. I)", sections, sizes=sizes)


def _headline(groups: Sequence[Group]) -> Section:
    baseline = baseline_of(groups)
    tiles = [Tile.of(group.label, mean_of(group), 1, _paper(group)) for group in groups[:4]]
    against = [] if baseline is None else [over_baseline(group, baseline) for group in groups if group is not baseline]
    known = [found for found in against if found is not None]
    memory = [owed_to_memory(group) for group in groups[:2]]
    plots: list[Block] = []
    if baseline is not None and known:
        plots.append(
            Forest(
                [ForestRow(found.first, found) for found in known],
                f"Return over that of **{baseline.label}**",
                "return",
                f"{baseline.label} is ahead",
                "the agent is ahead",
                1,
            )
        )
    told = Paragraph(
        "The goal is in a different place in every episode. An agent has to find it, remember where it was, and go "
        "back from wherever it is put; every visit to the goal adds 10 to its return."
    )
    words = Collapsible("The same in words", [Paragraph(found.sentence()) for found in (*known, *memory)])
    return Section("Return in the maze", [*plots, Tiles(tiles), told, words])


def _paper(group: Group) -> str:
    return "" if group.paper is None else f"paper: ~{group.paper:.0f} at 60 000 updates"


def _table(groups: Sequence[Group]) -> Section:
    baseline = baseline_of(groups)
    columns: list[Column | str] = [
        "Agent",
        "Updates",
        Column("Return", best="highest"),
        "State reset at every step",
        "Steps to the first find",
        "Steps to later finds",
        "Size of θ",
        "Size of φ",
    ]
    names = ("steps/first_find", "steps/later_finds", "parameters/task", "parameters/warp")
    rows: list[list[Cell]] = []
    for group in groups:
        paper = None if group.paper is None else f"~{group.paper:.0f} at 60 000 updates"
        row: list[Cell] = [group.label, updates_of(group), Value.of(mean_of(group), paper=paper, digits=1)]
        row += [Value.of(mean_of(group, "forgetting"), digits=1), *(metric(group, name) for name in names)]
        if baseline is not None:
            against = None if group is baseline else over_baseline(group, baseline)
            row += [None if against is None else Value.of(against, digits=1), baseline_then(group, baseline)]
        rows.append(row)
    if baseline is not None:
        columns += [f"Over {baseline.label}", f"{baseline.label} after as many updates"]
    for which, label in REFERENCES.items():
        rows.append([label, None, Value.of(mean_of(groups[0], which), digits=1), *[None] * (len(columns) - 3)])
    notes = [
        "With its state reset at every step, an agent keeps what it learned about moving but forgets the episode. "
        "Wandering takes any open direction except back; random moves also run into walls.",
        "A search that is cut off by the end of its episode counts the steps until then.",
    ]
    if baseline is not None:
        notes.append(
            "Differences are paired by episode, over the seeds that both have, and only for agents with equally many "
            f"updates in the same maze. For an agent with fewer updates, the last column is the return of "
            f"{baseline.label} on validation episodes after that many."
        )
    table = Table(columns, rows, "The same held-out episodes for every agent of a seed.")
    return Section("All agents", [table, *map(Note, notes)])


def _curves(groups: Sequence[Group]) -> Section:
    chart = return_curves(groups, {label: mean_of(groups[0], which).mean for which, label in REFERENCES.items()})
    too_short = Note("The runs were too short for a single point of the curve.")
    return Section("Return against updates", [chart or too_short])


def _films(groups: Sequence[Group]) -> Section:
    blocks: list[Block] = []
    for group in groups:
        run, evaluation = group.runs[0], group.evaluations[0]
        maze = Maze(run.config["size"], run.config["length"], run.config["reward"], run.config["wall_penalty"])
        caption = (
            f"{group.label}, seed {run.seed}, its first held-out episode, not selected. Each frame is one path to the "
            "goal (green), from where the agent (red) is put; the first frame is the search."
        )
        alt = f"Paths of {group.label} to the goal in one episode."
        blocks.append(film_strip(maze, evaluation["film"], alt=alt, caption=caption))
    return Section("One episode", blocks)


def result_lines(groups: Sequence[Group]) -> Lines:
    """Return the table for the terminal."""
    groups = distinct(groups)
    baseline = baseline_of(groups)
    header = [
        "agent",
        "updates",
        "return [95 % interval]",
        "state reset at every step",
        "first find | later finds",
        "size of θ",
    ]
    rows = []
    for group in groups:
        first, later = (metric(group, name) for name in ("steps/first_find", "steps/later_finds"))
        times = " | ".join("–" if value is None else f"{value:.1f}" for value in (first, later))
        row = [group.label, updates_of(group), mean_of(group).cell(1), mean_of(group, "forgetting").cell(1), times]
        row.append(f"{metric(group, 'parameters/task'):.0f}")
        if baseline is not None:
            against = None if group is baseline else over_baseline(group, baseline)
            row.append("" if against is None else against.cell(1))
        rows.append(row)
    for which, label in REFERENCES.items():
        rows.append([label, "", mean_of(groups[0], which).cell(1), *[""] * (len(rows[0]) - 3)])
    return [*header, f"over {baseline.label}"] if baseline is not None else header, rows
