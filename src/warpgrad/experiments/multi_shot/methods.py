"""Every multi-shot method as a choice of parts: network, partition, rule, objective, initialiser."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import nn

from warpgrad.algorithms import Online, warp_leap
from warpgrad.algorithms.method import Method
from warpgrad.errors import WarpgradError
from warpgrad.experiments import methods
from warpgrad.experiments.methods import Recipe, Shape, adam, plain_network, side_of
from warpgrad.experiments.multi_shot.config import POOLS, MultiShotConfig
from warpgrad.initialisers import Initialiser, Leap, Reptile
from warpgrad.layers import FEW_SHOT_ORDER, warp_convnet
from warpgrad.layers.warps import convolutional_warp
from warpgrad.model.learner import Learner
from warpgrad.model.partition import StartPolicy
from warpgrad.objectives import Approximate, Exact
from warpgrad.rules import SGD


def recipe(config: MultiShotConfig, shape: Shape, *, fresh_head: bool = False) -> Recipe:
    """How a method is meta-trained, by Algorithm 1, averaged over tasks and their whole trajectories; with
    `fresh_head`, how it is used where its head does not fit."""
    start: dict[str, StartPolicy] = {"head": "fresh"} if fresh_head else {}
    rule = SGD(config.inner_lr, momentum=config.momentum)
    match config.method:
        case "warp-leap":
            objective = Exact() if config.objective == "exact" else Approximate()
            method = warp_leap(_learner(config, warped_network(config, shape), start), rule, objective)
        case "leap" | "reptile":
            initialiser: Initialiser = Leap() if config.method == "leap" else Reptile()
            method = Method(_learner(config, network(config, shape), start), rule, None, initialiser)
        case "sgd":
            method = Method(_learner(config, network(config, shape), {"*": "fixed"}), rule)
        case _:
            raise WarpgradError(f"multi-shot has no method '{config.method}'.")
    online = Online(steps=config.steps, tasks=config.meta_batch)
    return Recipe(method, online, adam(phi=config.meta_lr, theta0=config.theta0_lr), config.meta_clip)


def network(config: MultiShotConfig, shape: Shape) -> nn.Sequential:
    """The network of App. H without warp-layers."""
    return plain_network(config.seed, _convnet(config, shape))


def warped_network(config: MultiShotConfig, shape: Shape) -> nn.Sequential:
    """The same network, at the same weights, with a 3×3 warp convolution after every block."""
    return methods.warped_network(config.seed, _convnet(config, shape), config.warp_init, warp=convolutional_warp)


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
