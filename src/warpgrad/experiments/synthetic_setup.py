"""The parts of the synthetic experiment: settings, learner, method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from warpgrad.experiments.base import Config
from warpgrad.keys import fold
from warpgrad.learner import Learner
from warpgrad.method import Method
from warpgrad.objectives import Approximate, Exact
from warpgrad.rules import SGD
from warpgrad.tasks.surfaces import Form, Position, ResidualOmega


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


def build(config: SyntheticConfig) -> Method:
    """The learner (a point seen through Ω), the rule and the objective, with weights drawn by the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(fold(config.seed, "weights"))
        module = Position(ResidualOmega(config.hidden)).to(config.device)
    learner = Learner(module, warp="omega", start={"theta": "fresh"})
    return Method(learner, SGD(config.lr), Exact() if config.objective == "exact" else Approximate())
