"""Agents whose recurrent weights change within an episode: w + α ∘ H, with learned w and α and a trace H per episode.

With x = h_{t−1}, the activity before a connection, and y = h_t, the activity after it:

    Hebbian                  H ← (1 − η) H + η x y
    simple modulation        H ← clip(H + M_t x y)
    retroactive modulation   H ← clip(H + M_t E),    E ← (1 − η) E + η x y

H_ij belongs to the connection from unit i to unit j. M_t = tanh(m(h_t)), a number that the network outputs, is fanned
out to the units j by a learned vector; clip is to [−1, 1]; M_t acts on E as it was before step t. H and E start at 0, η
is learned. The initial values of α, η and the fan-out are our choice.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from warpgrad.maze.agents import RecurrentStep, RNNAgent, State
from warpgrad.maze.tapes import Hebbian, PlasticTape, RetroactiveModulation, SimpleModulation, Tape, TraceRule

ALPHA_SCALE, ETA = 0.01, 0.01
"""The initial standard deviation of α, and the initial η."""


class PlasticAgent(RNNAgent):
    """y_j = tanh(Σ_i (w_ij + α_ij H_ij) x_i + W input + b)."""

    traces = 1
    """How many traces an episode carries, each [hidden, hidden]."""

    def __init__(self, features: int, hidden: int, actions: int) -> None:
        super().__init__(features, hidden, actions)
        self.alpha = nn.Parameter(ALPHA_SCALE * torch.randn(hidden, hidden))

    def start(self, x: Tensor) -> State:
        trace = x.new_zeros(len(x), self.hidden, self.hidden)
        return (*super().start(x), *[trace] * self.traces)

    def stepper(self) -> RecurrentStep:
        weight_ih, weight_hh, alpha, bias = self.weight_ih, self.weight_hh, self.alpha, self.bias

        def step(x: Tensor, state: State) -> tuple[Tensor, State]:
            before = state[0].unsqueeze(1)
            weight = torch.addcmul(weight_hh, alpha, state[1])
            after = torch.tanh(torch.baddbmm(F.linear(x, weight_ih, bias).unsqueeze(1), before, weight))
            return after.squeeze(1), (after.squeeze(1), *self.plasticity(before.transpose(1, 2), after, state[1:]))

        return step

    def tape(self, length: int, batch: int) -> Tape:
        return PlasticTape(self, self.rule(), length, batch)

    @abstractmethod
    def rule(self) -> TraceRule:
        """Return the rule of `plasticity` in the form that a tape needs."""

    @abstractmethod
    def plasticity(self, before: Tensor, after: Tensor, traces: State) -> State:
        """Return the traces after a step, where x is [batch, hidden, 1] and y is [batch, 1, hidden]."""


class HebbianAgent(PlasticAgent):
    def __init__(self, features: int, hidden: int, actions: int) -> None:
        super().__init__(features, hidden, actions)
        self.eta = nn.Parameter(torch.tensor(ETA))

    def rule(self) -> TraceRule:
        return Hebbian(self)

    def plasticity(self, before: Tensor, after: Tensor, traces: State) -> State:
        return (torch.baddbmm(traces[0] * (1 - self.eta), before, self.eta * after),)


class ModulatedAgent(PlasticAgent):
    """A plastic agent with a modulator M_t."""

    def __init__(self, features: int, hidden: int, actions: int) -> None:
        super().__init__(features, hidden, actions)
        self.modulator = nn.Linear(hidden, 1)
        self.fan_out = nn.Parameter(torch.ones(hidden))

    def modulation(self, after: Tensor) -> Tensor:
        """Return M_t for every unit, [batch, 1, hidden]."""
        return torch.tanh(self.modulator(after)) * self.fan_out


class SimpleModulationAgent(ModulatedAgent):
    def rule(self) -> TraceRule:
        return SimpleModulation(self)

    def plasticity(self, before: Tensor, after: Tensor, traces: State) -> State:
        return (clip(torch.baddbmm(traces[0], before, self.modulation(after) * after)),)


class RetroactiveModulationAgent(ModulatedAgent):
    traces = 2

    def __init__(self, features: int, hidden: int, actions: int) -> None:
        super().__init__(features, hidden, actions)
        self.eta = nn.Parameter(torch.tensor(ETA))

    def rule(self) -> TraceRule:
        return RetroactiveModulation(self)

    def plasticity(self, before: Tensor, after: Tensor, traces: State) -> State:
        hebbian, eligibility = traces
        changed = clip(torch.addcmul(hebbian, self.modulation(after), eligibility))
        return changed, torch.baddbmm(eligibility * (1 - self.eta), before, self.eta * after)


def clip(trace: Tensor) -> Tensor:
    """Clip a trace to [−1, 1]; `clamp` gives the same numbers, with a slower backward pass."""
    return F.hardtanh(trace)
