"""Agents whose recurrent weights change within an episode: w + α ∘ H, with learned w and α and a trace H per episode.

With x = h_{t−1}, the activity before a connection, and y = h_t, the activity after it:

    Hebbian                  H ← (1 − η) H + η x y
    simple modulation        H ← clip(H + M_t x y)
    retroactive modulation   H ← clip(H + M_t E),    E ← (1 − η) E + η x y

H_ij belongs to the connection from unit i to unit j. M_t = tanh(m(h_t)), a number that the network puts out, is fanned
out to the units j by a learned vector; clip is to [−1, 1]; E, as it was before step t, is what M_t acts on. H and E
start at 0, η is learned. The starts of α, η and the fan-out are ours.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from warpgrad.maze.agents import Agent, RecurrentStep, State, uniform_parameter
from warpgrad.maze.tapes import Hebbian, PlasticTape, RetroactiveModulation, SimpleModulation, Tape, TraceRule

ALPHA_SCALE, ETA = 0.01, 0.01
"""Standard deviation of α, and η, at the start."""


class PlasticAgent(Agent):
    """y_j = tanh(Σ_i (w_ij + α_ij H_ij) x_i + W input + b)."""

    traces = 1
    """How many traces an episode carries, each [hidden, hidden]."""

    def __init__(self, features: int, hidden: int, actions: int) -> None:
        super().__init__(hidden, actions)
        self.weight_ih = uniform_parameter(hidden, hidden, features)
        self.weight_hh = uniform_parameter(hidden, hidden, hidden)
        self.bias = uniform_parameter(hidden, hidden)
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
        """`plasticity` for a tape."""

    @abstractmethod
    def plasticity(self, before: Tensor, after: Tensor, traces: State) -> State:
        """The traces after a step; x is [batch, hidden, 1] and y [batch, 1, hidden]."""


class HebbianAgent(PlasticAgent):
    def __init__(self, features: int, hidden: int, actions: int) -> None:
        super().__init__(features, hidden, actions)
        self.eta = nn.Parameter(torch.tensor(ETA))

    def rule(self) -> TraceRule:
        return Hebbian(self)

    def plasticity(self, before: Tensor, after: Tensor, traces: State) -> State:
        return (torch.baddbmm(traces[0] * (1 - self.eta), before, self.eta * after),)


class ModulatedAgent(PlasticAgent):
    """Adds M_t."""

    def __init__(self, features: int, hidden: int, actions: int) -> None:
        super().__init__(features, hidden, actions)
        self.modulator = nn.Linear(hidden, 1)
        self.fan_out = nn.Parameter(torch.ones(hidden))

    def modulation(self, after: Tensor) -> Tensor:
        """M_t for every unit, [batch, 1, hidden]."""
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
    """To [−1, 1]; `clamp` gives the same numbers, with a slower backward pass."""
    return F.hardtanh(trace)
