"""Row estimate: what `warpgrad run … --estimate` predicts, compared with the run itself.

Estimate and run have a process each, so that the peak memory of one is not that of the other.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from benchmarks.fresh_process import in_fresh_process
from benchmarks.timing import Spread
from warpgrad.cli.outer import keep_freed_memory
from warpgrad.experiments import find_experiment
from warpgrad.experiments.base import Config, Execution, Experiment
from warpgrad.experiments.estimate import buffers_watched, estimate_cost
from warpgrad.experiments.runner import training_seconds
from warpgrad.training.resources import peak_bytes

WITHIN = 0.25
"""How far a prediction may be from what is predicted, in units of the latter."""
PAIRS = 3
"""Estimates of each configuration, each with a run after it: a machine's speed may change between the two."""
BUDGET = 8.0
"""Seconds that an estimate may take here: less than a user's, so that it has to extrapolate runs of half a minute."""

CONFIGURATIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "synthetic": ("synthetic", {"meta_steps": 30}),
        "omniglot": (
            "omniglot",
            {"data": "drawn", "batch_size": 20, "meta_batch": 4, "steps": 24, "meta_steps": 4},
        ),
        "omniglot, MAML": (
            "omniglot",
            {"method": "maml", "data": "drawn", "batch_size": 20, "meta_batch": 4, "maml_steps": 12, "meta_steps": 6},
        ),
        "continual": (
            "continual",
            {"steps_per_subtask": 10, "meta_steps": 20, "validate_every": 10, "validation_tasks": 10},
        ),
        "maze": (
            "maze",
            {"meta_steps": 40, "length": 100, "validate_every": 20, "validation_episodes": 30},
        ),
    }
)
QUICK_CONFIGURATIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {"synthetic": ("synthetic", {"steps": 4, "starts": 3, "meta_steps": 5})}
)


@dataclass(frozen=True)
class Cost:
    """The cost of a meta-training, predicted or real."""

    seconds: float
    peak_bytes: int
    buffer_bytes: int


@dataclass(frozen=True)
class Prediction:
    """Pairs of an estimate and the run right after it."""

    name: str
    pairs: Sequence[tuple[Cost, Cost]]
    """(predicted, real)."""

    def record(self) -> dict[str, Any]:
        whats = [field.name for field in fields(Cost)]
        ratios = {what: self.ratio(what) for what in whats}
        predicted, real = zip(*self.pairs, strict=True)
        return {
            "name": self.name,
            "predicted": {what: _median(predicted, what) for what in whats},
            "real": {what: _median(real, what) for what in whats},
            "ratios": {what: ratio and ratio.record() for what, ratio in ratios.items()},
            "within": WITHIN,
            "met": {what: ratio and abs(ratio.median - 1) <= WITHIN for what, ratio in ratios.items()},
        }

    def ratio(self, what: str) -> Spread | None:
        """Return predicted over real, pair by pair; None if all are 0."""
        both = [(getattr(predicted, what), getattr(real, what)) for predicted, real in self.pairs]
        if not any(predicted or real for predicted, real in both):
            return None
        return Spread.of([predicted / real if real else float("inf") for predicted, real in both])


def _median(costs: Sequence[Cost], what: str) -> float:
    values: list[float] = [getattr(cost, what) for cost in costs]
    return statistics.median(values)


def measure(quick: bool) -> list[Prediction]:
    names = QUICK_CONFIGURATIONS if quick else CONFIGURATIONS
    pairs: dict[str, list[tuple[Cost, Cost]]] = {name: [] for name in names}
    for _ in range(1 if quick else PAIRS):
        for name in names:
            pairs[name].append((_cost(name, "estimate", quick), _cost(name, "run", quick)))
    return [Prediction(name, own) for name, own in pairs.items()]


def configuration(name: str, quick: bool) -> tuple[Experiment[Any], Config]:
    experiment_name, changes = (QUICK_CONFIGURATIONS if quick else CONFIGURATIONS)[name]
    experiment = find_experiment(experiment_name)
    return experiment, experiment.config("paper", **changes)


def predicted(experiment: Experiment[Any], config: Config, budget: float = BUDGET) -> Cost:
    found = estimate_cost(experiment, config, budget=budget)
    return Cost(found.seconds, found.peak_bytes, found.buffer_bytes)


def real(experiment: Experiment[Any], config: Config) -> Cost:
    with tempfile.TemporaryDirectory(prefix="warpgrad-bench-") as place, buffers_watched() as buffers:
        directory = Path(place) / "run"
        experiment.train(config, Execution(directory, progress=False))
        seconds = training_seconds(directory)["wall_seconds"]
    entries, entry_bytes, _ = buffers[-1] if buffers else (0, 0, 0)
    return Cost(seconds, peak_bytes(), entries * entry_bytes)


def cost(name: str, way: str, quick: bool) -> dict[str, Any]:
    """Return the fields of one `Cost`, of the estimate or of the run, in this process."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as the command line does, whose runs are predicted
    ways = {"estimate": predicted, "run": real}
    return asdict(ways[way](*configuration(name, quick)))


def _cost(name: str, way: str, quick: bool) -> Cost:
    return Cost(**in_fresh_process(cost, name, way, quick))
