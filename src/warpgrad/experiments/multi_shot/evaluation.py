"""Adaptation to held-out tasks, far beyond the steps of meta-training: the same tasks for every method and seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from warpgrad.adaptation.adapt import adapt
from warpgrad.algorithms.method import Method
from warpgrad.data.tasks.episodes import FewShotImages
from warpgrad.data.tasks.many_shot import ManyShotFamily, ManyShotTask
from warpgrad.experiments.evaluation import AdaptationCurve, mean, print_notes
from warpgrad.experiments.multi_shot.config import MultiShotConfig
from warpgrad.keys import fold
from warpgrad.model.learner import Learner
from warpgrad.rules import Rule

POLICY = (
    "Batch-norm uses batch statistics in adaptation, and at test the task's own running statistics, freed of the "
    "values they begin with"
)


def adapt_and_test(
    learner: Learner, rule: Rule, tasks: Iterable[ManyShotTask], *, steps: int, every: int, seed: int
) -> list[AdaptationCurve]:
    """Adapt to each task, with tests at the start, every `every` steps, and at the end."""
    found = []
    for index, task in enumerate(tasks):
        key = fold(seed, "held out", index)
        _, curve = adapt(learner, task.with_seed(key), rule=rule, steps=steps, key=key, curve=True, test_every=every)
        found.append(
            AdaptationCurve(
                curve.tested_at,
                [100 * score["accuracy"] for score in curve.scores],
                [score["loss"] for score in curve.scores],
            )
        )
    return found


def scores_on_split(
    config: MultiShotConfig, images: FewShotImages, learner: Learner, rule: Rule, split: str, tasks: int
) -> dict[str, float]:
    """Return mean scores on the first tasks of a split over the K steps of meta-training, accuracies in per cent."""
    held_out = ManyShotFamily(images, split, config.test_shape).tasks(tasks)
    found = adapt_and_test(learner, rule, held_out, steps=config.steps, every=config.test_every, seed=config.seed)
    return {
        "accuracy": mean([one.accuracy[-1] for one in found]),
        "auc": mean([one.area for one in found]),
        "loss": mean([one.loss[-1] for one in found]),
    }


def evaluate_on_tasks(
    config: MultiShotConfig, images: FewShotImages, method: Method, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the result of a run for each held-out task, at the headline and at the end of adaptation.

    `notes` are further remarks on the method, for the output.
    """
    notes = print_notes([f"{POLICY}.", *notes])
    family = ManyShotFamily(images, config.split, config.test_shape)
    found = adapt_and_test(
        method.learner,
        method.rule,
        family.tasks(config.test_tasks),
        steps=config.test_steps,
        every=config.test_every,
        seed=config.seed,
    )
    headline = [one.until(config.headline_steps) for one in found]
    per_task = {
        "accuracy": [one.accuracy[-1] for one in headline],
        "auc": [one.area for one in headline],
        "accuracy_at_end": [one.accuracy[-1] for one in found],
        "auc_at_end": [one.area for one in found],
    }
    training = [config.test_shape.training_images(count) for count in family.source.counts]
    return {
        "metrics": {
            **{name: mean(values) for name, values in per_task.items()},
            "loss": mean([one.loss[-1] for one in headline]),
            "loss_at_end": mean([one.loss[-1] for one in found]),
        },
        "data": images.store.header.name,
        "data_sha256": images.store.header.sha256,
        "split": config.split,
        "ways": config.ways,
        "shots": [min(training), max(training)],
        "test_images": config.test_images,
        "batch_norm": "corrected",
        "notes": notes,
        "trained_steps": None if config.from_scratch else config.steps,
        "headline_steps": config.headline_steps,
        "tested_at": found[0].tested_at,
        **{name: {str(index): value for index, value in enumerate(values)} for name, values in per_task.items()},
        "curves": {str(index): one.accuracy for index, one in enumerate(found)},
    }
