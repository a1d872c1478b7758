"""The parts of the synthetic experiment: learner, rules, method."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from warpgrad.algorithms.method import Method
from warpgrad.experiments.methods import keyed
from warpgrad.experiments.synthetic.config import InnerRule, SyntheticConfig, descending_at_test
from warpgrad.experiments.synthetic.surfaces import Position, ResidualOmega
from warpgrad.model.learner import Learner
from warpgrad.objectives import Approximate, Exact
from warpgrad.rules import SGD, Adam, Rule


def rule(config: SyntheticConfig, name: InnerRule, lr: float, eps: float = 1e-8) -> Rule:
    """Return the rule of this name with the given step size."""
    if name == "adam":
        return Adam(lr, eps=eps)
    return SGD(lr, momentum=config.momentum if name == "momentum" else 0.0)


def rule_at_test(config: SyntheticConfig) -> Rule:
    """Return the update rule at test."""
    return rule(config, *descending_at_test(config), eps=config.adam_eps)


def build(config: SyntheticConfig) -> Method:
    """Build the learner (a point seen through Ω), the rule and the objective, with weights drawn from the seed."""
    module = keyed(config.seed, "weights", lambda: Position(ResidualOmega(config.hidden))).to(config.device)
    learner = Learner(module, warp="omega", start={"theta": "fresh"})
    objective = Exact() if config.objective == "exact" else Approximate()
    return Method(learner, rule(config, config.inner_rule, config.lr, config.adam_eps), objective)


def omega_values(omega: nn.Module) -> dict[str, Any]:
    """Return the weights of Ω as plain numbers, few enough for a record."""
    return {name: value.tolist() for name, value in omega.state_dict().items()}


def omega_of(hidden: int, kept: dict[str, Any]) -> nn.Module:
    """Rebuild Ω from `omega_values`."""
    omega = ResidualOmega(hidden)
    omega.load_state_dict({name: torch.tensor(value) for name, value in kept.items()})
    return omega.requires_grad_(False)
