"""Trials as plain data, the best of them, and what is written about it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from warpgrad.errors import WarpgradError
from warpgrad.experiments.base import Config, Experiment
from warpgrad.experiments.search_space import Space

Direction = Literal["maximise", "minimise"]
Search = Literal["random", "tpe"]
State = Literal["complete", "pruned", "failed", "running"]

_LESS = frozenset({"loss", "error", "forgetting"})
_MORE = frozenset({"accuracy", "auc", "reached", "return", "reward", "transfer"})


@dataclass(frozen=True)
class Sweep:
    """All that decides which trials a sweep makes, and how they are judged."""

    experiment: Experiment[Any]
    config: Config
    """The settings of every trial, but for those in the space."""
    space: Mapping[str, Space]
    search: Search
    metric: str
    direction: Direction

    def trial_config(self, chosen: Mapping[str, Any]) -> Config:
        checked: Config = self.experiment.check(dataclasses.replace(self.config, **chosen))
        return checked


@dataclass(frozen=True)
class Outcome:
    """One trial: what was tried, and what came of it."""

    number: int
    state: State
    chosen: Mapping[str, Any]
    value: float | None = None
    """On the validation split; None if the trial did not finish."""
    seconds: float | None = None
    """Of meta-training."""
    error: str | None = None

    @property
    def name(self) -> str:
        return trial_name(self.number)


def trial_name(number: int) -> str:
    return f"trial-{number:04d}"


def direction_of(metric: str) -> Direction:
    """Whether more or less is better, by the words in the metric's name."""
    words = set(re.split(r"[^a-z]+", metric.lower()))
    less, more = bool(words & _LESS), bool(words & _MORE)
    if less == more:
        raise WarpgradError(
            f"the name '{metric}' does not tell whether more of it is better; give --direction maximise or minimise."
        )
    return "minimise" if less else "maximise"


def ranked(outcomes: Sequence[Outcome], direction: Direction) -> list[Outcome]:
    """The complete trials, best first; of equals the one that was first."""
    sign = 1.0 if direction == "minimise" else -1.0
    complete = [outcome for outcome in outcomes if outcome.value is not None]
    return sorted(complete, key=lambda outcome: (sign * (outcome.value or 0.0), outcome.number))


def best_so_far(outcomes: Sequence[Outcome], direction: Direction) -> list[float]:
    """After each trial by number, the best value until then; NaN before the first."""
    choose = min if direction == "minimise" else max
    best, found = math.nan, []
    for outcome in outcomes:
        if outcome.value is not None:
            best = outcome.value if math.isnan(best) else choose(best, outcome.value)
        found.append(best)
    return found


def best_settings(sweep: Sweep, best: Outcome) -> dict[str, Any]:
    """The best trial as a file for `warpgrad run EXPERIMENT --config FILE`.

    Without the split and the seed: the chosen settings are to be tested on the test split, with seeds of one's own.
    """
    config = dataclasses.replace(sweep.config, **best.chosen)
    preset = sweep.experiment.presets[config.preset]
    changed = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in ("split", "seed") and getattr(config, field.name) != getattr(preset, field.name)
    }
    return {"experiment": sweep.experiment.name, "preset": config.preset, "method": config.method, **changed}


def lines(sweep: Sweep, outcomes: Sequence[Outcome], count: int = 10) -> tuple[list[str], list[list[str]]]:
    """The best trials as a table for the terminal."""
    header = ["trial", f"{sweep.metric} (validation)", *sweep.space]
    rows = [
        [outcome.name, f"{outcome.value:.4g}", *(shown(outcome.chosen[name]) for name in sweep.space)]
        for outcome in ranked(outcomes, sweep.direction)[:count]
    ]
    return header, rows


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def summary(outcomes: Sequence[Outcome]) -> str:
    """How many trials there are of each kind."""
    states = [outcome.state for outcome in outcomes]
    kinds: tuple[State, ...] = ("complete", "pruned", "failed", "running")
    return ", ".join(f"{states.count(kind)} {kind}" for kind in kinds if kind in states)


@dataclass(frozen=True)
class Places:
    """Where the files of a sweep are."""

    root: Path
    study: str

    @property
    def directory(self) -> Path:
        return self.root / self.study

    @property
    def database(self) -> Path:
        return self.root / f"{self.study}.db"

    @property
    def best(self) -> Path:
        return self.directory / "best.json"

    @property
    def page(self) -> Path:
        return self.directory / "index.html"

    def trial(self, number: int) -> Path:
        return self.directory / trial_name(number)
