"""The page of the maze experiment."""

from __future__ import annotations

from collections.abc import Sequence

from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison import distinct
from warpgrad.experiments.comparison_page import experiment_page
from warpgrad.experiments.maze_figures import PAPER, film_strip, return_curves
from warpgrad.experiments.maze_results import (
    POINTS,
    REFERENCES,
    baseline_of,
    baseline_then,
    mean_of,
    metric,
    over_baseline,
    owed_to_memory,
    updates_of,
)
from warpgrad.maze.rules import Maze
from warpgrad.report import Block, Column, Figure, Note, Page, Paragraph, Section, Table, Tile, Tiles, Value
from warpgrad.report.tables import Cell


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
