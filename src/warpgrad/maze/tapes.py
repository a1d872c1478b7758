"""Roll-outs whose backward pass is written out by hand, for agents that learn from first-order gradients.

Autograd keeps a node and fresh memory for each of the thousands of small operations of a roll-out. A `Tape` takes the
same steps in memory that is allocated once, and goes back over it with explicit derivatives:

    tape = agent.tape(length, batch)    # or None: the agent has none
    h = tape.step(x)                    # once per time step
    hidden = tape.joined()              # [steps, batch, units]; gradients flow from here into the weights

The results equal those of autograd up to rounding; `MazeRollOut(taped=False)` is the reference.

Warning: such gradients cannot be differentiated again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from warpgrad.errors import require
from warpgrad.layers.recurrent import WarpHyperCell

if TYPE_CHECKING:
    from warpgrad.maze.plasticity import HebbianAgent, ModulatedAgent, PlasticAgent, RetroactiveModulationAgent


REGISTER = 8
"""How many numbers a register of the processor holds, or half of one."""


class Tape(ABC):
    """One roll-out of a batch of episodes."""

    weights: Sequence[Tensor]
    """The tensors that gradients are taken of, as parts of the graph."""
    hidden: Tensor
    """h_t for every step, [steps, batch, units], filled as steps are taken."""
    taken = 0
    """The number of steps taken so far."""

    def step(self, x: Tensor) -> Tensor:
        """Take one time step, from x_t to h_t, without a graph."""
        require(self.taken < len(self.hidden), f"this tape is for {self.taken} steps; make a longer one.")
        self.taken += 1
        return self.take(self.taken - 1, x)

    @abstractmethod
    def take(self, t: int, x: Tensor) -> Tensor:
        """Take step t and return h_t."""

    @abstractmethod
    def gradients(self, gradient: Tensor) -> Sequence[Tensor]:
        """Return the gradients of the weights, in their order, given the gradient of all hidden states."""

    def joined(self) -> Tensor:
        """Return the hidden states as a function of the weights, once all steps are taken."""
        require(
            self.taken == len(self.hidden),
            f"{self.taken} of this tape's {len(self.hidden)} steps are taken; take them all first.",
        )
        result: Tensor = _Joined.apply(self, *self.weights)  # type: ignore[no-untyped-call]
        return result


class _Joined(torch.autograd.Function):
    """The whole roll-out as one node of the graph."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, *weights: Tensor) -> Tensor:
        ctx.tape = tape
        result = tape.hidden.detach()  # a separate tensor, or tape and graph would keep each other alive
        # The tape has views of both; saving them makes autograd check for in-place changes before the backward pass.
        ctx.save_for_backward(*weights, result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        require(
            not torch.is_grad_enabled(),
            "a taped roll-out cannot be differentiated twice; use MazeRollOut(taped=False).",
        )
        _ = ctx.saved_tensors
        return (None, *ctx.tape.gradients(gradient))


class _Step(NamedTuple):
    """What is kept of one time step: views of larger pieces of memory, [units, batch]."""

    read: Tensor
    """[h, x, z, 1] from before the step, x from this step."""
    inputs: Tensor
    """[h, x] of it."""
    x: Tensor
    h: Tensor
    """After the step, as are the fields below unless their names say otherwise."""
    shown: Tensor
    """h of the episodes themselves, [batch, units]."""
    z: Tensor
    z_and_one: Tensor
    memory_before: Tensor
    memory: Tensor
    squashed: Tensor
    """tanh(m)."""
    gates: Tensor
    sigmoids: Tensor
    """l, i and f, [3, context, batch]."""
    leave: Tensor
    enter: Tensor
    forget: Tensor
    candidate: Tensor
    modulation: Tensor
    onto: Tensor
    """o_h, o_x and o_b, [3, units, batch]."""
    from_inputs: Tensor
    """n_h and n_x."""
    from_h: Tensor
    gated: Tensor
    """n_h ∘ h and n_x ∘ x."""
    gated_h: Tensor
    gated_x: Tensor
    mapped: Tensor
    """V (n_h ∘ h), W (n_x ∘ x) and b, [3, units, batch]."""
    mapped_h: Tensor
    mapped_x: Tensor


class WarpTape(Tape):
    """The tape of a Warp-RNN, kept as [steps, units, batch], so that units treated alike are adjacent in memory.

    A batch is padded to a multiple of 8 with episodes that see nothing and have no part in the loss: products whose
    columns fill registers take two thirds of the time.
    """

    def __init__(self, cell: WarpHyperCell, length: int, batch: int) -> None:
        units, context = cell.hidden_size, cell.context_size
        inputs, columns = units + cell.input_size, -(-batch // REGISTER) * REGISTER
        self._units, self._inputs, self._batch = units, inputs, batch
        self.weights = [*_stacked(cell), cell.weight_hh, cell.weight_ih, cell.bias]
        self._a, self._p, self._v, self._w, b = (weight.detach() for weight in self.weights)

        def memory(*shape: int, steps: int = length) -> Tensor:
            return b.new_empty(steps, *shape, columns)

        read, cells = memory(inputs + context + 1, steps=length + 1), memory(context, steps=length + 1)
        read[0], read[:, units:inputs, batch:], read[:, -1], cells[0] = 0, 0, 1, 0
        before, after = read[:-1], read[1:]
        gates, modulation = memory(4 * context), memory(3 * units + inputs)
        gated, mapped = memory(inputs), memory(3, units)
        mapped[:, 2] = b.unsqueeze(1)
        leave, enter, forget, candidate = gates.chunk(4, dim=1)
        onto, from_inputs = torch.split(modulation, [3 * units, inputs], dim=1)
        parts = _Step(
            before, before[:, :inputs], before[:, units:inputs, :batch],
            after[:, :units], after[:, :units, :batch].transpose(1, 2), after[:, inputs:-1], after[:, inputs:],
            cells[:-1], cells[1:], memory(context),
            gates, torch.unflatten(gates[:, : 3 * context], 1, (3, context)), leave, enter, forget, candidate,
            modulation, torch.unflatten(onto, 1, (3, units)), from_inputs, from_inputs[:, :units],
            gated, gated[:, :units], gated[:, units:], mapped, mapped[:, 0], mapped[:, 1],
        )  # fmt: skip
        # Make all views at once: making them step by step would cost as much as the arithmetic.
        self._steps = [_Step(*views) for views in zip(*(part.unbind() for part in parts), strict=True)]
        self.hidden = parts.shown

    def take(self, t: int, x: Tensor) -> Tensor:
        now = self._steps[t]
        now.x.copy_(x.t())
        torch.mm(self._a, now.read, out=now.gates)
        now.sigmoids.sigmoid_()
        now.candidate.tanh_()
        torch.mul(now.forget, now.memory_before, out=now.memory).addcmul_(now.enter, now.candidate)
        torch.mul(now.leave, torch.tanh(now.memory, out=now.squashed), out=now.z)
        torch.mm(self._p, now.z_and_one, out=now.modulation).tanh_()
        torch.mul(now.from_inputs, now.inputs, out=now.gated)
        torch.mm(self._v, now.gated_h, out=now.mapped_h)
        torch.mm(self._w, now.gated_x, out=now.mapped_x)
        torch.sum(now.onto * now.mapped, dim=0, out=now.h).tanh_()
        return now.shown

    def gradients(self, gradient: Tensor) -> Sequence[Tensor]:
        units, inputs, last = self._units, self._inputs, self._steps[-1]
        a_back, p_back, v_back, w_back = (torch.zeros_like(of) for of in (self._a, self._p, self._v, self._w))
        h_back, z_back, m_back = (torch.zeros_like(of) for of in (last.h, last.z, last.z))
        b_back, onto_a, onto_p = torch.zeros_like(h_back), self._a[:, :-1].t(), self._p[:, :-1].t()
        gates_back, mapped_back = torch.empty_like(last.gates), torch.empty_like(last.mapped)
        modulation_back, through = torch.empty_like(last.modulation), torch.empty_like(last.gated)
        leave_back, enter_back, forget_back, candidate_back = gates_back.chunk(4)
        sigmoids_back = gates_back[: 3 * len(leave_back)].view_as(last.sigmoids)
        onto_back, from_back = modulation_back[: 3 * units].view_as(last.onto), modulation_back[3 * units :]
        h_mapped_back, x_mapped_back, b_mapped_back = mapped_back.unbind()
        through_h, through_x = torch.split(through, [units, inputs - units])
        for now, loss_back in zip(reversed(self._steps), reversed(gradient.transpose(1, 2).unbind()), strict=True):
            h_back[:, : self._batch].add_(loss_back)
            total_back = _through_tanh(h_back, now.h)
            torch.mul(total_back, now.mapped, out=onto_back)
            torch.mul(total_back, now.onto, out=mapped_back)
            torch.mm(self._v.t(), h_mapped_back, out=through_h)
            torch.mm(self._w.t(), x_mapped_back, out=through_x)
            torch.mul(through, now.inputs, out=from_back)
            _through_tanh(modulation_back, now.modulation)
            z_back = torch.addmm(z_back, onto_p, modulation_back)
            torch.mul(z_back, now.squashed, out=leave_back)
            m_back.add_(_through_tanh(z_back.mul_(now.leave), now.squashed))
            torch.mul(m_back, now.candidate, out=enter_back)
            torch.mul(m_back, now.memory_before, out=forget_back)
            torch.mul(m_back, now.enter, out=candidate_back)
            m_back.mul_(now.forget)
            torch.ops.aten.sigmoid_backward.grad_input(sigmoids_back, now.sigmoids, grad_input=sigmoids_back)
            _through_tanh(candidate_back, now.candidate)
            a_back.addmm_(gates_back, now.read.t())
            p_back.addmm_(modulation_back, now.z_and_one.t())
            v_back.addmm_(h_mapped_back, now.gated_h.t())
            w_back.addmm_(x_mapped_back, now.gated_x.t())
            b_back.add_(b_mapped_back)
            h_back, _, z_back = torch.split(onto_a @ gates_back, [units, inputs - units, len(z_back)])
            h_back.addcmul_(through_h, now.from_h)
        return [a_back, p_back, v_back, w_back, b_back.sum(dim=1)]


def _stacked(cell: WarpHyperCell) -> tuple[Tensor, Tensor]:
    """Return A and P, with biases as their last columns, and with rows and columns in the order of this module."""
    lstm, device = cell.meta_lstm, cell.weight_hh.device
    features, units = cell.input_size, cell.hidden_size
    # torch orders the gates as enter, forget, candidate, leave, and this cell reads [x, h].
    enter, forget, candidate, leave = torch.arange(4 * cell.context_size, device=device).chunk(4)
    x, h = torch.split(lstm.weight_ih, [features, units], dim=1)
    a = torch.cat([h, x, lstm.weight_hh, (lstm.bias_ih + lstm.bias_hh).unsqueeze(1)], dim=1)
    h_in, h_out, x_in, x_out, b = torch.split(torch.arange(sum(cell.modulations), device=device), cell.modulations)
    weight, bias = cell.projection.weight, cell.projection.bias
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    p = torch.cat([weight, bias.unsqueeze(1)], dim=1)
    return a[torch.cat([leave, enter, forget, candidate])], p[torch.cat([h_out, x_out, b, h_in, x_in])]


Traces = Sequence[Tensor]


class TraceRule(ABC):
    """How a step changes the traces, and its backward pass."""

    weights: Sequence[Tensor]
    """The rule's own parameters."""
    backs: list[Tensor]
    """Their gradients so far."""

    def __init__(self, *weights: Tensor) -> None:
        self.weights = weights
        self.backs = [torch.zeros_like(weight) for weight in weights]

    @abstractmethod
    def forward(self, x: Tensor, y: Tensor, before: Traces, after: Traces) -> None:
        """Compute the traces after the step and write them to `after`."""

    @abstractmethod
    def backward(self, x: Tensor, y: Tensor, before: Traces, after: Traces, backs: Traces) -> tuple[Tensor, Tensor]:
        """Return the rule's contribution to x̄ and ȳ; `backs` are the traces' gradients, changed in place."""


class Hebbian(TraceRule):
    """H ← (1 − η) H + η x y; E follows the same rule."""

    def __init__(self, agent: HebbianAgent | RetroactiveModulationAgent) -> None:
        super().__init__(agent.eta)
        self._eta = float(agent.eta.detach())

    def forward(self, x: Tensor, y: Tensor, before: Traces, after: Traces) -> None:
        torch.mul(before[-1], 1 - self._eta, out=after[-1]).addcmul_(x.unsqueeze(2), (self._eta * y).unsqueeze(1))

    def backward(self, x: Tensor, y: Tensor, before: Traces, after: Traces, backs: Traces) -> tuple[Tensor, Tensor]:
        del after
        from_x, from_y = _between(x, backs[-1], y)
        self.backs[0].add_((from_x * y).sum() - torch.dot(backs[-1].flatten(), before[-1].flatten()))
        backs[-1].mul_(1 - self._eta)
        return from_y.mul_(self._eta), from_x.mul_(self._eta)


class _Modulation:
    """M_t = tanh(m(y)) fanned out, on [batch, units], and its backward pass."""

    def __init__(self, agent: ModulatedAgent) -> None:
        self.weights = agent.modulator.weight, agent.modulator.bias, agent.fan_out
        self._weight, self._bias, self._fan_out = (weight.detach() for weight in self.weights)

    def forward(self, y: Tensor) -> Tensor:
        return self._squashed(y) * self._fan_out

    def backward(self, y: Tensor, back: Tensor, sums: Sequence[Tensor]) -> Tensor:
        """Return ȳ given M̄, and add to the gradients of the weights, `sums`."""
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
        torch.addcmul(before[0], x.unsqueeze(2), modulated.unsqueeze(1), out=after[0]).clamp_(-1, 1)

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
            total_back = torch.ops.aten.tanh_backward.grad_input(y_back, y, grad_input=total_backs[t])
            torch.mul(self._alpha, traces[t][0], out=spare)
            later = x_back.addmm_(total_back, self._w.t())
            later.unsqueeze(1).baddbmm_(total_back.unsqueeze(1), spare.mT)
            torch.mul(x.unsqueeze(2), total_back.unsqueeze(1), out=spare)
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
    """Return xᵀ T and T y for every episode."""
    # T y is computed as yᵀ Tᵀ: MKL takes eight times as long for a matrix times a column as for a row times a matrix.
    return torch.bmm(x.unsqueeze(1), trace).squeeze(1), torch.bmm(y.unsqueeze(1), trace.mT).squeeze(1)


def _through_tanh(back: Tensor, squashed: Tensor) -> Tensor:
    """Multiply a gradient, in place, by tanh' = 1 − tanh², and return it."""
    torch.ops.aten.tanh_backward.grad_input(back, squashed, grad_input=back)
    return back


def _through_clip(back: Tensor, clipped: Tensor) -> None:
    """Zero the gradient, in place, where the trace was clipped to ±1."""
    torch.ops.aten.hardtanh_backward.grad_input(back, clipped, -1, 1, grad_input=back)
