"""Every multi-shot method as a choice of parts: network, partition, rule, objective, initialiser."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import nn

from warpgrad.algorithms import Online, warp_leap
from warpgrad.algorithms.meta_optimiser import OptimiserFactory
from warpgrad.algorithms.method import Method, ParameterGroup
from warpgrad.errors import WarpgradError
from warpgrad.experiments.multi_shot.config import POOLS, MultiShotConfig
from warpgrad.experiments.networks import Shape, begun_as, keyed, side_of
from warpgrad.initialisers import Initialiser, Leap, Reptile
from warpgrad.layers import FEW_SHOT_ORDER, warp_convnet
from warpgrad.layers.warps import convolutional_warp
from warpgrad.model.learner import Learner
from warpgrad.model.partition import StartPolicy
from warpgrad.objectives import Approximate, Exact
from warpgrad.rules import SGD


def method_of(config: MultiShotConfig, shape: Shape, *, fresh_head: bool = False) -> Method:
    """What is meta-learned, and how a task is adapted to; with `fresh_head`, where the head does not fit."""
    start: dict[str, StartPolicy] = {"head": "fresh"} if fresh_head else {}
    rule = SGD(config.alpha, momentum=config.momentum)
    match config.method:
        case "warp-leap":
            objective = Exact() if config.objective == "exact" else Approximate()
            return warp_leap(_learner(config, warped_network(config, shape), start), rule, objective)
        case "leap" | "reptile":
            initialiser: Initialiser = Leap() if config.method == "leap" else Reptile()
            return Method(_learner(config, network(config, shape), start), rule, None, initialiser)
        case "sgd":
            return Method(_learner(config, network(config, shape), {"*": "fixed"}), rule)
    raise WarpgradError(f"multi-shot has no method '{config.method}'.")


def algorithm_of(config: MultiShotConfig) -> Online:
    """Algorithm 1 for all: averaged over tasks and their whole trajectories."""
    return Online(steps=config.steps, tasks=config.meta_batch)


def meta_optimisers(config: MultiShotConfig) -> dict[ParameterGroup, OptimiserFactory]:
    return {
        "phi": partial(torch.optim.Adam, lr=config.meta_lr),
        "theta0": partial(torch.optim.Adam, lr=config.theta0_lr),
    }


def network(config: MultiShotConfig, shape: Shape) -> nn.Sequential:
    """The network of App. H without warp-layers."""
    return keyed(config.seed, "network", _convnet(config, shape))


def warped_network(config: MultiShotConfig, shape: Shape) -> nn.Sequential:
    """The same network, at the same weights, with a 3×3 warp convolution after every block."""
    warped = keyed(config.seed, "warp", partial(_convnet(config, shape), warp=convolutional_warp))
    return begun_as(network(config, shape), warped, config.warp_init)


def _learner(config: MultiShotConfig, module: nn.Sequential, start: Mapping[str, StartPolicy]) -> Learner:
    # Where nothing is marked as warp, all is θ. Running statistics are tested long before they would have arrived.
    warp = None if "warp1" in dict(module.named_children()) else ()
    return Learner(module.to(config.device), warp=warp, start=start, batch_norm="corrected", channels_last=True)


def _convnet(config: MultiShotConfig, shape: Shape) -> partial[nn.Sequential]:
    return partial(
        warp_convnet,
        shape[0],
        config.ways,
        image_size=side_of(shape),
        widths=config.widths,
        order=FEW_SHOT_ORDER,
        pools=POOLS,
        warp=None,
    )
