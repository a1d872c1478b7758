"""Results of the continual experiment, as paired differences over the same held-out tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison import by_seed
from warpgrad.experiments.continual.config import departures
from warpgrad.experiments.continual.evaluation import LOG_LOSS, ORDERS
from warpgrad.statistics.estimates import Difference, Estimate, mean_interval, paired_difference

PAPER = {"new": 1e-3, "old": 1e-2}
"""Orders of magnitude that the paper gives for the loss of WarpGrad (§4.3): means in its prose, averages of log-losses
in its figures."""

SHARE = 0.3
"""WarpGrad's loss on earlier sub-tasks should be at most this share of any other method's."""

TITLES = {
    "new": "new sub-task",
    "old": "earlier sub-tasks",
    "final": "all, at the end",
    "forgetting": "forgetting",
    "transfer": "backward transfer",
}


def is_printed(group: Group) -> bool:
    """Return whether a group is the paper's method on the paper's tasks, so that the paper's levels apply to it."""
    config = group.runs[0].config
    return config["method"] == "warpgrad" and config["family"] == "sine" and not departures(config)


def named(groups: Sequence[Group]) -> list[Group]:
    """Return the groups with `ours` in the labels of those that depart from the paper."""
    return [
        replace(group, label=f"{group.label}, ours")
        if departures(group.runs[0].config) and "ours" not in group.label
        else group
        for group in groups
    ]


def stated(measure: str, score: str) -> str | None:
    """Return the paper's level as a table cell, or None if it has none."""
    if score not in PAPER or measure not in ("loss", LOG_LOSS):
        return None
    return f"~{PAPER[score] if measure == 'loss' else math.log10(PAPER[score]):g}"


def scores(group: Group, order: str, measure: str, score: str) -> dict[int, dict[int, float]]:
    """Return seed -> held-out task -> score."""
    return by_seed(group, lambda found: dict(enumerate(found["orders"][order]["per_task"][measure][score])))


def measures(groups: Sequence[Group]) -> tuple[str, ...]:
    """Return the names of the measures: the loss, its logarithm, and the accuracy if there is one."""
    found = groups[0].evaluations[0]["orders"][ORDERS[0]]["per_task"]
    return tuple(name for name in ("loss", LOG_LOSS, "accuracy") if name in found)


def estimate(group: Group, order: str, measure: str, score: str) -> Estimate:
    return mean_interval(scores(group, order, measure, score), name=group.label)


def difference(group: Group, reference: Group, order: str, measure: str, score: str) -> Difference:
    """Return the paired difference `group` − `reference`."""
    return paired_difference(
        scores(group, order, measure, score),
        scores(reference, order, measure, score),
        names=(group.label, reference.label),
    )


def beyond_share(reference: Group, other: Group, order: str) -> Difference:
    """Return how far WarpGrad's loss on earlier sub-tasks exceeds `SHARE` of another method's; below 0 it does not."""
    theirs = scores(other, order, "loss", "old")
    shares = {seed: {task: SHARE * value for task, value in tasks.items()} for seed, tasks in theirs.items()}
    names = (reference.label, f"{SHARE:g} × {other.label}")
    return paired_difference(scores(reference, order, "loss", "old"), shares, names=names)


def reference_of(groups: Sequence[Group]) -> Group | None:
    """Return the group that the others are compared with: the first one with a warp that looks back."""
    return next((group for group in groups if group.runs[0].method == "warpgrad"), None)
