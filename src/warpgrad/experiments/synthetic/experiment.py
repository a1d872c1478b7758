"""Experiment 2.1: descent on 2-D loss surfaces through a meta-learned warp (§2.2, App. D).

    warpgrad run synthetic --seed 3
    warpgrad reproduce synthetic --workers 2
    warpgrad reproduce synthetic-long --workers 2

Each meta-step draws a new surface and ten starts; Ω, a residual tanh net with 30 hidden units, is learned online
from 100 steps of descent at step size 0.1. 100 meta-steps, as the paper states, hardly bend the plane: the preset
`long` has 1000, of ten surfaces each. Tests are on held-out surfaces, all from the same x0, where the plain rule is the
one that also descends through the warp (gradient descent, or Adam):

| column            | start                        | what it shows                                               |
|-------------------|------------------------------|-------------------------------------------------------------|
| `plain`           | x0                           | the inner rule without a warp; all there is of `no-warp`    |
| `warp_matched`    | θ0 with Ω(θ0) = x0 (Newton)  | against `plain`: geometry alone, both begin at the same place |
| `plain_shifted`   | Ω(x0)                        | against `plain`: the shift of the start alone               |
| `warp`            | θ0 = x0, so γ0 = Ω(x0)       | what a user gets; against `plain_shifted`: geometry alone   |
| `tuned_shifted`   | Ω(x0)                        | the inner rule at its best step size, with the start moved  |
| `sgd_tuned`, `momentum_tuned`, `adam_tuned` | x0 | rules at their best step sizes: what needs no meta-training |

The best step sizes are those of the table `synthetic-steps`, chosen on validation surfaces.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from warpgrad.algorithms import Online
from warpgrad.errors import require
from warpgrad.experiments.base import Execution, Experiment
from warpgrad.experiments.methods import Recipe
from warpgrad.experiments.runner import meta_trained, without_meta_training
from warpgrad.experiments.synthetic import page
from warpgrad.experiments.synthetic.config import DECLARATION, SyntheticConfig
from warpgrad.experiments.synthetic.evaluation import Test
from warpgrad.experiments.synthetic.methods import build
from warpgrad.experiments.synthetic.surfaces import SurfaceFamily
from warpgrad.training.run_directory import newest_checkpoint
from warpgrad.training.saving import load_learner

OPTIMISERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


class Synthetic(Experiment[SyntheticConfig]):
    declaration = DECLARATION
    presentation = page

    def check(self, config: SyntheticConfig) -> SyntheticConfig:
        super().check(config)
        require(
            (config.test_rule is None) == (config.test_lr is None),
            f"test_rule={config.test_rule} and test_lr={config.test_lr} go together: give both, or neither for the "
            "inner rule.",
        )
        require(
            config.method != "no-warp" or config.test_rule is None,
            "no-warp has no warp to test with another rule; leave out test_rule, and choose inner_rule and lr.",
        )
        return config

    def train(self, config: SyntheticConfig, execution: Execution) -> int:
        if config.method == "no-warp":
            return without_meta_training(self, config, execution)
        tasks = config.surfaces * config.starts
        optimiser = partial(OPTIMISERS[config.meta_optimiser], lr=config.meta_lr)
        recipe = Recipe(build(config), Online(steps=config.steps, tasks=tasks, chunk=tasks), optimiser)
        return meta_trained(self, config, execution, recipe, SurfaceFamily(config.form, config.surfaces))

    def evaluate(self, config: SyntheticConfig, directory: Path) -> dict[str, Any]:
        if config.method == "no-warp":
            return Test(config).result(None)
        learner = load_learner(build(config), newest_checkpoint(directory))
        return Test(config).result(learner.module.get_submodule("omega"))


EXPERIMENT = Synthetic()
