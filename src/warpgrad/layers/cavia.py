"""CAVIA: a context vector, adapted from zero, conditions a network whose weights are shared by all tasks."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from warpgrad.errors import WarpgradError
from warpgrad.layers.modulation import FiLM

CONTEXT = "*film.embedding"
"""The pattern of the context's name: `Learner(model, task=CONTEXT, start={CONTEXT: "zero"})`."""


def cavia_net(network: nn.Sequential, *, context: int = 100, block: int = 3) -> nn.Sequential:
    """A network of `warp_convnet` with a FiLM layer between batch-norm and activation of one block.

    All else keeps its names and values, and with the context at 0 it is the network.

    Args:
        network: Blocks called `block1`, `block2`, …, each with a `norm`.
        context: The size of the context.
        block: Which block it conditions, from 1; the third is the one of the published networks.
    """
    name = f"block{block}"
    chosen = dict(network.named_children()).get(name)
    norm = None if chosen is None else dict(chosen.named_children()).get("norm")
    if not isinstance(norm, nn.BatchNorm2d) or not isinstance(chosen, nn.Sequential):
        raise WarpgradError(f"cavia_net(block={block}): the network has no '{name}' with a batch-norm 'norm'.")
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for part, module in chosen.named_children():
        parts[part] = module
        if module is norm:
            parts["film"] = FiLM(norm.num_features, embedding=context)
    layers = OrderedDict((key, child) for key, child in network.named_children())
    layers[name] = nn.Sequential(parts)
    return nn.Sequential(layers)
