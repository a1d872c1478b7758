"""Roll-outs whose backward pass is written out by hand, for agents that learn from first-order gradients.

Autograd keeps a node and fresh memory for each of the thousands of small operations of a roll-out. A `Tape` takes the
same steps into memory that is set aside once, and goes back over it with the derivatives as formulas:

    tape = agent.tape(length, batch)    # or None: the agent has none
    h = tape.step(x)                    # once per time step
    hidden = tape.joined()              # [steps, batch, units]; gradients flow from here into the weights

The numbers are those of autograd but for rounding; `MazeRollOut(taped=False)` is the reference.

What bites: such gradients cannot be differentiated again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from warpgrad.errors import WarpgradError


class Tape(ABC):
    """One roll-out of a batch of episodes."""

    weights: Sequence[Tensor]
    """What gradients are taken of, as parts of the graph."""
    hidden: Tensor
    """h_t for every step, [steps, batch, units], filled as steps are taken."""
    taken = 0
    """Steps so far."""

    def step(self, x: Tensor) -> Tensor:
        """One time step: x_t in, h_t out, without a graph."""
        if self.taken == len(self.hidden):
            raise WarpgradError(f"this tape is for {self.taken} steps; make a longer one.")
        self.taken += 1
        return self.take(self.taken - 1, x)

    @abstractmethod
    def take(self, t: int, x: Tensor) -> Tensor:
        """Step t."""

    @abstractmethod
    def gradients(self, gradient: Tensor) -> Sequence[Tensor]:
        """Those of the weights, in their order, from that of all hidden states."""

    def joined(self) -> Tensor:
        """The hidden states as a function of the weights, once all steps are taken."""
        if self.taken < len(self.hidden):
            raise WarpgradError(f"{self.taken} of this tape's {len(self.hidden)} steps are taken; take them all first.")
        result: Tensor = _Joined.apply(self, *self.weights)  # type: ignore[no-untyped-call]
        return result


class _Joined(torch.autograd.Function):
    """The whole roll-out as one node of the graph."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, *weights: Tensor) -> Tensor:
        ctx.tape = tape
        result = tape.hidden.detach()  # a tensor of its own, or tape and graph would keep each other alive
        # The tape has its own views of both; saved, they are checked for changes in place before the way back.
        ctx.save_for_backward(*weights, result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise WarpgradError("a taped roll-out cannot be differentiated twice; use MazeRollOut(taped=False).")
        _ = ctx.saved_tensors
        return (None, *ctx.tape.gradients(gradient))
