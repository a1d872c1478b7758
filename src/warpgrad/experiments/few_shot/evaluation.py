"""Adaptation to held-out episodes: the same ones for every method and seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from warpgrad.adaptation.adapt import evaluate
from warpgrad.adaptation.base import Adaptation
from warpgrad.adaptation.trajectory import Trajectory
from warpgrad.algorithms.method import Method
from warpgrad.data.prepared import data_name
from warpgrad.data.tasks.episodes import FewShotImageFamily, FewShotImages, FewShotTask
from warpgrad.experiments.evaluation import note, other_data, print_notes, trained_method
from warpgrad.experiments.few_shot.config import FewShotConfig
from warpgrad.experiments.few_shot.methods import recipe
from warpgrad.keys import fold, isolated_rng
from warpgrad.statistics.intervals import t_interval
from warpgrad.training.run_directory import newest_checkpoint

POLICIES = {
    "batch": "batch-norm uses the statistics of the batch it sees, at test those of the whole query set",
    "running": "batch-norm uses the episode's own running statistics at test, reset at its start",
}


def evaluate_on_episodes(config: FewShotConfig, images: FewShotImages, run: Path) -> dict[str, Any]:
    """Return the result of a run: the accuracy on every episode after every adaptation step."""
    method, anew = trained_method(
        lambda fresh: recipe(config, images.store.shape, fresh_head=fresh).method,
        newest_checkpoint(run),
        adapts_head=config.method != "cavia",
    )
    shape = config.test_shape
    family = FewShotImageFamily(images, config.split, shape, rotations=config.rotations)
    notes = print_notes(_notes(config, images, run, anew))
    accuracies: list[list[float]] = []
    losses: list[float] = []
    with isolated_rng(method.learner.device), method.learner.modes_kept(), torch.enable_grad():
        for index, task in enumerate(family.tasks(config.test_episodes)):
            scores = adapt_and_test(method, task, config.test_steps, fold(config.seed, "held out", index))
            accuracies.append([100 * score["accuracy"] for score in scores])
            losses.append(scores[-1]["loss"])
    of_steps = np.array(accuracies)
    halves = [half_width(column) for column in of_steps.T]
    return {
        "metrics": {
            "accuracy": float(of_steps[:, -1].mean()),
            "interval": halves[-1],
            "loss": float(np.mean(losses)),
        },
        "data": data_name(images.store),
        "data_sha256": images.store.header.sha256,
        "split": config.split,
        "ways": shape.ways,
        "shots": shape.shots,
        "query": shape.query,
        "batch_norm": config.batch_norm,
        "notes": notes,
        "anew": anew,
        "tested_at": list(range(config.test_steps + 1)),
        "curve": of_steps.mean(axis=0).tolist(),
        "curve_interval": halves,
        "accuracy": {str(index): values[-1] for index, values in enumerate(accuracies)},
    }


def adapt_and_test(method: Method, task: FewShotTask, steps: int, key: int) -> list[dict[str, float]]:
    """Adapt to a task, and return the scores on its query set before the first step and after each."""
    learner = method.learner
    trajectory = Trajectory(Adaptation(learner, method.rule, task, key), steps)
    return [evaluate(learner, task, point.theta, point.buffers) for point in trajectory.points()]


def half_width(values: NDArray[np.float64]) -> float:
    """Return half the 95 % interval over episodes, which does not include the variation between meta-trainings."""
    interval = t_interval(values, 0.95)
    return (interval.high - interval.low) / 2


def _notes(config: FewShotConfig, images: FewShotImages, run: Path, anew: list[str]) -> list[str]:
    name = images.store.header.name
    return [
        f"{config.test_episodes} {config.split} episodes of {name}, {config.ways}-way {config.shots}-shot, "
        f"{config.query} query images per class; {POLICIES[config.batch_norm]}.",
        *other_data(config.data, name, run),
        *note(anew),
    ]
