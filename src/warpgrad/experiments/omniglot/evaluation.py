"""Adaptation to held-out alphabets: the same alphabets and batches for every method of a seed.

There is a result for every batch size in `test_batch`. Names of measures include it, such as `accuracy_128`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from warpgrad.adaptation.adapt import evaluate
from warpgrad.adaptation.base import Adaptation, Point
from warpgrad.adaptation.trajectory import Trajectory
from warpgrad.baselines.kfac import KFAC, KFACAdaptation
from warpgrad.data import Alphabets, ImageStore
from warpgrad.data.prepared import data_name
from warpgrad.data.tasks.alphabets import alphabet_tasks
from warpgrad.errors import require
from warpgrad.experiments.evaluation import AdaptationCurve, mean
from warpgrad.experiments.methods import activation_sizes
from warpgrad.experiments.omniglot.config import OmniglotConfig
from warpgrad.experiments.omniglot.methods import (
    beginning,
    distance_names,
    finetuned_learner,
    starting_drawings,
)
from warpgrad.keys import fold, isolated_rng
from warpgrad.model.learner import Learner
from warpgrad.rules import Rule
from warpgrad.tasks.base import Task
from warpgrad.tensors import select


@dataclass(frozen=True)
class AlphabetCurve(AdaptationCurve):
    """One held-out alphabet: its learning curve and its path."""

    length: float
    """The length of the path, Σ‖θ_{k+1} − θ_k‖."""
    length_with_loss: float
    """The same on the loss surface, (θ, L(θ)): what Leap minimises."""
    activations: ActivationRecord
    """Activations on the batches of adaptation, at the steps after the first at which there was a test."""

    def measures(self) -> dict[str, float]:
        return {
            "accuracy": self.accuracy[-1],
            "auc": self.area,
            "loss": self.loss[-1],
            "length": self.length,
            "length_with_loss": self.length_with_loss,
        }


def adapt_and_test(adaptation: Adaptation, steps: int, every: int, *, watch: bool = True) -> AlphabetCurve:
    """Take K steps on one task, with a test at the start, every `every` steps, and at the end.

    With `watch`, activations around warp-layers are recorded at the tests: those of θ_k on batch k, for k ≥ 1.
    """
    learner, task = adaptation.learner, adaptation.task
    record = ActivationRecord(learner.module)
    counted = distance_names(learner)
    tested_at: list[int] = []
    scores: list[dict[str, float]] = []

    def test(point: Point, k: int) -> None:
        scores.append(evaluate(learner, task, point.theta, point.buffers))
        tested_at.append(k)

    trajectory = Trajectory(adaptation, steps)
    losses: list[float] = []
    moved: list[float] = []
    for k in range(steps):
        tested = k % every == 0
        if tested:
            test(trajectory.point, k)
        with record.watching(k) if watch and tested and k else nullcontext():
            segment = next(trajectory)
        before, after = select(segment.point.theta, counted), select(segment.after.theta, counted)
        moved.append(sum(float((after[name] - value).square().sum()) for name, value in before.items()))
        losses.append(float(segment.loss))
    point = trajectory.point
    test(point, steps)
    with record.watching(steps) if watch else nullcontext():
        losses.append(float(adaptation.task_loss(point.theta, point.buffers, steps)[0].detach()))
    drops = [later - earlier for earlier, later in pairwise(losses)]
    return AlphabetCurve(
        tested_at,
        [100 * score["accuracy"] for score in scores],
        [score["loss"] for score in scores],
        sum(square**0.5 for square in moved),
        sum((square + drop**2) ** 0.5 for square, drop in zip(moved, drops, strict=True)),
        record,
    )


def validation_alphabets(config: OmniglotConfig, alphabets: Alphabets) -> Sequence[str]:
    """Return the alphabets to validate on: the first of those used neither in meta-training nor in the test."""
    left = alphabets.split(config.tasks).validation
    require(
        len(left) >= config.validation_tasks,
        f"meta-training on {config.tasks} alphabets leaves {len(left) or 'none'} for validation, but "
        f"validation_tasks={config.validation_tasks}: meta-train on fewer, validate on fewer, or turn "
        "validation off with --validate-every 0 and --split test.",
    )
    return left[: config.validation_tasks]


def validation_scores(config: OmniglotConfig, alphabets: Alphabets, learner: Learner, rule: Rule) -> dict[str, float]:
    """Return mean scores on validation alphabets during meta-training, at every test batch."""
    if config.method == "finetuning":
        learner = finetuned_learner(config, learner)
    names = validation_alphabets(config, alphabets)
    results = adapted_to(config, learner, rule, alphabets, names, watch=False)
    return _means(results, ("accuracy", "auc", "loss"))


def evaluate_on_alphabets(config: OmniglotConfig, learner: Learner, rule: Rule, store: ImageStore) -> dict[str, Any]:
    """Return the result of a run: per held-out alphabet and test batch, and their means."""
    alphabets = Alphabets(store, config.seed, config.protocol)
    test = config.split == "test"
    names = alphabets.split(config.tasks).test if test else validation_alphabets(config, alphabets)
    results = adapted_to(config, learner, rule, alphabets, names)
    one = next(iter(results[config.test_batch[0]].values()))
    drawings = starting_drawings(config, alphabets)
    return {
        "metrics": _means(results, tuple(one.measures())),
        "data": data_name(store),
        "data_sha256": store.header.sha256,
        "split": config.split,
        "batch_norm": config.batch_norm,
        "test_batch": list(config.test_batch),
        "tested_at": one.tested_at,
        **{
            f"{measure}_{batch}": {name: result.measures()[measure] for name, result in found.items()}
            for batch, found in results.items()
            for measure in one.measures()
        },
        "curves": {
            str(batch): {name: result.accuracy for name, result in found.items()} for batch, found in results.items()
        },
        "activations": {
            str(batch): mean_statistics([result.activations for result in found.values()])
            for batch, found in results.items()
        },
        "sizes_at_start": activation_sizes(beginning(config, drawings).module, drawings.to(config.device)),
    }


def adapted_to(
    config: OmniglotConfig,
    learner: Learner,
    rule: Rule,
    alphabets: Alphabets,
    names: Sequence[str],
    *,
    watch: bool = True,
) -> dict[int, dict[str, AlphabetCurve]]:
    """Return test batch -> alphabet -> learning curve; `watch` is as in `adapt_and_test`."""
    results: dict[int, dict[str, AlphabetCurve]] = {}
    with isolated_rng(learner.device), learner.modes_kept(), torch.enable_grad():
        for batch in config.test_batch:
            family = alphabet_tasks(alphabets, names, batch_size=config.drawings_at(batch), device=config.device)
            results[batch] = {}
            for task in family.tasks:
                key = fold(config.seed, "held out", task.name)
                adaptation = _adaptation(config, learner, rule, task.with_seed(key), key)
                results[batch][task.name] = adapt_and_test(
                    adaptation, config.test_steps, config.test_every, watch=watch
                )
    return results


def _adaptation(config: OmniglotConfig, learner: Learner, rule: Rule, task: Task, key: int) -> Adaptation:
    if config.method != "kfac":
        return Adaptation(learner, rule, task, key)
    settings = KFAC(
        config.test_lr,
        fisher=config.kfac_fisher,
        damping=config.kfac_damping,
        estimate_every=config.kfac_estimate_every,
        invert_every=config.kfac_invert_every,
        clip=config.kfac_clip,
    )
    return KFACAdaptation(learner, task, key, settings)


def _means(results: Mapping[int, Mapping[str, AlphabetCurve]], measures: Sequence[str]) -> dict[str, float]:
    """Return means over alphabets at each test batch, and of accuracy and AUC also over test batches, so that a search
    need not choose between them."""
    found = {
        f"{measure}_{batch}": mean(result.measures()[measure] for result in adapted.values())
        for batch, adapted in results.items()
        for measure in measures
    }
    over_batches = {name: mean(found[f"{name}_{batch}"] for batch in results) for name in ("accuracy", "auc")}
    return {**over_batches, **found}


STATISTICS = ("mean_before", "distance_before", "mean_after", "distance_after")


def activation_statistics(activations: Tensor) -> tuple[float, float]:
    """Return the mean activation, and the Schatten-1 norm of Cov − I over channels, from all examples and locations."""
    rows = activations.detach().movedim(1, -1).reshape(-1, activations.shape[1]).double()
    covariance = torch.cov(rows.T).reshape(rows.shape[1], rows.shape[1])
    difference = covariance - torch.eye(len(covariance), dtype=rows.dtype, device=rows.device)
    return float(rows.mean()), float(torch.linalg.svdvals(difference).sum())


class ActivationRecord:
    """Statistics before and after each warp-layer `warp1`, `warp2`, …, at the steps that were watched."""

    def __init__(self, module: nn.Module) -> None:
        self._warps = [child for name, child in module.named_children() if name.startswith("warp")]
        self.steps: list[int] = []
        self._found: list[list[list[float]]] = []
        """Step -> layer -> statistics."""

    @contextmanager
    def watching(self, step: int) -> Iterator[None]:
        """Record the one forward pass inside the block."""
        found: list[list[float]] = []

        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            del module
            found.append([*activation_statistics(inputs[0]), *activation_statistics(output)])

        handles = [warp.register_forward_hook(hook) for warp in self._warps]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        if self._warps:
            self.steps.append(step)
            self._found.append(found)

    def statistics(self) -> Tensor:
        """Return the recorded statistics [steps, layers, statistics]."""
        return torch.tensor(self._found, dtype=torch.float64)


def mean_statistics(records: Sequence[ActivationRecord]) -> dict[str, Any]:
    """Average over tasks: `steps`, and the values of each statistic by step and layer; empty without warp-layers."""
    if not records[0].steps:
        return {}
    means = torch.stack([record.statistics() for record in records]).mean(dim=0)
    named = {name: means[:, :, place].tolist() for place, name in enumerate(STATISTICS)}
    return {"steps": records[0].steps, **named}
