"""The parts of the continual experiment: settings, tasks, network, method."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from warpgrad.algorithms import Algorithm, Online
from warpgrad.algorithms.meta_optimiser import ScheduleFactory
from warpgrad.algorithms.method import Method
from warpgrad.experiments.base import Bound, Config, NonNegativeFloat, PositiveFloat, PositiveInt, Row, Table
from warpgrad.experiments.continual.families import AlphabetSequences, Scenario, SineMixtures, alphabet_parts
from warpgrad.keys import fold
from warpgrad.layers import feed_forward_warp
from warpgrad.model.learner import Learner
from warpgrad.objectives import Approximate, Exact
from warpgrad.rules import SGD
from warpgrad.tasks.base import TaskFamily
from warpgrad.tasks.continual import Credit, Weighting
from warpgrad.training.run_directory import newest_checkpoint
from warpgrad.training.state import load_learner

WARPED = ("warpgrad", "warp-current")
"""The methods with something to meta-learn."""

Part = Literal["train", "validation", "test"]

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
"""What of that is other in ours."""
_LOOKING_BACK = ("weighting", "credit")
"""What means nothing to a warp that is judged on the current sub-task alone."""


@dataclass(frozen=True)
class ContinualConfig(Config):
    """Settings of the continual experiment; the defaults are the paper's, where it states them."""

    method: str = "warpgrad"
    family: Literal["sine", "alphabets"] = "sine"
    """Mixtures of two sines, or characters of alphabets."""
    subtasks: PositiveInt = 5
    """T."""
    steps_per_subtask: PositiveInt = 20
    """n; K = nT."""
    batch_size: PositiveInt = 5
    """Examples per adaptation step."""
    meta_batch_size: PositiveInt = 5
    """Validation examples of each seen sub-task in the meta-loss; the paper does not say."""
    lr: PositiveFloat = 0.001
    """α."""
    hidden: PositiveInt = 200
    """Units of each hidden layer."""
    hidden_layers: PositiveInt = 3
    """Hidden layers; with 3 there are 4 linear layers. The text can also mean 4."""
    warp_hidden: PositiveInt = 100
    """Hidden units of each warp-layer."""
    warp_tanh: Literal["both", "hidden"] = "both"
    """Which of a warp's two layers a tanh follows; the text can mean either. `both` bounds what a warp adds by 1."""
    weighting: Literal["balanced", "printed", "mean"] = "balanced"
    """How the meta-loss weighs earlier sub-tasks; warp-current ignores them."""
    credit: Credit = "full"
    """What φ is judged for on earlier sub-tasks: the step and the loss after it, as in Eq. 11; the step alone; the
    movement of predictions since they were learned; or that, and of the step its direction alone."""
    direction_weight: PositiveFloat = 5.0
    """How much that direction counts, where it alone does."""
    objective: Literal["exact", "approximate"] = "exact"
    """L or L̂."""
    judge_start: NonNegativeFloat = 0.0
    """Weight of the mean loss over all sub-tasks at θ0 itself; 0 is the paper's. Nothing else holds that loss,
    and orders that begin elsewhere than meta-training did can suffer where it grows."""
    start_functions: PositiveInt = 40
    """Sines: functions of the family that θ0 is judged on, where it is, for each task of a meta-step."""
    meta_steps: PositiveInt = 20_000
    """Meta-steps; methods without a warp take none."""
    tasks: PositiveInt = 5
    """Task sequences per meta-step."""
    meta_lr: PositiveFloat = 0.001
    """β, of Adam."""
    meta_schedule: Literal["constant", "cosine"] = "constant"
    """Of β; `cosine` brings it to 0 at the last meta-step, which a short run needs to come to rest."""
    meta_clip: NonNegativeFloat = 0.0
    """Largest norm of the meta-gradient; 0 for none, as in the paper."""
    strength: NonNegativeFloat = 1e4
    """λ of online EWC."""
    decay: Annotated[float, Bound("what is kept of the past is a share, from 0 to 1", least=0, most=1)] = 1.0
    """γ of online EWC."""
    order: tuple[int, ...] = (1, 3, 4, 2, 0)
    """The other order that test tasks are learned in."""
    split: Literal["test", "validation"] = "test"
    """Which held-out tasks to test on; the sweep of the baselines uses validation."""
    test_tasks: PositiveInt = 100
    """Held-out tasks."""
    test_points: PositiveInt = 20
    """Evenly spaced test inputs in each part of [−5, 5]."""
    test_every: PositiveInt = 1
    """Test after every so many steps, and when a sub-task ends."""
    validation_tasks: PositiveInt = 20
    """Held-out tasks for the curve against meta-steps."""
    validate_every: PositiveInt = 200
    """Meta-steps between two points of that curve."""
    patience: Annotated[int, Bound("wait for at least 1 validation, or None for no choice", least=1)] | None = None
    """Points of that curve without a new best of the loss on earlier sub-tasks, over both orders, before the run stops;
    it ends with the best weights. None: the run goes on and ends with the last ones, as in the paper."""
    ways: PositiveInt = 2
    """Alphabets: characters per sub-task."""
    scenario: Scenario = "class"
    """Alphabets: labels of their own for all characters, or labels that begin anew in each sub-task."""
    alphabets: Annotated[int, Bound("training, validation and test need one each", least=3)] = 24
    """Alphabets: how many, of which a quarter is held out for the test and a sixth for validation."""
    data: str = ""
    """Alphabets: a prepared data set; drawn anew if not given."""


