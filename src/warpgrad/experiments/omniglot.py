"""Experiments 2.2-2.4: multi-shot classification of alphabets (App. E, F, G).

    warpgrad data prepare omniglot --download              once; without it, drawn alphabets are used and named so
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

`kfac-curvlinops` is `kfac` with the factors of an independent library, as a check.

The head is part of the learned initialisation for all but finetuning. Batch-norm uses batch statistics in adaptation
and in the meta-loss; at test, running statistics of the task itself, reset at its start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpgrad.baselines.kfac_curvlinops import load_curvlinops
from warpgrad.data import Alphabets
from warpgrad.engine.run_directory import newest_checkpoint
from warpgrad.engine.state import load_learner
from warpgrad.engine.training import meta_train
from warpgrad.errors import WarpgradError
from warpgrad.experiments.base import Execution, Experiment, Group, require
from warpgrad.experiments.declared_spaces import OMNIGLOT
from warpgrad.experiments.omniglot_config import KFACS, METHODS, PRESETS, OmniglotConfig
from warpgrad.experiments.omniglot_data import chosen_data, open_data
from warpgrad.experiments.omniglot_evaluation import evaluate_on_alphabets
from warpgrad.experiments.omniglot_methods import (
    finetuned_learner,
    inner_rule,
    plain_learner,
    recipe,
    training_tasks,
)
from warpgrad.experiments.omniglot_tables import TABLES
from warpgrad.experiments.runner import kept, without_meta_training
from warpgrad.layers import OMNIGLOT_WARPS
from warpgrad.learner import Learner
from warpgrad.rules.base import Rule
from warpgrad.tasks.alphabets import alphabet_tasks

if TYPE_CHECKING:
    from warpgrad.report.page import Page

_AT_LEAST_ONE = (
    "tasks", "held_out", "characters", "train_drawings", "test_drawings", "filters", "batch_size", "meta_batch",
    "steps", "maml_steps", "meta_steps", "scratch_batch", "test_steps", "test_every",
)  # fmt: skip
_ABOVE_ZERO = ("inner_lr", "alpha_lr", "alpha_clip", "meta_lr", "outer_lr", "scratch_lr")


class Omniglot(Experiment[OmniglotConfig]):
    name = "omniglot"
    section = "App. E-G"
    summary = "multi-shot classification of alphabets, 100 steps"
    methods = METHODS
    presets: Mapping[str, OmniglotConfig] = PRESETS
    tables = TABLES
    spaces = OMNIGLOT

    def check(self, config: OmniglotConfig) -> OmniglotConfig:
        """Refuse what cannot be run, and say which data it will be run on."""
        require(config, at_least_one=_AT_LEAST_ONE, above_zero=_ABOVE_ZERO)
        if config.warp not in OMNIGLOT_WARPS:
            raise WarpgradError(f"warp='{config.warp}' is unknown; choose one of {', '.join(OMNIGLOT_WARPS)}.")
        if config.method != "warp-leap" and config.learned_alpha:
            raise WarpgradError(f"{config.method} does not learn α; leave --learned-alpha to warp-leap.")
        if config.theta0 == "random" and config.method != "warp-leap" and not config.from_scratch:
            raise WarpgradError(f"{config.method} learns nothing but θ0, so theta0 cannot be random.")
        if config.method in KFACS and config.momentum:
            raise WarpgradError(f"{config.method} has no momentum; leave --momentum to the other methods.")
        if config.method == "kfac-curvlinops":
            load_curvlinops()
        return dataclasses.replace(super().check(config), data=chosen_data(config.data))

    def train(self, config: OmniglotConfig, execution: Execution) -> int:
        if config.from_scratch:
            return without_meta_training(self, config, execution)
        store = open_data(config.data)
        alphabets = Alphabets(store, config.seed, config.protocol)
        tasks = alphabet_tasks(
            alphabets,
            alphabets.split(config.tasks).train,
            batch_size=config.batch_size,
            meta_drawings=config.meta_drawings,
            device=config.device,
        )
        chosen = recipe(config)
        records = meta_train(
            chosen.method.learner,
            training_tasks(config, tasks),
            algorithm=chosen.algorithm,
            rule=chosen.method.rule,
            objective=chosen.method.objective,
            initialiser=chosen.method.initialiser,
            optimiser=chosen.optimiser,
            clip=chosen.clip,
            meta_steps=config.meta_steps,
            **kept(self, config, execution),
        )
        return len(records)

    def evaluate(self, config: OmniglotConfig, directory: Path) -> dict[str, Any]:
        learner, rule = trained(config, directory)
        return evaluate_on_alphabets(config, learner, rule, open_data(config.data))

    def page(self, groups: Sequence[Group], title: str) -> Page:
        from warpgrad.experiments.omniglot_page import build_page  # needs matplotlib, which is slow to import

        return build_page(groups, title)

    def lines(self, groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
        from warpgrad.experiments.comparison import result_lines

        return result_lines(groups)


def trained(config: OmniglotConfig, directory: Path) -> tuple[Learner, Rule]:
    """The learner and the rule of a run, ready for a new alphabet."""
    if config.from_scratch:
        return plain_learner(config, {"*": "fixed"}), inner_rule(config)
    method = recipe(config).method
    learner = load_learner(method, newest_checkpoint(directory))
    return (finetuned_learner(config, learner) if config.method == "finetuning" else learner), method.rule
