"""The terminal's table of the multi-shot experiment: accuracies at two horizons."""

from __future__ import annotations

from collections.abc import Sequence

from warpgrad.experiments import comparison
from warpgrad.experiments.base import Group

TIERED = "tieredImageNet"
"""What the paper's figures are about."""


def horizons(group: Group) -> tuple[int, int]:
    """The steps of the headline, and of the whole adaptation."""
    found = group.evaluations[0]
    return found["headline_steps"], found["tested_at"][-1]


def result_lines(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    headline, end = (" or ".join(dict.fromkeys(map(str, steps))) for steps in zip(*map(horizons, groups), strict=True))
    titles = {
        "accuracy": f"accuracy % after {headline} steps [95 % interval]",
        "accuracy_at_end": f"after {end} steps",
    }
    return comparison.result_lines(groups, comparison.settings_of(groups), titles, f"paper ({TIERED})")
