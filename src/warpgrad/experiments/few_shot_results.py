"""The terminal's table of the few-shot experiment."""

from __future__ import annotations

from collections.abc import Sequence

from warpgrad.experiments import comparison
from warpgrad.experiments.base import Group


def result_lines(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    policies = dict.fromkeys(evaluation["batch_norm"] for group in groups for evaluation in group.evaluations)
    about = f"{comparison.settings_of(groups)}; batch-norm: {' and '.join(policies)}"
    return comparison.result_lines(groups, about, published="published")
