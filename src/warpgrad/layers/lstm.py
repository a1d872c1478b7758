"""Warp-LSTM, (c) of the figure in App. A: a stack of LSTMs, task and warp in turn."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from warpgrad.errors import WarpgradError
from warpgrad.partition import Warp


class WarpLSTM(nn.Module):
    """Pairs of a task LSTM and a warp LSTM on top of it. Called like `nn.LSTM` with 2 · `pairs` layers.

        core = WarpLSTM(8, 64)
        outputs, state = core(inputs)                # (time, batch, 8) -> (time, batch, 64)
        outputs, state = core(more_inputs, state)    # goes on where it was

    The state is (h, c), each (2 · pairs, batch, hidden), in the order task, warp, task, warp, … The linear
    task head of the figure is the user's own: what reads the outputs differs from problem to problem.
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
        if pairs < 1:
            raise WarpgradError(f"WarpLSTM(pairs={pairs}): there must be at least one pair.")
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
