"""The page of the multi-shot experiment: accuracies at both horizons, learning curves, meta-training."""

from __future__ import annotations

from collections.abc import Sequence

from warpgrad.experiments import comparison
from warpgrad.experiments.base import Group, Lines
from warpgrad.experiments.comparison import all_settings, data_of, distinct, setting
from warpgrad.experiments.comparison_page import BESIDE, Measure, beside_paper, comparison_page
from warpgrad.report import Mark, Page

TIERED = "tieredImageNet"
"""The data set and the setting of the paper's figures."""


def build_page(groups: Sequence[Group], title: str) -> Page:
    headline, end = horizons(groups[0])
    trained = {item["trained_steps"] for group in groups for item in group.evaluations} - {None}
    return comparison_page(
        distinct(groups),
        title,
        f"Multi-shot experiment (§4.2, App. H) on {all_settings(groups)}",
        held_out="held-out tasks",
        measures=[
            Measure("accuracy", f"Accuracy after {headline} steps", compared=True, when=f"After {headline} steps: "),
            Measure("accuracy_at_end", f"Accuracy after {end} steps", compared=True, when=f"After {end} steps: "),
            Measure("auc", f"AUC over {headline} steps"),
            Measure("auc_at_end", f"AUC over {end} steps"),
        ],
        caption=f"{setting(groups[0])}; the same held-out tasks for every row and every meta-seed.",
        notes=[
            *dict.fromkeys(note for group in groups for item in group.evaluations for note in item["notes"]),
            "AUC is the mean height of the accuracy curve. Training from scratch takes larger batches (its own "
            "setting); the number of steps is the same for all.",
        ],
        published=f"paper {{:g}} ({TIERED})",
        warning=""
        if data_of(groups) == [TIERED]
        else f"These results are on {' and '.join(data_of(groups))}, **not** on {TIERED}"
        f"{BESIDE if beside_paper(groups) else '.'}",
        marks=[Mark(f"K = {steps} in meta-training", steps) for steps in sorted(trained)],
        beyond=" To the right of the dashed line is more adaptation than meta-training ever saw." if trained else "",
        training="`validation/` and `test/` scores are means over held-out tasks after K steps. The weights with the "
        "best validation AUC are tested; test scores during meta-training choose nothing. Training from scratch has no "
        "meta-training to show.",
    )


def horizons(group: Group) -> tuple[int, int]:
    """Return the number of steps of the headline, and of the whole adaptation."""
    found = group.evaluations[0]
    return found["headline_steps"], found["tested_at"][-1]


def result_lines(groups: Sequence[Group]) -> Lines:
    headline, end = (" or ".join(dict.fromkeys(map(str, steps))) for steps in zip(*map(horizons, groups), strict=True))
    titles = {
        "accuracy": f"accuracy % after {headline} steps [95 % interval]",
        "accuracy_at_end": f"after {end} steps",
    }
    return comparison.result_lines(groups, comparison.all_settings(groups), titles, f"paper ({TIERED})")
