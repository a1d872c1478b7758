"""Experiments 2.5 and 2.6: few-shot classification (§4.1, App. H).

    warpgrad data prepare cifar-fs
    warpgrad run few-shot --preset small --method maml --shots 5
    warpgrad reproduce few-shot-cifar-1shot --workers 2
    warpgrad evaluate runs/few-shot/RUN --ways 10 --data fc100

A task is an episode: N classes, a few images of each to adapt to in K steps, and 15 others of each to test on.

| method           | θ, adapted               | φ                            | learned by                             |
|------------------|--------------------------|------------------------------|----------------------------------------|
| `warp-maml`      | blocks 2-4, head         | block 1, warp after 2, 3, 4  | φ: Algorithm 1, exact; θ0: MAML        |
| `maml`           | all                      |                              | backpropagation through K steps        |
| `fomaml`         | all                      |                              | first-order MAML                       |
| `reptile`        | all                      |                              | θ0 − θ_K                               |
| `anil`           | head                     | all blocks                   | backpropagation through K steps        |
| `meta-sgd`       | all, a step size each    |                              | the same, for the step sizes too       |
| `meta-curvature` | all, by learned factors  |                              | the same, for the factors too          |
| `t-nets`         | all                      | T after every linear map     | the same                               |
| `mt-nets`        | all, W by masked rows    | T after every linear map     | the same, for the masks too            |
| `cavia`          | a context, from 0        | all else                     | the same                               |

Meta-updates use Adam. Validation accuracy selects the weights that are kept; `--test-curve-every N` also tests during
meta-training, which selects nothing. Batch-norm uses batch statistics throughout, at test those of the query set,
unless `--batch-norm running` is given.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from warpgrad.adaptation.adapt import score
from warpgrad.data.tasks.episodes import FewShotImageFamily, FewShotImages
from warpgrad.experiments.base import Execution, Experiment, require_users
from warpgrad.experiments.evaluation import scoring
from warpgrad.experiments.few_shot import page
from warpgrad.experiments.few_shot.config import (
    DECLARATION,
    METHODS,
    FewShotConfig,
)
from warpgrad.experiments.few_shot.evaluation import evaluate_on_episodes
from warpgrad.experiments.few_shot.methods import open_data, recipe
from warpgrad.experiments.runner import meta_trained
from warpgrad.model.learner import Learner
from warpgrad.training.loop import Validation

_METHODS_OF = {
    "warp_init": ("warp-maml",),
    "context": ("cavia",),
    "temperature": ("mt-nets",),
    "meta_lr": ("warp-maml", "anil", "t-nets", "mt-nets", "cavia"),
    "theta0_lr": tuple(method for method in METHODS if method != "cavia"),
    "rule_lr": ("meta-sgd", "meta-curvature", "mt-nets"),
}
"""Settings that mean nothing to the other methods."""


class FewShot(Experiment[FewShotConfig]):
    declaration = DECLARATION
    presentation = page

    def check(self, config: FewShotConfig) -> FewShotConfig:
        super().check(config)
        require_users(config, self.preset(config.preset, config.method), _METHODS_OF)
        _ = config.train_shape, config.test_shape  # building them checks ways, shots and query
        return config

    def train(self, config: FewShotConfig, execution: Execution) -> int:
        images = FewShotImages(open_data(config.data), config.device)
        tasks = FewShotImageFamily(images, "train", config.train_shape, rotations=config.rotations, flips=config.flips)
        chosen = recipe(config, images.store.shape)

        def scores(split: str, episodes: int) -> Validation:
            """Return a function that measures mean scores on the first episodes of a split, accuracy in per cent."""
            held_out = FewShotImageFamily(images, split, config.test_shape, rotations=config.rotations)

            def measure(learner: Learner) -> dict[str, float]:
                found = score(
                    learner, held_out.tasks(episodes), rule=chosen.method.rule, steps=config.steps, key=config.seed
                )
                return {**found, "accuracy": 100 * found["accuracy"]}

            return measure

        validate, test = (
            scores("validation", config.validation_episodes),
            scores(config.split, config.test_curve_episodes),
        )
        kept = scoring(config, "accuracy", validate, test)
        return meta_trained(self, config, execution, chosen, tasks, **kept)

    def evaluate(self, config: FewShotConfig, directory: Path) -> dict[str, Any]:
        images = FewShotImages(open_data(config.data), config.device)
        return evaluate_on_episodes(config, images, directory)


EXPERIMENT = FewShot()
