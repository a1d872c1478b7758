"""Batch-norm during adaptation, in the meta-loss, and at test.

| policy      | adaptation and meta-loss | test                            | statistics                       |
|-------------|--------------------------|---------------------------------|----------------------------------|
| `running`   | batch statistics         | the task's running ones         | reset at the start of every task |
| `corrected` | batch statistics         | the same, corrected for start   | reset at the start of every task |
| `batch`     | batch statistics         | batch statistics                | never used                       |
| `frozen`    | the module's own ones    | the module's own ones           | never changed                    |

`corrected` is the default: `benchmarks/batch_norm_default.py` has measured the first three on three small problems. The
statistics of the meta-loss are discarded: only adaptation updates them.

Warning: running statistics begin at mean 0 and variance 1, and with the usual momentum of 0.1 they need some tens
of steps to arrive; under `running` a task of a few steps is tested far from them. `corrected` takes out what is left of
the 0 and the 1 after n batches, (1 − momentum)ⁿ of them. `batch` needs test batches of many examples, and what it says
of an example depends on the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

BatchNormPolicy = Literal["running", "corrected", "batch", "frozen"]
POLICIES: tuple[BatchNormPolicy, ...] = ("running", "corrected", "batch", "frozen")
TRACKING: tuple[BatchNormPolicy, ...] = ("running", "corrected")
"""The policies under which each task tracks its own statistics."""

Paths = Iterable[tuple[str, nn.Module]]
"""Submodules with their paths, as `named_modules` gives them."""


class Modes:
    """The training flag of every submodule in adaptation (`True`) and at test (`False`) under one policy."""

    def __init__(self, module: nn.Module, policy: BatchNormPolicy) -> None:
        self._flags: dict[bool, list[tuple[nn.Module, bool]]] = {True: [], False: []}
        for child in module.modules():
            for training, flags in self._flags.items():
                flag = training
                if isinstance(child, _NormBase):
                    flag = training if policy in TRACKING else policy == "batch"
                flags.append((child, flag))

    def apply(self, training: bool) -> None:
        """Set the flags that differ. Cheap enough for every forward; also undoes a user's `eval()` in between."""
        for child, flag in self._flags[training]:
            if child.training is not flag:
                child.training = flag


def reset_statistics(modules: Paths, buffers: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the buffers with running mean 0, variance 1 and count 0, as a task starts with; others are unchanged."""
    start = dict(buffers)
    for _, (mean, variance, count) in _statistics(modules, buffers):
        for name, value in ((mean, 0.0), (variance, 1.0), (count, 0)):
            start[name] = torch.full_like(start[name], value)
    return start


def corrected_statistics(modules: Paths, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return running statistics without their start at 0 and 1: weighted means over the n batches alone.

    With momentum m a share of (1 − m)ⁿ is still the start. A cumulative average (momentum None) has no such share.
    """
    free = dict(buffers)
    for layer, (mean, variance, count) in _statistics(modules, buffers):
        batches = int(buffers[count])
        if batches and layer.momentum is not None:
            begun = (1.0 - layer.momentum) ** batches
            free[mean] = buffers[mean] / (1.0 - begun)
            free[variance] = (buffers[variance] - begun) / (1.0 - begun)
    return free


def without_statistics(module: nn.Module) -> nn.Module:
    """Drop the running statistics, so that a plain module uses batch statistics at test too."""
    for child in module.modules():
        if isinstance(child, _NormBase):
            child.track_running_stats = False
            child.running_mean = child.running_var = child.num_batches_tracked = None
    return module


def _statistics(modules: Paths, buffers: Mapping[str, Tensor]) -> Iterator[tuple[_NormBase, tuple[str, str, str]]]:
    """Yield every normalisation layer that tracks statistics, with the names of its mean, variance and count."""
    for path, child in modules:
        if isinstance(child, _NormBase):
            locals_ = ("running_mean", "running_var", "num_batches_tracked")
            mean, variance, count = (f"{path}.{local}" if path else local for local in locals_)
            if mean in buffers:
                yield child, (mean, variance, count)
