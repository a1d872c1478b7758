"""T-Nets and MT-Nets, whose linear maps are T·W with W adapted and T meta-learned (Lee and Choi, 2018); and CAVIA."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from warpgrad.errors import WarpgradError, require
from warpgrad.layers.identity import identity_
from warpgrad.layers.warps import FiLM
from warpgrad.model.partition import Warp

MASK = "mask"
"""The name of the `MaskNoise` of a layer, in an MT-Net."""


class TransformedLinear(nn.Linear):
    """T(Wx + b): a linear task layer under a linear warp that begins as the identity. W and b keep their names."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.transform = Warp(identity_(nn.Linear(out_features, out_features, bias=False)))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.transform(super().forward(x))
        return output


class MaskNoise(nn.Module):
    """Logistic noise, one number per row of a layer's W, that decides which rows a task adapts; as a map, the identity.

    As a task parameter with the start policy `fresh` it is drawn from the task's key. `warpgrad.rules.MaskedSGD` reads
    it and never updates it.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.noise = nn.Parameter(torch.zeros(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw logistic noise, which is the difference of two Gumbel variables."""
        with torch.no_grad():
            nn.init.uniform_(self.noise, 1e-6, 1.0 - 1e-6).logit_()

    def forward(self, x: Tensor) -> Tensor:
        return x


def t_net(network: nn.Sequential, *, masks: bool = False) -> nn.Sequential:
    """Return a network of `warp_convnet` with a T, initially the identity, after every convolution and the head.

    θ keeps its names and values, so at the start the T-Net computes the same as `network`. T is a 1×1 convolution
    without bias, right after the convolution of the block.

    Args:
        network: Blocks that begin with a convolution `conv`, and a linear `head`.
        masks: Add a `MaskNoise` for every W, for an MT-Net.

    Example:
        >>> plain = layers.warp_convnet(1, 5, widths=(4,), warp=None)
        >>> sorted(wg.Learner(layers.t_net(plain)).phi)
        ['block1.transform.weight', 'head.transform.weight']
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for name, child in network.named_children():
        if isinstance(child, nn.Sequential):
            layers[name] = _transformed_block(name, child, masks)
        elif isinstance(child, nn.Linear):
            head = TransformedLinear(child.in_features, child.out_features)
            head.load_state_dict(child.state_dict(), strict=False)
            if masks:
                head.add_module(MASK, MaskNoise(child.out_features))
            layers[name] = head
        else:
            layers[name] = child
    return nn.Sequential(layers)


def _transformed_block(name: str, block: nn.Sequential, masks: bool) -> nn.Sequential:
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for part, module in block.named_children():
        parts[part] = module
        if isinstance(module, nn.Conv2d):
            parts["transform"] = Warp(identity_(nn.Conv2d(module.out_channels, module.out_channels, 1, bias=False)))
            if masks:
                parts[MASK] = MaskNoise(module.out_channels)
    require("transform" in parts, f"t_net(...): '{name}' has no convolution to put a T after; give a plain conv net.")
    return nn.Sequential(parts)


CONTEXT = "*film.embedding"
"""The pattern of the context's name: `Learner(model, task=CONTEXT, start={CONTEXT: "zero"})`."""


def cavia_net(network: nn.Sequential, *, context: int = 100, block: int = 3) -> nn.Sequential:
    """Return a network of `warp_convnet` with a FiLM layer between batch-norm and activation of one block.

    Everything else keeps its names and values, and with the context at 0 it computes the same as `network`.

    Args:
        network: Blocks called `block1`, `block2`, …, each with a `norm`.
        context: The size of the context.
        block: Which block it conditions, from 1; the third is the one of the published networks.

    Example:
        >>> plain = layers.warp_convnet(1, 5, widths=(4, 4, 4), warp=None)
        >>> layers.cavia_net(plain, context=10).get_parameter("block3.film.embedding").shape
        torch.Size([10])
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
