"""Adam as an inner rule, with a second derivative that is finite everywhere."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from warpgrad.errors import WarpgradError
from warpgrad.rules.base import Learned, Rule, descend, part, safe_sqrt
from warpgrad.tensors import Tensors


class Adam(Rule):
    """m' = β1 m + (1−β1) g, v' = β2 v + (1−β2) g², θ' = θ − α m̂ / (√v̂ + ε), as in `torch.optim.Adam`.

    What bites: a tiny ε makes the exact objective's second-order term enormous where gradients are near 0
    (the step is almost a sign function there). ε = 1e-8 is the usual value for plain adaptation; raise it when
    you meta-learn through it.
    """

    def __init__(
        self,
        lr: float | Learned = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__()
        self.lr = self._scalar("lr", lr)
        if not all(0 <= beta < 1 for beta in betas):
            raise WarpgradError(f"Adam(betas={betas}): both must be at least 0 and below 1.")
        if not eps > 0:
            raise WarpgradError(f"Adam(eps={eps}): eps must be greater than 0.")
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay

    def init(self, theta: Mapping[str, Tensor]) -> Tensors:
        first = next(iter(theta.values()))
        state: Tensors = {"step": torch.zeros((), dtype=first.dtype, device=first.device)}
        for name, value in theta.items():
            state[f"mean/{name}"] = torch.zeros_like(value)
            state[f"square/{name}"] = torch.zeros_like(value)
        return state

    def update(
        self,
        gradient: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        theta: Mapping[str, Tensor],
        meta: Mapping[str, Tensor],
    ) -> tuple[Tensors, Tensors]:
        lr: float | Tensor = meta.get("lr", self.lr)
        beta1, beta2 = self.betas
        step = state["step"] + 1
        new_state: Tensors = {"step": step}
        new_theta: Tensors = {}
        for name, value in theta.items():
            slope = gradient[name]
            if self.weight_decay:
                slope = torch.add(slope, value, alpha=self.weight_decay)
            mean = beta1 * part(state, "mean", name) + (1 - beta1) * slope
            square = beta2 * part(state, "square", name) + (1 - beta2) * slope * slope
            new_state[f"mean/{name}"], new_state[f"square/{name}"] = mean, square
            spread = safe_sqrt(square / (1 - beta2**step))
            new_theta[name] = descend(value, mean / (1 - beta1**step) / (spread + self.eps), lr)
        return new_theta, new_state
