"""What warp-layers do to activations (App. G): would they whiten them, as a natural gradient would?

If the learned geometry were Fisher's, activations after a linear warp would have mean 0 and covariance I.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def activation_statistics(activations: Tensor) -> tuple[float, float]:
    """Mean activation, and the Schatten-1 norm of Cov − I over channels; examples and locations are the samples."""
    rows = activations.detach().movedim(1, -1).reshape(-1, activations.shape[1]).double()
    covariance = torch.cov(rows.T).reshape(rows.shape[1], rows.shape[1])
    difference = covariance - torch.eye(len(covariance), dtype=rows.dtype, device=rows.device)
    return float(rows.mean()), float(torch.linalg.svdvals(difference).sum())


class ActivationRecord:
    """Statistics before and after each warp-layer `warp1`, `warp2`, …, averaged over all calls it watched."""

    def __init__(self, module: nn.Module) -> None:
        self._warps = {name: child for name, child in module.named_children() if name.startswith("warp")}
        self._sums: dict[str, Tensor] = {}
        self._calls = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record every forward call inside the block."""
        handles = [warp.register_forward_hook(self._hook(name)) for name, warp in self._warps.items()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        self._calls += 1

    def means(self) -> dict[str, list[float]]:
        """One number per warp-layer for each statistic; empty where there are no warp-layers."""
        if not self._sums:
            return {}
        rows = torch.stack([self._sums[name] for name in self._warps]) / self._calls
        names = ("mean_before", "distance_before", "mean_after", "distance_after")
        return {name: rows[:, place].tolist() for place, name in enumerate(names)}

    def _hook(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            del module
            found = torch.tensor([*activation_statistics(inputs[0]), *activation_statistics(output)])
            self._sums[name] = self._sums[name] + found if name in self._sums else found

        return hook
