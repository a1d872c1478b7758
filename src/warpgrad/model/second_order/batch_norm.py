"""Batch normalisation by batch statistics, with a backward pass that is cheap to differentiate.

Per channel, over its m values, with x̂ = (x − μ)/σ and σ² = var + ε:

    dx = (γ/σ) P g,    dγ = g·x̂,    dβ = Σ g,    P = I − (1/m) 11ᵀ − (1/m) x̂x̂ᵀ.

For cotangents (v, vγ, vβ), S = v·dx + vγ dγ + vβ dβ has the derivatives

    ∂S/∂g = (γ/σ) Pv + vγ x̂ + vβ
    ∂S/∂x = −(S₁/σm) x̂ − (γ/σ²m) [(g·x̂) Pv + (v·x̂) Pg] + (vγ/σ) Pg,    S₁ = (γ/σ) v·Pg
    ∂S/∂γ = S₁/γ

because dx̂ = P dx / σ and dσ = x̂·dx / m. Both are sums of v, g, x̂ and 1 with one factor per channel: three reductions
and a few fused passes, where PyTorch's own formula makes some thirty.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from warpgrad.model.second_order.convolution import gradient_requested


class BatchNorm(torch.autograd.Function):
    """`F.batch_norm(..., training=True)`; running statistics are moved in place."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gamma: Tensor | None,
        beta: Tensor | None,
        running: tuple[Tensor | None, Tensor | None],
        momentum: float,
        eps: float,
        constant: bool,
    ) -> Tensor:
        output, mean, inverse = torch.native_batch_norm(x, gamma, beta, *running, True, momentum, eps)
        ctx.save_for_backward(x, gamma, mean, inverse)
        ctx.eps, ctx.constant = eps, constant
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, gamma, mean, inverse = ctx.saved_tensors
        wanted = (ctx.needs_input_grad[0], *ctx.needs_input_grad[1:3])
        if ctx.constant and gamma is not None:
            gamma = gamma.detach()
        found = BatchNormBackward.apply(  # type: ignore[no-untyped-call]
            grads[0], x, gamma, mean, inverse, ctx.eps, wanted
        )
        return *found, None, None, None, None


class BatchNormBackward(torch.autograd.Function):
    """(g, x, γ) -> (dx, dγ, dβ)."""

    @staticmethod
    def forward(
        ctx: Any,
        g: Tensor,
        x: Tensor,
        gamma: Tensor | None,
        mean: Tensor,
        inverse: Tensor,
        eps: float,
        wanted: tuple[bool, bool, bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        ctx.set_materialize_grads(False)
        # dγ and dβ are wanted in any case: they are the reductions that the derivative needs.
        dx, dgamma, dbeta = torch.ops.aten.native_batch_norm_backward(
            g, x, gamma, None, None, mean, inverse, True, eps, [True, True, True]
        )
        ctx.save_for_backward(g, x, gamma, mean, inverse, dgamma.clone(), dbeta.clone())
        return dx if wanted[0] else None, dgamma if wanted[1] else None, dbeta if wanted[2] else None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        v, v_gamma, v_beta = cotangents
        g, x, gamma, mean, inverse, g_x, g_sum = ctx.saved_tensors
        count = x.numel() // x.shape[1]
        channels = (1, -1, *[1] * (x.ndim - 2))
        over = [0, *range(2, x.ndim)]
        normal = (x - mean.view(channels)).mul_(inverse.view(channels))
        scale = inverse if gamma is None else gamma * inverse
        zero = torch.zeros_like(mean)
        v_gamma = zero if v_gamma is None else v_gamma
        v_beta = zero if v_beta is None else v_beta
        if v is None:
            v, v_sum, v_x, unscaled = torch.zeros_like(x), zero, zero, zero
        else:
            v_sum, v_x = v.sum(over), (v * normal).sum(over)
            unscaled = inverse * ((v * g).sum(over) - (v_sum * g_sum + v_x * g_x) / count)

        def combine(*terms: tuple[Tensor, Tensor], constant: Tensor) -> Tensor:
            (factor, tensor), *rest = terms
            total = torch.addcmul(constant.view(channels), tensor, factor.view(channels))
            for factor, tensor in rest:
                total.addcmul_(tensor, factor.view(channels))
            return total

        for_g = for_x = for_gamma = None
        if ctx.needs_input_grad[0]:
            by_normal = v_gamma - scale * v_x / count
            for_g = combine((scale, v), (by_normal, normal), constant=v_beta - scale * v_sum / count)
        if gradient_requested(ctx, 1):
            by_v = -scale * inverse * g_x / count
            by_g = inverse * (v_gamma - scale * v_x / count)
            by_normal = -(scale * unscaled + by_v * v_x + by_g * g_x) / count
            constant = -(by_v * v_sum + by_g * g_sum) / count
            for_x = combine((by_v, v), (by_g, g), (by_normal, normal), constant=constant)
        if ctx.needs_input_grad[2]:
            for_gamma = unscaled
        return for_g, for_x, for_gamma, None, None, None, None
