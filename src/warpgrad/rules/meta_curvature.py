"""Meta-Curvature: the gradient of every tensor times learned Kronecker factors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from warpgrad.rules.base import Rule, descend
from warpgrad.tensors import Tensors

SIDES = ("out", "in", "filter")


def sides(shape: torch.Size) -> tuple[int, ...]:
    """The sizes of the factors: o of a vector, (o, i) of a matrix, (o, i, h·w) of a convolution's kernel."""
    return tuple(shape) if len(shape) < 3 else (shape[0], shape[1], shape[2:].numel())


class MetaCurvature(Rule):
    """θ' = θ − α · (∇L ×₁ M_o ×₂ M_i ×₃ M_f), each M a square matrix that begins as the identity.

    For a convolution's kernel [o, i, h, w], M_o mixes output channels, M_i input channels and M_f the h·w places of the
    filter: the preconditioner M_o ⊗ M_i ⊗ M_f of the flattened gradient. A matrix has no M_f, a vector only M_o. The
    factors are in the optimiser group `rule`, named `block1.conv.weight/out`, `/in`, `/filter`.

    What bites: a head on n features has an n × n factor.
    """

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = self._scalar("lr", lr)

    def prepare(self, theta0: Mapping[str, Tensor]) -> None:
        super().prepare(theta0)
        for name, value in theta0.items():
            for side, size in zip(SIDES, sides(value.shape), strict=False):
                if f"{name}/{side}" not in self.meta:
                    identity = torch.eye(size, dtype=value.dtype, device=value.device)
                    self.meta[f"{name}/{side}"] = identity.requires_grad_()

    def update(
        self,
        gradient: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        theta: Mapping[str, Tensor],
        meta: Mapping[str, Tensor],
    ) -> tuple[Tensors, Tensors]:
        del state
        new_theta: Tensors = {}
        for name, value in theta.items():
            direction = gradient[name].reshape(sides(value.shape))
            for place in range(direction.ndim):
                factor = meta[f"{name}/{SIDES[place]}"]
                direction = torch.tensordot(factor, direction, dims=([1], [place])).movedim(0, place)
            new_theta[name] = descend(value, direction.reshape(value.shape), self.lr)
        return new_theta, {}
