"""Comparison of runs: accuracies per held-out task, and paired differences between methods."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from warpgrad.experiments.base import Group
from warpgrad.report.statistics import Difference, Estimate, mean_interval, paired_difference

Measured = dict[int, dict[str, float]]
"""meta-seed -> held-out task -> value."""


def distinct(groups: Sequence[Group]) -> list[Group]:
    """The groups under names of their own: rows that share one get the settings in which they differ."""
    result = []
    for group in groups:
        namesakes = [other.runs[0].config for other in groups if other.label == group.label]
        own = group.runs[0].config
        differing = [
            f"{name}={own[name]}"
            for name in own
            if name != "seed" and any(config.get(name) != own[name] for config in namesakes)
        ]
        result.append(dataclasses.replace(group, label=", ".join([group.label, *differing])))
    return result


def per_task(group: Group, measure: str) -> Measured:
    """`accuracy`, `auc`, `length` or `length_with_loss` of every held-out task."""
    return {
        int(run.seed): dict(evaluation[measure]) for run, evaluation in zip(group.runs, group.evaluations, strict=True)
    }


def estimate(group: Group, measure: str) -> Estimate:
    return mean_interval(per_task(group, measure), name=group.label)


def data_of(groups: Sequence[Group]) -> list[str]:
    """The data sets that the results are about, each once."""
    return list(dict.fromkeys(evaluation["data"] for group in groups for evaluation in group.evaluations))


def difference(first: Group, second: Group, measure: str = "accuracy") -> Difference | None:
    """first − second over the meta-seeds that both have; None where they share none, or were tested on other tasks."""
    ours, theirs = per_task(first, measure), per_task(second, measure)
    seeds = sorted(set(ours) & set(theirs))
    same = all(set(ours[seed]) == set(theirs[seed]) for seed in seeds)
    if not seeds or not same or len(data_of([first, second])) > 1:
        return None
    return paired_difference(
        {seed: ours[seed] for seed in seeds},
        {seed: theirs[seed] for seed in seeds},
        names=(first.label, second.label),
    )


def result_lines(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """The table for the terminal; every row against the first one."""
    groups = distinct(groups)
    header = [f"on {' and '.join(data_of(groups))}", "accuracy % [95 % interval]", f"minus {groups[0].label}", "paper"]
    rows = []
    for place, group in enumerate(groups):
        against = difference(group, groups[0]) if place else None
        rows.append(
            [
                group.label,
                estimate(group, "accuracy").cell(),
                against.cell() if against is not None else "",
                "" if group.paper is None else f"{group.paper:g}",
            ]
        )
    return header, rows
