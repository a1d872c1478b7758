"""The terminal's table of the few-shot experiment: every row against Warp-MAML, at equal meta-steps and equal time."""

from __future__ import annotations

from collections.abc import Sequence

from warpgrad.experiments import comparison
from warpgrad.experiments.base import Group
from warpgrad.experiments.few_shot.config import IN_TIME


def at_equal_time(groups: Sequence[Group]) -> list[Group]:
    """The rows that had the same processor time, the first row's method first; none where it has no such row.

    A row has it by its label, or because its method needs no other row for it.
    """
    labels = {group.label for group in groups}
    first = groups[0].label + IN_TIME
    if first not in labels:
        return []
    equal = [group for group in groups if group.label.endswith(IN_TIME) or group.label + IN_TIME not in labels]
    return sorted(equal, key=lambda group: group.label != first)


def result_lines(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    policies = dict.fromkeys(evaluation["batch_norm"] for group in groups for evaluation in group.evaluations)
    about = f"{comparison.settings_of(groups)}; batch-norm: {' and '.join(policies)}"
    header, rows = comparison.result_lines(groups, about, published="published")
    equal = at_equal_time(groups)
    if equal:
        header.insert(-1, f"minus {equal[0].label}")
        for group, row in zip(groups, rows, strict=True):
            against = comparison.difference(group, equal[0]) if group in equal[1:] else None
            row.insert(-1, "" if against is None else against.cell())
    return header, rows
