"""The page of the alphabets experiment: accuracies beside the paper's, curves, path lengths, activations."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison import data_of, distinct, estimate
from warpgrad.experiments.comparison_page import Measure, comparison_page
from warpgrad.experiments.omniglot_data import DRAWN
from warpgrad.report import Figure, Gallery, Page, Paragraph, Reference, Section, Series, curves


def build_page(groups: Sequence[Group], title: str) -> Page:
    """Sections for whatever the groups hold: a tasks axis where they differ in tasks, activations where there are
    warps."""
    groups = distinct(groups)
    data = data_of(groups)
    return comparison_page(
        groups,
        title,
        f"Alphabets experiment (App. E-G) on {' and '.join(data)} alphabets",
        held_out="held-out alphabets",
        measures=[
            Measure("accuracy", f"Accuracy after {groups[0].evaluations[0]['tested_at'][-1]} steps", compared=True),
            Measure("auc", "AUC"),
            Measure("length", "Length of the path", unit="", best=None, digits=2),
            Measure("length_with_loss", "with the loss", unit="", best=None, digits=2),
        ],
        caption="The same held-out alphabets and batches for every row of a meta-seed.",
        notes=[
            "AUC is the mean height of the accuracy curve. The length of the path is Σ‖θₖ₊₁ − θₖ‖ over adaptation, "
            "with the loss Σ‖(θₖ₊₁, Lₖ₊₁) − (θₖ, Lₖ)‖, which Leap minimises. Task embeddings are in no distance."
        ],
        published="paper {:g} (Omniglot)",
        warning="These results are on drawn alphabets, invented by a program. They follow the same protocol but are "
        "**not** Omniglot; the paper's figures beside them are."
        if DRAWN in data
        else "",
        sections=[*_tasks_axis(groups), *_activations(groups)],
    )


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
        figures.append(
            Figure(
                image,
                f"{label} against the number of meta-training tasks.",
                "Bands: 95 % intervals, where there are four seeds or more.",
            )
        )
    return [Section("Number of meta-training tasks", [Gallery(figures)])]


def _activations(groups: Sequence[Group]) -> list[Section]:
    warped = [group for group in groups if group.evaluations[0]["activations"]]
    figures = []
    for group in warped:
        layers = np.arange(1, len(group.evaluations[0]["activations"]["mean_before"]) + 1)
        for kind, label in (("mean", "mean activation"), ("distance", "Schatten-1 norm of Cov − I")):
            series = [
                Series.mean(
                    f"{side} the warp", layers, [item["activations"][f"{kind}_{side}"] for item in group.evaluations]
                )
                for side in ("before", "after")
            ]
            white = [Reference("", 0.0)]
            image = curves(
                series, x_label="warp-layer", y_label=label, title=group.label, references=white, size=(4.3, 3.1)
            )
            figures.append(Figure(image, f"{label} before and after each warp-layer, {group.label}."))
    if not figures:
        return []
    words = Paragraph(
        "Statistics on test drawings of held-out alphabets, over examples and locations, averaged over alphabets and "
        "adaptation steps. A natural gradient would whiten (dotted): mean 0 and Cov − I = 0 after a linear warp."
    )
    return [Section("Activations around warp-layers", [words, Gallery(figures)])]


def _interval_series(name: str, found: dict[int, Group], measure: str) -> Series:
    estimates = [estimate(group, measure) for group in found.values()]
    x = np.array(list(found), np.float64)
    centre = np.array([item.mean for item in estimates])
    # Bands as everywhere: where there are four seeds or more.
    if any(item.indicative or not item.interval.bounded for item in estimates):
        return Series.line(name, x, centre)
    low = np.array([item.interval.low for item in estimates])
    high = np.array([item.interval.high for item in estimates])
    return Series(name, x, centre, low, high)
