"""Scores by meta-seed, held-out task and start: checked, paired, and laid out as one padded array."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpgrad.errors import WarpgradError, require

_SHAPE = "give seed -> task -> score, or an array [seeds, tasks] or [seeds, tasks, starts]"


@dataclass(frozen=True)
class PaddedScores:
    """Scores [seeds, tasks, starts]; seeds may have different tasks, and tasks different numbers of starts."""

    padded: NDArray[np.float64]
    """0 beyond a seed's tasks and beyond a task's starts."""
    tasks: NDArray[np.int64]
    """[seeds]: how many tasks each seed has."""
    starts: NDArray[np.int64]
    """[seeds, tasks]: how many starts each task has, 0 in the padding."""
    seed_names: tuple[Hashable, ...]
    task_names: tuple[tuple[Hashable, ...], ...]

    def task_means(self) -> list[NDArray[np.float64]]:
        """Return the mean over starts, per task of each seed."""
        totals = self.padded.sum(axis=2)
        return [totals[seed, :tasks] / self.starts[seed, :tasks] for seed, tasks in enumerate(self.tasks.tolist())]

    def seed_means(self) -> NDArray[np.float64]:
        """Return the mean over tasks, per seed."""
        return np.array([means.mean() for means in self.task_means()])

    def clusters(self) -> tuple[str, NDArray[np.float64]]:
        """Return the independent unit and its means: seeds; with one seed its tasks; with one task its starts."""
        if len(self.tasks) > 1:
            return "meta-seed", self.seed_means()
        if self.tasks[0] > 1:
            return "task", self.task_means()[0]
        return "start", self.padded[0, 0, : self.starts[0, 0]]


def scores_of(values: Any, name: str) -> PaddedScores:
    """Check and lay out the scores of one method; `name` is for messages."""
    scores = _from_nest(values, name) if isinstance(values, Mapping) else _from_array(values, name)
    broken = np.argwhere(~np.isfinite(scores.padded))
    if len(broken):
        seed, task, start = broken[0].tolist()
        raise WarpgradError(
            f"{name}, meta-seed {scores.seed_names[seed]!r}, task {scores.task_names[seed][task]!r}: the score is "
            f"{scores.padded[seed, task, start]}, so no estimate can be made; find the run that diverged, or "
            "give failures a fixed, finite score."
        )
    return scores


def paired(first: PaddedScores, second: PaddedScores, names: tuple[str, str]) -> PaddedScores:
    """Return `first` − `second` elementwise; raise an error unless both have the same seeds, tasks and starts."""
    _same(first.seed_names, second.seed_names, names, "meta-seeds")
    rows = _places(first.seed_names, second.seed_names)
    columns = np.zeros(first.starts.shape, dtype=np.int64)
    for seed, (own, row) in enumerate(zip(first.task_names, rows, strict=True)):
        others = second.task_names[row]
        _same(own, others, names, f"held-out tasks for meta-seed {first.seed_names[seed]!r}")
        columns[seed, : len(own)] = _places(own, others)
    partner = (np.array(rows)[:, None], columns)
    real = first.starts > 0
    uneven = np.argwhere(real & (first.starts != second.starts[partner]))
    if len(uneven):
        seed, task = uneven[0].tolist()
        raise WarpgradError(
            f"{names[0]} and {names[1]} cannot be paired: meta-seed {first.seed_names[seed]!r}, task "
            f"{first.task_names[seed][task]!r} has {first.starts[seed, task]} and {second.starts[partner][seed, task]} "
            "starts; evaluate both from the same starts."
        )
    # In the padding `partner` points to arbitrary entries, which are discarded.
    difference = np.where(real[..., None], first.padded - second.padded[partner], 0.0)
    return PaddedScores(difference, first.tasks, first.starts, first.seed_names, first.task_names)


def _from_array(values: Any, name: str) -> PaddedScores:
    """Convert an array to scores, with seeds and tasks named by their index."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise WarpgradError(f"{name} is not an array of numbers ({error}); {_SHAPE}.") from error
    require(
        array.ndim in (2, 3) and 0 not in array.shape, f"{name} has shape {array.shape}; {_SHAPE}, none of them empty."
    )
    return _from_nest({seed: dict(enumerate(tasks)) for seed, tasks in enumerate(array)}, name)


def _from_nest(nest: Mapping[Hashable, Any], name: str) -> PaddedScores:
    require(nest, f"{name} has no meta-seeds; {_SHAPE}.")
    rows: list[list[NDArray[np.float64]]] = []
    for seed, tasks in nest.items():
        require(isinstance(tasks, Mapping), f"{name} holds a {type(tasks).__name__} for meta-seed {seed!r}; {_SHAPE}.")
        require(tasks, f"{name} has no tasks for meta-seed {seed!r}; evaluate it or leave it out.")
        place = f"{name}, meta-seed {seed!r}"
        rows.append([_starts(value, f"{place}, task {task!r}") for task, value in tasks.items()])
    counts = np.array([len(row) for row in rows])
    starts = np.zeros((len(rows), counts.max()), dtype=np.int64)
    for own, row in zip(starts, rows, strict=True):
        own[: len(row)] = [len(numbers) for numbers in row]
    padded = np.zeros((*starts.shape, starts.max()))
    for seed_index, row in enumerate(rows):
        for task_index, numbers in enumerate(row):
            padded[seed_index, task_index, : len(numbers)] = numbers
    return PaddedScores(padded, counts, starts, tuple(nest), tuple(tuple(tasks) for tasks in nest.values()))


def _starts(value: Any, place: str) -> NDArray[np.float64]:
    try:
        numbers = np.atleast_1d(np.asarray(value, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise WarpgradError(f"{place}: {value!r} is not a number or a list of numbers.") from error
    require(
        numbers.ndim == 1 and numbers.size,
        f"{place} has shape {numbers.shape}; give one score, or a list of one per start.",
    )
    return numbers


def _places(wanted: tuple[Hashable, ...], among: tuple[Hashable, ...]) -> list[int]:
    place = {item: index for index, item in enumerate(among)}
    return [place[item] for item in wanted]


def _same(first: tuple[Hashable, ...], second: tuple[Hashable, ...], names: tuple[str, str], what: str) -> None:
    ours, theirs = set(first), set(second)
    lonely = [(names[0], item) for item in first if item not in theirs]
    lonely += [(names[1], item) for item in second if item not in ours]
    if lonely:
        shown = ", ".join(f"{item!r} only in {name}" for name, item in lonely[:4])
        more = f" and {len(lonely) - 4} more" if len(lonely) > 4 else ""
        raise WarpgradError(
            f"{names[0]} and {names[1]} cannot be paired: their {what} differ ({shown}{more}); "
            "evaluate both methods on the same ones."
        )
