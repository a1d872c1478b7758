"""The tape of the plastic agents: w + α ∘ H acts on x = h_{t−1} and gives y = h_t, then a rule changes the traces.

With ȳ for the gradient of y, a step back is first that of the rule, which turns the gradients of the traces after the
step into those before it and says what it asks of x and y, and then that of the network,

    g = ȳ ∘ (1 − y²),   x̄ = (w + α ∘ H) g + …,   H̄ ← H̄ + α ∘ x gᵀ,   ᾱ = Σ H ∘ x gᵀ,   w̄ = Σ x gᵀ

A trace is a matrix for every episode, so time goes into reading and writing traces: each pass over them counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from warpgrad.maze.tape import Tape

if TYPE_CHECKING:
    from warpgrad.maze.plasticity import HebbianAgent, ModulatedAgent, PlasticAgent, RetroactiveModulationAgent

Traces = Sequence[Tensor]


class TraceRule(ABC):
    """How a step changes the traces, and the way back."""

    weights: Sequence[Tensor]
    """The rule's own parameters."""
    backs: list[Tensor]
    """Their gradients so far."""

    def __init__(self, *weights: Tensor) -> None:
        self.weights = weights
        self.backs = [torch.zeros_like(weight) for weight in weights]

    @abstractmethod
    def forward(self, x: Tensor, y: Tensor, before: Traces, after: Traces) -> None:
        """Write the traces after the step."""

    @abstractmethod
    def backward(self, x: Tensor, y: Tensor, before: Traces, after: Traces, backs: Traces) -> tuple[Tensor, Tensor]:
        """x̄ and ȳ, as far as the rule goes; `backs` are the traces' gradients, changed in place."""


class Hebbian(TraceRule):
    """H ← (1 − η) H + η x y; also what becomes of E."""

    def __init__(self, agent: HebbianAgent | RetroactiveModulationAgent) -> None:
        super().__init__(agent.eta)
        self._eta = float(agent.eta.detach())

    def forward(self, x: Tensor, y: Tensor, before: Traces, after: Traces) -> None:
        torch.mul(before[-1], 1 - self._eta, out=after[-1]).baddbmm_(x.unsqueeze(2), (self._eta * y).unsqueeze(1))

    def backward(self, x: Tensor, y: Tensor, before: Traces, after: Traces, backs: Traces) -> tuple[Tensor, Tensor]:
        del after
        from_x, from_y = _between(x, backs[-1], y)
        self.backs[0].add_((from_x * y).sum() - torch.dot(backs[-1].flatten(), before[-1].flatten()))
        backs[-1].mul_(1 - self._eta)
        return from_y.mul_(self._eta), from_x.mul_(self._eta)


class _Modulation:
    """M_t = tanh(m(y)) fanned out, on [batch, units], and the way back."""

    def __init__(self, agent: ModulatedAgent) -> None:
        self.weights = agent.modulator.weight, agent.modulator.bias, agent.fan_out
        self._weight, self._bias, self._fan_out = (weight.detach() for weight in self.weights)

    def forward(self, y: Tensor) -> Tensor:
        return self._squashed(y) * self._fan_out

    def backward(self, y: Tensor, back: Tensor, sums: Sequence[Tensor]) -> Tensor:
        """ȳ from M̄; adds to the gradients of the weights, `sums`."""
        squashed = self._squashed(y)
        sums[2].add_((back * squashed).sum(dim=0))
        through = (back @ self._fan_out).unsqueeze(1) * (1 - squashed.square())
        sums[0].addmm_(through.t(), y)
        sums[1].add_(through.sum(dim=0))
        return through * self._weight

    def _squashed(self, y: Tensor) -> Tensor:
        return torch.tanh(torch.addmm(self._bias, y, self._weight.t()))


class SimpleModulation(TraceRule):
    """H ← clip(H + M_t x y)."""

    def __init__(self, agent: ModulatedAgent) -> None:
        self._modulation = _Modulation(agent)
        super().__init__(*self._modulation.weights)

    def forward(self, x: Tensor, y: Tensor, before: Traces, after: Traces) -> None:
        modulated = self._modulation.forward(y).mul_(y)
        torch.baddbmm(before[0], x.unsqueeze(2), modulated.unsqueeze(1), out=after[0]).clamp_(-1, 1)

    def backward(self, x: Tensor, y: Tensor, before: Traces, after: Traces, backs: Traces) -> tuple[Tensor, Tensor]:
        del before
        _through_clip(backs[0], after[0])
        modulation = self._modulation.forward(y)
        from_x, from_y = _between(x, backs[0], modulation * y)
        through = self._modulation.backward(y, from_x * y, self.backs)
        return from_y, through.addcmul_(from_x, modulation)


