"""Every multi-shot method as a choice of parts: network, partition, rule, objective, initialiser."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from warpgrad.algorithms import Online, warp_leap
from warpgrad.algorithms.method import Method
from warpgrad.errors import WarpgradError
from warpgrad.experiments.methods import Recipe, Shape, adam, convnet, plain_network, warped_network
from warpgrad.experiments.multi_shot.config import POOLS, MultiShotConfig
from warpgrad.initialisers import Initialiser, Leap, Reptile
from warpgrad.layers.warps import convolutional_warp
from warpgrad.model.learner import Learner
from warpgrad.model.partition import StartPolicy
from warpgrad.objectives import Approximate, Exact
from warpgrad.rules import SGD


def recipe(config: MultiShotConfig, shape: Shape, *, fresh_head: bool = False) -> Recipe:
    """Return how a method is meta-trained, by Algorithm 1 averaged over tasks and their whole trajectories; with
    `fresh_head`, how it is used if its head does not fit."""
    start: dict[str, StartPolicy] = {"head": "fresh"} if fresh_head else {}
    rule = SGD(config.inner_lr, momentum=config.momentum)
    make = convnet(shape, config.ways, config.widths, pools=POOLS)
    match config.method:
        case "warp-leap":
            objective = Exact() if config.objective == "exact" else Approximate()
            module = warped_network(config.seed, make, config.warp_init, warp=convolutional_warp)
            method = warp_leap(_learner(config, module, start), rule, objective)
        case "leap" | "reptile":
            initialiser: Initialiser = Leap() if config.method == "leap" else Reptile()
            method = Method(_learner(config, plain_network(config.seed, make), start), rule, None, initialiser)
        case "sgd":
            method = Method(_learner(config, plain_network(config.seed, make), {"*": "fixed"}), rule)
        case _:
            raise WarpgradError(f"multi-shot has no method '{config.method}'.")
    online = Online(steps=config.steps, tasks=config.meta_batch)
    return Recipe(method, online, adam(phi=config.meta_lr, theta0=config.theta0_lr), config.meta_clip)


def _learner(config: MultiShotConfig, module: nn.Sequential, start: Mapping[str, StartPolicy]) -> Learner:
    # Without marked warp-layers everything is θ. Tests come long before running statistics have converged.
    warp = None if "warp1" in dict(module.named_children()) else ()
    return Learner(module.to(config.device), warp=warp, start=start, batch_norm="corrected", channels_last=True)
