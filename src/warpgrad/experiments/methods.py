"""What the methods of several experiments share: how they are meta-trained, and networks whose weights the seed decides
alone, so that all methods of a seed begin alike."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from warpgrad.algorithms import Algorithm
from warpgrad.algorithms.meta_optimiser import OptimiserFactory, ScheduleFactory
from warpgrad.algorithms.method import Method, ParameterGroup
from warpgrad.errors import WarpgradError, require
from warpgrad.keys import fold
from warpgrad.layers import FEW_SHOT_ORDER, identity_, keep_variance_, warp_convnet
from warpgrad.layers.variance import root_mean_square

T = TypeVar("T")

WARP, HEAD = "warp", "head"
"""How the names of warp-layers begin, and the name of the head."""

Shape = tuple[int, int, int]
"""Channels, height and width of the images."""


@dataclass(frozen=True)
class Recipe:
    """How a method is meta-trained: all that `meta_train` needs besides the tasks."""

    method: Method
    algorithm: Algorithm
    optimiser: OptimiserFactory | Mapping[ParameterGroup, OptimiserFactory]
    clip: float | Mapping[ParameterGroup, float] | None = None
    schedule: ScheduleFactory | None = None


def adam(**lrs: float) -> dict[Any, OptimiserFactory]:
    """Adam for every group of meta-parameters, each with its own step size: `adam(phi=0.01, theta0=0.001)`."""
    return {group: partial(torch.optim.Adam, lr=lr) for group, lr in lrs.items()}


def keyed(seed: int, role: str, make: Callable[[], T]) -> T:
    """Whatever weights `make` draws, drawn by the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(fold(seed, role))
        return make()


def plain_network(seed: int, make: Callable[[], nn.Sequential]) -> nn.Sequential:
    """The network that `make` builds, at the weights that all methods of a seed begin with."""
    return keyed(seed, "network", make)


def warped_network(
    seed: int, make: Callable[..., nn.Sequential], warp_init: str, inputs: Tensor | None = None, **warping: Any
) -> nn.Sequential:
    """The network that `make(**warping)` builds, at the weights of `make()`, the same one without warp-layers.

    Args:
        seed: Decides the weights, those of the warp-layers by a draw of their own.
        make: Builds the network; its warp-layers are called `warp…`.
        warp_init: Leave them at their random weights (`own`), make them the identity map (`identity`), or scale them so
            that activations behind each have the root mean square of those in front of it (`scaled`).
        inputs: What `scaled` measures on, in one pass through the network.
        warping: What `make` is told to have warp-layers.
    """
    warped = keyed(seed, "warp", partial(make, **warping))
    warped.load_state_dict(plain_network(seed, make).state_dict(), strict=False)
    warps = [child for name, child in warped.named_children() if name.startswith(WARP)]
    if warp_init == "identity":
        for warp in warps:
            identity_(warp)
    elif warp_init == "scaled":
        if inputs is None:
            raise WarpgradError("warp_init='scaled' measures activations: give the inputs to measure them on.")
        for child, activations in _passed(warped, inputs):
            if child in warps:
                keep_variance_(child, activations)
    return warped


def activation_sizes(network: nn.Module, inputs: Tensor) -> dict[str, Any]:
    """The root mean squares of activations in front of (`before`) and behind (`after`) every warp-layer of a sequential
    network, and of the `head`'s inputs, with batch statistics in batch-norm."""
    names = {child: name for name, child in network.named_children()}
    sizes = [(names[child], root_mean_square(activations)) for child, activations in _passed(network, inputs)]
    warps = [place for place, (name, _) in enumerate(sizes) if name.startswith(WARP)]
    return {
        "before": [sizes[place][1] for place in warps],
        "after": [sizes[place + 1][1] for place in warps],
        "head": dict(sizes)[HEAD],
    }


def _passed(network: nn.Module, inputs: Tensor) -> Iterator[tuple[nn.Module, Tensor]]:
    """Every child with its input; a child may be changed before the next one is requested. Batch-norm uses the
    statistics of the batch, and its running ones are left alone."""
    activations = inputs
    for child in network.children():
        yield child, activations
        with torch.no_grad():
            activations = copy.deepcopy(child).train()(activations)


def convnet(shape: Shape, ways: int, widths: Sequence[int], **options: Any) -> partial[nn.Sequential]:
    """Makes the network of App. H for images of this shape, without warp-layers; `options` as in `warp_convnet`."""
    return partial(
        warp_convnet,
        shape[0],
        ways,
        image_size=side_of(shape),
        widths=widths,
        order=FEW_SHOT_ORDER,
        warp=None,
        **options,
    )


def side_of(shape: Shape) -> int:
    """The side of square images."""
    _, height, width = shape
    require(height == width, f"images are {height}×{width}; the network takes square ones.")
    return height
