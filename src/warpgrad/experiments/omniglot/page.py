"""The page of the alphabets experiment, at every test batch: accuracies beside the paper's, curves, path lengths,
activations, scores during meta-training."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from warpgrad.data.prepared import DRAWN
from warpgrad.errors import require
from warpgrad.experiments import comparison
from warpgrad.experiments.base import Group, Lines
from warpgrad.experiments.comparison import data_names, data_of, distinct, estimate, search_lines, trials_of
from warpgrad.experiments.comparison_page import BESIDE, Measure, beside_paper, comparison_page, shown_first
from warpgrad.report import (
    Best,
    Cell,
    Chart,
    Column,
    Gallery,
    Page,
    Paragraph,
    Reference,
    Section,
    Series,
    Table,
    Value,
)
from warpgrad.statistics.formatting import count


def build_page(groups: Sequence[Group], title: str) -> Page:
    """Build the page, with everything shown at every test batch.

    It has a tasks axis if groups differ in tasks, activations if there are warps, winners if settings were searched.
    """
    groups = distinct(groups)
    data, batches = data_of(groups), batches_of(groups)
    steps = groups[0].evaluations[0]["tested_at"][-1]
    accuracies = [
        Measure(
            f"accuracy_{batch}",
            f"Accuracy after {steps} steps, batch {batch}",
            compared=True,
            when=f"At batch {batch}: ",
            published=True,
        )
        for batch in batches
    ]
    others = [
        Measure(f"{name}_{batch}", f"{words}, batch {batch}", unit=unit, best=best, digits=digits)
        for name, words, unit, best, digits in _OTHER_MEASURES
        for batch in batches
    ]
    # Of a search, the layers of the best trials are enough.
    first = shown_first(groups, accuracies[0])
    chosen = [group for group in groups if group.label in first] or groups
    return comparison_page(
        groups,
        title,
        f"Alphabets experiment (App. E-G) on {data_names(groups)} alphabets, "
        f"tested at {count(len(batches), 'batch size')} ({' and '.join(map(str, batches))})",
        held_out="held-out alphabets",
        measures=[*accuracies, *others],
        caption="The same held-out alphabets and batches for every row of a meta-seed.",
        notes=[
            "AUC is the mean height of the accuracy curve. The length of the path is Σ‖θₖ₊₁ − θₖ‖ over adaptation, "
            "with the loss Σ‖(θₖ₊₁, Lₖ₊₁) − (θₖ, Lₖ)‖, which Leap minimises. No distance includes task embeddings.",
            "The paper states no batch size: it follows Leap, whose program uses 20, and the program published with it "
            "uses 128. The batches of SGD and KFAC are larger by the factor `scratch_batch`.",
            f"Batch-norm at test: {' and '.join(_policies(groups))}.",
        ],
        published="paper {:g} (Omniglot)",
        warning="These results are on drawn alphabets, invented by a program. They follow the same protocol but are "
        f"**not** Omniglot{BESIDE if beside_paper(groups) else '.'}"
        if DRAWN in data
        else "",
        parts={str(batch): f"batch {batch}" for batch in batches},
        sections=[
            *_winners(groups),
            *_tasks_axis(groups, batches),
            *_sizes_at_start(chosen),
            *_activations(chosen, batches),
        ],
        training="`validation/` scores are means over a few alphabets that are in neither meta-training nor the test. "
        "They choose nothing: the weights are always the last ones.",
    )


_OTHER_MEASURES: tuple[tuple[str, str, str, Best | None, int], ...] = (
    ("auc", "AUC", "%", "highest", 1),
    ("length", "Length of the path", "", None, 2),
    ("length_with_loss", "Length with the loss", "", None, 2),
)


def _policies(groups: Sequence[Group]) -> list[str]:
    words = {
        "corrected": "the task's own running statistics, corrected for their initial values",
        "running": "the task's own running statistics, as they are",
        "batch": "statistics of the test batch",
    }
    found = dict.fromkeys(evaluation["batch_norm"] for group in groups for evaluation in group.evaluations)
    return [words[policy] for policy in found]


def _winners(groups: Sequence[Group]) -> list[Section]:
    """Return the best trial of each method, if settings were searched on validation alphabets."""
    if any(evaluation["split"] == "test" for group in groups for evaluation in group.evaluations):
        return []
    header, rows = search_lines(trials_of(groups, "accuracy"), "mean accuracy over test batches, %")
    searched = [row for row in rows if int(row[1]) > 1]
    table = Table([Column(title, words=True) for title in header], searched, "Judged on validation alphabets.")
    return [Section("Best of each method", [table])] if searched else []


def _tasks_axis(groups: Sequence[Group], batches: Sequence[int]) -> list[Section]:
    """Plot accuracy and AUC against the number of meta-training tasks, if that differs."""
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
    for measure, label in [
        (f"{name}_{batch}", f"{words} at batch {batch}, %")
        for name, words in (("accuracy", "accuracy"), ("auc", "AUC"))
        for batch in batches
    ]:
        series = [_interval_series(name, found, measure) for name, found in named]
        papers = [
            Reference(f"paper, {name}, {count} tasks", group.paper, name)
            for name, found in named
            for count, group in found.items()
            if measure.startswith("accuracy") and group.paper is not None and count == max(found)
        ]
        figures.append(
            Chart(
                series,
                x_label="meta-training tasks",
                y_label=label,
                references=papers,
                alt=f"{label} against the number of meta-training tasks.",
                caption="Bands: 95 % intervals, where there are four seeds or more.",
            )
        )
    return [Section("Number of meta-training tasks", [Gallery(figures)])]


def _sizes_at_start(groups: Sequence[Group]) -> list[Section]:
    """Tabulate the root mean squares of activations at the start of meta-training."""
    layers = max(len(group.evaluations[0]["sizes_at_start"]["before"]) for group in groups)
    if not layers:
        return []
    rows: list[list[Cell]] = []
    for group in groups:
        sizes = [evaluation["sizes_at_start"] for evaluation in group.evaluations]
        before, after = (np.mean([size[side] for size in sizes], axis=0) for side in ("before", "after"))
        around = [f"{front:.3f} → {behind:.3f}" for front, behind in zip(before, after, strict=True)]
        head = float(np.mean([size["head"] for size in sizes]))
        rows.append([group.label, *around, *[None] * (layers - len(around)), Value(head, digits=3)])
    columns = ["Method", *(f"Warp-layer {layer + 1}" for layer in range(layers)), "Inputs of the head"]
    caption = (
        "Root mean square of activations in front of and behind each warp-layer, and in front of the head, where "
        "meta-training began: on training drawings, with batch statistics in batch-norm. Means over meta-seeds."
    )
    return [Section("Size of activations at the start", [Table(columns, rows, caption)])]


def _activations(groups: Sequence[Group], batches: Sequence[int]) -> list[Section]:
    figures = []
    for group in groups:
        if not group.evaluations[0]["activations"][str(batches[0])]:
            continue
        for kind, label in (("mean", "mean activation"), ("distance", "Schatten-1 norm of Cov − I")):
            by_layer, by_step = [], []
            for batch in batches:
                found = [evaluation["activations"][str(batch)] for evaluation in group.evaluations]
                sides = {side: np.array([item[f"{kind}_{side}"] for item in found]) for side in ("before", "after")}
                layers = np.arange(1, sides["after"].shape[2] + 1)
                by_layer += [
                    Series.mean(f"{side} the warp, batch {batch}", layers, values.mean(axis=1))
                    for side, values in sides.items()
                ]
                by_step += [
                    Series.mean(
                        f"after warp {layer}, batch {batch}", found[0]["steps"], sides["after"][:, :, layer - 1]
                    )
                    for layer in layers
                ]
            for series, against in ((by_layer, "warp-layer"), (by_step, "step of adaptation")):
                figures.append(
                    Chart(
                        series,
                        x_label=against,
                        y_label=label,
                        title=group.label,
                        references=[Reference("", 0.0)],
                        alt=f"{label} against the {against}, {group.label}.",
                    )
                )
    if not figures:
        return []
    words = Paragraph(
        "Statistics of the batches of held-out alphabets that the learner adapts to, from step 1 on, over examples and "
        "locations, averaged over alphabets; against the warp-layer, over steps too. A natural gradient would whiten "
        "(dotted): mean 0 and Cov − I = 0 after a linear warp."
    )
    return [Section("Activations around warp-layers", [words, Gallery(figures)])]


def _interval_series(name: str, found: dict[int, Group], measure: str) -> Series:
    estimates = [estimate(group, measure) for group in found.values()]
    ends = np.array([(item.interval.low, item.mean, item.interval.high) for item in estimates])
    low, centre, high = ends.T
    # Bands as everywhere: where there are four seeds or more.
    bare = any(item.indicative or not item.interval.bounded for item in estimates)
    return Series(name, np.array(list(found), np.float64), centre, *((None, None) if bare else (low, high)))


def batches_of(groups: Sequence[Group]) -> list[int]:
    """Return the batch sizes at which all runs were tested."""
    tested = [evaluation["test_batch"] for group in groups for evaluation in group.evaluations]
    common = [batch for batch in tested[0] if all(batch in others for others in tested)]
    require(
        common,
        "these runs were tested at different batch sizes, so there is nothing to compare: test them at the same "
        "ones with 'warpgrad evaluate RUN --test-batch …'.",
    )
    return common


def result_lines(groups: Sequence[Group]) -> Lines:
    titles = {f"accuracy_{batch}": f"accuracy % at batch {batch} [95 % interval]" for batch in batches_of(groups)}
    return comparison.result_lines(groups, titles=titles)
