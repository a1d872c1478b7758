"""The settings of the synthetic experiment (§2.2, App. D), and the paper's values of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

from warpgrad.experiments.base import Bound, Config, Declaration, PositiveFloat, PositiveInt, Row, RunTable
from warpgrad.experiments.search_space import FloatRange, Spaces

METHODS = ("warpgrad", "no-warp")
InnerRule = Literal["sgd", "momentum", "adam"]
Form = Literal["printed", "peaks"]


@dataclass(frozen=True)
class SyntheticConfig(Config):
    """Settings of the synthetic experiment; the defaults are the paper's, where it states them."""

    method: str = "warpgrad"
    meta_steps: PositiveInt = 100
    """The number of meta-steps; no-warp takes none."""
    surfaces: PositiveInt = 1
    """The number of new surfaces in each meta-step."""
    starts: PositiveInt = 10
    """The number of starting points on each surface, trained separately."""
    steps: PositiveInt = 100
    """K, the number of descent steps in training and at test."""
    inner_rule: InnerRule = "sgd"
    """The update rule; the paper uses plain gradient descent."""
    lr: PositiveFloat = 0.1
    """α, the step size of the update rule."""
    adam_eps: PositiveFloat = 1e-8
    """ε of the update rule if it is Adam, whose betas are 0.9 and 0.999. A tiny ε makes meta-gradients enormous where
    surfaces are flat."""
    test_rule: InnerRule | None = None
    """Another update rule to use with the same warp at test, with step size `test_lr`; None for the inner rule."""
    test_lr: PositiveFloat | None = None
    """The step size of the rule at test."""
    momentum: Annotated[float, Bound("it must be between 0 and 1; inner_rule=sgd has none", above=0, below=1)] = 0.9
    """μ, the momentum of rules that have one."""
    hidden: PositiveInt = 30
    """The number of hidden units of Ω."""
    form: Form = "printed"
    """Whether the third term of a surface is as printed in the paper, or as in the peaks function."""
    objective: Literal["exact", "approximate"] = "exact"
    """The objective of φ: exact (Eq. 11) or approximate (Eq. 12)."""
    meta_optimiser: Literal["adam", "sgd"] = "sgd"
    """The meta-optimiser; the paper does not state it, and the table synthetic-sweep chose it."""
    meta_lr: PositiveFloat = 0.01
    """β, the step size on the mean gradient of a meta-step. The same sweep chose it on validation surfaces: it has the
    largest gain in the smaller of the two comparisons at equal starts."""
    tuned_sgd_lr: PositiveFloat = 0.08
    """The step size of gradient descent as a baseline without a warp. The table synthetic-steps chose this and the next
    two on validation surfaces, from seven step sizes each."""
    tuned_momentum_lr: PositiveFloat = 0.07
    """The step size of gradient descent with momentum as a baseline."""
    tuned_adam_lr: PositiveFloat = 0.2
    """The step size of Adam as a baseline."""
    split: Literal["test", "validation"] = "test"
    """Which held-out surfaces to test on; step sizes are chosen on the validation surfaces."""
    test_surfaces: PositiveInt = 200
    """The number of held-out surfaces."""
    test_starts: PositiveInt = 10
    """The number of starting points on each held-out surface."""


PRESETS: Mapping[str, SyntheticConfig] = MappingProxyType(
    {
        "paper": SyntheticConfig(),
        "small": SyntheticConfig(preset="small", meta_steps=40, test_surfaces=50),
        "long": SyntheticConfig(preset="long", meta_steps=1000, surfaces=10, meta_optimiser="adam", meta_lr=0.001),
    }
)

SPACES: Spaces = {
    "warpgrad": {"meta_lr": FloatRange(1e-4, 1e-1, log=True)},
    "no-warp": {"lr": FloatRange(0.01, 1.0, log=True)},
}
"""The search spaces of `warpgrad sweep`."""


def descending_at_test(config: SyntheticConfig) -> tuple[InnerRule, float]:
    """Return the rule that descends at test, and its step size."""
    if config.test_rule is None or config.test_lr is None:
        return config.inner_rule, config.lr
    return config.test_rule, config.test_lr


def tuned_lr(config: SyntheticConfig, name: InnerRule) -> float:
    """Return the step size at which a rule does best without a warp."""
    lrs = {"sgd": config.tuned_sgd_lr, "momentum": config.tuned_momentum_lr, "adam": config.tuned_adam_lr}
    return lrs[name]


STEP_SIZES: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "sgd": (0.03, 0.05, 0.06, 0.07, 0.08, 0.1, 0.15),
        "momentum": (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.2),
        "adam": (0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0),
    }
)
"""The step sizes that are tried for each rule without a warp; as many for each."""

CARRIED_ON = 1050
"""The meta-step to which the demonstration continues the shipped run, which ends after 1000."""

TABLES = (
    RunTable("synthetic", "Loss after 100 steps on held-out surfaces", "synthetic", (Row("WarpGrad"),), seeds=10),
    RunTable(
        "synthetic-long",
        "Loss after 100 steps on held-out surfaces, meta-trained on a hundred times as many",
        "synthetic",
        (
            Row("WarpGrad"),
            # Adam has the step size at which it does best without a warp: none was searched for it with one.
            Row("WarpGrad, Adam as the inner rule at test", {"test_rule": "adam", "test_lr": 0.2}),
            Row("WarpGrad, Adam as the inner rule in meta-training and test", {"inner_rule": "adam", "lr": 0.2}),
        ),
        seeds=10,
        preset="long",
    ),
    RunTable(
        "synthetic-demo",
        "Loss after 100 steps on held-out surfaces, meta-trained here and carried on from shipped weights",
        "synthetic",
        (
            Row("WarpGrad, carried on from shipped weights", {"meta_steps": CARRIED_ON}),
            Row("WarpGrad, meta-trained here", {"meta_steps": 100}),
        ),
        seeds=1,
        preset="long",
    ),
    RunTable(
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
    RunTable(
        "synthetic-steps",
        "The step sizes of rules without a warp, chosen on validation surfaces",
        "synthetic",
        tuple(
            Row(f"{name} {lr:g}", {"method": "no-warp", "inner_rule": name, "lr": lr, "split": "validation"})
            for name, lrs in STEP_SIZES.items()
            for lr in lrs
        ),
        seeds=4,
    ),
)


DECLARATION = Declaration(
    name="synthetic",
    section="§2.2, App. D",
    summary="descent on 2-D loss surfaces through a meta-learned warp",
    methods=METHODS,
    presets=PRESETS,
    tables=TABLES,
    spaces=SPACES,
    sweep_metric="loss/warp",
)
