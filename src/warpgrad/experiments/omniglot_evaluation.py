"""Adaptation to held-out alphabets: the same alphabets and batches for every method of a seed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from warpgrad.adaptation import Adaptation, Point
from warpgrad.baselines.kfac import KFAC, KFACAdaptation
from warpgrad.data import Alphabets, ImageStore
from warpgrad.errors import WarpgradError
from warpgrad.experiments.omniglot_activations import ActivationRecord
from warpgrad.experiments.omniglot_config import KFACS, OmniglotConfig
from warpgrad.experiments.omniglot_data import data_name
from warpgrad.experiments.omniglot_methods import distance_names
from warpgrad.fitting import evaluate
from warpgrad.keys import fold, isolated_rng
from warpgrad.learner import Learner
from warpgrad.rules.base import Rule
from warpgrad.tasks.alphabets import AlphabetTask, alphabet_tasks
from warpgrad.tensors import select


@dataclass(frozen=True)
class Adapted:
    """One held-out alphabet: its learning curve and its path."""

    tested_at: list[int]
    accuracy: list[float]
    """In per cent, on the test drawings, after that many steps."""
    test_loss: list[float]
    length: float
    """Σ‖θ_{k+1} − θ_k‖."""
    length_with_loss: float
    """The same on the loss surface, (θ, L(θ)): what Leap minimises."""
    activations: dict[str, list[float]]

    @property
    def area(self) -> float:
        """The mean height of the accuracy curve, by the trapezoid rule."""
        steps, scores = torch.tensor(self.tested_at).double(), torch.tensor(self.accuracy).double()
        return float(torch.trapezoid(scores, steps) / (steps[-1] - steps[0]))


def adapt_and_test(adaptation: Adaptation, steps: int, every: int) -> Adapted:
    """K steps on one task, with a test at the start, after every so many steps, and at the end."""
    learner, task = adaptation.learner, adaptation.task
    record = ActivationRecord(learner.module)
    counted = distance_names(learner)
    tested_at: list[int] = []
    scores: list[dict[str, float]] = []

    def test(point: Point, k: int) -> None:
        with record.watching():
            scores.append(evaluate(learner, task, point.theta, point.buffers))
        tested_at.append(k)

    point = adaptation.start()
    losses: list[float] = []
    moved: list[float] = []
    for k in range(steps):
        if k % every == 0:
            test(point, k)
        transition = adaptation.step(point)
        before, after = select(point.theta, counted), select(transition.after.theta, counted)
        moved.append(sum(float((after[name] - value).square().sum()) for name, value in before.items()))
        losses.append(float(transition.loss))
        point = transition.after
    test(point, steps)
    losses.append(float(adaptation.task_loss(point.theta, point.buffers, steps)[0].detach()))
    drops = [later - earlier for earlier, later in pairwise(losses)]
    return Adapted(
        tested_at,
        [100 * score["accuracy"] for score in scores],
        [score["loss"] for score in scores],
        sum(square**0.5 for square in moved),
        sum((square + drop**2) ** 0.5 for square, drop in zip(moved, drops, strict=True)),
        record.means(),
    )


def evaluate_on_alphabets(config: OmniglotConfig, learner: Learner, rule: Rule, store: ImageStore) -> dict[str, Any]:
    """The result of a run: per held-out alphabet, and their means."""
    alphabets = Alphabets(store, config.seed, config.protocol)
    split = alphabets.split(config.tasks)
    names = split.test if config.split == "test" else split.validation
    if not names:
        raise WarpgradError(f"meta-training on {config.tasks} alphabets leaves none for validation; use fewer tasks.")
    family = alphabet_tasks(alphabets, names, batch_size=config.test_batch, device=config.device)
    results: dict[str, Adapted] = {}
    with isolated_rng(learner.device), learner.modes_kept(), torch.enable_grad():
        for task in family.tasks:
            key = fold(config.seed, "held out", task.name)
            adaptation = _adaptation(config, learner, rule, task.with_seed(key), key)
            results[task.name] = adapt_and_test(adaptation, config.test_steps, config.test_every)
    every = list(results.values())
    return {
        "metrics": {
            "accuracy": _mean([result.accuracy[-1] for result in every]),
            "auc": _mean([result.area for result in every]),
            "loss": _mean([result.test_loss[-1] for result in every]),
            "length": _mean([result.length for result in every]),
            "length_with_loss": _mean([result.length_with_loss for result in every]),
        },
        "data": data_name(store),
        "data_sha256": store.header.sha256,
        "split": config.split,
        "tested_at": every[0].tested_at,
        "accuracy": {name: result.accuracy[-1] for name, result in results.items()},
        "auc": {name: result.area for name, result in results.items()},
        "length": {name: result.length for name, result in results.items()},
        "length_with_loss": {name: result.length_with_loss for name, result in results.items()},
        "curves": {name: result.accuracy for name, result in results.items()},
        "activations": {
            name: [_mean(column) for column in zip(*(result.activations[name] for result in every), strict=True)]
            for name in every[0].activations
        },
    }


def _adaptation(config: OmniglotConfig, learner: Learner, rule: Rule, task: Any, key: int) -> Adaptation:
    assert isinstance(task, AlphabetTask)
    if config.method not in KFACS:
        return Adaptation(learner, rule, task, key)
    settings = KFAC(
        config.test_lr,
        fisher=config.kfac_fisher,
        factors="curvlinops" if config.method == "kfac-curvlinops" else "own",
        damping=config.kfac_damping,
        estimate_every=config.kfac_estimate_every,
        invert_every=config.kfac_invert_every,
        clip=config.kfac_clip,
    )
    return KFACAdaptation(learner, task, key, settings)


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)