class RetroactiveModulation(TraceRule):
    """H ← clip(H + M_t E), E ← (1 − η) E + η x y."""

    def __init__(self, agent: RetroactiveModulationAgent) -> None:
        self._modulation, self._eligibility = _Modulation(agent), Hebbian(agent)
        super().__init__(*self._modulation.weights, *self._eligibility.weights)
        self.backs[3:] = self._eligibility.backs

    def forward(self, x: Tensor, y: Tensor, before: Traces, after: Traces) -> None:
        modulation = self._modulation.forward(y).unsqueeze(1)
        torch.addcmul(before[0], modulation, before[1], out=after[0]).clamp_(-1, 1)
        self._eligibility.forward(x, y, before, after)

    def backward(self, x: Tensor, y: Tensor, before: Traces, after: Traces, backs: Traces) -> tuple[Tensor, Tensor]:
        _through_clip(backs[0], after[0])
        x_back, y_back = self._eligibility.backward(x, y, before, after, backs)
        backs[1].addcmul_(backs[0], self._modulation.forward(y).unsqueeze(1))
        modulation_back = (backs[0] * before[1]).sum(dim=1)
        return x_back, y_back.add_(self._modulation.backward(y, modulation_back, self.backs))


class PlasticTape(Tape):
    def __init__(self, agent: PlasticAgent, rule: TraceRule, length: int, batch: int) -> None:
        self._rule, units = rule, agent.hidden
        self.weights = [agent.weight_ih, agent.weight_hh, agent.bias, agent.alpha, *rule.weights]
        self._onto, self._w, self._b, self._alpha = (weight.detach() for weight in self.weights[:4])
        self._inputs = self._w.new_empty(length, batch, self._onto.shape[1])
        self._states = self._w.new_empty(length + 1, batch, units)
        traces = [self._w.new_empty(length + 1, batch, units, units) for _ in range(agent.traces)]
        for start in (self._states, *traces):
            start[0] = 0
        self._traces = list(zip(*(trace.unbind() for trace in traces), strict=True))
        self._spare = torch.empty_like(traces[0][0])
        self.hidden = self._states[1:]

    def take(self, t: int, x: Tensor) -> Tensor:
        self._inputs[t] = x
        before, traces = self._states[t], self._traces[t]
        weight = torch.addcmul(self._w, self._alpha, traces[0], out=self._spare)
        total = torch.addmm(self._b, x, self._onto.t()).unsqueeze(1).baddbmm_(before.unsqueeze(1), weight)
        after = torch.tanh(total.squeeze(1), out=self._states[t + 1])
        self._rule.forward(before, after, traces, self._traces[t + 1])
        return after

    def gradients(self, gradient: Tensor) -> Sequence[Tensor]:
        traces, states, spare = self._traces, self._states, self._spare
        backs = [torch.zeros_like(trace) for trace in traces[0]]
        alpha_back, total_backs = torch.zeros_like(spare), torch.empty_like(gradient)
        for back in self._rule.backs:
            back.zero_()
        later = torch.zeros_like(gradient[0])
        for t in reversed(range(len(gradient))):
            x, y = states[t], states[t + 1]
            x_back, y_back = self._rule.backward(x, y, traces[t], traces[t + 1], backs)
            y_back.add_(later).add_(gradient[t])
            total_back = torch.addcmul(y_back, y_back * y, y, value=-1, out=total_backs[t])
            torch.mul(self._alpha, traces[t][0], out=spare)
            later = x_back.addmm_(total_back, self._w.t())
            later.unsqueeze(2).baddbmm_(spare, total_back.unsqueeze(2))
            torch.bmm(x.unsqueeze(2), total_back.unsqueeze(1), out=spare)
            alpha_back.addcmul_(traces[t][0], spare)
            backs[0].addcmul_(self._alpha, spare)
        totals = total_backs.flatten(0, 1)
        return [
            totals.t() @ self._inputs.flatten(0, 1),
            states[:-1].flatten(0, 1).t() @ totals,
            totals.sum(dim=0),
            alpha_back.sum(dim=0),
            *(back.clone() for back in self._rule.backs),
        ]


def _between(x: Tensor, trace: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """xᵀ T and T y for every episode."""
    return torch.bmm(x.unsqueeze(1), trace).squeeze(1), torch.bmm(trace, y.unsqueeze(2)).squeeze(2)


def _through_clip(back: Tensor, clipped: Tensor) -> None:
    """Nothing flows back where the trace has come to ±1."""
    torch.ops.aten.hardtanh_backward.grad_input(back, clipped, -1, 1, grad_input=back)
