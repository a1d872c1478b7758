"""The definition of a sweep, its trials as Optuna stores them, the best of them, and the sweep's files."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from warpgrad.errors import require
from warpgrad.experiments.base import Config, Experiment
from warpgrad.experiments.search_space import Choices, Space

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

Direction = Literal["maximise", "minimise"]
Search = Literal["random", "tpe"]

_LESS = frozenset({"loss", "error", "forgetting"})
_MORE = frozenset({"accuracy", "auc", "reached", "return", "reward", "transfer"})


@dataclass(frozen=True)
class Prune:
    """Stop trials that are behind the median of the finished ones."""

    by: str | None = None
    """The metric in metrics.jsonl to compare; None for the sweep's metric on validation tasks, or else a loss."""
    after: int = 5
    """The number of trials that must be complete before any is stopped."""


@dataclass(frozen=True)
class Sweep:
    """Everything that determines which trials a sweep runs and how they are judged."""

    experiment: Experiment[Any]
    config: Config
    """The settings of every trial, except those in the space."""
    space: Mapping[str, Space]
    search: Search
    metric: str
    direction: Direction
    prune: Prune | None = None

    def trial_config(self, chosen: Mapping[str, Any]) -> Config:
        checked: Config = self.experiment.check(dataclasses.replace(self.config, **chosen))
        return checked

    def chosen(self, trial: FrozenTrial) -> dict[str, Any]:
        """Return the settings that a trial tries; possibly none yet if another process has just started it."""
        return {name: restored(self.space[name], value) for name, value in trial.params.items()}

    def ranked(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Return the complete trials, best first; ties keep their order."""
        complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
        return sorted(complete, key=lambda trial: trial.value or 0.0, reverse=self.direction == "maximise")


def stored(value: Any) -> Any:
    """Convert a choice to what Optuna stores: tuples, which it does not support, become text."""
    return json.dumps(value) if isinstance(value, tuple) else value


def restored(space: Space, kept: Any) -> Any:
    """Return the choice that was stored as `kept`, the inverse of `stored`."""
    choices = space.choices if isinstance(space, Choices) else ()
    return next((value for value in choices if isinstance(value, tuple) and stored(value) == kept), kept)


def trial_name(number: int) -> str:
    return f"trial-{number:04d}"


def direction_of(metric: str) -> Direction:
    """Tell from the words in a metric's name whether more or less of it is better."""
    words = set(re.split(r"[^a-z]+", metric.lower()))
    less, more = bool(words & _LESS), bool(words & _MORE)
    require(
        less != more,
        f"it is not clear from the name '{metric}' whether higher is better; give --direction maximise or minimise.",
    )
    return "minimise" if less else "maximise"


def best_settings(sweep: Sweep, best: FrozenTrial) -> dict[str, Any]:
    """Return the best trial's settings as the content of a file for `warpgrad run EXPERIMENT --config FILE`.

    The split and the seed are left out: the chosen settings are to be tested on the test split, with other seeds.
    """
    config = dataclasses.replace(sweep.config, **sweep.chosen(best))
    preset = vars(sweep.experiment.preset(config.preset, config.method))
    changed = {
        name: value for name, value in vars(config).items() if name not in ("split", "seed") and value != preset[name]
    }
    return {"experiment": sweep.experiment.name, "preset": config.preset, "method": config.method, **changed}


def lines(sweep: Sweep, trials: Sequence[FrozenTrial], count: int = 10) -> tuple[list[str], list[list[str]]]:
    """Return the best trials as the header and rows of a table for the terminal."""
    header = ["trial", f"{sweep.metric} (validation)", *sweep.space]
    rows = [
        [trial_name(trial.number), f"{trial.value:.4g}", *map(value_text, sweep.chosen(trial).values())]
        for trial in sweep.ranked(trials)[:count]
    ]
    return header, rows


def value_text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def state_of(trial: FrozenTrial) -> str:
    """Return `complete`, `pruned`, `failed` or `running`."""
    return str(trial.state.name).lower().replace("fail", "failed")


def summary(trials: Sequence[FrozenTrial]) -> str:
    """Say how many trials there are in each state."""
    states = Counter(map(state_of, trials))
    return ", ".join(f"{states[name]} {name}" for name in ("complete", "pruned", "failed", "running") if states[name])


def without_address(words: Sequence[str]) -> list[str]:
    """Return the command for the page without the database's address, which may contain a password."""
    kept = [re.sub(r"^--storage=.*", "--storage=ADDRESS", word, flags=re.DOTALL) for word in words]
    return ["ADDRESS" if place and kept[place - 1] == "--storage" else word for place, word in enumerate(kept)]


class SweepPaths:
    """The paths of a sweep's files."""

    def __init__(self, root: Path, study: str) -> None:
        self.root, self.study = root, study
        self.directory, self.database = root / study, root / f"{study}.db"
        self.best, self.page = self.directory / "best.json", self.directory / "index.html"

    def trial(self, number: int) -> Path:
        return self.directory / trial_name(number)
