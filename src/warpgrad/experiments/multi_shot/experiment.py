"""Experiment 2.7: large multi-shot image classification (§4.2, App. H).

    warpgrad data prepare fc100
    warpgrad run multi-shot --preset small --method leap --seed 1
    warpgrad reproduce multi-shot --preset small --workers 2

A task has 10 classes, with hundreds of images of each to adapt to in batches and 50 others of each to test on.
Meta-training sees K steps of a task; tests continue for several times as many.

| method      | θ0      | φ: a 3×3 convolution after each block | adaptation                        |
|-------------|---------|---------------------------------------|-----------------------------------|
| `warp-leap` | Leap    | Algorithm 1, exact                    | SGD with momentum                 |
| `leap`      | Leap    | none                                  | the same                          |
| `reptile`   | Reptile | none                                  | the same                          |
| `sgd`       | random  | none                                  | the same, in larger batches       |

Meta-updates use Adam. Validation AUC over K steps selects the weights that are kept; test tasks scored during
meta-training, as in the paper's figure, select nothing. Batch-norm uses batch statistics in adaptation and in the
meta-loss; at test, running statistics of the task itself, corrected for their initial values (`corrected`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from warpgrad.data.prepared import open_prepared
from warpgrad.data.tasks.episodes import FewShotImages
from warpgrad.data.tasks.many_shot import ManyShotFamily
from warpgrad.errors import require
from warpgrad.experiments.base import Execution, Experiment
from warpgrad.experiments.evaluation import note, other_data, scoring, trained_method
from warpgrad.experiments.multi_shot import page
from warpgrad.experiments.multi_shot.config import (
    DECLARATION,
    MultiShotConfig,
)
from warpgrad.experiments.multi_shot.evaluation import evaluate_on_tasks, scores_on_split
from warpgrad.experiments.multi_shot.methods import recipe
from warpgrad.experiments.runner import meta_trained, without_meta_training
from warpgrad.training.loop import Validation
from warpgrad.training.run_directory import newest_checkpoint


class MultiShot(Experiment[MultiShotConfig]):
    declaration = DECLARATION
    presentation = page

    def check(self, config: MultiShotConfig) -> MultiShotConfig:
        super().check(config)
        require(
            config.widths and min(config.widths) >= 1,
            f"widths={config.widths}: name at least one block, each of at least 1 channel.",
        )
        require(
            config.headline_steps <= config.test_steps and not config.headline_steps % config.test_every,
            f"headline_steps={config.headline_steps} is not a step at which the curve is tested: take a multiple of "
            f"test_every={config.test_every} up to test_steps={config.test_steps}.",
        )
        _ = config.train_shape, config.test_shape  # building them checks ways, images and batches
        return config

    def train(self, config: MultiShotConfig, execution: Execution) -> int:
        if config.from_scratch:
            return without_meta_training(self, config, execution)
        images = open_images(config)
        chosen = recipe(config, images.store.shape)

        def scores(split: str, tasks: int) -> Validation:
            return lambda learner: scores_on_split(config, images, learner, chosen.method.rule, split, tasks)

        validate, test = scores("validation", config.validation_tasks), scores(config.split, config.test_curve_tasks)
        tasks = ManyShotFamily(images, "train", config.train_shape)
        return meta_trained(self, config, execution, chosen, tasks, **scoring(config, "auc", validate, test))

    def evaluate(self, config: MultiShotConfig, directory: Path) -> dict[str, Any]:
        images = open_images(config)
        shape = images.store.shape
        if config.from_scratch:
            return evaluate_on_tasks(config, images, recipe(config, shape).method)
        method, anew = trained_method(
            lambda fresh: recipe(config, shape, fresh_head=fresh).method, newest_checkpoint(directory)
        )
        notes = [*other_data(config.data, images.store.header.name, directory), *note(anew)]
        return evaluate_on_tasks(config, images, method, notes)


def open_images(config: MultiShotConfig) -> FewShotImages:
    return FewShotImages(open_prepared(config.data), config.device)


EXPERIMENT = MultiShot()
