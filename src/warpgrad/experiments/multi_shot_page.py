"""The page of the multi-shot experiment: accuracies at both horizons, learning curves, meta-training."""

from __future__ import annotations

from collections.abc import Sequence

from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison import data_of, distinct, estimate
from warpgrad.experiments.multi_shot_figures import learning_curves
from warpgrad.experiments.multi_shot_results import TIERED, difference, horizons, setting, settings_of
from warpgrad.report import (
    Column,
    Figure,
    Gallery,
    Note,
    Page,
    Paragraph,
    Section,
    Table,
    Tile,
    Tiles,
    Value,
    configuration,
    metric_figures,
    repetition,
)
from warpgrad.report.blocks import Block
from warpgrad.report.tables import Cell


def build_page(groups: Sequence[Group], title: str) -> Page:
    groups = distinct(groups)
    runs = [run for group in groups for run in group.runs]
    presets = dict.fromkeys(run.preset for run in runs)
    subtitle = (
        f"Multi-shot experiment (§4.2, App. H) on {' and '.join(settings_of(groups))}, preset "
        f"{' and '.join(presets)}, {len({run.seed for run in runs})} meta-seeds."
    )
    page = Page(title, subtitle)
    page.add(_headline(groups), _comparison(groups), _curves(groups))
    figures = metric_figures(runs)
    if figures:
        words = (
            "Validation scores are means over validation tasks after the K steps of meta-training; the weights with "
            "the best validation AUC are the ones tested. Training from scratch has no meta-training to show."
        )
        page.add(Section("Meta-training", [Paragraph(words), Gallery(figures)]))
    page.add(Section("Configuration", configuration(runs)), Section("Reproduce", repetition(runs)))
    return page


def _headline(groups: Sequence[Group]) -> Section:
    tiles = [
        Tile(
            group.label,
            estimate(group, "accuracy").cell(1),
            f"paper {group.paper:g} ({TIERED})" if group.paper is not None else "per cent of test images",
        )
        for group in groups[:4]
    ]
    blocks: list[Block] = [Tiles(tiles)]
    if data_of(groups) != [TIERED]:
        blocks.append(
            Note(
                f"These results are on {' and '.join(data_of(groups))}, **not** on {TIERED}; the paper's figures "
                "beside them are.",
                "warning",
            )
        )
    first = groups[0]
    for measure, place in (("accuracy", 0), ("accuracy_at_end", 1)):
        for other in groups[1:]:
            found = difference(first, other, measure)
            if found is not None:
                steps = horizons(first)[place]
                sentence = found.sentence(unit="points of accuracy", digits=1)
                blocks.append(Paragraph(f"After {steps} steps: {sentence}"))
    return Section("Accuracy on held-out tasks", blocks)


def _comparison(groups: Sequence[Group]) -> Section:
    first = groups[0]
    rows: list[list[Cell]] = []
    for group in groups:
        cells: list[Cell] = [group.label]
        for measure, paper in (("accuracy", group.paper), ("accuracy_at_end", None)):
            against = None if group is first else difference(group, first, measure)
            cells.append(Value.of(estimate(group, measure), paper=paper, digits=1))
            cells.append(None if against is None else Value.of(against, digits=1))
        cells += [Value.of(estimate(group, measure), digits=1) for measure in ("auc", "auc_at_end")]
        rows.append(cells)
    headline, end = horizons(first)
    columns: list[Column | str] = [
        "Method",
        Column(f"Accuracy after {headline} steps", "%", best="highest"),
        Column(f"minus {first.label}", "points"),
        Column(f"after {end} steps", "%", best="highest"),
        Column(f"minus {first.label} then", "points"),
        Column(f"AUC over {headline} steps", "%", best="highest"),
        Column(f"over {end} steps", "%", best="highest"),
    ]
    blocks: list[Block] = [
        Table(columns, rows, f"{setting(first)}; the same held-out tasks for every row and every meta-seed."),
        Note(
            "AUC is the mean height of the accuracy curve. Training from scratch takes larger batches (its own "
            "setting); the number of steps is the same for all."
        ),
    ]
    return Section("All rows", blocks)


def _curves(groups: Sequence[Group]) -> Section:
    alt = "Accuracy against adaptation steps for every row; a dashed line marks the steps of meta-training."
    caption = (
        "Mean over held-out tasks; bands are 95 % intervals over meta-seeds, cut off where they leave the range of the "
        "lines. To the right of the dashed line is more adaptation than meta-training ever saw."
    )
    return Section("Learning curves", [Figure(learning_curves(groups), alt, caption)])
