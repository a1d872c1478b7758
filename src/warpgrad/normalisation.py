"""What batch-norm does while a task is learned, while the meta-loss is taken, and at test.

| policy    | adaptation and meta-loss | test                      | statistics                          |
|-----------|--------------------------|---------------------------|-------------------------------------|
| `running` | batch statistics         | the task's running ones   | reset at the start of every task    |
| `batch`   | batch statistics         | batch statistics          | never used                          |
| `frozen`  | the module's own ones    | the module's own ones     | never changed                       |

`running` is the default. The statistics that the meta-loss sees are thrown away: only adaptation moves them.

What bites: running statistics begin at mean 0 and variance 1, and with the usual momentum of 0.1 they need some tens
of steps to arrive. For tasks of a few steps use `batch`, or give the layers `momentum=None` (a cumulative average).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

BatchNormPolicy = Literal["running", "batch", "frozen"]
POLICIES: tuple[BatchNormPolicy, ...] = ("running", "batch", "frozen")


class Modes:
    """The training flag of every submodule in adaptation (`True`) and at test (`False`) under one policy."""

    def __init__(self, module: nn.Module, policy: BatchNormPolicy) -> None:
        self._flags: dict[bool, list[tuple[nn.Module, bool]]] = {True: [], False: []}
        for child in module.modules():
            for training, flags in self._flags.items():
                flag = training
                if isinstance(child, _NormBase):
                    flag = {"running": training, "batch": True, "frozen": False}[policy]
                flags.append((child, flag))

    def apply(self, training: bool) -> None:
        """Set the flags that differ. Cheap enough for every forward; also undoes a user's `eval()` in between."""
        for child, flag in self._flags[training]:
            if child.training is not flag:
                child.training = flag


def reset_statistics(module: nn.Module, buffers: dict[str, Tensor]) -> dict[str, Tensor]:
    """The buffers a task starts with: running mean 0, variance 1 and count 0; all other buffers as they are."""
    start = dict(buffers)
    for path, child in module.named_modules():
        if not isinstance(child, _NormBase):
            continue
        for local, value in (("running_mean", 0.0), ("running_var", 1.0), ("num_batches_tracked", 0)):
            name = f"{path}.{local}" if path else local
            if name in start:
                start[name] = torch.full_like(start[name], value)
    return start


def without_statistics(module: nn.Module) -> nn.Module:
    """Drop the running statistics, so that a plain module uses batch statistics at test too."""
    for child in module.modules():
        if isinstance(child, _NormBase):
            child.track_running_stats = False
            child.running_mean = child.running_var = child.num_batches_tracked = None
    return module
