"""The rule of MT-Nets: on every task, only some rows of each W are adapted, and which is meta-learned."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from warpgrad.errors import WarpgradError
from warpgrad.rules.base import Rule, descend
from warpgrad.tensors import Tensors


class MaskedSGD(Rule):
    """W' = W − α · m ∘ ∇L, row by row, with m = σ((ζ + u) / temperature).

    ζ, one number per row, is meta-learned (group `rule`, from 0); u is the task's logistic noise. m is the
    Gumbel-softmax relaxation of a Bernoulli variable of probability σ(ζ), to which it tends as the temperature falls.
    """

    def __init__(self, lr: float, masks: Mapping[str, str], *, temperature: float = 0.5) -> None:
        """
        Args:
            lr: α.
            masks: Task parameter -> the name of the task parameter that holds the noise of its rows. Parameters that
                are not named are adapted in full; the noise itself never is.
            temperature: Of the relaxation.
        """
        super().__init__()
        self.lr = self._scalar("lr", lr)
        if not temperature > 0:
            raise WarpgradError(f"MaskedSGD(temperature={temperature}): the temperature must be greater than 0.")
        self.masks = dict(masks)
        self.temperature = temperature

    def prepare(self, theta0: Mapping[str, Tensor]) -> None:
        super().prepare(theta0)
        for name, noise in self.masks.items():
            if name not in theta0 or noise not in theta0 or theta0[name].shape[:1] != theta0[noise].shape:
                raise WarpgradError(f"MaskedSGD(masks=...): '{noise}' has not one entry for each row of '{name}'.")
            if noise not in self.meta:
                self.meta[noise] = torch.zeros_like(theta0[noise]).requires_grad_()

    def update(
        self,
        gradient: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        theta: Mapping[str, Tensor],
        meta: Mapping[str, Tensor],
    ) -> tuple[Tensors, Tensors]:
        del state
        rows = {
            noise: torch.sigmoid((meta[noise] + theta[noise].detach()) / self.temperature)
            for noise in self.masks.values()
        }
        new_theta: Tensors = {}
        for name, value in theta.items():
            direction = gradient[name]
            if name in self.masks:
                mask = rows[self.masks[name]]
                direction = mask.reshape(-1, *[1] * (value.ndim - 1)) * direction
            new_theta[name] = value if name in rows else descend(value, direction, self.lr)
        return new_theta, {}
