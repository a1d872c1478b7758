"""What the few-shot experiment claims: accuracies per test episode, and paired differences between methods."""

from __future__ import annotations

from collections.abc import Sequence

from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison import difference, distinct, estimate


def comparable(first: Group, second: Group) -> bool:
    """Whether both were tested on the same episodes."""
    return len({setting(group) for group in (first, second)}) == 1


def setting(group: Group) -> str:
    """E.g. `CIFAR-FS, 5-way 1-shot (test)`."""
    found = group.evaluations[0]
    return f"{found['data']}, {found['ways']}-way {found['shots']}-shot ({found['split']})"


def settings_of(groups: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(setting(group) for group in groups))


def result_lines(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """The table for the terminal; every row against the first one."""
    groups = distinct(groups)
    policies = dict.fromkeys(evaluation["batch_norm"] for group in groups for evaluation in group.evaluations)
    header = [
        f"{' and '.join(settings_of(groups))}; batch-norm: {' and '.join(policies)}",
        "accuracy % [95 % interval]",
        f"minus {groups[0].label}",
        "published",
    ]
    rows = []
    for place, group in enumerate(groups):
        against = difference(group, groups[0]) if place and comparable(group, groups[0]) else None
        rows.append(
            [
                group.label,
                estimate(group, "accuracy").cell(),
                against.cell() if against is not None else "",
                "" if group.paper is None else f"{group.paper:g}",
            ]
        )
    return header, rows
