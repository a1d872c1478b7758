"""What warp-layers do to activations (App. G): would they whiten them, as a natural gradient would?

If the learned geometry were Fisher's, activations after a linear warp would have mean 0 and covariance I.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

STATISTICS = ("mean_before", "distance_before", "mean_after", "distance_after")


def activation_statistics(activations: Tensor) -> tuple[float, float]:
    """Mean activation, and the Schatten-1 norm of Cov − I over channels; examples and locations are the samples."""
    rows = activations.detach().movedim(1, -1).reshape(-1, activations.shape[1]).double()
    covariance = torch.cov(rows.T).reshape(rows.shape[1], rows.shape[1])
    difference = covariance - torch.eye(len(covariance), dtype=rows.dtype, device=rows.device)
    return float(rows.mean()), float(torch.linalg.svdvals(difference).sum())


class ActivationRecord:
    """Statistics before and after each warp-layer `warp1`, `warp2`, …, at the steps that it watched."""

    def __init__(self, module: nn.Module) -> None:
        self._warps = [child for name, child in module.named_children() if name.startswith("warp")]
        self.steps: list[int] = []
        self._found: list[list[list[float]]] = []
        """Step -> layer -> statistics."""

    @contextmanager
    def watching(self, step: int) -> Iterator[None]:
        """Record the one forward pass inside the block."""
        found: list[list[float]] = []

        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            del module
            found.append([*activation_statistics(inputs[0]), *activation_statistics(output)])

        handles = [warp.register_forward_hook(hook) for warp in self._warps]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        if self._warps:
            self.steps.append(step)
            self._found.append(found)

    def statistics(self) -> Tensor:
        """[steps, layers, statistics]."""
        return torch.tensor(self._found, dtype=torch.float64)


def mean_statistics(records: Sequence[ActivationRecord]) -> dict[str, Any]:
    """Means over tasks: `steps`, and for each statistic its values by step and layer; empty without warp-layers."""
    if not records[0].steps:
        return {}
    means = torch.stack([record.statistics() for record in records]).mean(dim=0)
    named = {name: means[:, :, place].tolist() for place, name in enumerate(STATISTICS)}
    return {"steps": records[0].steps, **named}
