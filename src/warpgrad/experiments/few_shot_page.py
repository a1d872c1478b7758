"""The page of the few-shot experiment: accuracies beside the published ones, curves over adaptation steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison import difference, distinct, estimate
from warpgrad.experiments.few_shot_results import comparable, settings_of
from warpgrad.report import (
    Column,
    Figure,
    Gallery,
    Note,
    Page,
    Paragraph,
    Section,
    Series,
    Table,
    Tile,
    Tiles,
    Value,
    configuration,
    curves,
    metric_figures,
    repetition,
)
from warpgrad.report.blocks import Block
from warpgrad.report.memory import memory_section
from warpgrad.report.tables import Cell

MEMORY = Path("results/few-shot-memory.json")
"""Written by benchmarks/memory_few_shot.py; its section is on the page where it is there."""


def build_page(groups: Sequence[Group], title: str) -> Page:
    groups = distinct(groups)
    runs = [run for group in groups for run in group.runs]
    presets = dict.fromkeys(run.preset for run in runs)
    subtitle = (
        f"Few-shot experiment (§4.1, App. H) on {' and '.join(settings_of(groups))}, preset {' and '.join(presets)}, "
        f"{len({run.seed for run in runs})} meta-seeds."
    )
    page = Page(title, subtitle)
    page.add(_headline(groups), _comparison(groups), _curves(groups))
    figures = metric_figures(runs)
    if figures:
        page.add(Section("Meta-training", [Gallery(figures)]))
    if MEMORY.is_file():
        page.add(memory_section(MEMORY))
    page.add(Section("Configuration", configuration(runs)), Section("Reproduce", repetition(runs)))
    return page


def _headline(groups: Sequence[Group]) -> Section:
    tiles = [
        Tile(
            group.label,
            estimate(group, "accuracy").cell(1),
            f"published {group.paper:g}" if group.paper is not None else "per cent of query images",
        )
        for group in groups[:4]
    ]
    blocks: list[Block] = [Tiles(tiles)]
    first = groups[0]
    for other in groups[1:]:
        found = difference(first, other) if comparable(first, other) else None
        if found is not None:
            blocks.append(Paragraph(found.sentence(unit="points of accuracy", digits=1)))
    return Section("Accuracy on held-out episodes", blocks)


def _comparison(groups: Sequence[Group]) -> Section:
    first = groups[0]
    rows: list[list[Cell]] = []
    for group in groups:
        against = None if group is first or not comparable(group, first) else difference(group, first)
        before = sum(item["curve"][0] for item in group.evaluations) / len(group.evaluations)
        rows.append(
            [
                group.label,
                Value.of(estimate(group, "accuracy"), paper=group.paper, digits=1),
                None if against is None else Value.of(against, digits=1),
                f"{before:.1f}",
            ]
        )
    columns: list[Column | str] = [
        "Method",
        Column("Accuracy after adaptation", "%", best="highest"),
        Column(f"minus {first.label}", "points"),
        Column("before it", "%"),
    ]
    notes = dict.fromkeys(note for group in groups for item in group.evaluations for note in item["notes"])
    blocks: list[Block] = [
        Table(columns, rows, "The same held-out episodes for every row and every meta-seed."),
        *(Note(note) for note in notes),
    ]
    return Section("All rows", blocks)


def _curves(groups: Sequence[Group]) -> Section:
    series = []
    for group in groups:
        samples = [item["curve"] for item in group.evaluations]
        steps = group.evaluations[0]["tested_at"]
        one = len(samples) == 1
        series.append(Series.line(group.label, steps, samples[0]) if one else Series.mean(group.label, steps, samples))
    image = curves(series, x_label="step of adaptation", y_label="accuracy on query images, %", size=(7.2, 4.4))
    caption = "Mean over held-out episodes; bands are 95 % intervals over meta-seeds."
    return Section("Accuracy by adaptation step", [Figure(image, "Accuracy against adaptation steps.", caption)])
