"""Adaptation to held-out episodes: the same ones for every method and seed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from warpgrad.adaptation import Adaptation
from warpgrad.data.prepared import data_name
from warpgrad.engine.checkpoint import load
from warpgrad.engine.state import Weights, load_weights, weights
from warpgrad.errors import WarpgradError
from warpgrad.experiments.few_shot_config import FewShotConfig
from warpgrad.experiments.few_shot_methods import recipe
from warpgrad.experiments.networks import Shape
from warpgrad.fitting import evaluate
from warpgrad.keys import fold, isolated_rng
from warpgrad.method import Method
from warpgrad.report.intervals import t_interval
from warpgrad.tasks.episodes import EpisodeFamily, EpisodeTask, FewShotImages

HEAD = "head"
POLICIES = {
    "batch": "batch-norm uses the statistics of the batch it sees, at test those of the whole query set",
    "running": "batch-norm uses the episode's own running statistics at test, reset at its start",
}


def trained(config: FewShotConfig, shape: Shape, checkpoint: Path) -> tuple[Method, list[str]]:
    """The method of a run with its best weights, and the names of what does not fit these settings and begins anew.

    Only the head may: where N or the size of the images differs it is drawn afresh on every episode, and what a rule
    or T knew of it begins at its start value.
    """
    method = recipe(config, shape).method
    state = load(checkpoint, method.learner.device)
    stored: Weights = state["best"] or state["weights"]
    anew = _misfits(weights(method), stored)
    if anew:
        if config.method == "cavia":
            raise WarpgradError(
                f"cavia does not adapt its head, so the head of {checkpoint} must fit: evaluate with the ways and the "
                "image size of meta-training."
            )
        method = recipe(config, shape, fresh_head=True).method
        own = weights(method)
        stored = {
            group: {name: own[group][name] if name in anew else value for name, value in entries.items()}
            for group, entries in stored.items()
        }
    load_weights(method, stored, checkpoint)
    return method, anew


def evaluate_on_episodes(config: FewShotConfig, images: FewShotImages, checkpoint: Path) -> dict[str, Any]:
    """The result of a run: accuracy of every episode after every adaptation step."""
    method, anew = trained(config, images.store.shape, checkpoint)
    shape = config.test_shape
    family = EpisodeFamily(images, config.split, shape, rotations=config.rotations)
    notes = _notes(config, images, anew)
    for note in notes:
        print(note, file=sys.stderr, flush=True)
    accuracies: list[list[float]] = []
    losses: list[float] = []
    with isolated_rng(method.learner.device), method.learner.modes_kept(), torch.enable_grad():
        for index, task in enumerate(family.episodes(config.test_episodes)):
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


def adapt_and_test(method: Method, task: EpisodeTask, steps: int, key: int) -> list[dict[str, float]]:
    """Scores on the query set before the first step and after each."""
    learner = method.learner
    adaptation = Adaptation(learner, method.rule, task, key)
    point = adaptation.start()
    scores = [evaluate(learner, task, point.theta, point.buffers)]
    for _ in range(steps):
        point = adaptation.step(point).after
        scores.append(evaluate(learner, task, point.theta, point.buffers))
    return scores


def half_width(values: NDArray[np.float64]) -> float:
    """Half the 95 % interval over episodes; it says nothing about another meta-training."""
    interval = t_interval(values, 0.95)
    return (interval.high - interval.low) / 2


def _misfits(own: Weights, stored: Weights) -> list[str]:
    return [
        name
        for group, entries in own.items()
        for name, value in entries.items()
        if name.split(".")[0] == HEAD and name in stored[group] and stored[group][name].shape != value.shape
    ]


def _notes(config: FewShotConfig, images: FewShotImages, anew: list[str]) -> list[str]:
    found = [
        f"{config.test_episodes} {config.split} episodes of {images.store.header.name}, {config.ways}-way "
        f"{config.shots}-shot, {config.query} query images per class; {POLICIES[config.batch_norm]}."
    ]
    if anew:
        found.append(
            "The head of meta-training does not fit and is drawn afresh on every episode; what begins anew: "
            f"{', '.join(dict.fromkeys(anew))}."
        )
    return found
