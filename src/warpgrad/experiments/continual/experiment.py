"""Experiment 2.9: a warp that is meta-learned to prevent forgetting (§4.3 (c.2), App. C, App. J).

    warpgrad run continual --preset small --method warpgrad
    warpgrad reproduce continual --seeds 1          # as printed: 20 000 meta-steps
    warpgrad reproduce continual-ours --seeds 1

A task is a function on [−5, 5], learned in five parts of 20 steps; the warp is judged on the current and all earlier
parts. θ0 is random and fixed. The same θ0, test tasks and batches for all methods:

| method         | what it is                                                                          |
|----------------|-------------------------------------------------------------------------------------|
| `warpgrad`     | the paper's: the meta-loss looks back                                               |
| `warp-current` | the same warp, judged on the current sub-task alone: what geometry without memory does |
| `no-warp`      | the same network without warp-layers, adapted from θ0; nothing is meta-learned      |
| `ewc`          | that network with online elastic weight consolidation                               |

Preset `paper` is Eq. 11 as printed, and `small` is the same with fewer meta-steps. Changes to how the warp is judged or
learned are ours, have the preset `ours`, and are labelled so in every table (`config.departures`).

App. J names no algorithm; this uses Algorithm 1 with the tasks of a meta-step stacked. Collecting all points
first and stacking (task, step) pairs gives the same gradient; `benchmarks/continual_step.py` measures both against the
loop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from warpgrad.errors import require
from warpgrad.experiments.base import Execution, Experiment
from warpgrad.experiments.continual import page
from warpgrad.experiments.continual.config import DECLARATION, WARPED, ContinualConfig
from warpgrad.experiments.continual.evaluation import SELECTED, evaluation, validation
from warpgrad.experiments.continual.methods import family, recipe, trained_learner
from warpgrad.experiments.continual.objective import STEPPING
from warpgrad.experiments.runner import meta_trained, without_meta_training
from warpgrad.training.early_stopping import EarlyStopping

MOST_CHARACTERS = 60
"""The largest number of characters of an alphabet; the largest of Omniglot has 55."""


class ContinualLearning(Experiment[ContinualConfig]):
    declaration = DECLARATION
    presentation = page

    def check(self, config: ContinualConfig) -> ContinualConfig:
        super().check(config)
        require(
            config.subtasks >= 2 and sorted(config.order) == list(range(config.subtasks)),
            f"order={config.order} does not name each of {config.subtasks} sub-tasks once, counting from 0; there must "
            "be at least two.",
        )
        require(
            config.credit not in STEPPING or config.objective != "approximate",
            f"credit={config.credit} judges the step on earlier sub-tasks, which the approximate objective holds "
            "constant; choose objective=exact, or credit=full or movement.",
        )
        require(
            config.subtasks * config.ways <= MOST_CHARACTERS,
            f"{config.subtasks} sub-tasks of {config.ways} ways need {config.subtasks * config.ways} characters of "
            f"an alphabet; at most {MOST_CHARACTERS} are available.",
        )
        return config

    def train(self, config: ContinualConfig, execution: Execution) -> int:
        if config.method not in WARPED:
            return without_meta_training(self, config, execution)
        return meta_trained(
            self,
            config,
            execution,
            recipe(config),
            family(config, "train"),
            validate=validation(config),
            validate_every=config.validate_every,
            early_stopping=None if config.patience is None else EarlyStopping(SELECTED, config.patience),
        )

    def evaluate(self, config: ContinualConfig, directory: Path) -> dict[str, Any]:
        return evaluation(config, trained_learner(config, directory))


EXPERIMENT = ContinualLearning()
