"""The page of the continual experiment: how well new sub-tasks are learned and old ones retained, beside the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from warpgrad.analysis.forgetting import SCORES
from warpgrad.experiments.base import Group, Lines
from warpgrad.experiments.comparison_page import experiment_page
from warpgrad.experiments.continual.config import departures
from warpgrad.experiments.continual.evaluation import LOG_LOSS, ORDERS
from warpgrad.experiments.continual.results import (
    PAPER,
    SHARE,
    TITLES,
    beyond_share,
    difference,
    estimate,
    is_printed,
    measures,
    named,
    reference_of,
    stated,
)
from warpgrad.report import (
    PALETTE,
    Block,
    Cell,
    Chart,
    Collapsible,
    Column,
    Figure,
    Forest,
    ForestRow,
    Gallery,
    Line,
    Note,
    Page,
    Panel,
    Paragraph,
    Reference,
    Section,
    Series,
    Span,
    Table,
    Value,
    panels,
    recorded,
)

TRUTH, BEFORE, AFTER = PALETTE[7], PALETTE[2], PALETTE[0]


def breakdown(group: Group) -> Figure:
    """Plot the average log-loss of each sub-task against steps, in both orders; lines are thin before it is learned."""
    length = group.runs[0].config["steps_per_subtask"]
    row: list[Panel] = []
    for order in ORDERS:
        found = [evaluation["orders"][order] for evaluation in group.evaluations]
        levels = 10.0 ** np.mean([one["curves"][LOG_LOSS] for one in found], axis=0)
        steps = np.asarray(found[0]["steps"])
        lines, spans = [], []
        for stage, subtask in enumerate(found[0]["order"]):
            begin, colour = stage * length, PALETTE[subtask % len(PALETTE)]
            before, after = steps <= begin, steps >= begin
            lines += [
                Line(np.c_[steps, levels[:, stage]][before], colour, width=0.6, alpha=0.6),
                Line(np.c_[steps, levels[:, stage]][after], colour, width=1.9),
            ]
            spans.append(Span(begin, begin + length, colour, 0.06))
        y_label = "" if row else "average log-loss"
        row.append(Panel(lines, _order(found[0]), x_label="step", y_label=y_label, log_y=True, spans=spans))
    subtasks = sorted(group.evaluations[0]["orders"][ORDERS[0]]["order"])
    return panels(
        [row],
        size=(9.0, 3.6),
        shared=True,
        legend=[Line([], PALETTE[subtask % len(PALETTE)], f"sub-task {subtask}") for subtask in subtasks],
        alt=f"Average log-loss of every sub-task against steps for {group.label}.",
        caption=f"{group.label}: each sub-task's loss; shaded while it is learned, thin before.",
    )


def prediction_figure(group: Group) -> Figure:
    """Plot one held-out sine task, with a row for each sub-task as it is learned and a column for each order."""
    orders = [group.evaluations[0]["orders"][order] for order in ORDERS]
    rows = [[_prediction(found, stage) for found in orders] for stage in range(len(orders[0]["order"]))]
    return panels(
        rows,
        size=(7.2, 1.35 * len(rows)),
        alt=f"Predictions of {group.label} on one held-out task, after each sub-task.",
        caption=f"{group.label}, the first held-out task of seed {group.runs[0].seed}, not selected. Black: target. "
        "Dashed green: before the sub-task of that row. Red: after it. Shaded: where its data lie.",
    )


def _prediction(found: Mapping[str, Any], stage: int) -> Panel:
    kept = found["prediction"]
    x, outputs = kept["x"], kept["outputs"]
    lines = [
        Line(np.c_[x, kept["target"]], TRUTH),
        Line(np.c_[x, outputs[stage]], BEFORE, dash="--"),
        Line(np.c_[x, outputs[stage + 1]], AFTER),
    ]
    low, high = kept["intervals"][found["order"][stage]]
    return Panel(lines, "" if stage else _order(found), spans=[Span(low, high, "#8a929b", 0.16)])


def _order(found: Mapping[str, Any]) -> str:
    return f"order {', '.join(map(str, found['order']))}"


_VALIDATED = f"validation/{{}}/{LOG_LOSS}/{{}}"
"""The name of the validation metric of an order and a score."""
WORDS = {"sequential": "in the order of meta-training", "shuffled": "in another order"}


def build_page(groups: Sequence[Group], title: str) -> Page:
    groups = named(groups)
    config = groups[0].runs[0].config
    sections = [_claims(groups), *_ours(groups), _levels(groups), _curves(groups)]
    sections.append(Section("By sub-task", [breakdown(group) for group in groups]))
    if meta_trained := [group for group in groups if len(recorded(group.runs, _VALIDATED.format(ORDERS[0], "new"))[0])]:
        charts = [_against_meta_steps(meta_trained, order) for order in ORDERS]
        sections.append(Section("Loss against meta-steps", [Gallery(charts)]))
    if config["family"] == "sine":
        sections.append(Section("Predictions as sub-tasks come", [prediction_figure(group) for group in groups]))
    sizes = (
        f"{config['test_tasks']} {config['split']} tasks each, {config['subtasks']} sub-tasks × "
        f"{config['steps_per_subtask']} steps"
    )
    return experiment_page(groups, title, f"Continual experiment (App. J), {config['family']}", sections, sizes=sizes)


def _ours(groups: Sequence[Group]) -> list[Section]:
    """Return the section on departures from the paper, if there are any."""
    found = [(group, departures(group.runs[0].config)) for group in groups]
    rows: list[list[Cell]] = [
        [group.label, ", ".join(f"{name}={group.runs[0].config[name]}" for name in names)]
        for group, names in found
        if names
    ]
    if not rows:
        return []
    blocks: list[Block] = [
        Paragraph(
            "Rows called **ours** are not the paper's method: they differ from Eq. 11 as printed in these settings."
        ),
        Table(["Row", Column("Settings that are ours", words=True)], rows),
    ]
    if not any(map(is_printed, groups)):
        blocks.append(
            Note("No row follows Eq. 11 as printed, so the paper's levels, which do, are left out.", "warning")
        )
    return [Section("What is ours", blocks)]


def _levels(groups: Sequence[Group]) -> Section:
    blocks: list[Block] = [
        Paragraph(
            "**New**: each sub-task right after its own steps. **Earlier**: sub-tasks that were learned before, "
            "whenever a later one ends. **Forgetting**: how much worse the end is than the best after its own steps. "
            "**Backward transfer**: how much later steps helped; negative where they harmed. Means over sub-tasks."
        )
    ]
    for measure, order in product(measures(groups), ORDERS):
        rising = {"transfer"} if measure != "accuracy" else {*SCORES} - {"forgetting"}
        columns = [Column(TITLES[score], best="highest" if score in rising else "lowest") for score in SCORES]
        rows: list[list[Cell]] = [
            [group.label, *(_level(group, order, measure, score) for score in SCORES)] for group in groups
        ]
        blocks.append(Table(["Method", *columns], rows, f"{measure.capitalize()}, learned {WORDS[order]}."))
    if any(map(is_printed, groups)):
        blocks.append(
            Note("The paper states orders of magnitude in prose and figures, for 20 000 meta-steps; it has no table.")
        )
    return Section("How much is learned, and how much is kept", blocks)


def _level(group: Group, order: str, measure: str, score: str) -> Value:
    paper = stated(measure, score) if is_printed(group) else None
    return Value.of(estimate(group, order, measure, score), paper=paper)


def _claims(groups: Sequence[Group]) -> Section:
    reference = reference_of(groups)
    others = [group for group in groups if group is not reference]
    if reference is None or not others:
        return Section("Who forgets less", [Paragraph("There is no other method to compare WarpGrad with here.")])
    plots = [
        Forest(
            [ForestRow(group.label, difference(group, reference, order, "loss", score)) for group in others],
            f"Loss on {TITLES[score]}, learned {WORDS[order]}, minus that of **{reference.label}**",
            "loss",
            "the other is lower",
            f"{reference.label} is lower",
        )
        for score in ("old", "new")
        for order in ORDERS
    ]
    rows: list[list[Cell]] = [
        [
            f"{group.label} − {reference.label}, {order}",
            *(Value.of(difference(group, reference, order, "loss", score)) for score in SCORES),
            Value.of(beyond_share(reference, group, order)),
        ]
        for order in ORDERS
        for group in others
    ]
    caption = (
        "Over the same held-out tasks, clustered by meta-seed. The last column is WarpGrad's loss on earlier sub-tasks "
        f"minus {SHARE:g} × that of the other method: below 0, it is at most that share."
    )
    table = Table(["Loss", *(TITLES[score] for score in SCORES), f"within {SHARE:g} ×"], rows, caption)
    return Section("Who forgets less", [*plots, Collapsible("All paired differences", [table])])


def _curves(groups: Sequence[Group]) -> Section:
    printed = PAPER.items() if any(map(is_printed, groups)) else ()
    charts = []
    for order in ORDERS:
        series = []
        for group in groups:
            found = [evaluation["orders"][order] for evaluation in group.evaluations]
            # 10 to the power of the average log-loss: the paper's average, on a logarithmic axis.
            levels = 10.0 ** np.array([one["log_seen"] for one in found])
            seeds = [run.seed for run in group.runs]
            series.append(Series.quartiles(group.label, found[0]["steps"], levels, seeds=seeds))
        charts.append(
            Chart(
                series,
                x_label="step",
                y_label="average log-loss, seen sub-tasks",
                log_y=True,
                references=[Reference(f"the paper, {TITLES[score]}", value) for score, value in printed],
                alt=f"Average log-loss against steps, {order}, for every method.",
                caption=f"Current and earlier sub-tasks, learned {WORDS[order]}; mean of the log-loss over held-out "
                "tasks.",
            )
        )
    return Section("Loss against step", [Gallery(charts)])


def _against_meta_steps(groups: Sequence[Group], order: str) -> Chart:
    series = []
    for group, (dashing, score) in product(groups, enumerate(("new", "old"))):
        steps, levels = recorded(group.runs, _VALIDATED.format(order, score))
        name = f"{group.label}: {TITLES[score]}"
        series.append(Series.quartiles(name, steps + 1, 10.0**levels, method=group.label, dashing=dashing))
    return Chart(
        series,
        x_label="meta-step",
        y_label="average log-loss",
        log_y=True,
        alt=f"Loss on new and on earlier sub-tasks of validation tasks against meta-steps, {order}.",
        caption=f"{groups[0].runs[0].config['validation_tasks']} validation tasks learned {WORDS[order]}, as the warp "
        "is meta-learned; mean of the log-loss.",
    )


def result_lines(groups: Sequence[Group]) -> Lines:
    """Return the table for the terminal: levels of every method, then what the others lose against WarpGrad, with the
    paper's levels for rows as printed."""
    groups = named(groups)
    rows = [
        [
            f"{group.label}, {order}, {measure}",
            *(estimate(group, order, measure, score).cell() for score in SCORES),
        ]
        for measure, order, group in product(measures(groups), ORDERS, groups)
    ]
    reference = reference_of(groups)
    for order, group in product(ORDERS, groups):
        if reference is not None and group is not reference:
            cells = [difference(group, reference, order, "loss", score).cell() for score in SCORES]
            rows.append([f"{group.label} − {reference.label}, {order}, loss", *cells])
            share = beyond_share(reference, group, order).cell()
            label = f"{reference.label} − {SHARE:g} × {group.label}, {order}, loss"
            rows.append([label, *(share if score == "old" else "" for score in SCORES)])
    for measure in ("loss", LOG_LOSS) if any(map(is_printed, groups)) else ():
        rows.append([f"the paper, {measure}", *(stated(measure, score) or "" for score in SCORES)])
    return ["method, order, measure", *(TITLES[score] for score in SCORES)], rows
