"""Results of the maze experiment: mean returns, paired differences over the same episodes, and learning curves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison import by_seed, over_shared_seeds
from warpgrad.report.metric_curves import recorded
from warpgrad.statistics.estimates import Difference, Estimate, mean_interval, paired_difference

BASELINE = "rnn"
"""The method that all others are compared with."""
CONDITIONS = ("meta_steps", "size", "length", "reward", "wall_penalty", "test_episodes")
"""Settings in which runs must agree before they are compared."""
REFERENCES = {"wandering": "wandering without memory", "random": "random moves"}
"""Policies without learning."""
POINTS = 100
"""Learning curves are averaged down to at most this many points."""


def returns(group: Group, which: str = "agent") -> dict[int, dict[int, float]]:
    """Return seed -> held-out episode -> return."""
    return by_seed(group, lambda evaluation: dict(enumerate(evaluation["returns"][which])))


def mean_of(group: Group, which: str = "agent") -> Estimate:
    return mean_interval(returns(group, which), name=group.label)


def owed_to_memory(group: Group) -> Difference:
    """Return how much return is lost when the hidden state is reset before every step."""
    return paired_difference(
        returns(group), returns(group, "forgetting"), names=(group.label, f"{group.label} without its state")
    )


def baseline_of(groups: Sequence[Group]) -> Group | None:
    """Return the first plain RNN, or else the first group; None if no other group can be compared with it."""
    plain = [group for group in groups if group.runs[0].method == BASELINE]
    found = [*plain, *groups][0]
    comparable = any(over_baseline(group, found) for group in groups if group is not found)
    return found if comparable else None


def over_baseline(group: Group, baseline: Group) -> Difference | None:
    """Return the lead over the baseline on shared seeds; None if there are none, or if runs differ in `CONDITIONS`."""
    conditions = {tuple(run.config[name] for name in CONDITIONS) for run in (*group.runs, *baseline.runs)}
    if len(conditions) > 1:
        return None
    return over_shared_seeds(returns(group), returns(baseline), (group.label, baseline.label))


def updates_of(group: Group) -> str:
    """Return the number of updates of a group's runs as text, e.g. `20000`."""
    return " or ".join(str(count) for count in sorted({run.config["meta_steps"] for run in group.runs}))


def metric(group: Group, name: str) -> float | None:
    """Return the mean of a metric over the runs that have it, or None."""
    values = [evaluation["metrics"][name] for evaluation in group.evaluations if name in evaluation["metrics"]]
    return float(np.mean(values)) if values else None


def baseline_then(group: Group, baseline: Group) -> float | None:
    """Return the baseline's validation return after as many updates as the group, averaged over the last tenth of them.

    It is meant for agents that were trained for less time; None if the baseline was not trained for longer.
    """
    own, theirs = (max(run.config["meta_steps"] for run in each.runs) for each in (group, baseline))
    updates, values = validation_returns(baseline, points=None)
    then = (0.9 * own < updates) & (updates <= own)
    return float(values[:, then].mean()) if own < theirs and then.any() else None


def validation_returns(group: Group, points: int | None = POINTS) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return updates [points] and returns on validation episodes [runs, points], where all runs have them.

    The curves are averaged down to at most `points` points; None keeps all.
    """
    steps, values = recorded(group.runs, "validation/return")
    if not len(steps):
        return steps, values
    bins = np.array_split(np.arange(len(steps)), min(len(steps), points or len(steps)))
    updates = np.array([(steps[own] + 1).mean() for own in bins])
    return updates, np.stack([values[:, own].mean(axis=1) for own in bins], axis=1)
