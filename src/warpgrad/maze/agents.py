"""Agents: a recurrent network whose hidden state is projected into a policy and a value by two linear layers.

All share one interface. `agent.stepper()` fetches the weights once and returns the function that takes one time step,
(x_t, state) -> (h_t, state); `agent.start(x)` is the state before the first. A state is a tuple of tensors, batch
first. `agent.tape(length, batch)` takes the same steps faster. Parts that are marked as warp are φ, all others θ.

    RNN          h_t = tanh(V h_{t−1} + W x_t + b)
    Warp-RNN     the same, gated by a meta-LSTM that is φ (Eq. 20)
    HyperRNN     the network of the Warp-RNN, all of it θ
    T-Nets-RNN   h_t = tanh(T_h V h_{t−1} + T_x W x_t + T_b b), T's are φ
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from warpgrad.errors import require
from warpgrad.layers.recurrent import HyperState, WarpHyperCell
from warpgrad.maze.tapes import Tape, WarpTape
from warpgrad.model.partition import Warp

State = tuple[Tensor, ...]
RecurrentStep = Callable[[Tensor, State], tuple[Tensor, State]]


class Agent(nn.Module, ABC):
    """The interface of all agents, which map features to a hidden state, a policy and a value."""

    def __init__(self, hidden: int, actions: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.policy = nn.Linear(hidden, actions)
        self.value = nn.Linear(hidden, 1)

    @abstractmethod
    def stepper(self) -> RecurrentStep:
        """Return the function (x_t, state) -> (h_t, state) for a whole roll-out with the current weights."""

    def tape(self, length: int, batch: int) -> Tape | None:
        """Return a tape for a roll-out where its hand-written backward pass is faster than autograd, else None."""
        del length, batch
        return None

    def start(self, x: Tensor) -> State:
        """Return the state before the first observation, all zeros, for the batch of `x`."""
        return (x.new_zeros(len(x), self.hidden),)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, Tensor, State]:
        """Take one time step and return log π, V and the state after it."""
        h, state = self.stepper()(x, self.start(x) if state is None else state)
        return F.log_softmax(self.policy(h), dim=1), self.value(h).squeeze(1), state


class RNNAgent(Agent):
    """The baseline: a basic RNN, with the names and the initialisation of `nn.RNNCell` and one bias instead of two."""

    def __init__(self, features: int, hidden: int, actions: int) -> None:
        super().__init__(hidden, actions)
        self.weight_ih = uniform_parameter(hidden, hidden, features)
        self.weight_hh = uniform_parameter(hidden, hidden, hidden)
        self.bias = uniform_parameter(hidden, hidden)

    def maps(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return W, V and b as they act on x_t, h_{t−1} and 1."""
        return self.weight_ih, self.weight_hh, self.bias

    def stepper(self) -> RecurrentStep:
        onto_input, onto_hidden, bias = self.maps()
        onto_both = torch.cat([onto_input, onto_hidden], dim=1)

        def step(x: Tensor, state: State) -> tuple[Tensor, State]:
            h = torch.tanh(F.linear(torch.cat([x, state[0]], dim=1), onto_both, bias))
            return h, (h,)

        return step


class MemorylessAgent(Agent):
    """h_t = tanh(W x_t + b): an agent that knows the last observation alone."""

    def __init__(self, features: int, hidden: int, actions: int) -> None:
        super().__init__(hidden, actions)
        self.layer = nn.Linear(features, hidden)

    def start(self, x: Tensor) -> State:
        del x
        return ()

    def stepper(self) -> RecurrentStep:
        return lambda x, state: (torch.tanh(self.layer(x)), state)


class WarpAgent(Agent):
    """The Warp-RNN; with every parameter in θ (`Learner(..., warp=())`) it is the HyperRNN."""

    def __init__(
        self, features: int, hidden: int, actions: int, *, context: int | None = None, gate_bias: float | None = None
    ) -> None:
        """Build the agent; see `warpgrad.layers.WarpHyperCell` for `context` (its `context_size`) and `gate_bias`."""
        super().__init__(hidden, actions)
        self.cell = WarpHyperCell(features, hidden, context_size=context, gate_bias=gate_bias)

    def start(self, x: Tensor) -> State:
        state = self.cell.initial_state(x)
        return (*state.task, *state.meta)

    def stepper(self) -> RecurrentStep:
        def step(x: Tensor, state: State) -> tuple[Tensor, State]:
            h, z, memory = state
            h, after = self.cell(x, HyperState((h,), (z, memory)))
            return h, (*after.task, *after.meta)

        return step

    def tape(self, length: int, batch: int) -> Tape:
        return WarpTape(self.cell, length, batch)


class TNetsAgent(RNNAgent):
    """Linear warps: three meta-learned square matrices. They act on weights, so the products are computed once."""

    def __init__(
        self, features: int, hidden: int, actions: int, *, transform: Literal["identity", "drawn"] = "identity"
    ) -> None:
        """Build the agent with T's that start at the identity, as the plain RNN, or drawn like any other layer."""
        super().__init__(features, hidden, actions)
        require(transform in ("identity", "drawn"), f"transform={transform!r} is unknown; choose identity or drawn.")
        identity = transform == "identity"
        starts = {
            name: nn.Parameter(torch.eye(hidden)) if identity else uniform_parameter(hidden, hidden, hidden)
            for name in ("hidden", "input", "bias")
        }
        self.transforms = Warp(nn.ParameterDict(starts))

    def maps(self) -> tuple[Tensor, Tensor, Tensor]:
        transforms = self.transforms
        w, v, b = super().maps()
        return transforms["input"] @ w, transforms["hidden"] @ v, transforms["bias"] @ b


def uniform_parameter(fan: int, *shape: int) -> nn.Parameter:
    """Draw a parameter from U(−1/√fan, 1/√fan), as torch does for recurrent weights."""
    bound = 1 / math.sqrt(fan)
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))
