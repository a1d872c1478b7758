"""The page of the maze experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison import distinct
from warpgrad.experiments.comparison_page import experiment_page
from warpgrad.experiments.maze.results import (
    POINTS,
    REFERENCES,
    baseline_of,
    baseline_then,
    learning_curves,
    mean_of,
    metric,
    over_baseline,
    owed_to_memory,
    updates_of,
)
from warpgrad.maze.environment import picture
from warpgrad.maze.rules import Maze
from warpgrad.report import Block, Column, Figure, Note, Page, Paragraph, Section, Table, Tile, Tiles, Value
from warpgrad.report.charts import Series, draw_series
from warpgrad.report.figures import appearances, canvas, house_style, save
from warpgrad.report.tables import Cell

PAPER = ((60_000, 160.0, "Warp-RNN"), (100_000, 125.0, "best baseline"), (200_000, 150.0, "best baseline"))
"""(updates, mean return, whose): what the paper states."""

PIXELS = 8
_LETTER = "#3d454e"


def return_curves(groups: Sequence[Group], references: Mapping[str, float]) -> bytes | None:
    """Median and inter-quartile range over runs, with the paper's horizons marked; None without a point.

    The axis of updates is logarithmic, so that short runs and the paper's horizons fit into one figure.
    """
    found = [(group.label, *learning_curves(group)) for group in groups]
    series = [Series.quartiles(label, updates, values) for label, updates, values in found if len(updates)]
    if not series:
        return None
    looks = appearances([one.name for one in series])
    with house_style():
        figure = canvas(7.2, 4.6)
        axes = figure.add_subplot()
        for one in series:
            draw_series(axes, one, looks[one.name])
        for name, value in references.items():
            axes.axhline(value, color="#8a929b", linewidth=1.0, linestyle=(0, (2, 2)), zorder=1.5)
            axes.annotate(name, (1.0, value), xycoords=("axes fraction", "data"), xytext=(-4, 2), ha="right",
                          textcoords="offset points", fontsize=8, color=_LETTER)  # fmt: skip
        _mark_horizons(axes)
        axes.set(xlabel="updates of θ", ylabel="mean return of an episode", xscale="log")
        axes.set_xlim(min(float(one.x[0]) for one in series), 1.2 * PAPER[-1][0])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}".replace(",", " "))
        figure.legend(loc="outside lower center", ncols=min(4, len(series)), handlelength=2.2)
        return save(figure)


def _mark_horizons(axes: Axes) -> None:
    for updates, value, whose in PAPER:
        axes.axvline(updates, color="#8a929b", linewidth=0.8, linestyle=(0, (1, 3)), zorder=1.2)
        axes.plot([updates], [value], marker="*", color="#1c2127", markersize=9, linestyle="none", zorder=5)
        axes.annotate(f"paper, {whose} ~{value:.0f}", (updates, value), xytext=(-6, 6), ha="right",
                      textcoords="offset points", fontsize=8, color=_LETTER)  # fmt: skip


def film_strip(maze: Maze, film: Mapping[str, Any], frames: int = 8) -> bytes:
    """One frame per way to the goal: the search first, then the returns; the last frame may end without a find."""
    ends = [*film["found"], len(film["places"]) - 1]
    begins = [0, *(end + 1 for end in film["found"])]
    ways = [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin <= end][:frames]
    with house_style():
        columns = min(4, len(ways))
        rows = -(-len(ways) // columns)
        figure = canvas(1.8 * columns, 2.05 * rows)
        for number, (begin, end) in enumerate(ways):
            axes = figure.add_subplot(rows, columns, number + 1)
            axes.imshow(picture(maze, film["goal"], film["places"][begin], PIXELS))
            cells = [*film["places"][begin : end + 1], *([film["goal"]] if end in film["found"] else [])]
            path = (maze.cells[np.array(cells)] + 0.5) * PIXELS - 0.5
            axes.plot(path[:, 1], path[:, 0], color="#c1272d", linewidth=1.3, alpha=0.75)
            told = f"{end - begin + 1} steps" if end in film["found"] else "not found"
            axes.set_title(f"t = {begin}: {told}", fontsize=8, loc="center", pad=3)
            axes.set_axis_off()
        return save(figure)


def build_page(groups: Sequence[Group], title: str) -> Page:
    groups = distinct(groups)
    config = groups[0].runs[0].config
    sections = [_headline(groups), _table(groups), _curves(groups), _films(groups)]
    sizes = f"{config['meta_steps']} updates on batches of {config['episodes']} episodes of {config['length']} steps"
    return experiment_page(groups, title, "Maze experiment (App. I)", sections, sizes=sizes)


def _headline(groups: Sequence[Group]) -> Section:
    baseline = baseline_of(groups)
    tiles = [Tile(group.label, mean_of(group).cell(1), _paper(group)) for group in groups[:4]]
    told: list[Block] = [
        Paragraph(
            "The goal is elsewhere in every episode. An agent has to find it, to remember where it was, and to return "
            "from wherever it is sent; its return is 10 for every time it is there."
        )
    ]
    if baseline is not None:
        against = [over_baseline(group, baseline) for group in groups if group is not baseline]
        told += [Paragraph(found.sentence()) for found in against if found is not None]
    told += [Paragraph(owed_to_memory(group).sentence()) for group in groups[:2]]
    return Section("Return in the maze", [Tiles(tiles), *told])


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
        columns += [f"Over {baseline.label}", f"{baseline.label} after as few updates"]
    for which, label in REFERENCES.items():
        rows.append([label, None, Value.of(mean_of(groups[0], which), digits=1), *[None] * (len(columns) - 3)])
    caption = (
        "Held-out episodes, the same for every agent of a seed. Differences are paired by episode, over the seeds that "
        "both have, and only after as many updates in the same maze. A search that ends with its episode counts that "
        "long. Beside an agent with fewer updates stands the other's return on validation episodes at that time."
    )
    note = Note(
        "Reset at every step, an agent keeps what it learned about walking and loses what it saw in this episode. "
        "Wandering takes any open way but the one it came by; random moves also walk into walls."
    )
    return Section("All agents", [Table(columns, rows, caption), note])


def _curves(groups: Sequence[Group]) -> Section:
    image = return_curves(groups, {label: mean_of(groups[0], which).mean for which, label in REFERENCES.items()})
    if image is None:
        return Section("Return against updates", [Note("The runs were too short for a single point of the curve.")])
    stated = ", ".join(f"~{value:.0f} at {updates // 1000} 000 updates ({whose})" for updates, value, whose in PAPER)
    caption = (
        "Return on validation episodes: median and inter-quartile range over runs (the whole range below four), "
        f"averaged down to {POINTS} points. Stars are what the paper states: {stated}."
    )
    return Section("Return against updates", [Figure(image, "Mean return against updates for every agent.", caption)])


def _films(groups: Sequence[Group]) -> Section:
    blocks: list[Block] = []
    for group in groups:
        run, evaluation = group.runs[0], group.evaluations[0]
        maze = Maze(run.config["size"], run.config["length"], run.config["reward"], run.config["wall_penalty"])
        caption = (
            f"{group.label}, seed {run.seed}, its first held-out episode, not chosen. Each frame is one way to the "
            "goal (green), from where the agent (red) is put; the first is the search."
        )
        image = film_strip(maze, evaluation["film"])
        blocks.append(Figure(image, f"Ways of {group.label} to the goal of one episode.", caption))
    return Section("One episode", blocks)
