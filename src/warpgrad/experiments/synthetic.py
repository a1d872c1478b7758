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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from warpgrad.algorithms import Online
from warpgrad.batched import BatchedAdaptation
from warpgrad.engine.run_directory import newest_checkpoint
from warpgrad.engine.state import load_learner
from warpgrad.engine.training import meta_train
from warpgrad.experiments.base import Config, Execution, Experiment, Group, Row, Table, require
from warpgrad.experiments.declared_spaces import SYNTHETIC
from warpgrad.experiments.minima import minima, reached
from warpgrad.experiments.runner import kept
from warpgrad.geometry import invert, jacobian
from warpgrad.keys import fold, generator
from warpgrad.learner import Learner
from warpgrad.method import Method
from warpgrad.objectives import Approximate, Exact
from warpgrad.rules import SGD, Adam, Rule
from warpgrad.tasks.surfaces import EDGE, Form, Position, ResidualOmega, SurfaceFamily, SurfaceTask, draw_coefficients

if TYPE_CHECKING:
    from warpgrad.report.page import Page

TUNED_LR = 0.08
"""Step size of one more gradient descent, the control for a geometry that only shortens steps: the best of 0.05, 0.06,
0.07, 0.08 and 0.1 on the validation surfaces of four seeds."""
OPTIMISERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


@dataclass(frozen=True)
class SyntheticConfig(Config):
    """Settings of the synthetic experiment; the defaults are the paper's, where it states them."""

    method: str = "warpgrad"
    meta_steps: int = 100
    """Meta-steps; each draws one new surface."""
    starts: int = 10
    """Starts per surface, trained separately."""
    steps: int = 100
    """K, steps of descent in training and test."""
    lr: float = 0.1
    """α."""
    hidden: int = 30
    """Hidden units of Ω."""
    form: Form = "printed"
    """The third term of the surface as printed, or as in the peaks function."""
    objective: Literal["exact", "approximate"] = "exact"
    """L or L̂."""
    meta_optimiser: Literal["adam", "sgd"] = "sgd"
    """The paper does not say; chosen by the table synthetic-sweep."""
    meta_lr: float = 0.01
    """β, on the mean gradient of a meta-step; chosen by the same sweep on validation surfaces: of all settings it has
    the largest gain in the smaller of the two comparisons at equal starts."""
    split: Literal["test", "validation"] = "test"
    """Which held-out surfaces to test on; the sweep uses validation."""
    test_surfaces: int = 200
    """Held-out surfaces."""
    test_starts: int = 10
    """Starts on each."""


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


def build(config: SyntheticConfig) -> Method:
    """The learner (a point seen through Ω), the rule and the objective, with weights drawn by the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(fold(config.seed, "weights"))
        module = Position(ResidualOmega(config.hidden)).to(config.device)
    learner = Learner(module, warp="omega", start={"theta": "fresh"})
    return Method(learner, SGD(config.lr), Exact() if config.objective == "exact" else Approximate())


@dataclass(frozen=True)
class Descent:
    """Many descents at once: heights [K+1, n] and θ's [K+1, n, 2]; the place on the surface is Ω(θ)."""

    heights: Tensor
    thetas: Tensor


def descend(omega: nn.Module | None, rule: Rule, starts: Tensor, coefficients: Tensor, steps: int) -> Descent:
    """K steps from every start [n, 2] on its own surface [n, 8], through Ω where one is given."""
    learner = Learner(Position(omega).to(starts.device), warp=() if omega is None else "omega")
    tasks = [SurfaceTask(own) for own in coefficients]
    adaptation = BatchedAdaptation(learner, rule, tasks, range(len(tasks)))
    point = adaptation.start([{"theta": start} for start in starts])
    heights, thetas = [], []
    for _ in range(steps):
        transition = adaptation.step(point)
        heights.append(transition.loss)
        thetas.append(point.theta["theta"])
        point = transition.after
    thetas.append(point.theta["theta"])
    heights.append(adaptation.task_loss(point.theta, point.buffers, steps)[0].detach())
    return Descent(torch.stack(heights), torch.stack(thetas))


class Test:
    """The held-out surfaces and starts of one meta-seed, and how every column does on them."""

    __test__ = False  # not a test case, whatever pytest thinks of the name

    def __init__(self, config: SyntheticConfig, learner: Learner) -> None:
        self.config = config
        omega = learner.module.get_submodule("omega").requires_grad_(False)
        self.omega = omega
        keys = [fold(config.seed, config.split, place) for place in range(config.test_surfaces)]
        self.surfaces = torch.stack([draw_coefficients(key, config.form) for key in keys]).to(config.device)
        draw = generator(config.seed, config.split, "starts")
        shape = (config.test_surfaces * config.test_starts, 2)
        self.x0 = ((2 * torch.rand(shape, generator=draw) - 1) * EDGE).to(config.device)
        self.coefficients = self.surfaces.repeat_interleave(config.test_starts, dim=0)

    def descents(self) -> tuple[dict[str, Descent], Tensor]:
        """Every column, and which starts Newton's method could match."""
        config = self.config
        matched = invert(self.omega, self.x0, self.x0)
        plain = partial(descend, coefficients=self.coefficients, steps=config.steps)
        rule = SGD(config.lr)
        with torch.no_grad():
            shifted = self.omega(self.x0)
        return {
            "gd": plain(None, rule, self.x0),
            "gd_tuned": plain(None, SGD(TUNED_LR), self.x0),
            "warp_matched": plain(self.omega, rule, matched.theta),
            "warp": plain(self.omega, rule, self.x0),
            "gd_shifted": plain(None, rule, shifted),
            "momentum": plain(None, SGD(config.lr, momentum=0.9), self.x0),
            "adam": plain(None, Adam(config.lr), self.x0),
        }, matched.converged

    def place(self, column: str, thetas: Tensor) -> Tensor:
        """Where on the surface θ stands: through Ω in the columns that descend through it."""
        return self.omega(thetas) if column in ("warp", "warp_matched") else thetas

    def result(self) -> dict[str, Any]:
        config = self.config
        columns, converged = self.descents()
        found = minima(self.surfaces.cpu())
        with_minimum = [place for place, points in enumerate(found) if len(points)]
        shape = (config.test_surfaces, config.test_starts)
        final = {name: column.heights[-1].reshape(shape) for name, column in columns.items()}
        with torch.no_grad():
            moved = (self.omega(self.x0) - self.x0).norm(dim=1).mean()
            determinants = torch.linalg.det(torch.vmap(partial(jacobian, self.omega))(self.x0))
            success = {}
            for name, column in columns.items():
                ends = self.place(name, column.thetas[-1]).cpu().reshape(*shape, 2)
                success[name] = [reached(ends[place], found[place]).float().mean().item() for place in with_minimum]
        return {
            "metrics": {
                **{f"loss/{name}": float(value.mean()) for name, value in final.items()},
                **{f"reached/{name}": float(torch.tensor(value).mean()) for name, value in success.items()},
                "unmatched_starts": int((~converged).sum()),
                "coverage": float(converged.float().mean()),
                "mean_shift": float(moved),
                "orientation_kept": float((determinants > 0).float().mean()),
            },
            "final": {name: value.tolist() for name, value in final.items()},
            "matched": converged.reshape(shape).tolist(),
            "reached": success,
            "with_minimum": len(with_minimum),
            "curves": {name: column.heights.mean(dim=1).tolist() for name, column in columns.items()},
        }
