"""Meta-SGD: a learned step size for every single parameter."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from warpgrad.rules.base import Rule
from warpgrad.tensors import Tensors


class MetaSGD(Rule):
    """θ' = θ − α ∘ ∇L with α of θ's shape, meta-learned together with θ0; entries may become negative.

    α begins at `lr` everywhere. Its names are θ's own, its optimiser group is `rule`.
    """

    elementwise = True

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = self._scalar("lr", lr)

    def prepare(self, theta0: Mapping[str, Tensor]) -> None:
        super().prepare(theta0)
        for name, value in theta0.items():
            if name not in self.meta:
                self.meta[name] = torch.full_like(value, self.lr, requires_grad=True)

    def update(
        self,
        gradient: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        theta: Mapping[str, Tensor],
        meta: Mapping[str, Tensor],
    ) -> tuple[Tensors, Tensors]:
        del state
        return {name: value - meta[name] * gradient[name] for name, value in theta.items()}, {}
