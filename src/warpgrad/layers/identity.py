"""Warps that begin as the identity map, so that the warped model begins as the plain one."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from warpgrad.errors import WarpgradError
from warpgrad.layers.warps import FiLM, Residual, Scale

M = TypeVar("M", bound=nn.Module)

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_WEIGHTED = (nn.Linear, *_CONVOLUTIONS, _BatchNorm, nn.GroupNorm, nn.LayerNorm)
_ZERO_AT_ZERO = (nn.Identity, nn.Dropout, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh)


def identity_(module: M) -> M:
    """Set the parameters of `module` in place so that it returns its input exactly, and return the module.

    Linear layers and convolutions become the identity matrix, scales become 1, a residual block gets a branch whose
    last layer is zero, and the same holds inside sequences. Anything that could not be exact (batch-norm or a
    non-linearity on the main path, channels or sizes that change) is an error.

    Warning: zero in the last layer of a branch means that the layers before it get their first gradient
    after the last one has moved.

    Example:
        >>> h = torch.rand(2, 4)
        >>> torch.equal(layers.identity_(layers.feed_forward_warp(4))(h), h)
        True
    """
    with torch.no_grad():
        _identity(module)
    return module


def _identity(module: nn.Module) -> None:
    if isinstance(module, nn.Sequential):
        for child in module:
            _identity(child)
    elif isinstance(module, Residual):
        if not isinstance(module.shortcut, nn.Identity):
            raise _impossible(module, "its shortcut has parameters")
        zero_(module.branch)
    elif isinstance(module, nn.Linear):
        if module.in_features != module.out_features:
            raise _impossible(module, "its width changes")
        nn.init.eye_(module.weight)
        _zero_bias(module.bias)
    elif isinstance(module, _CONVOLUTIONS):
        _check_convolution(module)
        nn.init.dirac_(module.weight, module.groups)
        _zero_bias(module.bias)
    elif isinstance(module, Scale | FiLM):
        module.reset_parameters()
    elif isinstance(module, nn.ReLU):
        raise _impossible(module, "it keeps non-negative inputs only; apply identity_ to the part in front of it")
    elif not isinstance(module, nn.Identity):
        raise _impossible(module, "no choice of its parameters makes it the identity")


def _check_convolution(module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> None:
    if module.in_channels != module.out_channels:
        raise _impossible(module, "its number of channels changes")
    if any(size % 2 == 0 for size in module.kernel_size):
        raise _impossible(module, "its kernel size is even")
    centred = tuple(step * (size - 1) // 2 for step, size in zip(module.dilation, module.kernel_size, strict=True))
    if any(step != 1 for step in module.stride) or module.padding not in ("same", centred):
        raise _impossible(module, "its stride or padding changes the size")


def zero_(module: nn.Module) -> None:
    """Make a residual branch return zero by setting its last layer to zero."""
    if isinstance(module, nn.Sequential):
        rest = [child for child in module if not isinstance(child, _ZERO_AT_ZERO)]
        if rest:
            zero_(rest[-1])
            return
    elif isinstance(module, _WEIGHTED) and module.weight is not None:
        nn.init.zeros_(module.weight)
        _zero_bias(module.bias)
        return
    raise _impossible(module, "the last layer of its residual branch has no weight to set to zero")


def _zero_bias(bias: Tensor | None) -> None:
    if bias is not None:
        nn.init.zeros_(bias)


def _impossible(module: nn.Module, reason: str) -> WarpgradError:
    return WarpgradError(f"{type(module).__name__} cannot be made the identity map: {reason}.")
