"""Agents: a recurrent network whose hidden state is projected into a policy and a value by two linear layers.

All have one interface. `agent.stepper(weights)` fetches the weights once and returns the function that takes one time
step, (x_t, state) -> (h_t, state); `weights` says how they enter the graph. `agent.start(x)` is the state before the
first. A state is a tuple of tensors, batch first. Parts that are marked as warp are φ; everything else is θ.

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

from warpgrad.layers.hypernetwork import WarpHyperCell
from warpgrad.maze.weights import Weights
from warpgrad.partition import Warp

State = tuple[Tensor, ...]
Step = Callable[[Tensor, State], tuple[Tensor, State]]


class Agent(nn.Module, ABC):
    """Features in, hidden state, policy and value out."""

    def __init__(self, hidden: int, actions: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.policy = nn.Linear(hidden, actions)
        self.value = nn.Linear(hidden, 1)

    @abstractmethod
    def stepper(self, weights: Weights) -> Step:
        """One time step as a function of (x_t, state), for a whole roll-out with the weights of this moment."""

    def start(self, x: Tensor) -> State:
        """The state before the first observation, for the batch of `x`: all zeros."""
        return (x.new_zeros(len(x), self.hidden),)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, Tensor, State]:
        """One time step: log π, V and the state after it."""
        h, state = self.stepper(Weights())(x, self.start(x) if state is None else state)
        return F.log_softmax(self.policy(h), dim=1), self.value(h).squeeze(1), state


class RNNAgent(Agent):
    """The baseline: a basic RNN, with the names and the initialisation of `nn.RNNCell` and one bias instead of two."""

    def __init__(self, features: int, hidden: int, actions: int) -> None:
        super().__init__(hidden, actions)
        self.weight_ih = drawn(hidden, hidden, features)
        self.weight_hh = drawn(hidden, hidden, hidden)
        self.bias = drawn(hidden, hidden)

    def maps(self) -> tuple[Tensor, Tensor, Tensor]:
        """W, V and b as they act on x_t, h_{t−1} and 1."""
        return self.weight_ih, self.weight_hh, self.bias

    def stepper(self, weights: Weights) -> Step:
        onto_input, onto_hidden, bias = self.maps()
        onto_both = weights.linear(torch.cat([onto_input, onto_hidden], dim=1), bias)

        def step(x: Tensor, state: State) -> tuple[Tensor, State]:
            h = torch.tanh(onto_both(torch.cat([x, state[0]], dim=1)))
            return h, (h,)

        return step


class MemorylessAgent(Agent):
    """h_t = tanh(W x_t + b): what can be had from the last observation alone."""

    def __init__(self, features: int, hidden: int, actions: int) -> None:
        super().__init__(hidden, actions)
        self.layer = nn.Linear(features, hidden)

    def start(self, x: Tensor) -> State:
        del x
        return ()

    def stepper(self, weights: Weights) -> Step:
        layer = weights.linear(self.layer.weight, self.layer.bias)
        return lambda x, state: (torch.tanh(layer(x)), state)


class WarpAgent(Agent):
    """The Warp-RNN; with every parameter in θ (`Learner(..., warp=())`) it is the HyperRNN."""

    def __init__(
        self, features: int, hidden: int, actions: int, *, context: int | None = None, gate_bias: float | None = None
    ) -> None:
        """`context`, the units of the meta-LSTM, and `gate_bias` as in `warpgrad.layers.WarpHyperCell`."""
        super().__init__(hidden, actions)
        self.cell = WarpHyperCell(features, hidden, context_size=context, gate_bias=gate_bias)

    def start(self, x: Tensor) -> State:
        state = self.cell.initial_state(x)
        return (*state.task, *state.meta)

    def stepper(self, weights: Weights) -> Step:
        """The step of `WarpHyperCell`, with products of the same input taken as one."""
        cell, lstm = self.cell, self.cell.meta_lstm
        size = cell.context_size
        # torch has the gates of an LSTM as enter, forget, candidate, leave; those with a sigmoid are to lie together.
        enter, forget, candidate, leave = torch.split(torch.arange(4 * size), size)
        rows = torch.cat([enter, forget, leave, candidate]).to(lstm.weight_ih.device)
        onto_gates = weights.linear(
            torch.cat([lstm.weight_ih, lstm.weight_hh], dim=1)[rows], (lstm.bias_ih + lstm.bias_hh)[rows]
        )
        onto_modulation = weights.linear(cell.projection.weight, cell.projection.bias)
        onto_hidden, onto_input = weights.linear(cell.weight_hh), weights.linear(cell.weight_ih)
        bias, sizes = weights.other(cell.bias), cell.modulations

        def step(x: Tensor, state: State) -> tuple[Tensor, State]:
            h, z, memory = state
            gates, candidate = torch.split(onto_gates(torch.cat([x, h, z], dim=1)), [3 * size, size], dim=1)
            enter, forget, leave = torch.split(torch.sigmoid(gates), size, dim=1)
            memory = torch.addcmul(forget * memory, enter, torch.tanh(candidate))
            z = leave * torch.tanh(memory)
            h_in, h_out, x_in, x_out, b = torch.split(torch.tanh(onto_modulation(z)), sizes, dim=1)
            total = torch.addcmul(b * bias, h_out, onto_hidden(h_in * h))
            h = torch.tanh(torch.addcmul(total, x_out, onto_input(x_in * x)))
            return h, (h, z, memory)

        return step


class TNetsAgent(RNNAgent):
    """Linear warps: three meta-learned square matrices. They act on weights, so their products are taken once."""

    def __init__(
        self, features: int, hidden: int, actions: int, *, transform: Literal["identity", "drawn"] = "identity"
    ) -> None:
        """`transform` is where the T's start: at the identity, as the plain RNN, or drawn like any other layer."""
        super().__init__(features, hidden, actions)
        identity = transform == "identity"
        starts = {
            name: nn.Parameter(torch.eye(hidden)) if identity else drawn(hidden, hidden, hidden)
            for name in ("hidden", "input", "bias")
        }
        self.transforms = Warp(nn.ParameterDict(starts))

    def maps(self) -> tuple[Tensor, Tensor, Tensor]:
        transforms = self.transforms
        w, v, b = super().maps()
        return transforms["input"] @ w, transforms["hidden"] @ v, transforms["bias"] @ b


def drawn(fan: int, *shape: int) -> nn.Parameter:
    """U(−1/√fan, 1/√fan), as torch draws recurrent weights."""
    bound = 1 / math.sqrt(fan)
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))
