"""The parts of the synthetic experiment: settings, learner, rules, method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import nn

from warpgrad.algorithms.method import Method
from warpgrad.experiments.base import Bound, Config, PositiveFloat, PositiveInt
from warpgrad.experiments.networks import keyed
from warpgrad.experiments.synthetic.surfaces import Form, Position, ResidualOmega
from warpgrad.model.learner import Learner
from warpgrad.objectives import Approximate, Exact
from warpgrad.rules import SGD, Adam, Rule

InnerRule = Literal["sgd", "momentum", "adam"]


@dataclass(frozen=True)
class SyntheticConfig(Config):
    """Settings of the synthetic experiment; the defaults are the paper's, where it states them."""

    method: str = "warpgrad"
    meta_steps: PositiveInt = 100
    """Meta-steps; no-warp takes none."""
    surfaces: PositiveInt = 1
    """New surfaces per meta-step."""
    starts: PositiveInt = 10
    """Starts per surface, trained separately."""
    steps: PositiveInt = 100
    """K, steps of descent in training and test."""
    inner_rule: InnerRule = "sgd"
    """The rule that descends; plain gradient descent in the paper."""
    lr: PositiveFloat = 0.1
    """α, of that rule."""
    adam_eps: PositiveFloat = 1e-8
    """ε of that rule where it is Adam, whose betas are 0.9 and 0.999; a tiny one makes meta-gradients enormous where
    surfaces are flat."""
    test_rule: InnerRule | None = None
    """Another rule that descends through the same warp at test, at `test_lr`; None for the inner rule itself."""
    test_lr: PositiveFloat | None = None
    """Its step size."""
    momentum: Annotated[float, Bound("it must lie between 0 and 1; inner_rule=sgd has none", above=0, below=1)] = 0.9
    """μ, wherever a rule has momentum."""
    hidden: PositiveInt = 30
    """Hidden units of Ω."""
    form: Form = "printed"
    """The third term of the surface as printed, or as in the peaks function."""
    objective: Literal["exact", "approximate"] = "exact"
    """L or L̂."""
    meta_optimiser: Literal["adam", "sgd"] = "sgd"
    """The paper does not say; chosen by the table synthetic-sweep."""
    meta_lr: PositiveFloat = 0.01
    """β, on the mean gradient of a meta-step; chosen by the same sweep on validation surfaces: of all settings it has
    the largest gain in the smaller of the two comparisons at equal starts."""
    tuned_sgd_lr: PositiveFloat = 0.08
    """Step size of gradient descent as a baseline without a warp; this and the next two were chosen by the table
    synthetic-steps on validation surfaces, from seven step sizes each."""
    tuned_momentum_lr: PositiveFloat = 0.07
    """Step size of momentum as a baseline."""
    tuned_adam_lr: PositiveFloat = 0.2
    """Step size of Adam as a baseline."""
    split: Literal["test", "validation"] = "test"
    """Which held-out surfaces to test on; step sizes are chosen on validation."""
    test_surfaces: PositiveInt = 200
    """Held-out surfaces."""
    test_starts: PositiveInt = 10
    """Starts on each."""


def rule(config: SyntheticConfig, name: InnerRule, lr: float, eps: float = 1e-8) -> Rule:
    """One of the rules at a step size."""
    if name == "adam":
        return Adam(lr, eps=eps)
    return SGD(lr, momentum=config.momentum if name == "momentum" else 0.0)


def tested(config: SyntheticConfig) -> tuple[InnerRule, float]:
    """The rule that descends at test, and its step size."""
    if config.test_rule is None or config.test_lr is None:
        return config.inner_rule, config.lr
    return config.test_rule, config.test_lr


def rule_at_test(config: SyntheticConfig) -> Rule:
    """That rule."""
    return rule(config, *tested(config), eps=config.adam_eps)


def tuned_lr(config: SyntheticConfig, name: InnerRule) -> float:
    """The step size at which a rule does best without a warp."""
    lrs = {"sgd": config.tuned_sgd_lr, "momentum": config.tuned_momentum_lr, "adam": config.tuned_adam_lr}
    return lrs[name]


def build(config: SyntheticConfig) -> Method:
    """The learner (a point seen through Ω), the rule and the objective, with weights drawn by the seed."""
    module = keyed(config.seed, "weights", lambda: Position(ResidualOmega(config.hidden))).to(config.device)
    learner = Learner(module, warp="omega", start={"theta": "fresh"})
    objective = Exact() if config.objective == "exact" else Approximate()
    return Method(learner, rule(config, config.inner_rule, config.lr, config.adam_eps), objective)


def weights(omega: nn.Module) -> dict[str, Any]:
    """Ω as plain numbers: few enough to stand in a record."""
    return {name: value.tolist() for name, value in omega.state_dict().items()}


def omega_of(hidden: int, kept: dict[str, Any]) -> nn.Module:
    """The inverse of `weights`."""
    omega = ResidualOmega(hidden)
    omega.load_state_dict({name: torch.tensor(value) for name, value in kept.items()})
    return omega.requires_grad_(False)
