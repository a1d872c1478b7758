"""Warp-ConvNet and Warp-ResNet, (a) and (b) of the figure in App. A."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import nn

from warpgrad.errors import WarpgradError, require
from warpgrad.layers.warps import MakeWarp, Residual, convolutional_warp
from warpgrad.model.partition import Warp

BlockPart = Literal["norm", "activation", "pool"]

FEW_SHOT_ORDER: tuple[BlockPart, ...] = ("norm", "activation", "pool")
"""What follows the convolution of a block on miniImageNet and tieredImageNet (App. H)."""

OMNIGLOT_ORDER: tuple[BlockPart, ...] = ("pool", "norm", "activation")
"""What follows the convolution of a block on Omniglot (App. E)."""


def conv_block(
    in_channels: int, out_channels: int, *, order: Sequence[BlockPart] = FEW_SHOT_ORDER, stride: int = 1
) -> nn.Sequential:
    """Return a 3×3 convolution followed by those of batch-norm, ReLU and 2×2 max-pooling that `order` names.

    Example:
        >>> tuple(layers.conv_block(3, 8)(torch.rand(2, 3, 8, 8)).shape)
        (2, 8, 4, 4)
    """
    parts: dict[str, Callable[[], nn.Module]] = {
        "norm": lambda: nn.BatchNorm2d(out_channels),
        "activation": nn.ReLU,
        "pool": lambda: nn.MaxPool2d(2),
    }
    unknown = [part for part in order if part not in parts]
    require(
        not unknown and len(set(order)) == len(order),
        f"conv_block(order={tuple(order)}): name each of norm, activation, pool at most once.",
    )
    # Batch-norm removes a bias, also with max-pooling between the two, but not with a ReLU.
    linear = order[: order.index("activation")] if "activation" in order else order
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv"] = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias="norm" not in linear)
    for part in order:
        layers[part] = parts[part]()
    return nn.Sequential(layers)


def warp_convnet(
    in_channels: int,
    outputs: int,
    *,
    image_size: int = 28,
    widths: Sequence[int] = (64, 64, 64, 64),
    order: Sequence[BlockPart] = OMNIGLOT_ORDER,
    pools: int | None = None,
    warp: MakeWarp | None = convolutional_warp,
    warp_blocks: int = 0,
) -> nn.Sequential:
    """Build task blocks with a warp after each and a linear task head: `block1`, `warp1`, `block2`, …, `head`.

    The defaults are the network of App. E for 28×28 images.

    Args:
        in_channels: Channels of the images.
        outputs: Classes.
        image_size: Height and width of the images.
        widths: Channels of each block.
        order: What follows each convolution, see `conv_block`.
        pools: How many blocks, from the first, keep the pooling of `order`; None means all.
        warp: Makes the warp of a width; None gives the plain network, whose θ has the same names.
        warp_blocks: How many blocks, from the first, belong to φ themselves and have no warp after them
            (1 in the few-shot networks of App. H).

    Example:
        >>> net = layers.warp_convnet(1, 20, widths=(8, 8))
        >>> tuple(net(torch.rand(2, 1, 28, 28)).shape), len(wg.Learner(net).phi)
        ((2, 20), 4)
    """
    require(widths, "warp_convnet(widths=()): give the channels of at least one block.")
    require(
        0 <= warp_blocks <= len(widths),
        f"warp_convnet(warp_blocks={warp_blocks}): there are {len(widths)} blocks to choose from.",
    )
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = in_channels
    for place, width in enumerate(widths):
        pooled = pools is None or place < pools
        block = conv_block(channels, width, order=[part for part in order if pooled or part != "pool"])
        if place < warp_blocks:
            layers[f"block{place + 1}"] = Warp(block)
        else:
            layers[f"block{place + 1}"] = block
            if warp is not None:
                layers[f"warp{place + 1}"] = warp(width)
        channels = width
    layers["flatten"] = nn.Flatten()
    features = _output_features(nn.Sequential(layers), in_channels, image_size)
    layers["head"] = nn.Linear(features, outputs)
    return nn.Sequential(layers)


def warp_residual_block(in_channels: int, out_channels: int, *, stride: int = 1) -> nn.Sequential:
    """Build a residual block shared between θ and φ: norm(shortcut(h) + norm_φ(conv_φ(block(h)))).

    The conv block, the shortcut (a 1×1 convolution where the shape changes) and the norm after the sum are
    task layers; the convolution and the norm at the end of the branch are warp.

    Example:
        >>> tuple(layers.warp_residual_block(4, 8, stride=2)(torch.rand(2, 4, 8, 8)).shape)
        (2, 8, 4, 4)
    """
    branch = nn.Sequential(
        OrderedDict(
            block=conv_block(in_channels, out_channels, order=("norm", "activation"), stride=stride),
            conv=Warp(nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)),
            norm=Warp(nn.BatchNorm2d(out_channels)),
        )
    )
    changes = in_channels != out_channels or stride != 1
    shortcut = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False) if changes else None
    return nn.Sequential(OrderedDict(residual=Residual(branch, shortcut), norm=nn.BatchNorm2d(out_channels)))


def warp_resnet(in_channels: int, outputs: int, *, widths: Sequence[int] = (64, 128, 256)) -> nn.Sequential:
    """Build a task conv block, a `warp_residual_block` for each width, mean pooling and a linear task head.

    Every block whose width differs from the one before it halves the image. Images may have any size.

    Example:
        >>> tuple(layers.warp_resnet(3, 10, widths=(4, 8))(torch.rand(2, 3, 16, 16)).shape)
        (2, 10)
    """
    require(widths, "warp_resnet(widths=()): give the channels of at least one block.")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["stem"] = conv_block(in_channels, widths[0], order=("norm", "activation"))
    channels = widths[0]
    for place, width in enumerate(widths):
        layers[f"block{place + 1}"] = warp_residual_block(channels, width, stride=1 if width == channels else 2)
        channels = width
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(channels, outputs)
    return nn.Sequential(layers)


def _output_features(body: nn.Sequential, in_channels: int, image_size: int) -> int:
    """Return the output width by running the network, in eval mode so that no statistics are updated."""
    was_training = body.training
    try:
        with torch.no_grad():
            return int(body.eval()(torch.zeros(1, in_channels, image_size, image_size)).shape[1])
    except RuntimeError as error:
        raise WarpgradError(
            f"images of {image_size}×{image_size} cannot pass through the network: {str(error).splitlines()[0]}; "
            "pool in fewer blocks with pools=."
        ) from error
    finally:
        body.train(was_training)
