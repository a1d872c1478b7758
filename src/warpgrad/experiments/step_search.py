"""Declared searches on validation tasks: which trial of each method won, and whether its grid was wide enough.

A search is a table of rows, a few for each method, whose settings differ in what is searched. A winner at the edge of
its grid says that the best value may lie outside, so nothing is concluded from it before the grid has been widened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from warpgrad.errors import WarpgradError
from warpgrad.experiments.base import Group


@dataclass(frozen=True)
class Trial:
    """One row of a search."""

    method: str
    settings: Mapping[str, Any]
    score: float


@dataclass(frozen=True)
class Winner:
    """The best trial of a method."""

    method: str
    trials: int
    """How many the method had."""
    score: float
    settings: Mapping[str, Any]
    """Of those settings that differ between the trials of the method."""
    edges: tuple[str, ...]
    """The numeric ones among them whose value is the smallest or the largest that was tried."""


def trials_of(groups: Iterable[Group], metric: str, method: Callable[[Group], str] | None = None) -> list[Trial]:
    """The rows of a table as trials, judged by the mean of a metric over their seeds.

    Args:
        groups: Rows with their runs.
        metric: A name in the metrics of an evaluation.
        method: What a row is a trial of; by default what its label says up to the first comma.
    """
    found = []
    for group in groups:
        scores = [evaluation["metrics"][metric] for evaluation in group.evaluations]
        name = group.label.split(",")[0] if method is None else method(group)
        found.append(Trial(name, group.runs[0].config, sum(scores) / len(scores)))
    return found


def edge_winners(trials: Sequence[Trial], *, best: Literal["highest", "lowest"] = "highest") -> list[Winner]:
    """The best trial of each method, in the order in which methods first come, with the edges that it sits at."""
    by_method: dict[str, list[Trial]] = {}
    for trial in trials:
        by_method.setdefault(trial.method, []).append(trial)
    return [_winner(own, best) for own in by_method.values()]


def check_searched(trials: Sequence[Trial], *, best: Literal["highest", "lowest"] = "highest") -> list[Winner]:
    """The winners, where every method had as many trials as the others and none won at the edge of its grid; otherwise
    an error says which did."""
    winners = edge_winners(trials, best=best)
    if len({winner.trials for winner in winners}) > 1:
        counts = ", ".join(f"{winner.method} {winner.trials}" for winner in winners)
        raise WarpgradError(
            f"methods were searched with different numbers of trials ({counts}): declare as many for each."
        )
    for winner in winners:
        if winner.edges:
            at = ", ".join(f"{name}={winner.settings[name]:g}" for name in winner.edges)
            raise WarpgradError(f"{winner.method} won at the edge of its grid ({at}): try values beyond it.")
    return winners


def _winner(trials: Sequence[Trial], best: Literal["highest", "lowest"]) -> Winner:
    finite = [trial for trial in trials if math.isfinite(trial.score)]
    if not finite:
        raise WarpgradError(f"no trial of {trials[0].method} has a finite score: search smaller values.")
    won = (max if best == "highest" else min)(finite, key=lambda trial: trial.score)
    varied = [
        name
        for name, value in won.settings.items()
        if name != "seed" and any(trial.settings[name] != value for trial in trials)
    ]
    edges = [name for name in varied if _at_edge(won.settings[name], [trial.settings[name] for trial in trials])]
    return Winner(won.method, len(trials), won.score, {name: won.settings[name] for name in varied}, tuple(edges))


def _at_edge(value: Any, tried: Sequence[Any]) -> bool:
    """Whether a number is the least or the greatest of those tried; what is no number has no order, hence no edge."""
    if not _is_number(value):
        return False
    numbers = [other for other in tried if _is_number(other)]
    return value in (min(numbers), max(numbers))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
