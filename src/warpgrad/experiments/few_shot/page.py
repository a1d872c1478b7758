"""The page of the few-shot experiment: every row against Warp-MAML, at equal meta-steps and at equal time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from warpgrad.experiments import comparison
from warpgrad.experiments.base import Group, Lines
from warpgrad.experiments.comparison import all_settings, difference, distinct
from warpgrad.experiments.comparison_page import Measure, comparison_page
from warpgrad.experiments.few_shot.config import IN_TIME
from warpgrad.report import (
    Column,
    Page,
    Paragraph,
    Section,
    meta_step_range,
)


def build_page(groups: Sequence[Group], title: str) -> Page:
    return comparison_page(
        distinct(groups),
        title,
        f"Few-shot experiment (§4.1, App. H) on {all_settings(groups)}",
        held_out="held-out episodes",
        measures=[Measure("accuracy", "Accuracy after adaptation", compared=True)],
        plain=[
            (
                Column("before adaptation", "%"),
                lambda group: f"{np.mean([item['curve'][0] for item in group.evaluations]):.1f}",
            ),
            (Column("meta-steps"), lambda group: meta_step_range(group.runs)),
            (Column("processor time", "min"), _minutes),
        ],
        caption="The same held-out episodes for every row and every meta-seed.",
        notes=list(dict.fromkeys(note for group in groups for item in group.evaluations for note in item["notes"])),
        published="published {:g}",
        sections=_equal_time(groups),
        training="`validation/` and `test/` scores are means over held-out episodes after K steps. The weights with "
        "the best validation accuracy are tested; test scores during meta-training choose nothing.",
    )


def _minutes(group: Group) -> str:
    """Return the processor time of meta-training in minutes, as a mean over meta-seeds."""
    return f"{np.mean([run.summary['processor_seconds'] for run in group.runs]) / 60:.1f}"


def _equal_time(groups: Sequence[Group]) -> list[Section]:
    """Compare the first row's method with the others in the rows of equal processor time, if there are any."""
    equal = at_equal_time(groups)
    found = [difference(equal[0], other) for other in equal[1:]]
    sentences = [Paragraph(each.sentence(unit="points of accuracy")) for each in found if each is not None]
    if not sentences:
        return []
    about = (
        "Each row takes as many meta-steps as fit into the processor time of MAML's row, fixed beforehand from the "
        "cost of its meta-steps (benchmarks/few_shot_cost.py). Validations are not counted; all rows have equally many."
    )
    return [Section("At equal processor time", [Paragraph(about), *sentences])]


def at_equal_time(groups: Sequence[Group]) -> list[Group]:
    """Return the rows of equal processor time, the first row's method first, or none if that has no such row.

    These are the rows whose labels say so, and those of methods that have no separate row for it.
    """
    labels = {group.label for group in groups}
    first = groups[0].label + IN_TIME
    if first not in labels:
        return []
    equal = [group for group in groups if group.label.endswith(IN_TIME) or group.label + IN_TIME not in labels]
    return sorted(equal, key=lambda group: group.label != first)


def result_lines(groups: Sequence[Group]) -> Lines:
    policies = dict.fromkeys(evaluation["batch_norm"] for group in groups for evaluation in group.evaluations)
    about = f"{comparison.all_settings(groups)}; batch-norm: {' and '.join(policies)}"
    header, rows = comparison.result_lines(groups, about, published="published")
    equal = at_equal_time(groups)
    if equal:
        header.insert(-1, f"minus {equal[0].label}")
        for group, row in zip(groups, rows, strict=True):
            against = comparison.difference(group, equal[0]) if group in equal[1:] else None
            row.insert(-1, "" if against is None else against.cell())
    return header, rows
