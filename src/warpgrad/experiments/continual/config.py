"""The settings of the continual experiment (§4.3 (c.2), App. J), and the paper's values of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal

from warpgrad.experiments.base import (
    Bound,
    Config,
    Declaration,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Row,
    RunTable,
)
from warpgrad.experiments.search_space import FloatRange, Space, Spaces

METHODS = ("warpgrad", "no-warp", "warp-current", "ewc")
WARPED = ("warpgrad", "warp-current")
"""The methods that meta-learn a warp."""

PRINTED: Mapping[str, Any] = MappingProxyType(
    {
        "objective": "exact",
        "weighting": "balanced",
        "credit": "full",
        "judge_start": 0.0,
        "meta_lr": 0.001,
        "meta_schedule": "constant",
        "meta_clip": 0.0,
        "patience": None,
    }
)
"""How the warp is judged and learned in the paper: Eq. 11."""
OURS: Mapping[str, Any] = MappingProxyType(
    {
        "weighting": "mean",
        "credit": "direction",
        "judge_start": 50.0,
        "meta_lr": 0.003,
        "meta_schedule": "cosine",
    }
)
"""The settings of `ours` that differ from the paper's."""
_LOOKING_BACK = ("weighting", "credit")
"""Settings without effect on a warp that is learned on the current sub-task alone."""


@dataclass(frozen=True)
class ContinualConfig(Config):
    """Settings of the continual experiment; the defaults are the paper's, where it states them."""

    method: str = "warpgrad"
    family: Literal["sine", "alphabets"] = "sine"
    """Whether tasks are mixtures of two sines, or characters of alphabets."""
    subtasks: PositiveInt = 5
    """T, the number of sub-tasks of a task."""
    steps_per_subtask: PositiveInt = 20
    """n, the number of adaptation steps on each sub-task, so that K = nT."""
    batch_size: PositiveInt = 5
    """The number of examples in each adaptation step."""
    meta_batch_size: PositiveInt = 5
    """The number of validation examples of each seen sub-task in the meta-loss; the paper does not state it."""
    lr: PositiveFloat = 0.001
    """α, the step size of adaptation."""
    hidden: PositiveInt = 200
    """The number of units of each hidden layer."""
    hidden_layers: PositiveInt = 3
    """The number of hidden layers; with 3 there are 4 linear layers. The paper's text can also be read as 4."""
    warp_hidden: PositiveInt = 100
    """The number of hidden units of each warp-layer."""
    warp_tanh: Literal["both", "hidden"] = "both"
    """Which of a warp's two layers are followed by tanh; the paper's text can be read either way. With `both`, a warp
    adds at most 1."""
    weighting: Literal["balanced", "printed", "mean"] = "balanced"
    """How the meta-loss weighs earlier sub-tasks; warp-current ignores them."""
    credit: Literal["full", "step", "movement", "direction"] = "full"
    """What φ gets a gradient for on earlier sub-tasks: the step and the loss after it, as in Eq. 11 (full); the step
    alone (step); how far predictions have moved since they were learned (movement); or that and the direction of the
    step (direction)."""
    direction_weight: PositiveFloat = 5.0
    """The weight of the direction of the step under `credit=direction`."""
    objective: Literal["exact", "approximate"] = "exact"
    """The objective of φ: exact (Eq. 11) or approximate (Eq. 12)."""
    judge_start: NonNegativeFloat = 0.0
    """The weight of the mean loss over all sub-tasks at θ0 itself; the paper has no such term, 0. Without it that loss
    may grow, to the disadvantage of orders that start with another sub-task than meta-training did."""
    start_functions: PositiveInt = 40
    """Sines: the number of functions on which θ0 is judged for each task of a meta-step, if `judge_start` is not 0."""
    meta_steps: PositiveInt = 20_000
    """The number of meta-steps; methods without a warp take none."""
    tasks: PositiveInt = 5
    """The number of task sequences in each meta-step."""
    meta_lr: PositiveFloat = 0.001
    """β, Adam's meta step size."""
    meta_schedule: Literal["constant", "cosine"] = "constant"
    """The schedule of β; `cosine` decays it to 0 at the last meta-step, which a short run needs to settle."""
    meta_clip: NonNegativeFloat = 0.0
    """The bound on the norm of the meta-gradient; 0 for no bound, as in the paper."""
    strength: NonNegativeFloat = 1e4
    """λ of online EWC."""
    decay: Annotated[float, Bound("it must be at least 0 and at most 1", least=0, most=1)] = 1.0
    """γ of online EWC."""
    order: tuple[int, ...] = (1, 3, 4, 2, 0)
    """The second order in which the sub-tasks of test tasks are learned."""
    split: Literal["test", "validation"] = "test"
    """Which held-out tasks to test on; the sweep of the baselines uses the validation tasks."""
    test_tasks: PositiveInt = 100
    """The number of held-out tasks."""
    test_points: PositiveInt = 20
    """The number of evenly spaced test inputs in each part of [−5, 5]."""
    test_every: PositiveInt = 1
    """The number of steps between tests; there is also one when a sub-task ends."""
    validation_tasks: PositiveInt = 20
    """The number of held-out tasks for the validation curve."""
    validate_every: PositiveInt = 200
    """The number of meta-steps between two points of the validation curve."""
    patience: Annotated[int, Bound("it must be at least 1, or None to run all meta-steps", least=1)] | None = None
    """The number of validations without a new best loss on earlier sub-tasks, over both orders, that end the run with
    the best weights. None runs all meta-steps and keeps the last weights, as in the paper."""
    ways: PositiveInt = 2
    """Alphabets: the number of characters of a sub-task."""
    scenario: Literal["class", "domain"] = "class"
    """Alphabets: a label for each of all characters (class), or labels that start from 0 in each sub-task (domain)."""
    alphabets: Annotated[int, Bound("it must be at least 3, one for each split", least=3)] = 24
    """Alphabets: their number; a quarter is held out for the test and a sixth for validation."""
    data: str = ""
    """Alphabets: a prepared data set; drawn alphabets if not given."""


