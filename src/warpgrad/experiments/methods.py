"""What the methods of several experiments share: how they are meta-trained, and networks whose initial weights depend
only on the seed, so that all methods of a seed start from the same ones."""

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
"""The prefix of the names of warp-layers, and the name of the head."""

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
    """Return Adam for each group of meta-parameters with its step size, e.g. `adam(phi=0.01, theta0=0.001)`."""
    return {group: partial(torch.optim.Adam, lr=lr) for group, lr in lrs.items()}


def keyed(seed: int, role: str, make: Callable[[], T]) -> T:
    """Call `make` with its random draws determined by the seed and the role."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(fold(seed, role))
        return make()


def plain_network(seed: int, make: Callable[[], nn.Sequential]) -> nn.Sequential:
    """Build the network with the initial weights that all methods of a seed share."""
    return keyed(seed, "network", make)


def warped_network(
    seed: int, make: Callable[..., nn.Sequential], warp_init: str, inputs: Tensor | None = None, **warping: Any
) -> nn.Sequential:
    """Build the network `make(**warping)` with the weights of `make()`, the same network without warp-layers.

    Args:
        seed: Decides the weights, those of the warp-layers by a draw of their own.
        make: Builds the network; its warp-layers are called `warp…`.
        warp_init: Leave them at their random weights (`own`), make them the identity map (`identity`), or scale them so
            that activations behind each have the root mean square of those in front of it (`scaled`).
        inputs: What `scaled` measures on, in one pass through the network.
        warping: Keyword arguments with which `make` adds warp-layers.
    """
    warped = keyed(seed, "warp", partial(make, **warping))
    warped.load_state_dict(plain_network(seed, make).state_dict(), strict=False)
    warps = [child for name, child in warped.named_children() if name.startswith(WARP)]
    if warp_init == "identity":
        for warp in warps:
            identity_(warp)
    elif warp_init == "scaled":
        if inputs is None:
            raise WarpgradError("warp_init='scaled' measures activations: pass the inputs to measure them on.")
        for child, activations in _passed(warped, inputs):
            if child in warps:
                keep_variance_(child, activations)
    return warped


def activation_sizes(network: nn.Module, inputs: Tensor) -> dict[str, Any]:
    """Return the root mean squares of activations `before` and `after` every warp-layer of a sequential network, and of
    the inputs of its `head`; batch-norm uses batch statistics."""
    names = {child: name for name, child in network.named_children()}
    sizes = [(names[child], root_mean_square(activations)) for child, activations in _passed(network, inputs)]
    warps = [place for place, (name, _) in enumerate(sizes) if name.startswith(WARP)]
    return {
        "before": [sizes[place][1] for place in warps],
        "after": [sizes[place + 1][1] for place in warps],
        "head": dict(sizes)[HEAD],
    }


def _passed(network: nn.Module, inputs: Tensor) -> Iterator[tuple[nn.Module, Tensor]]:
    """Yield every child with its input; a child may be changed before the next one is requested.

    Batch-norm uses the statistics of the batch, and its running statistics are not updated.
    """
    activations = inputs
    for child in network.children():
        yield child, activations
        with torch.no_grad():
            activations = copy.deepcopy(child).train()(activations)


def convnet(shape: Shape, ways: int, widths: Sequence[int], **options: Any) -> partial[nn.Sequential]:
    """Return a factory of the network of App. H without warp-layers; `options` are those of `warp_convnet`."""
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
    """Return the side length of square images; others are refused."""
    _, height, width = shape
    require(height == width, f"images are {height}×{width}; the network takes square ones.")
    return height