def departures(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The settings in which a run is ours and not the paper's. The paper prints two formulas for the weights, of which
    neither is ours."""
    if config["method"] not in WARPED or config["family"] != "sine":
        return ()
    found = [name for name, value in PRINTED.items() if config[name] != value]
    if config["method"] == "warp-current":
        found = [name for name in found if name not in _LOOKING_BACK]
    return tuple(name for name in found if (name, config[name]) != ("weighting", "printed"))


def family(config: ContinualConfig, part: Part) -> TaskFamily:
    """p(τ); the sines of different parts differ by their seeds alone."""
    weighting: Weighting = "current" if config.method == "warp-current" else config.weighting
    options: dict[str, Any] = {
        "steps_per_subtask": config.steps_per_subtask,
        "batch_size": config.batch_size,
        "meta_batch_size": config.meta_batch_size,
        "weighting": weighting,
        "credit": config.credit,
        "direction_weight": config.direction_weight,
        "pad": False,
    }
    if config.family == "sine":
        return SineMixtures(config.subtasks, config.test_points, config.device, config.start_functions, **options)
    parts = alphabet_parts(config.seed, config.alphabets, config.subtasks * config.ways, config.data)
    return AlphabetSequences(parts[part], config.ways, config.scenario, config.device, **options)


def algorithm(config: ContinualConfig) -> Algorithm:
    """Algorithm 1. Eq. 19 is a sum over tasks, sub-tasks and their θ's; as a sum it also stays clear of Adam's ε."""
    steps = config.steps_per_subtask * config.subtasks
    return Online(steps=steps, tasks=config.tasks, judge_start=config.judge_start, reduction="sum")


def schedule(config: ContinualConfig) -> ScheduleFactory | None:
    if config.meta_schedule == "constant":
        return None
    return partial(CosineAnnealingLR, T_max=config.meta_steps)


def network(config: ContinualConfig) -> nn.Module:
    """Linear layers, each ReLU followed by a residual warp-layer. θ0 is drawn first, so all methods share it."""
    classes = config.ways * (config.subtasks if config.scenario == "class" else 1)
    first, last = (1, 1) if config.family == "sine" else (14 * 14, classes)
    widths = [first] + [config.hidden] * config.hidden_layers
    linears = [nn.Linear(inputs, config.hidden) for inputs in widths[:-1]]
    head = nn.Linear(config.hidden, last)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for place, linear in enumerate(linears, start=1):
        layers[f"linear{place}"] = linear
        layers[f"relu{place}"] = nn.ReLU()
        if config.method in WARPED:
            layers[f"warp{place}"] = feed_forward_warp(
                config.hidden,
                hidden=config.warp_hidden,
                residual=True,
                branch_activation=nn.Tanh if config.warp_tanh == "both" else None,
            )
    layers["head"] = head
    return nn.Sequential(layers)


def build(config: ContinualConfig) -> Method:
    """The learner, the rule and the objective, with weights drawn by the seed; C = 0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(fold(config.seed, "weights"))
        module = network(config).to(config.device)
    learner = Learner(module, warp=None if config.method in WARPED else (), start={"*": "fixed"})
    objective = {"exact": Exact, "approximate": Approximate}[config.objective]()
    return Method(learner, SGD(config.lr), objective if config.method in WARPED else None)


def trained(config: ContinualConfig, directory: Path) -> Learner:
    """The learner of a run."""
    method = build(config)
    return load_learner(method, newest_checkpoint(directory)) if config.method in WARPED else method.learner


PLAIN = (Row("no warp", {"method": "no-warp"}), Row("no warp, lr 0.01", {"method": "no-warp", "lr": 0.01}))
EWC = Row("EWC", {"method": "ewc", "lr": 0.003, "strength": 1e4})
"""Rows that meta-learn nothing."""

CURRENT = {"method": "warp-current", "credit": "full"}
"""Without earlier sub-tasks in the meta-loss all credits are one."""
SHORT = {"ours": {"meta_steps": 1000}}
"""The ablation's length."""

TABLES = (
    Table(
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
    Table(
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
    Table(
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
    Table(
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
    Table(
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
