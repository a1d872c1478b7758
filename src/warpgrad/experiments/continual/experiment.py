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

Preset `paper` is Eq. 11 as printed, `small` the same with fewer meta-steps. What differs from it in how the warp is
judged or learned is ours, has the preset `ours`, and is called so in every table (`config.departures`).

App. J names no algorithm; what is used here is Algorithm 1 with the tasks of a meta-step stacked. Collecting all points
first and stacking (task, step) pairs gives the same gradient; `benchmarks/continual_step.py` measures both against the
loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from warpgrad.errors import WarpgradError
from warpgrad.experiments.base import Execution, Experiment, Group
from warpgrad.experiments.continual.config import WARPED, ContinualConfig, ContinualDeclaration
from warpgrad.experiments.continual.evaluation import SELECTED, evaluation, validation
from warpgrad.experiments.continual.methods import algorithm, build, family, schedule, trained
from warpgrad.experiments.continual.objective import STEPPING
from warpgrad.experiments.runner import check_length, kept, without_meta_training
from warpgrad.training.early_stopping import EarlyStopping
from warpgrad.training.meta_train import meta_train

if TYPE_CHECKING:
    from warpgrad.report.page import Page


MOST_CHARACTERS = 60
"""Of an alphabet; the largest of Omniglot has 55."""


class Continual(ContinualDeclaration, Experiment[ContinualConfig]):
    def check(self, config: ContinualConfig) -> ContinualConfig:
        super().check(config)
        if config.subtasks < 2 or sorted(config.order) != list(range(config.subtasks)):
            raise WarpgradError(
                f"order={config.order} names not each of {config.subtasks} sub-tasks once, counting from 0; there must "
                "be at least two."
            )
        if config.credit in STEPPING and config.objective == "approximate":
            raise WarpgradError(
                f"credit={config.credit} judges the step on earlier sub-tasks, which the approximate objective holds "
                "constant; choose objective=exact, or credit=full or movement."
            )
        if config.subtasks * config.ways > MOST_CHARACTERS:
            raise WarpgradError(
                f"{config.subtasks} sub-tasks of {config.ways} ways need {config.subtasks * config.ways} characters of "
                f"an alphabet; at most {MOST_CHARACTERS} can be had."
            )
        return config

    def train(self, config: ContinualConfig, execution: Execution) -> int:
        if config.method not in WARPED:
            return without_meta_training(self, config, execution)
        if config.meta_schedule == "cosine" and not execution.fresh:
            check_length(config.meta_steps, execution.directory)
        method = build(config)
        records = meta_train(
            method,
            family(config, "train"),
            algorithm=algorithm(config),
            optimiser=partial(torch.optim.Adam, lr=config.meta_lr),
            schedule=schedule(config),
            clip=config.meta_clip or None,
            meta_steps=config.meta_steps,
            validate=validation(config),
            validate_every=config.validate_every,
            early_stopping=None if config.patience is None else EarlyStopping(SELECTED, config.patience),
            **kept(self, config, execution),
        )
        return len(records)

    def evaluate(self, config: ContinualConfig, directory: Path) -> dict[str, Any]:
        return evaluation(config, trained(config, directory))

    def page(self, groups: Sequence[Group], title: str) -> Page:
        from warpgrad.experiments.continual.page import build_page  # needs matplotlib, which is slow to import

        return build_page(groups, title)

    def lines(self, groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
        from warpgrad.experiments.continual.results import comparison_lines

        return comparison_lines(groups)


EXPERIMENT = Continual()
