"""Scale-and-shift layers: the weakest warp, the weakest task layer, and a task embedding.

All of them compute h ⊙ (1 + scale) + shift for each channel, so zeros are the identity map: the start policy
`zero` begins a task with a layer that does nothing.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from warpgrad.errors import WarpgradError
from warpgrad.partition import Warp


class Scale(nn.Module):
    """Per-channel h ⊙ (1 + scale) + shift, from zero.

    Unmarked it is a weak task layer, and, between two warp convolutions, the FiLM layer that App. F adapts
    from 0; inside `Warp(...)` it is the ablation's channel-wise scaling.
    """

    def __init__(self, width: int, *, shift: bool = True, dim: int = 1) -> None:
        """
        Args:
            width: The number of channels.
            shift: Whether to shift besides scaling.
            dim: Where the channels are: 1 for images and plain features, -1 for (batch, time, feature).
        """
        super().__init__()
        _check(self, width=width)
        self.dim = dim
        self.scale = nn.Parameter(torch.zeros(width))
        self.shift = nn.Parameter(torch.zeros(width)) if shift else None

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, h: Tensor) -> Tensor:
        return _modulate(h, self.scale, self.shift, self.dim)


class FiLM(nn.Module):
    """A task embedding e: h ⊙ (1 + P_scale e) + P_shift e. e is θ and starts at 0, the projections P are φ.

    The projections have no bias, so that e = 0 is the identity map whatever φ is. What bites: at e = 0 their
    first-order gradient is zero; they learn through the step that e takes, from the objective after it.
    """

    def __init__(self, width: int, *, embedding: int = 16, dim: int = 1) -> None:
        """
        Args:
            width: The number of channels.
            embedding: The size of e.
            dim: Where the channels are, as in `Scale`.
        """
        super().__init__()
        _check(self, width=width, embedding=embedding)
        self.dim = dim
        self.embedding = nn.Parameter(torch.zeros(embedding))
        self.projection = Warp(nn.Linear(embedding, 2 * width, bias=False))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.embedding)

    def forward(self, h: Tensor) -> Tensor:
        scale, shift = cast(Tensor, self.projection(self.embedding)).chunk(2)
        return _modulate(h, scale, shift, self.dim)


def _modulate(h: Tensor, scale: Tensor, shift: Tensor | None, dim: int) -> Tensor:
    shape = [1] * h.ndim
    shape[dim] = -1
    h = h * (1 + scale.view(shape))
    return h if shift is None else h + shift.view(shape)


def _check(layer: nn.Module, **sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise WarpgradError(f"{type(layer).__name__}({name}={size}): {name} must be at least 1.")
