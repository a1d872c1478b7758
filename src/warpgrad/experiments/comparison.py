"""Comparison of runs: measures per held-out task, paired differences between methods, the terminal's table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from warpgrad.errors import WarpgradError, require
from warpgrad.experiments.base import Diverged, Group
from warpgrad.io import settings_of
from warpgrad.report.metric_curves import is_number
from warpgrad.statistics.estimates import Difference, Estimate, mean_interval, paired_difference
from warpgrad.statistics.formatting import raised

T = TypeVar("T")

CONDITIONS = ("data", "data_sha256", "split", "ways", "shots", "query", "batch_norm", "headline_steps")
"""The entries that must agree between evaluations for them to be compared, where they are present."""

Scores = Mapping[int, Mapping[Any, float]]
"""meta-seed -> held-out task -> score."""

ACCURACY: Mapping[str, str] = MappingProxyType({"accuracy": "accuracy % [95 % interval]"})


def distinct(groups: Sequence[Group]) -> list[Group]:
    """Return the groups with distinct labels, as a reader wants them: `3·10⁻⁵`, not `3e-05`.

    Those that share a label get the settings in which they differ appended.
    """
    result = []
    for group in groups:
        namesakes = [other.runs[0].config for other in groups if other.label == group.label]
        own = group.runs[0].config
        differing = [
            f"{name}={own[name]}"
            for name in own
            if name != "seed" and any(config.get(name) != own[name] for config in namesakes)
        ]
        result.append(dataclasses.replace(group, label=raised(", ".join([group.label, *differing]))))
    return result


def by_seed(group: Group, read: Callable[[dict[str, Any]], T]) -> dict[int, T]:
    """Return a mapping from each meta-seed to what `read` takes from its evaluation."""
    return {int(run.seed): read(evaluation) for run, evaluation in zip(group.runs, group.evaluations, strict=True)}


def per_task(group: Group, measure: str) -> dict[int, dict[str, float]]:
    """Return meta-seed -> held-out task -> value of a measure such as `accuracy`."""
    return by_seed(group, lambda evaluation: dict(evaluation[measure]))


def estimate(group: Group, measure: str) -> Estimate:
    return mean_interval(per_task(group, measure), name=group.label)


def data_of(groups: Sequence[Group]) -> list[str]:
    """Return the data sets that the runs were tested on, each once."""
    return list(dict.fromkeys(evaluation["data"] for group in groups for evaluation in group.evaluations))


def setting(group: Group) -> str:
    """Describe the setting, e.g. `CIFAR-FS, 5-way 1-shot (test)`, with a range of shots where they vary by class."""
    found = group.evaluations[0]
    fewest, most = found["shots"] if isinstance(found["shots"], list) else (found["shots"],) * 2
    shots = str(most) if fewest == most else f"{fewest} to {most}"
    return f"{found['data']}, {found['ways']}-way {shots}-shot ({found['split']})"


def all_settings(groups: Sequence[Group]) -> str:
    return " and ".join(dict.fromkeys(setting(group) for group in groups))


def comparable(first: Group, second: Group, measure: str = "accuracy") -> bool:
    """Return whether both were tested under the same conditions and, if measured at the end, after as many steps.

    Measures are taken at the end of adaptation unless the evaluation has `headline_steps`.
    """

    def conditions(evaluation: dict[str, Any]) -> list[Any]:
        at_end = measure.endswith("_at_end") or "headline_steps" not in evaluation
        end = evaluation["tested_at"][-1] if at_end else None
        return [*(evaluation.get(name) for name in CONDITIONS), end]

    evaluations = [*first.evaluations, *second.evaluations]
    return all(conditions(evaluation) == conditions(evaluations[0]) for evaluation in evaluations)


def difference(first: Group, second: Group, measure: str = "accuracy") -> Difference | None:
    """Return first − second over the shared meta-seeds, or None if there are none or the tasks or conditions differ."""
    if not comparable(first, second, measure):
        return None
    return over_shared_seeds(per_task(first, measure), per_task(second, measure), (first.label, second.label))


def over_shared_seeds(ours: Scores, theirs: Scores, names: tuple[str, str]) -> Difference | None:
    """Return ours − theirs over the shared meta-seeds, or None if there are none or the tasks differ at one of them."""
    seeds = sorted(set(ours) & set(theirs))
    if not seeds or any(set(ours[seed]) != set(theirs[seed]) for seed in seeds):
        return None
    return paired_difference({seed: ours[seed] for seed in seeds}, {seed: theirs[seed] for seed in seeds}, names=names)


def result_lines(
    groups: Sequence[Group], about: str = "", titles: Mapping[str, str] = ACCURACY, published: str = "paper"
) -> tuple[list[str], list[list[str]]]:
    """Return the table for the terminal: the measures in `titles`, with each row compared with the first."""
    groups = distinct(groups)
    first = groups[0]
    header = [about or f"on {' and '.join(data_of(groups))}"]
    for title in titles.values():
        header += [title, f"minus {first.label}"]
    rows = []
    for group in groups:
        row = [group.label]
        for measure in titles:
            against = None if group is first else difference(group, first, measure)
            row += [estimate(group, measure).cell(), "" if against is None else against.cell()]
        rows.append([*row, "" if group.paper is None else f"{group.paper:g}"])
    return [*header, published], rows


@dataclass(frozen=True)
class Trial:
    """One trial of a search: a method, its settings and the score."""

    method: str
    settings: Mapping[str, Any]
    score: float


@dataclass(frozen=True)
class Winner:
    """The best trial of a method."""

    method: str
    trials: int
    """The number of trials of the method."""
    score: float
    settings: Mapping[str, Any]
    """The winning values of the settings that vary between the trials of the method."""
    edges: tuple[str, ...]
    """The numeric settings among them whose winning value is the smallest or the largest tried."""


def trials_of(groups: Iterable[Group], metric: str, diverged: Iterable[Diverged] = ()) -> list[Trial]:
    """Return the rows of a search as trials, scored by the mean of a metric over their seeds.

    The method is the label up to the first comma. Trials that diverged have the score NaN.
    """
    found = []
    for group in groups:
        scores = [evaluation["metrics"][metric] for evaluation in group.evaluations]
        settings = settings_of(group.runs[0].config)
        found.append(Trial(group.label.split(",")[0], settings, sum(scores) / len(scores)))
    failed = [Trial(trial.label.split(",")[0], settings_of(trial.config), math.nan) for trial in diverged]
    return found + failed


def search_lines(trials: Sequence[Trial], metric: str) -> tuple[list[str], list[list[str]]]:
    """Return the outcome of a search as a table: the winner of each method, and which settings are at an edge."""
    header = ["method", "trials", "diverged", "best settings", metric, "at an edge"]
    rows = []
    for winner in edge_winners(trials):
        failed = sum(trial.method == winner.method and math.isnan(trial.score) for trial in trials)
        chosen = ", ".join(f"{name} {value}" for name, value in winner.settings.items())
        score = f"{winner.score:.1f}"
        rows.append([winner.method, str(winner.trials), str(failed), chosen, score, ", ".join(winner.edges) or "no"])
    return header, rows


def edge_winners(trials: Sequence[Trial], *, best: Literal["highest", "lowest"] = "highest") -> list[Winner]:
    """Return the best trial of each method, in order of first appearance, with its settings at an edge of the grid."""
    by_method: dict[str, list[Trial]] = {}
    for trial in trials:
        by_method.setdefault(trial.method, []).append(trial)
    return [_winner(own, best) for own in by_method.values()]


def check_searched(trials: Sequence[Trial], *, best: Literal["highest", "lowest"] = "highest") -> list[Winner]:
    """Return the winners after checking that every method had equally many trials and that none won at the edge of its
    grid."""
    winners = edge_winners(trials, best=best)
    if len({winner.trials for winner in winners}) > 1:
        counts = ", ".join(f"{winner.method} {winner.trials}" for winner in winners)
        raise WarpgradError(
            f"methods were searched with different numbers of trials ({counts}): declare the same number for each."
        )
    for winner in winners:
        if winner.edges:
            at = ", ".join(f"{name}={winner.settings[name]:g}" for name in winner.edges)
            raise WarpgradError(f"{winner.method} won at the edge of its grid ({at}): try values beyond it.")
    return winners


def _winner(trials: Sequence[Trial], best: Literal["highest", "lowest"]) -> Winner:
    finite = [trial for trial in trials if math.isfinite(trial.score)]
    require(finite, f"no trial of {trials[0].method} has a finite score: search smaller values.")
    won = (max if best == "highest" else min)(finite, key=lambda trial: trial.score)
    varied = [
        name
        for name, value in won.settings.items()
        if name != "seed" and any(trial.settings[name] != value for trial in trials)
    ]
    edges = [name for name in varied if _at_edge(won.settings[name], [trial.settings[name] for trial in trials])]
    return Winner(won.method, len(trials), won.score, {name: won.settings[name] for name in varied}, tuple(edges))


def _at_edge(value: Any, tried: Sequence[Any]) -> bool:
    """Return whether a number is the smallest or largest of those tried; other values have no order, hence no edge."""
    numbers = [other for other in tried if is_number(other)]
    return is_number(value) and value in (min(numbers), max(numbers))