PRESETS: Mapping[str, ContinualConfig] = MappingProxyType(
    {
        "paper": ContinualConfig(),
        "small": ContinualConfig(preset="small", meta_steps=1000, validate_every=50),
        "ours": ContinualConfig(preset="ours", meta_steps=3000, validate_every=50, **OURS),
        "alphabets": ContinualConfig(
            preset="alphabets",
            family="alphabets",
            scenario="domain",
            lr=0.03,
            hidden=100,
            hidden_layers=2,
            warp_hidden=50,
            meta_steps=300,
            validate_every=50,
            test_tasks=40,
        ),
    }
)

_WARPED_SPACE: Mapping[str, Space] = {"meta_lr": FloatRange(1e-4, 1e-2, log=True)}
SPACES: Spaces = {
    **dict.fromkeys(WARPED, _WARPED_SPACE),
    "no-warp": {"lr": FloatRange(3e-4, 3e-2, log=True)},
    "ewc": {"lr": FloatRange(1e-3, 1e-2, log=True), "strength": FloatRange(1e2, 1e5, log=True)},
}
"""The search spaces of `warpgrad sweep`."""


def departures(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the settings in which a run departs from the paper.

    Both formulas for weights that the paper prints count as the paper's.
    """
    if config["method"] not in WARPED or config["family"] != "sine":
        return ()
    found = [name for name, value in PRINTED.items() if config[name] != value]
    if config["method"] == "warp-current":
        found = [name for name in found if name not in _LOOKING_BACK]
    return tuple(name for name in found if (name, config[name]) != ("weighting", "printed"))


PLAIN = (Row("no warp", {"method": "no-warp"}), Row("no warp, lr 0.01", {"method": "no-warp", "lr": 0.01}))
EWC = Row("EWC", {"method": "ewc", "lr": 0.003, "strength": 1e4})
"""The rows of methods without meta-learning."""

CURRENT = {"method": "warp-current", "credit": "full"}
"""Without earlier sub-tasks in the meta-loss all choices of `credit` are the same."""
SHORT = {"ours": {"meta_steps": 1000}}
"""The number of meta-steps of the ablation."""

TABLES = (
    RunTable(
        "continual",
        "Loss of new and old sub-tasks on held-out tasks, Eq. 11 as printed",
        "continual",
        (
            Row("WarpGrad", PRINTED),
            *PLAIN,
            Row("warp for the current sub-task", {**PRINTED, **CURRENT}),
            EWC,
        ),
        seeds=4,
    ),
    RunTable(
        "continual-ours",
        "Loss of new and old sub-tasks on held-out tasks, ours beside Eq. 11 as printed",
        "continual",
        (
            Row("WarpGrad, Eq. 11 as printed", PRINTED),
            Row("WarpGrad, ours", OURS),
            Row("warp for the current sub-task, ours", {**OURS, **CURRENT}),
        ),
        seeds=4,
        preset="ours",
    ),
    RunTable(
        "continual-credit",
        "What earlier sub-tasks judge: ours, by credit, beside Eq. 11 as printed",
        "continual",
        (
            Row("WarpGrad, Eq. 11 as printed", PRINTED, at=SHORT),
            *(
                Row(f"WarpGrad, ours, credit {credit}", {**OURS, "credit": credit}, at=SHORT)
                for credit in ("full", "step", "movement", "direction")
            ),
        ),
        seeds=4,
        preset="ours",
    ),
    RunTable(
        "continual-baselines",
        "Step size and strength of the methods without a warp, on validation tasks",
        "continual",
        (
            *(
                Row(f"no warp, lr {lr:g}", {"method": "no-warp", "lr": lr, "split": "validation"})
                for lr in (0.0003, 0.001, 0.003, 0.01)
            ),
            *(
                Row(
                    f"EWC, lr {lr:g}, λ {strength:g}",
                    {"method": "ewc", "lr": lr, "strength": strength, "split": "validation"},
                )
                for lr in (0.001, 0.003, 0.01)
                for strength in (1e2, 1e3, 1e4, 1e5)
            ),
        ),
        seeds=4,
    ),
    RunTable(
        "continual-alphabets",
        "Characters learned two at a time, on held-out alphabets",
        "continual",
        (
            Row("WarpGrad"),
            Row("no warp", {"method": "no-warp", "lr": 0.1}),
            Row("warp for the current sub-task", CURRENT),
            Row("EWC", {"method": "ewc", "lr": 0.1, "strength": 1e3}),
        ),
        seeds=4,
        preset="alphabets",
    ),
)


DECLARATION = Declaration(
    name="continual",
    section="§4.3 (c.2), App. J",
    summary="a warp that is meta-learned to prevent forgetting",
    methods=METHODS,
    presets=PRESETS,
    tables=TABLES,
    spaces=SPACES,
    sweep_metric="sequential/loss/final",
)
