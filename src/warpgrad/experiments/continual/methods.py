"""The parts of the continual experiment: tasks, network, algorithm, method."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from warpgrad.algorithms import Online
from warpgrad.algorithms.method import Method
from warpgrad.experiments.continual.config import WARPED, ContinualConfig
from warpgrad.experiments.continual.families import AlphabetSequences, SineMixtures, alphabet_parts
from warpgrad.experiments.continual.objective import ApproximateLookBack, LookBack
from warpgrad.experiments.methods import Recipe, keyed
from warpgrad.layers import feed_forward_warp
from warpgrad.model.learner import Learner
from warpgrad.rules import SGD
from warpgrad.tasks.base import TaskFamily
from warpgrad.tasks.continual import Weighting
from warpgrad.training.run_directory import newest_checkpoint
from warpgrad.training.saving import load_learner

Part = Literal["train", "validation", "test"]


def family(config: ContinualConfig, part: Part) -> TaskFamily:
    """Return p(τ) of a split; the sine tasks of the splits differ only in their seeds."""
    weighting: Weighting = "current" if config.method == "warp-current" else config.weighting
    options: dict[str, Any] = {
        "steps_per_subtask": config.steps_per_subtask,
        "batch_size": config.batch_size,
        "meta_batch_size": config.meta_batch_size,
        "weighting": weighting,
        "pad": False,
    }
    if config.family == "sine":
        return SineMixtures(config.subtasks, config.test_points, config.device, config.start_functions, **options)
    parts = alphabet_parts(config.seed, config.alphabets, config.subtasks * config.ways, config.data)
    return AlphabetSequences(parts[part], config.ways, config.scenario, config.device, **options)


def recipe(config: ContinualConfig) -> Recipe:
    """Return the recipe: Algorithm 1 with the sum over tasks, sub-tasks and their θ's of Eq. 19.

    A sum also keeps the gradients well above Adam's ε.
    """
    steps = config.steps_per_subtask * config.subtasks
    schedule = partial(CosineAnnealingLR, T_max=config.meta_steps) if config.meta_schedule == "cosine" else None
    algorithm = Online(steps=steps, tasks=config.tasks, reduction="sum")
    optimiser = partial(torch.optim.Adam, lr=config.meta_lr)
    return Recipe(build(config), algorithm, optimiser, config.meta_clip or None, schedule)


def network(config: ContinualConfig) -> nn.Module:
    """Build linear layers and a residual warp-layer after each ReLU; θ0 is drawn first, so all methods share it."""
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
    """Build the learner, the rule and the objective, with weights drawn from the seed and C = 0."""
    module = keyed(config.seed, "weights", partial(network, config)).to(config.device)
    learner = Learner(module, warp=None if config.method in WARPED else (), start={"*": "fixed"})
    if config.method not in WARPED:
        return Method(learner, SGD(config.lr))
    looking_back = {"exact": LookBack, "approximate": ApproximateLookBack}[config.objective]
    objective = looking_back(config.credit, direction_weight=config.direction_weight, judge_start=config.judge_start)
    return Method(learner, SGD(config.lr), objective)


def trained_learner(config: ContinualConfig, directory: Path) -> Learner:
    """Return the learner of a run, with its trained weights if the method has a warp."""
    method = build(config)
    return load_learner(method, newest_checkpoint(directory)) if config.method in WARPED else method.learner
