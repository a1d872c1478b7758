"""Cheaper gradients of gradients, on which the exact objective's second-order term spends its time.

    with SecondOrderKernels(constant=theta.values()):
        output = model(x)                        # the user's own modules, unchanged

Inside the block, convolutions, batch normalisation by batch statistics and max-pooling are computed by the same forward
and backward kernels as always, but with a second derivative written out by hand. Operations whose second derivative is
wrong or missing in PyTorch are computed in plain ones (`plain_forms.py`). All else is left to PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from warpgrad.model.second_order.batch_norm import BatchNorm
from warpgrad.model.second_order.convolution import Convolution
from warpgrad.model.second_order.plain_forms import PLAIN_FORMS
from warpgrad.model.second_order.pooling import MaxPool2d

_DIMENSIONS: dict[Any, int] = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}


class SecondOrderKernels(TorchFunctionMode):
    """Replace the operations that have a cheaper second derivative.

    Tensors in `constant` get a gradient, but their effect on the gradients of others is not differentiated: θ in
    Eq. 11, whose second-order term is for φ alone.
    """

    def __init__(self, constant: Iterable[Tensor] = (), *, cheaper: bool = True) -> None:
        """Replace only what is wrong or missing in PyTorch unless `cheaper`: for passes mapped over a stack."""
        super().__init__()
        self._constant = {id(tensor) for tensor in constant}
        self._cheaper = cheaper

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in PLAIN_FORMS:
            return PLAIN_FORMS[func](*args, **kwargs)
        # Autocast casts inside a kernel; a custom backward pass would have kept the uncast tensors.
        if not self._cheaper or torch._C._is_any_autocast_enabled():
            return func(*args, **kwargs)
        if func in _DIMENSIONS:
            return self._convolution(func, *args, **kwargs)
        if func is F.batch_norm:
            return self._batch_norm(*args, **kwargs)
        if func is F.max_pool2d:
            return self._max_pool(func, *args, **kwargs)
        return func(*args, **kwargs)

    def _convolution(
        self,
        func: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        spatial = _DIMENSIONS[func]
        if isinstance(padding, str) or input.ndim != spatial + 2:
            return func(input, weight, bias, stride, padding, dilation, groups)
        geometry = (_each(stride, spatial), _each(padding, spatial), _each(dilation, spatial), groups)
        constant = id(weight) in self._constant
        return Convolution.apply(input, weight, bias, geometry, constant)  # type: ignore[no-untyped-call]

    def _batch_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        if not training or input.numel() <= input.shape[1]:  # the built-in raises for one value per channel
            return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
        running = (running_mean, running_var)
        constant = id(weight) in self._constant
        return BatchNorm.apply(input, weight, bias, running, momentum, eps, constant)  # type: ignore[no-untyped-call]

    def _max_pool(
        self,
        func: Any,
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        if input.ndim != 4 or return_indices:
            return func(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
        kernel = _each(kernel_size, 2)
        strides = _each(stride, 2) if stride else kernel
        geometry = (kernel, strides, _each(padding, 2), _each(dilation, 2), ceil_mode)
        return MaxPool2d.apply(input, geometry)  # type: ignore[no-untyped-call]


def _each(value: Any, spatial: int) -> list[int]:
    """Return one number for every dimension, or the numbers as they are."""
    return [value] * spatial if isinstance(value, int) else list(value)
