"""Experiments 2.2-2.4: multi-shot classification of alphabets (App. E, F, G).

    warpgrad data prepare omniglot --download              once; without it, drawn alphabets are used, and named
    warpgrad run omniglot --preset small --method leap --seed 3
    warpgrad reproduce omniglot --preset small --workers 2

Each alphabet is a task: 20 characters, 15 training and 5 test drawings of each, every drawing scaled, turned and
shifted at random. Meta-training runs on up to 25 alphabets; ten others are adapted to in 100 steps and tested.

| method       | θ0                                   | warp                 | adaptation                         |
|--------------|--------------------------------------|----------------------|------------------------------------|
| `warp-leap`  | Leap                                 | Algorithm 2, exact   | SGD                                |
| `leap`       | Leap                                 | none                 | SGD                                |
| `reptile`    | Reptile                              | none                 | SGD                                |
| `fomaml`     | first-order MAML, 100 steps          | none                 | SGD                                |
| `maml`       | MAML, 5 steps                        | none                 | SGD                                |
| `finetuning` | joint training, a head for each task | none                 | SGD, from a fresh head             |
| `sgd`        | random                               | none                 | SGD, larger batch and step size    |
| `kfac`       | random                               | none                 | KFAC, larger batch and step size   |

The head is part of the learned initialisation for all but finetuning, which takes a step on every task batch of joint
training. Batch-norm uses batch statistics in adaptation and in the meta-loss; at test, running statistics of the task
itself, corrected for their initial values (`corrected`), for all methods alike.

The paper states no batch size. Meta-training has one (`batch_size`); held-out alphabets are adapted to at each of
`test_batch`, 128 as in the code published with the paper and 20 as in Leap's, and every result is given at both. SGD
and KFAC take four times that.

Every `validate_every` meta-steps, a few alphabets that are neither trained nor tested on are scored in the same way.
This selects nothing: the final weights are used.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

from warpgrad.data import Alphabets
from warpgrad.data.tasks.alphabets import alphabet_tasks
from warpgrad.errors import require
from warpgrad.experiments.base import Execution, Experiment, require_users
from warpgrad.experiments.omniglot import page
from warpgrad.experiments.omniglot.config import DECLARATION, OmniglotConfig
from warpgrad.experiments.omniglot.evaluation import (
    evaluate_on_alphabets,
    validation_alphabets,
    validation_scores,
)
from warpgrad.experiments.omniglot.methods import (
    build,
    chosen_data,
    finetuned_learner,
    inner_rule,
    open_data,
    plain_learner,
    recipe,
    starting_drawings,
    training_tasks,
)
from warpgrad.experiments.runner import meta_trained, without_meta_training
from warpgrad.layers import OMNIGLOT_WARPS, identity_
from warpgrad.model.learner import Learner
from warpgrad.rules import Rule
from warpgrad.training.run_directory import newest_checkpoint
from warpgrad.training.saving import load_learner

_USERS = {
    **dict.fromkeys(("warp", "warp_init", "reduction", "share", "meta_optimiser"), ("warp-leap",)),
    "averaged_steps": ("finetuning",),
}
"""Settings that mean nothing to other methods."""


class Omniglot(Experiment[OmniglotConfig]):
    declaration = DECLARATION
    presentation = page

    def check(self, config: OmniglotConfig) -> OmniglotConfig:
        """Raise for settings that cannot be run, and fill in the data set that will be used."""
        super().check(config)
        require_users(config, self.preset(config.preset, config.method), _USERS)
        require(
            config.warp in OMNIGLOT_WARPS,
            f"warp='{config.warp}' is unknown; choose one of {', '.join(OMNIGLOT_WARPS)}.",
        )
        if config.method == "warp-leap" and config.warp_init == "identity":
            identity_(OMNIGLOT_WARPS[config.warp](1))
        require(
            config.algorithm != "online" or config.share >= 1,
            f"share={config.share}: Algorithm 1 replays nothing; use --share 1 with it.",
        )
        batches = config.test_batch
        require(
            batches and min(batches) >= 1 and len(set(batches)) == len(batches),
            f"test_batch={batches}: name at least one batch size, each once and at least 1.",
        )
        require(
            config.method == "warp-leap" or not config.learned_alpha,
            f"{config.method} does not learn α; leave --learned-alpha to warp-leap.",
        )
        require(
            config.theta0 != "random" or config.method == "warp-leap" or config.from_scratch,
            f"{config.method} learns nothing but θ0, so theta0 cannot be random.",
        )
        require(
            config.method != "kfac" or not config.momentum,
            f"{config.method} has no momentum; leave --momentum to the other methods.",
        )
        return dataclasses.replace(config, data=chosen_data(config.data))

    def train(self, config: OmniglotConfig, execution: Execution) -> int:
        if config.from_scratch:
            return without_meta_training(self, config, execution)
        alphabets = Alphabets(open_data(config.data), config.seed, config.protocol)
        if config.validate_every:
            validation_alphabets(config, alphabets)  # raises now rather than at the first validation
        tasks = alphabet_tasks(
            alphabets,
            alphabets.split(config.tasks).train,
            batch_size=config.batch_size,
            meta_drawings=config.meta_drawings,
            device=config.device,
        )
        chosen = recipe(config, starting_drawings(config, alphabets))
        return meta_trained(
            self,
            config,
            execution,
            chosen,
            training_tasks(config, tasks),
            validate=partial(validation_scores, config, alphabets, rule=chosen.method.rule)
            if config.validate_every
            else None,
            validate_every=config.validate_every or 1,
        )

    def evaluate(self, config: OmniglotConfig, directory: Path) -> dict[str, Any]:
        learner, rule = trained(config, directory)
        return evaluate_on_alphabets(config, learner, rule, open_data(config.data))


def trained(config: OmniglotConfig, directory: Path) -> tuple[Learner, Rule]:
    """Return the learner and the rule of a run, ready for a new alphabet."""
    if config.from_scratch:
        return plain_learner(config, {"*": "fixed"}), inner_rule(config)
    method = build(config)
    learner = load_learner(method, newest_checkpoint(directory))
    return (finetuned_learner(config, learner) if config.method == "finetuning" else learner), method.rule


EXPERIMENT = Omniglot()
