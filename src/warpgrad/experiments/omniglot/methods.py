"""Every method of the alphabets experiment as a choice of parts: network, partition, rule, objective, initialiser."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from warpgrad.algorithms import Offline, Online, Unrolled
from warpgrad.algorithms.base import Algorithm
from warpgrad.algorithms.meta_optimiser import OptimiserFactory
from warpgrad.algorithms.method import Method, ParameterGroup
from warpgrad.baselines.finetuning import HeadedTask, JointTraining, MultiHeaded
from warpgrad.data import Alphabets, ImageStore, open_store
from warpgrad.data.prepared import DRAWN, OMNIGLOT, STORES, open_prepared, prepared
from warpgrad.data.store import FILE
from warpgrad.data.tasks.alphabets import alphabet_tasks
from warpgrad.errors import WarpgradError, require
from warpgrad.experiments.methods import Recipe, keyed, plain_network, warped_network
from warpgrad.experiments.omniglot.config import OmniglotConfig
from warpgrad.initialisers import FOMAML, Fixed, Initialiser, Leap, Reptile
from warpgrad.io import BusyError
from warpgrad.keys import fold
from warpgrad.layers import OMNIGLOT_WARPS, warp_convnet
from warpgrad.model.learner import Learner
from warpgrad.model.partition import StartPolicy
from warpgrad.objectives import Approximate, Exact
from warpgrad.rules import SGD, Learned, Rule
from warpgrad.tasks.supervised import TaskList

STARTING_DRAWINGS = 200
"""The size of activations at the start is measured on at least this many training drawings."""
PHI_OPTIMISERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


def network(config: OmniglotConfig) -> nn.Sequential:
    """Build the network of App. E without warp-layers."""
    return plain_network(config.seed, _convnet(config))


def plain_learner(config: OmniglotConfig, start: Mapping[str, StartPolicy] | None = None) -> Learner:
    return _learner(config, network(config), warp=(), start=start)


def warped_learner(config: OmniglotConfig, drawings: Tensor | None = None) -> Learner:
    """Build the same network with the same weights and with warp-layers after its blocks.

    `drawings`, from `starting_drawings`, are what `warp_init="scaled"` measures activations on.
    """
    warp = OMNIGLOT_WARPS[config.warp]
    module = warped_network(config.seed, _convnet(config), config.warp_init, drawings, warp=warp)
    start: dict[str, StartPolicy] = {"*": "fixed"} if config.theta0 == "random" else {}
    if config.warp.endswith("film"):
        start["*film"] = "zero"
    return _learner(config, module, start=start)


def starting_drawings(config: OmniglotConfig, alphabets: Alphabets) -> Tensor:
    """Return one batch of training drawings, equally many from each training alphabet, drawn from the seed."""
    names = alphabets.split(config.tasks).train
    tasks = alphabet_tasks(alphabets, names, batch_size=math.ceil(STARTING_DRAWINGS / len(names)))
    batches = [task.with_seed(fold(config.seed, "start", task.name)).adapt_batch(0) for task in tasks.tasks]
    return torch.cat([images for images, _ in batches])


def beginning(config: OmniglotConfig, drawings: Tensor) -> Learner:
    """Build the learner that meta-training, or adaptation from scratch, starts with."""
    return warped_learner(config, drawings) if config.method == "warp-leap" else plain_learner(config)


def multi_headed_learner(config: OmniglotConfig) -> Learner:
    """Build the body of the network with a separate head for each training alphabet."""
    plain = network(config)
    head = plain.get_submodule("head")
    assert isinstance(head, nn.Linear)
    sizes = head.in_features, head.out_features
    heads = keyed(config.seed, "heads", lambda: [nn.Linear(*sizes) for _ in range(config.tasks)])
    return _learner(config, MultiHeaded(plain[:-1], heads), warp=(), allow_unused=True)


def inner_rule(config: OmniglotConfig) -> Rule:
    lr = config.test_lr
    return SGD(Learned(lr) if config.learned_alpha else lr, momentum=config.momentum)


def recipe(config: OmniglotConfig, drawings: Tensor | None = None) -> Recipe:
    """Return how a method is meta-trained; `drawings` are as in `warped_learner`."""
    optimiser: dict[ParameterGroup, OptimiserFactory] = {"theta0": partial(torch.optim.SGD, lr=config.outer_lr)}
    schedule = partial(CosineAnnealingLR, T_max=config.meta_steps) if config.meta_schedule == "cosine" else None
    rule = inner_rule(config)
    if config.method == "warp-leap":
        objective = Exact() if config.objective == "exact" else Approximate()
        initialiser = Leap() if config.theta0 == "learned" else Fixed()
        optimiser["phi"] = partial(PHI_OPTIMISERS[config.meta_optimiser], lr=config.meta_lr)
        optimiser["rule"] = partial(torch.optim.SGD, lr=config.alpha_lr)
        method = Method(warped_learner(config, drawings), rule, objective, initialiser)
        return Recipe(method, _warp_algorithm(config), optimiser, {"rule": config.alpha_clip}, schedule)
    if config.method == "finetuning":
        joint = JointTraining(steps=config.steps, tasks=config.meta_batch, averaged=config.averaged_steps)
        return Recipe(Method(multi_headed_learner(config), rule), joint, optimiser, {}, schedule)
    if config.method == "maml":
        unrolled = Unrolled(steps=config.maml_steps, tasks=config.meta_batch)
        return Recipe(Method(plain_learner(config), rule), unrolled, optimiser, {}, schedule)
    initialisers: dict[str, Initialiser] = {"leap": Leap(), "reptile": Reptile(), "fomaml": FOMAML()}
    method = Method(plain_learner(config), rule, None, initialisers[config.method])
    return Recipe(method, Online(steps=config.steps, tasks=config.meta_batch), optimiser, {}, schedule)


def build(config: OmniglotConfig) -> Method:
    """Build the method of a run to load its weights into.

    The initial weights no longer matter, and with `warp_init="own"` they are drawn without data.
    """
    return recipe(dataclasses.replace(config, warp_init="own")).method


def training_tasks(config: OmniglotConfig, tasks: TaskList) -> TaskList:
    """Return the training alphabets as the method sees them; for finetuning, each with a separate head."""
    if config.method != "finetuning":
        return tasks
    return TaskList([HeadedTask(task, place) for place, task in enumerate(tasks.tasks)])


def finetuned_learner(config: OmniglotConfig, trained: Learner) -> Learner:
    """Return the jointly trained body in a plain network whose head is drawn for every alphabet."""
    learner = plain_learner(config, {"head": "fresh"})
    body = trained.module.get_submodule("body").state_dict()
    learner.module.load_state_dict({**learner.module.state_dict(), **body})
    return learner


def distance_names(learner: Learner) -> Sequence[str]:
    """Return the parameters that count in distances: all of θ except task embeddings, which start at 0."""
    return [name for name, policy in learner.starts.items() if policy != "zero"]


def _warp_algorithm(config: OmniglotConfig) -> Algorithm:
    steps, tasks = config.steps, config.meta_batch
    if config.algorithm == "online":
        return Online(steps=steps, tasks=tasks, reduction=config.reduction)
    return Offline(steps=steps, tasks=tasks, samples=config.samples, share=config.share, reduction=config.reduction)


def _convnet(config: OmniglotConfig) -> partial[nn.Sequential]:
    return partial(warp_convnet, 1, config.characters, widths=(config.filters,) * 4, warp=None)


def _learner(config: OmniglotConfig, module: nn.Module, **options: Any) -> Learner:
    return Learner(module.to(config.device), batch_norm=config.batch_norm, channels_last=True, **options)


_PAUSE = 0.2
"""Seconds between checks whether another process has drawn the alphabets."""


def chosen_data(data: str | None) -> str:
    """Return `data`, or if it is None, Omniglot if it has been prepared and the drawn alphabets otherwise."""
    if data is not None:
        return data
    return OMNIGLOT if prepared(OMNIGLOT) is not None else DRAWN


def open_data(data: str | None) -> ImageStore:
    """Open the store that `data` names: `omniglot`, `drawn` (made the first time it is needed), or a folder."""
    data = chosen_data(data)
    if data == DRAWN:
        return open_store(prepared(DRAWN) or _draw(STORES / DRAWN))
    require(
        data != OMNIGLOT or prepared(OMNIGLOT) is not None,
        "there is no prepared Omniglot here: make it with 'warpgrad data prepare omniglot', give a prepared "
        "folder with --data, or run on the drawn alphabets with --data drawn.",
    )
    return open_prepared(data)


def _draw(destination: Path) -> Path:
    from warpgrad.data import prepare_drawn  # needs Pillow, and networks are built without it

    print(f"drawing alphabets into {destination}, once", file=sys.stderr, flush=True)
    # Runs that start together need the same bytes in the same place: one draws them, the others wait.
    while not (destination / FILE).is_file():
        try:
            prepare_drawn(destination)
        except BusyError:
            time.sleep(_PAUSE)
        except WarpgradError:
            if not (destination / FILE).is_file():
                raise
    return destination
