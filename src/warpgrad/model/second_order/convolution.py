"""Convolutions whose backward pass is cheap to differentiate.

With output gradient G, input I and weight W, the backward pass is

    dI = G ⋆ᵀ W,    dW = I ⋆ G,    db = Σ G,

bilinear in (G, I, W), so its own derivative for cotangents (vI, vW, vb) is made of the same three kernels:

    dG = vI ∗ W + I ∗ vW + vb,    dI = G ⋆ᵀ vW,    dW = vI ⋆ G.

PyTorch's own version computes dI and dW whether or not they are asked for, and dW as a convolution of transposed
tensors, which costs several times the weight-gradient kernel. Here dG is one convolution over stacked channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

ConvolutionGeometry = tuple[list[int], list[int], list[int], int]
"""Stride, padding, dilation, groups."""


class Convolution(torch.autograd.Function):
    """`torch.convolution` for 1, 2 or 3 spatial dimensions."""

    @staticmethod
    def forward(
        ctx: Any, image: Tensor, weight: Tensor, bias: Tensor | None, geometry: ConvolutionGeometry, constant: bool
    ) -> Tensor:
        ctx.save_for_backward(image, weight)
        ctx.geometry, ctx.constant, ctx.has_bias = geometry, constant, bias is not None
        return _convolve(image, weight, bias, geometry)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        image, weight = ctx.saved_tensors
        wanted = (gradient_requested(ctx, 0), gradient_requested(ctx, 1), ctx.has_bias and gradient_requested(ctx, 2))
        if ctx.constant:
            weight = weight.detach()
        found = ConvolutionBackward.apply(grads[0], image, weight, ctx.geometry, wanted)  # type: ignore[no-untyped-call]
        return *found, None, None


class ConvolutionBackward(torch.autograd.Function):
    """(G, I, W) -> (dI, dW, db)."""

    @staticmethod
    def forward(
        ctx: Any,
        grad: Tensor,
        image: Tensor,
        weight: Tensor,
        geometry: ConvolutionGeometry,
        wanted: tuple[bool, bool, bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(grad, image, weight)
        ctx.geometry = geometry
        found: tuple[Tensor | None, Tensor | None, Tensor | None] = _backward(grad, image, weight, geometry, wanted)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        grad, image, weight = ctx.saved_tensors
        along_image, along_weight, along_bias = cotangents
        geometry: ConvolutionGeometry = ctx.geometry
        for_grad = for_image = for_weight = None
        if ctx.needs_input_grad[0]:
            for_grad = _derivative(image, weight, along_image, along_weight, along_bias, geometry)
        if along_weight is not None and gradient_requested(ctx, 1):
            for_image = _backward(grad, image, along_weight, geometry, (True, False, False))[0]
        if along_image is not None and gradient_requested(ctx, 2):
            for_weight = _backward(grad, along_image, weight, geometry, (False, True, False))[1]
        return for_grad, for_image, for_weight, None, None


def _derivative(
    image: Tensor,
    weight: Tensor,
    along_image: Tensor | None,
    along_weight: Tensor | None,
    along_bias: Tensor | None,
    geometry: ConvolutionGeometry,
) -> Tensor | None:
    """Compute vI ∗ W + I ∗ vW + vb, in one convolution if both terms are there and channels are not grouped."""
    if along_image is not None and along_weight is not None and geometry[3] == 1:
        images, weights = torch.cat([along_image, image], 1), torch.cat([weight, along_weight], 1)
        return _convolve(images, weights, along_bias, geometry)
    total: Tensor | None = None
    for left, right in ((along_image, weight), (image, along_weight)):
        if left is None or right is None:
            continue
        term = _convolve(left, right, along_bias if total is None else None, geometry)
        total = term if total is None else total + term
    if total is None and along_bias is not None:
        shape = _convolve(image[:1], weight, None, geometry).shape
        total = along_bias.reshape(1, -1, *[1] * (image.ndim - 2)).expand(len(image), *shape[1:])
    return total


def _convolve(image: Any, weight: Any, bias: Tensor | None, geometry: ConvolutionGeometry) -> Tensor:
    stride, padding, dilation, groups = geometry
    no_output_padding = [0] * len(stride)
    return torch.convolution(image, weight, bias, stride, padding, dilation, False, no_output_padding, groups)


def _backward(
    grad: Tensor, image: Tensor, weight: Tensor, geometry: ConvolutionGeometry, wanted: Sequence[bool]
) -> Any:
    stride, padding, dilation, groups = geometry
    return torch.ops.aten.convolution_backward(
        grad, image, weight, [weight.shape[0]], stride, padding, dilation, False, [0] * len(stride), groups, wanted
    )


def gradient_requested(ctx: Any, place: int) -> bool:
    """Return whether the current backward pass uses the gradient of the tensor at `place` among the function's tensors.

    `ctx.needs_input_grad` is set for every tensor that requires gradients, requested or not. The inner gradient is
    taken for θ alone and the meta-gradient for φ alone: by that flag a third of all weight gradients of Eq. 11 would be
    computed for nothing. PyTorch's own operations ask the engine, and so do these.
    """
    node = ctx.next_functions[place][0]
    if node is None:
        return False
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:
        # For a leaf, the engine returns False if no gradient is requested, and raises if `autograd.grad` requests it.
        return True
