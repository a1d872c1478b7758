"""Gradient clipping in the inner loop, around any rule."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from warpgrad.errors import WarpgradError
from warpgrad.rules.base import Rule, safe_sqrt
from warpgrad.tensors import Tensors


class Clip(Rule):
    """`Clip(SGD(0.1), norm=1.0)`: the rule sees a gradient scaled down to a norm, or cut to ±value per entry.

    The norm is that of all task parameters together. Clipping is part of the rule, so the exact
    objective differentiates through it.
    """

    def __init__(self, rule: Rule, *, norm: float | None = None, value: float | None = None) -> None:
        super().__init__()
        if (norm is None) == (value is None):
            raise WarpgradError("Clip(...) takes exactly one of norm= and value=.")
        bound = norm if norm is not None else value
        if bound is None or not bound > 0:
            raise WarpgradError(f"Clip(...): the bound must be greater than 0, not {bound}.")
        self.rule = rule
        self.norm = norm
        self.value = value
        self.meta = rule.meta

    def prepare(self, theta0: Mapping[str, Tensor]) -> None:
        self.rule.prepare(theta0)
        self.meta = self.rule.meta

    def init(self, theta: Mapping[str, Tensor]) -> Tensors:
        return self.rule.init(theta)

    def update(
        self,
        gradient: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        theta: Mapping[str, Tensor],
        meta: Mapping[str, Tensor],
    ) -> tuple[Tensors, Tensors]:
        return self.rule.update(self._clipped(gradient), state, theta, meta)

    def _clipped(self, gradient: Mapping[str, Tensor]) -> Tensors:
        if self.norm is None:
            return {name: value.clamp(-self.value, self.value) for name, value in gradient.items()}  # type: ignore[operator]
        total = safe_sqrt(torch.stack([value.square().sum() for value in gradient.values()]).sum())
        factor = torch.where(total > self.norm, self.norm / torch.where(total > 0, total, 1.0), 1.0)
        return {name: value * factor for name, value in gradient.items()}
