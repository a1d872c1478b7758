"""Warps that start by keeping the size of activations, so that a warped model starts like the plain one."""

from __future__ import annotations

import copy
import math
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from warpgrad.errors import WarpgradError
from warpgrad.layers.identity import zero_
from warpgrad.layers.warps import FiLM, Residual, Scale

M = TypeVar("M", bound=nn.Module)

_SCALED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, _BatchNorm, nn.GroupNorm, nn.LayerNorm)
_HOMOGENEOUS = (nn.Identity, nn.ReLU, nn.LeakyReLU, nn.Flatten)
"""f(c·h) = c·f(h) for c > 0."""
ALIKE = 1e-3
"""How far the two sizes may differ in the end, relative to one another: rounding, and the ε of a batch-norm."""


def root_mean_square(activations: Tensor) -> float:
    """Return √(mean of h²) over examples, channels and locations."""
    return math.sqrt(float(activations.detach().double().square().mean()))


def keep_variance_(module: M, inputs: Tensor) -> M:
    """Scale the last weights of `module` in place, so that its outputs have the root mean square of its inputs.

    All layers keep their random weights, except that those of the last weighted layer are rescaled; its bias becomes 0,
    so that the size of the outputs is proportional to its weights. Where the last weighted layer is a norm, its gain is
    scaled. A residual block gets a branch whose last layer is zero and so begins as its shortcut; scales begin at 1.
    The factor is measured rather than derived from the fan-in: a 3×3 kernel on 1×1 images meets padding in eight of its
    nine places.

    Batch-norm uses the statistics of `inputs`, and its running statistics are left alone. Returns the module. An error
    names what cannot be scaled, such as a tanh at the end, or a ReLU after a residual block with negative inputs.

    Warning: zero in the last layer of a residual branch means that the layers before it get their first gradient
    after the last one has moved.

    Example:
        >>> h = torch.rand(100, 4)
        >>> warped = layers.keep_variance_(nn.Linear(4, 4), h)(h)
        >>> bool((warped.square().mean() / h.square().mean() - 1).abs() < 1e-3)
        True
    """
    with torch.no_grad():
        scaled = _prepared(module)
        target, found = root_mean_square(inputs), _size_behind(module, inputs)
        if not 0 < target < math.inf or not 0 < found < math.inf:
            raise _impossible(module, f"their root mean square is {target:g} before it and {found:g} after it")
        if scaled is not None:
            scaled.mul_(target / found)
            found = _size_behind(module, inputs)
    if abs(found - target) > ALIKE * target:
        raise _impossible(module, f"their root mean square is {target:g} before it and {found:g} after it")
    return module


def _prepared(module: nn.Module) -> Tensor | None:
    """Return the weight that the size of the outputs is proportional to, with its bias set to 0, or None where there
    is none and the size of the outputs is proportional to that of the inputs."""
    if isinstance(module, nn.Sequential):
        for child in reversed(module):
            weight = _prepared(child)
            if weight is not None:
                return weight
        return None
    if isinstance(module, Residual):
        zero_(module.branch)
        return _prepared(module.shortcut)
    if isinstance(module, Scale | FiLM):
        module.reset_parameters()
        return None
    if isinstance(module, _SCALED) and module.weight is not None:
        if module.bias is not None:
            nn.init.zeros_(module.bias)
        return module.weight
    if isinstance(module, _HOMOGENEOUS):
        return None
    raise _impossible(module, "it ends in a layer whose outputs are not in proportion to a weight")


def _size_behind(module: nn.Module, inputs: Tensor) -> float:
    # Run a copy, because batch-norm would update its running statistics.
    return root_mean_square(copy.deepcopy(module).train()(inputs))


def _impossible(module: nn.Module, reason: str) -> WarpgradError:
    return WarpgradError(f"{type(module).__name__} cannot be scaled to keep the size of activations: {reason}.")
