"""How an agent's weights enter a roll-out: as they are, or with their gradients taken in one go at the end.

Backpropagation through T steps adds up T products g_tᵀ u_t for every matrix, each of one batch of episodes. `Deferred`
cuts the weights out of the graph of the steps, keeps what goes into and what comes out of their products, and takes

    ∂/∂W = Σ_t g_tᵀ u_t,    ∂/∂b = Σ_t g_t

as one product over all steps. The numbers are the same but for rounding.

What bites: deferred gradients cannot be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpgrad.errors import WarpgradError

Map = Callable[[Tensor], Tensor]


class Weights:
    """Weights as they are: every product is part of the graph."""

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Map:
        """u -> W u + b, to be called at every step."""
        return lambda u: F.linear(u, weight, bias)

    def other(self, weight: Tensor) -> Tensor:
        """A weight that steps use in some other way."""
        return weight

    def stacked(self, hidden: Sequence[Tensor]) -> Tensor:
        """What the steps led to, [steps, batch, units]."""
        return torch.stack(list(hidden))


@dataclass
class _Product:
    biased: bool
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    def gradients(self, found: Sequence[Tensor]) -> list[Tensor]:
        gradient = torch.cat(list(found))
        weight = gradient.t() @ torch.cat(self.inputs)
        return [weight, gradient.sum(dim=0)] if self.biased else [weight]


class Deferred(Weights):
    """For one roll-out: its weights' gradients are taken when the gradient of all hidden states is known."""

    def __init__(self) -> None:
        self._products: list[_Product] = []
        self._leaves: list[Tensor] = []
        self._matrices: list[Tensor] = []
        self._others: list[Tensor] = []
        self._end: Tensor | None = None

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Map:
        if not torch.is_grad_enabled():
            return super().linear(weight, bias)
        product = _Product(bias is not None)
        self._products.append(product)
        self._matrices += [weight] if bias is None else [weight, bias]
        fixed, offset = weight.detach(), None if bias is None else bias.detach()

        def apply(u: Tensor) -> Tensor:
            output = F.linear(u, fixed, offset)
            if not output.requires_grad:  # the first step, before which nothing depends on weights
                output.requires_grad_()
            # Without its graph, or what is kept for the backward pass would keep itself alive.
            product.inputs.append(u.detach())
            product.outputs.append(output)
            return output

        return apply

    def other(self, weight: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return weight
        self._others.append(weight)
        self._leaves.append(weight.detach().requires_grad_())
        return self._leaves[-1]

    def stacked(self, hidden: Sequence[Tensor]) -> Tensor:
        if not self._matrices:
            return super().stacked(hidden)
        self._end = super().stacked(hidden)
        result: Tensor = _Joined.apply(self, *self._matrices, *self._others)  # type: ignore[no-untyped-call]
        return result

    @property
    def end(self) -> Tensor:
        assert self._end is not None, "weights are joined once the steps are taken"
        return self._end

    def gradients(self, gradient: Tensor) -> list[Tensor]:
        """Those of the matrices, then of the others, from that of the hidden states."""
        outputs = [output for product in self._products for output in product.outputs]
        found = torch.autograd.grad(self.end, [*outputs, *self._leaves], gradient, retain_graph=True)
        result, begin = [], 0
        for product in self._products:
            result += product.gradients(found[begin : begin + len(product.outputs)])
            begin += len(product.outputs)
        return [*result, *found[begin:]]


class _Joined(torch.autograd.Function):
    """Puts the weights back into the graph, around all steps at once."""

    @staticmethod
    def forward(ctx: Any, book: Deferred, *weights: Tensor) -> Tensor:
        del weights
        ctx.book = book
        return book.end.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise WarpgradError("deferred gradients cannot be differentiated again; use MazeRollOut(deferred=False).")
        return (None, *ctx.book.gradients(gradient))
