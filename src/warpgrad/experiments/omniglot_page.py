"""The page of the alphabets experiment: accuracies beside the paper's, curves, path lengths, activations."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison import data_of, difference, distinct, estimate
from warpgrad.experiments.omniglot_data import DRAWN
from warpgrad.report import (
    Column,
    Figure,
    Gallery,
    Note,
    Page,
    Paragraph,
    Reference,
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
from warpgrad.report.tables import Cell


def build_page(groups: Sequence[Group], title: str) -> Page:
    """Sections for whatever the groups hold: a tasks axis where they differ in tasks, activations where there are
    warps."""
    groups = distinct(groups)
    runs = [run for group in groups for run in group.runs]
    data = data_of(groups)
    presets = dict.fromkeys(run.preset for run in runs)
    subtitle = (
        f"Alphabets experiment (App. E-G) on {' and '.join(data)} alphabets, preset {' and '.join(presets)}, "
        f"{len({run.seed for run in runs})} meta-seeds."
    )
    page = Page(title, subtitle)
    page.add(_headline(groups, data), _comparison(groups), _curves(groups))
    page.add(*_tasks_axis(groups), *_activations(groups))
    figures = metric_figures(runs)
    if figures:
        page.add(Section("Meta-training", [Gallery(figures)]))
    page.add(Section("Configuration", configuration(runs)), Section("Reproduce", repetition(runs)))
    return page


def _headline(groups: Sequence[Group], data: Sequence[str]) -> Section:
    tiles = [
        Tile(
            group.label,
            estimate(group, "accuracy").cell(1),
            f"paper {group.paper:g} (Omniglot)" if group.paper is not None else "per cent after adaptation",
        )
        for group in groups[:4]
    ]
    blocks: list[Block] = [Tiles(tiles)]
    if DRAWN in data:
        blocks.append(
            Note(
                "These results are on drawn alphabets, invented by a program. They follow the same protocol but are "
                "**not** Omniglot; the paper's figures beside them are.",
                "warning",
            )
        )
    first = groups[0]
    for other in groups[1:]:
        found = difference(first, other)
        if found is not None:
            blocks.append(Paragraph(found.sentence(unit="points of accuracy", digits=1)))
    return Section("Accuracy on held-out alphabets", blocks)


def _comparison(groups: Sequence[Group]) -> Section:
    first = groups[0]
    rows: list[list[Cell]] = []
    for group in groups:
        against = None if group is first else difference(group, first)
        rows.append(
            [
                group.label,
                Value.of(estimate(group, "accuracy"), paper=group.paper, digits=1),
                None if against is None else Value.of(against, digits=1),
                Value.of(estimate(group, "auc"), digits=1),
                Value.of(estimate(group, "length"), digits=2),
                Value.of(estimate(group, "length_with_loss"), digits=2),
            ]
        )
    steps = first.evaluations[0]["tested_at"][-1]
    columns: list[Column | str] = [
        "Method",
        Column(f"Accuracy after {steps} steps", "%", best="highest"),
        Column(f"minus {first.label}", "points"),
        Column("AUC", "%", best="highest"),
        Column("Length of the path"),
        Column("with the loss"),
    ]
    notes: list[Block] = [
        Table(columns, rows, "The same held-out alphabets and batches for every row of a meta-seed."),
        Note(
            "AUC is the mean height of the accuracy curve. The length of the path is Σ‖θₖ₊₁ − θₖ‖ over adaptation, "
            "with the loss Σ‖(θₖ₊₁, Lₖ₊₁) − (θₖ, Lₖ)‖, which Leap minimises. Task embeddings are in no distance."
        ),
    ]
    return Section("All rows", notes)


def _curves(groups: Sequence[Group]) -> Section:
    series = [
        _series(group.label, evaluations[0]["tested_at"], [_mean_curve(item["curves"]) for item in evaluations])
        for group in groups
        for evaluations in [group.evaluations]
    ]
    image = curves(series, x_label="step of adaptation", y_label="accuracy on held-out alphabets, %", size=(7.2, 4.4))
    caption = "Mean over held-out alphabets; bands are 95 % intervals over meta-seeds, where there are four or more."
    return Section("Learning curves", [Figure(image, "Accuracy against adaptation steps for every row.", caption)])


def _tasks_axis(groups: Sequence[Group]) -> list[Section]:
    """Accuracy and AUC against the number of meta-training tasks, where that differs."""
    by_settings: dict[str, dict[int, Group]] = {}
    for group in groups:
        config = dict(group.runs[0].config)
        tasks = int(config.pop("tasks"))
        del config["seed"]
        by_settings.setdefault(json.dumps(config, sort_keys=True), {})[tasks] = group
    axes = [dict(sorted(found.items())) for found in by_settings.values() if len(found) > 1]
    if not axes:
        return []
    methods = [next(iter(found.values())).runs[0].method for found in axes]
    named = [
        (method if methods.count(method) == 1 else next(iter(found.values())).label, found)
        for method, found in zip(methods, axes, strict=True)
    ]
    figures = []
    for measure, label in (("accuracy", "accuracy, %"), ("auc", "AUC, %")):
        series = [_interval_series(name, found, measure) for name, found in named]
        papers = [
            Reference(f"paper, {name}, {count} tasks", group.paper, name)
            for name, found in named
            for count, group in found.items()
            if measure == "accuracy" and group.paper is not None and count == max(found)
        ]
        image = curves(series, x_label="meta-training tasks", y_label=label, references=papers, size=(5.4, 3.8))
        figures.append(Figure(image, f"{label} against the number of meta-training tasks.", "Bands: 95 % intervals."))
    return [Section("Number of meta-training tasks", [Gallery(figures)])]


def _activations(groups: Sequence[Group]) -> list[Section]:
    warped = [group for group in groups if group.evaluations[0]["activations"]]
    figures = []
    for group in warped:
        layers = np.arange(1, len(group.evaluations[0]["activations"]["mean_before"]) + 1)
        for kind, label in (("mean", "mean activation"), ("distance", "Schatten-1 norm of Cov − I")):
            series = [
                _series(f"{side} the warp", layers, [item["activations"][f"{kind}_{side}"] for item in evaluations])
                for side in ("before", "after")
                for evaluations in [group.evaluations]
            ]
            image = curves(series, x_label="warp-layer", y_label=label, title=group.label, size=(4.3, 3.1))
            figures.append(Figure(image, f"{label} before and after each warp-layer, {group.label}."))
    if not figures:
        return []
    words = Paragraph(
        "Statistics on test drawings of held-out alphabets, over examples and locations, averaged over alphabets and "
        "adaptation steps. A natural gradient would whiten: mean 0 and Cov − I = 0 after a linear warp."
    )
    return [Section("Activations around warp-layers", [words, Gallery(figures)])]


def _series(name: str, x: Sequence[int] | NDArray[np.int64], samples: Sequence[Sequence[float]]) -> Series:
    return Series.mean(name, x, samples) if len(samples) > 1 else Series.line(name, x, samples[0])


def _interval_series(name: str, found: dict[int, Group], measure: str) -> Series:
    estimates = [estimate(group, measure) for group in found.values()]
    x = np.array(list(found), np.float64)
    centre = np.array([item.mean for item in estimates])
    if not all(item.interval.bounded for item in estimates):
        return Series.line(name, x, centre)
    low = np.array([item.interval.low for item in estimates])
    high = np.array([item.interval.high for item in estimates])
    return Series(name, x, centre, low, high)


def _mean_curve(of_alphabets: dict[str, list[float]]) -> list[float]:
    mean: list[float] = np.mean(list(of_alphabets.values()), axis=0).tolist()
    return mean
