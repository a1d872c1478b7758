"""Stochastic gradient descent, with momentum, Nesterov momentum, weight decay and a learned step size."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from warpgrad.errors import WarpgradError
from warpgrad.rules.base import Learned, Rule, descend, part
from warpgrad.tensors import Tensors


class SGD(Rule):
    """θ' = θ − α v with v = ∇L + wθ, or with momentum μ: m' = μm + v and v = m' (Nesterov: v + μm').

    The conventions are those of `torch.optim.SGD`. Inside an objective the incoming m is a constant; the
    part of m' that this step's gradient contributes is differentiated.
    """

    elementwise = True

    def __init__(
        self,
        lr: float | Learned,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__()
        self.lr = self._scalar("lr", lr)
        if not 0 <= momentum < 1:
            raise WarpgradError(f"SGD(momentum={momentum}): momentum must be at least 0 and below 1.")
        if nesterov and momentum == 0:
            raise WarpgradError("SGD(nesterov=True) needs momentum > 0.")
        if weight_decay < 0:
            raise WarpgradError(f"SGD(weight_decay={weight_decay}): weight decay cannot be negative.")
        self.momentum = momentum
        self.nesterov = nesterov
        self.weight_decay = weight_decay

    def init(self, theta: Mapping[str, Tensor]) -> Tensors:
        if self.momentum == 0:
            return {}
        return {f"momentum/{name}": torch.zeros_like(value) for name, value in theta.items()}

    def update(
        self,
        gradient: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        theta: Mapping[str, Tensor],
        meta: Mapping[str, Tensor],
    ) -> tuple[Tensors, Tensors]:
        lr: float | Tensor = meta.get("lr", self.lr)
        new_theta: Tensors = {}
        new_state: Tensors = {}
        for name, value in theta.items():
            direction = gradient[name]
            if self.weight_decay:
                direction = torch.add(direction, value, alpha=self.weight_decay)
            if self.momentum:
                buffer = torch.add(direction, part(state, "momentum", name), alpha=self.momentum)
                new_state[f"momentum/{name}"] = buffer
                direction = torch.add(direction, buffer, alpha=self.momentum) if self.nesterov else buffer
            new_theta[name] = descend(value, direction, lr)
        return new_theta, new_state
