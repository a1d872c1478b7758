"""Networks whose weights the seed of a run decides alone, so that all methods of a seed begin alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from warpgrad.errors import WarpgradError
from warpgrad.keys import fold
from warpgrad.layers import identity_

T = TypeVar("T")

Shape = tuple[int, int, int]
"""Channels, height and width of the images."""


def keyed(seed: int, role: str, make: Callable[[], T]) -> T:
    """Whatever weights `make` draws, drawn by the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(fold(seed, role))
        return make()


def begun_as(plain: nn.Sequential, warped: nn.Sequential, warp_init: str) -> nn.Sequential:
    """`warped` at the weights of the same network without warp-layers; these at the identity, or at their own."""
    warped.load_state_dict(plain.state_dict(), strict=False)
    if warp_init == "identity":
        for name, child in warped.named_children():
            if name.startswith("warp"):
                identity_(child)
    return warped


def side_of(shape: Shape) -> int:
    """The side of square images."""
    _, height, width = shape
    if height != width:
        raise WarpgradError(f"images are {height}×{width}; the network takes square ones.")
    return height
