"""Experiment 2.1: descent on 2-D loss surfaces through a meta-learned warp (§2.2, App. D).

    warpgrad run synthetic --seed 3
    warpgrad reproduce synthetic --workers 2

Each meta-step draws a new surface and ten starts; Ω, a residual tanh net with 30 hidden units, is learned online
from 100 steps of descent at step size 0.1. On held-out surfaces, all from the same x0:

| column            | start                        | what it shows                                               |
|-------------------|------------------------------|-------------------------------------------------------------|
| `gd`              | x0                           | plain gradient descent; also with momentum, and Adam        |
| `gd_tuned`        | x0                           | the same with the best step size: what needs no geometry    |
| `warp_matched`    | θ0 with Ω(θ0) = x0 (Newton)  | against `gd`: geometry alone, both begin at the same place  |
| `warp`            | θ0 = x0, so γ0 = Ω(x0)       | what a user gets, start moved by Ω                          |
| `gd_shifted`      | Ω(x0)                        | `warp` against it: geometry alone; it against `gd`: shift   |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from warpgrad.algorithms import Online
from warpgrad.engine.run_directory import newest_checkpoint
from warpgrad.engine.state import load_learner
from warpgrad.engine.training import meta_train
from warpgrad.experiments.base import Execution, Experiment, Group, Row, Table, require
from warpgrad.experiments.declared_spaces import SYNTHETIC
from warpgrad.experiments.runner import kept
from warpgrad.experiments.synthetic_evaluation import Test
from warpgrad.experiments.synthetic_setup import SyntheticConfig, build
from warpgrad.tasks.surfaces import SurfaceFamily

if TYPE_CHECKING:
    from warpgrad.report.page import Page

OPTIMISERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


class Synthetic(Experiment[SyntheticConfig]):
    name = "synthetic"
    section = "§2.2, App. D"
    summary = "descent on 2-D loss surfaces through a meta-learned warp"
    methods = ("warpgrad",)
    presets: Mapping[str, SyntheticConfig] = MappingProxyType(
        {
            "paper": SyntheticConfig(),
            "small": SyntheticConfig(preset="small", meta_steps=40, test_surfaces=50),
        }
    )
    tables = (
        Table("synthetic", "Loss after 100 steps on held-out surfaces", "synthetic", (Row("WarpGrad"),), seeds=10),
        Table(
            "synthetic-sweep",
            "The meta step size, chosen on validation surfaces",
            "synthetic",
            tuple(
                Row(f"{name} {rate:g}", {"meta_optimiser": name, "meta_lr": rate, "split": "validation"})
                for name, rates in (("adam", (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)), ("sgd", (1e-3, 1e-2, 1e-1)))
                for rate in rates
            ),
            seeds=4,
        ),
    )

    spaces = SYNTHETIC
    sweep_metric = "loss/warp"

    def check(self, config: SyntheticConfig) -> SyntheticConfig:
        counts = ("meta_steps", "starts", "steps", "hidden", "test_surfaces", "test_starts")
        require(config, at_least_one=counts, above_zero=["meta_lr"])
        return super().check(config)

    def train(self, config: SyntheticConfig, execution: Execution) -> int:
        method = build(config)
        records = meta_train(
            method.learner,
            SurfaceFamily(config.form),
            algorithm=Online(steps=config.steps, tasks=config.starts),
            rule=method.rule,
            objective=method.objective,
            optimiser=partial(OPTIMISERS[config.meta_optimiser], lr=config.meta_lr),
            meta_steps=config.meta_steps,
            **kept(self, config, execution),
        )
        return len(records)

    def evaluate(self, config: SyntheticConfig, directory: Path) -> dict[str, Any]:
        learner = load_learner(build(config), newest_checkpoint(directory))
        return Test(config, learner).result()

    def page(self, groups: Sequence[Group], title: str) -> Page:
        from warpgrad.experiments.synthetic_page import build_page  # needs matplotlib, which is slow to import

        return build_page(groups, title)

    def lines(self, groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
        from warpgrad.experiments.synthetic_results import comparison_lines

        return comparison_lines(groups)
