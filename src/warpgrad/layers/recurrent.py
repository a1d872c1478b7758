"""Warp-HyperNetwork, (d) of the figure in App. A and the Warp-RNN of App. I: a warp LSTM gates a task RNN.

    h_t = tanh(U²_{h,t} V U¹_{h,t} h_{t−1} + U²_{x,t} W U¹_{x,t} x_t + U^b_t b),    U = diag(tanh(P z_t))

(Eq. 20). W, V, b are θ. The meta-LSTM, with hidden state z, and the five projections P are φ. The meta-LSTM
reads [x_t, h_{t−1}] before step t is taken, so z_t modulates that very step.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from warpgrad.errors import WarpgradError, require
from warpgrad.model.partition import Warp


class WarpLSTM(nn.Module):
    """Pairs of a task LSTM and a warp LSTM on top of it. Called like `nn.LSTM` with 2 · `pairs` layers.

        core = WarpLSTM(8, 64)
        outputs, state = core(inputs)                # (time, batch, 8) -> (time, batch, 64)
        outputs, state = core(more_inputs, state)    # continues from there

    The state is (h, c), each (2 · pairs, batch, hidden), in the order task, warp, task, warp, … The linear task head of
    the figure is left to the user, because it differs from problem to problem.

    Example:
        >>> outputs, state = layers.WarpLSTM(3, 5)(torch.rand(7, 2, 3))
        >>> tuple(outputs.shape), tuple(state[0].shape)
        ((7, 2, 5), (2, 2, 5))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        pairs: int = 1,
        batch_first: bool = False,
        skip_input: bool = False,
    ) -> None:
        """
        Args:
            input_size: Features of the inputs.
            hidden_size: Units of every LSTM.
            pairs: How many task LSTMs, each with its warp LSTM.
            batch_first: Inputs and outputs are (batch, time, feature); the state is not affected.
            skip_input: Each warp LSTM also sees the input of its task LSTM (the dashed line of the figure).
        """
        super().__init__()
        require(pairs >= 1, f"WarpLSTM(pairs={pairs}): there must be at least one pair.")
        self.skip_input = skip_input
        sizes = [input_size, *[hidden_size] * (pairs - 1)]
        self.task = nn.ModuleList(nn.LSTM(size, hidden_size, batch_first=batch_first) for size in sizes)
        self.warp = nn.ModuleList(
            nn.LSTM(hidden_size + size * skip_input, hidden_size, batch_first=batch_first) for size in sizes
        )
        Warp(self.warp)

    def forward(
        self, inputs: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        hidden: list[Tensor] = []
        memory: list[Tensor] = []

        def run(layer: nn.Module, sequence: Tensor) -> Tensor:
            place = len(hidden)
            begin = None if state is None else (state[0][place : place + 1], state[1][place : place + 1])
            outputs, (last_hidden, last_memory) = layer(sequence, begin)
            hidden.append(last_hidden)
            memory.append(last_memory)
            return cast(Tensor, outputs)

        for task, warp in zip(self.task, self.warp, strict=True):
            outputs = run(task, inputs)
            inputs = run(warp, torch.cat([outputs, inputs], dim=-1) if self.skip_input else outputs)
        return inputs, (torch.cat(hidden), torch.cat(memory))


_LINEAR_MAPS = {"rnn": 1, "lstm": 4}


class HyperState(NamedTuple):
    """The state that is carried from step to step.

    Example:
        >>> state = layers.WarpHyperCell(3, 5, context_size=4).initial_state(torch.rand(2, 3))
        >>> tuple(state.task[0].shape), tuple(state.meta[0].shape)
        ((2, 5), (2, 4))
    """

    task: tuple[Tensor, ...]
    """(h,) of a task RNN, (h, memory) of a task LSTM; each (batch, hidden)."""
    meta: tuple[Tensor, Tensor]
    """(z, memory) of the meta-LSTM; each (batch, context)."""


class WarpHyperCell(nn.Module):
    """One time step: `h, state = cell(x, state)`, with `state=None` at the beginning (all zeros).

    θ has the names and the initialisation of `nn.RNNCell` (or `nn.LSTMCell`), with one bias instead of two.

    Example:
        >>> h, state = layers.WarpHyperCell(3, 5)(torch.rand(2, 3))
        >>> tuple(h.shape)
        (2, 5)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        context_size: int | None = None,
        task: Literal["rnn", "lstm"] = "rnn",
        gate_bias: float | None = None,
    ) -> None:
        """
        Args:
            input_size: Features of x.
            hidden_size: Units of the task-learner, the size of h.
            context_size: Units of the meta-LSTM, the size of z; None means as many as the task-learner has.
            task: `rnn` as in Eq. 20, or `lstm` as drawn in the figure, whose four linear maps of x and of h
                are modulated in the same way.
            gate_bias: Gives every P a learned bias, which starts at this value. The paper has none, and a
                newly drawn meta-LSTM then gates nearly everything away; 1 begins with gates of about 0.76.
        """
        super().__init__()
        require(task in _LINEAR_MAPS, f"WarpHyperCell(task={task!r}) is unknown; choose rnn or lstm.")
        self.input_size, self.hidden_size = input_size, hidden_size
        self.context_size = hidden_size if context_size is None else context_size
        self.task = task
        rows = _LINEAR_MAPS[task] * hidden_size
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size))
        self.weight_hh = nn.Parameter(torch.empty(rows, hidden_size))
        self.bias = nn.Parameter(torch.empty(rows))
        self.reset_parameters()
        self.meta_lstm = Warp(nn.LSTMCell(input_size + hidden_size, self.context_size))
        # The five P's are stacked, so that one product replaces five.
        self.modulations = [hidden_size, rows, input_size, rows, rows]
        projection = nn.Linear(self.context_size, sum(self.modulations), bias=gate_bias is not None)
        if gate_bias is not None:
            nn.init.constant_(projection.bias, gate_bias)
        self.projection = Warp(projection)

    def reset_parameters(self) -> None:
        """Redraw W, V and b; φ does not change."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in (self.weight_ih, self.weight_hh, self.bias):
            nn.init.uniform_(parameter, -bound, bound)

    def initial_state(self, x: Tensor) -> HyperState:
        """Return a state of zeros for the batch of `x`, (batch, input)."""
        hidden = x.new_zeros(len(x), self.hidden_size)
        context = x.new_zeros(len(x), self.context_size)
        return HyperState((hidden,) if self.task == "rnn" else (hidden, hidden), (context, context))

    def forward(self, x: Tensor, state: HyperState | None = None) -> tuple[Tensor, HyperState]:
        if x.ndim != 2 or x.shape[1] != self.input_size:
            raise WarpgradError(f"WarpHyperCell reads (batch, {self.input_size}), but was given {tuple(x.shape)}.")
        state = self.initial_state(x) if state is None else state
        h = state.task[0]
        meta = self.meta_lstm(torch.cat([x, h], dim=1), state.meta)
        h_in, h_out, x_in, x_out, b = torch.split(torch.tanh(self.projection(meta[0])), self.modulations, dim=1)
        total = h_out * F.linear(h_in * h, self.weight_hh) + x_out * F.linear(x_in * x, self.weight_ih) + b * self.bias
        if self.task == "rnn":
            h = torch.tanh(total)
            return h, HyperState((h,), meta)
        enter, forget, candidate, leave = total.chunk(4, dim=1)
        memory = torch.sigmoid(forget) * state.task[1] + torch.sigmoid(enter) * torch.tanh(candidate)
        h = torch.sigmoid(leave) * torch.tanh(memory)
        return h, HyperState((h, memory), meta)


class WarpHyperNetwork(nn.Module):
    """The cell over a whole sequence: `outputs, state = network(inputs, state)`.

    Inputs are (time, batch, feature), or (batch, time, feature) with `batch_first`; outputs are every h_t.
    Steps taken one at a time with `network.cell` give the same numbers.

    Example:
        >>> outputs, state = layers.WarpHyperNetwork(layers.WarpHyperCell(3, 5))(torch.rand(7, 2, 3))
        >>> tuple(outputs.shape)
        (7, 2, 5)
    """

    def __init__(self, cell: WarpHyperCell, *, batch_first: bool = False) -> None:
        super().__init__()
        self.cell = cell
        self.time = 1 if batch_first else 0

    def forward(self, inputs: Tensor, state: HyperState | None = None) -> tuple[Tensor, HyperState]:
        if inputs.ndim != 3 or inputs.shape[self.time] == 0:
            raise WarpgradError(
                "WarpHyperNetwork reads three dimensions, time, batch and feature, with at least one time "
                f"step, but was given {tuple(inputs.shape)}."
            )
        outputs: list[Tensor] = []
        for x in inputs.unbind(self.time):
            h, state = self.cell(x, state)
            outputs.append(h)
        assert state is not None
        return torch.stack(outputs, dim=self.time), state
