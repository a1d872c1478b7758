"""Max-pooling whose backward pass is cheap to differentiate.

The backward pass scatters the output's gradient to the places of the maxima; its derivative gathers from them. PyTorch
gathers in planes and so copies channels-last tensors both ways; here channels stay last.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

PoolingGeometry = tuple[list[int], list[int], list[int], list[int], bool]
"""Kernel, stride, padding, dilation, ceil_mode."""


class MaxPool2d(torch.autograd.Function):
    """`F.max_pool2d` of [n, channels, height, width]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, geometry: PoolingGeometry) -> Tensor:
        output, places = torch.ops.aten.max_pool2d_with_indices(x, *geometry)
        ctx.save_for_backward(x, places)
        ctx.geometry = geometry
        found: Tensor = output
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, places = ctx.saved_tensors
        return MaxPool2dBackward.apply(grads[0], x.detach(), places, ctx.geometry), None  # type: ignore[no-untyped-call]


class MaxPool2dBackward(torch.autograd.Function):
    """Gradient of the output -> gradient of the input; linear, and constant in the input almost everywhere."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, x: Tensor, places: Tensor, geometry: PoolingGeometry) -> Tensor:
        ctx.save_for_backward(places)
        found: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(grad, x, *geometry, places)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        count, channels, height, width = places.shape
        flat = cotangents[0].permute(0, 2, 3, 1).reshape(count, -1, channels)
        chosen = flat.gather(1, places.permute(0, 2, 3, 1).reshape(count, -1, channels))
        return chosen.view(count, height, width, channels).permute(0, 3, 1, 2), None, None, None
