"""Every few-shot method as a choice of parts: network, partition, rule, objective, initialiser, algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import nn

from warpgrad.algorithms import Online, Unrolled, warp_maml
from warpgrad.algorithms.method import Method
from warpgrad.data.prepared import open_prepared
from warpgrad.data.splits import SPLITS
from warpgrad.data.store import ImageStore
from warpgrad.errors import WarpgradError
from warpgrad.experiments import methods
from warpgrad.experiments.few_shot.config import DATA, FewShotConfig
from warpgrad.experiments.methods import Recipe, Shape, adam, convnet, keyed, plain_network
from warpgrad.initialisers import FOMAML, Initialiser, Reptile
from warpgrad.layers.baselines import CONTEXT, MASK, cavia_net, t_net
from warpgrad.layers.warps import convolutional_warp
from warpgrad.model.learner import Learner
from warpgrad.model.partition import Selector, StartPolicy
from warpgrad.rules import SGD, MaskedSGD, MetaCurvature, MetaSGD, Rule


def recipe(config: FewShotConfig, shape: Shape, *, fresh_head: bool = False) -> Recipe:
    """Return how a method is meta-trained or, with `fresh_head`, how it is used if its head does not fit."""
    start: dict[str, StartPolicy] = {"head": "fresh"} if fresh_head else {}
    optimiser = adam(phi=config.meta_lr, theta0=config.theta0_lr, rule=config.rule_lr)
    made = partial(Recipe, optimiser=optimiser, clip=config.meta_clip)
    plain = network(config, shape)
    online = Online(steps=config.steps, tasks=config.meta_batch)
    descent = SGD(config.inner_lr)
    unrolled = Unrolled(steps=config.steps, tasks=config.meta_batch)
    match config.method:
        case "warp-maml":
            learner = _learner(config, warped_network(config, shape), start=start)
            return made(warp_maml(learner, descent), online)
        case "fomaml" | "reptile":
            initialiser: Initialiser = FOMAML() if config.method == "fomaml" else Reptile()
            return made(Method(_learner(config, plain, warp=(), start=start), descent, None, initialiser), online)
        case "anil":
            return made(Method(_learner(config, plain, task="head", start=start), descent), unrolled)
        case "t-nets":
            module = keyed(config.seed, "transforms", partial(t_net, plain))
            return made(Method(_learner(config, module, start=start), descent), unrolled)
        case "mt-nets":
            module = keyed(config.seed, "transforms", partial(t_net, plain, masks=True))
            return made(_masked(config, module, start), unrolled)
        case "cavia":
            module = keyed(config.seed, "film", partial(cavia_net, plain, context=config.context))
            learner = _learner(config, module, task=CONTEXT, start={CONTEXT: "zero"})
            return made(Method(learner, descent), unrolled)
        case "maml" | "meta-sgd" | "meta-curvature":
            rules: dict[str, Rule] = {
                "maml": descent,
                "meta-sgd": MetaSGD(config.inner_lr),
                "meta-curvature": MetaCurvature(config.inner_lr),
            }
            return made(Method(_learner(config, plain, warp=(), start=start), rules[config.method]), unrolled)
    raise WarpgradError(f"few-shot has no method '{config.method}'.")


def network(config: FewShotConfig, shape: Shape) -> nn.Sequential:
    """Build four blocks of convolution, batch-norm, ReLU and pooling, and a linear head."""
    return plain_network(config.seed, convnet(shape, config.ways, (config.filters,) * 4))


def warped_network(config: FewShotConfig, shape: Shape) -> nn.Sequential:
    """Build `network` with the same weights, the first block in φ, and a warp convolution after each of the others."""
    make = convnet(shape, config.ways, (config.filters,) * 4)
    return methods.warped_network(config.seed, make, config.warp_init, warp=convolutional_warp, warp_blocks=1)


def _learner(
    config: FewShotConfig,
    module: nn.Module,
    *,
    task: Selector | None = None,
    warp: Selector | None = None,
    start: Mapping[str, StartPolicy],
    allow_unused: bool = False,
) -> Learner:
    return Learner(
        module.to(config.device),
        task=task,
        warp=warp,
        start=start,
        batch_norm=config.batch_norm,
        allow_unused=allow_unused,
        channels_last=True,
    )


def _masked(config: FewShotConfig, module: nn.Sequential, start: Mapping[str, StartPolicy]) -> Method:
    """Build an MT-Net: each row of a kernel, or of the head with its bias, is adapted according to its mask.

    The loss does not depend on the noise of the masks, hence `allow_unused`.
    """
    masks = {
        name: f"{name.split('.')[0]}.{MASK}.noise"
        for name, _ in module.named_parameters()
        if name.endswith(".conv.weight") or name in ("head.weight", "head.bias")
    }
    noise: dict[str, StartPolicy] = {f"*.{MASK}": "fresh"}
    learner = _learner(config, module, start={**start, **noise}, allow_unused=True)
    return Method(learner, MaskedSGD(config.inner_lr, masks, temperature=config.temperature))


def open_data(data: str) -> ImageStore:
    """Open the store that `data` names, or the one in the folder `data`, and check that it has all splits."""
    store = open_prepared(data)
    for split in SPLITS:
        if split not in store.header.splits:
            known = ", ".join(sorted(store.header.splits)) or "none"
            raise WarpgradError(
                f"{store.header.name} has no split '{split}' (its splits: {known}), which few-shot learning needs; "
                f"choose one of {', '.join(DATA)}."
            )
    return store
