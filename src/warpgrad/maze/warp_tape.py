"""The tape of the Warp-RNN (Eq. 20): a meta-LSTM on [h_{t−1}, x_t, z_{t−1}], five gates from its z_t, and the RNN.

With σ for the sigmoid and ∘ for products element by element, a step is

    l, i, f = σ(·),  c = tanh(·)   of   A [h, x, z, 1]              leave, enter, forget, candidate
    m ← f ∘ m + i ∘ c,   z ← l ∘ tanh(m)
    o_h, o_x, o_b, n_h, n_x = tanh(P [z, 1])                        U²_h, U²_x, U^b, U¹_h, U¹_x
    s = o_h ∘ V (n_h ∘ h) + o_x ∘ W (n_x ∘ x) + o_b ∘ b,   h ← tanh(s)

and back, with ȳ for the gradient of y, and h̄, z̄, m̄ holding what later steps and the losses ask for:

    s̄ = h̄ ∘ (1 − h²),   ō = s̄ ∘ (V (n_h ∘ h), W (n_x ∘ x), b),   n̄ = (Vᵀ (o_h ∘ s̄) ∘ h, Wᵀ (o_x ∘ s̄) ∘ x)
    z̄ ← z̄ + Pᵀ ((ō, n̄) ∘ (1 − (o, n)²)),   m̄ ← m̄ + z̄ ∘ l ∘ (1 − tanh² m)
    ḡ = (z̄ ∘ tanh m, m̄ ∘ c, m̄ ∘ m_before) ∘ σ', m̄ ∘ i ∘ (1 − c²),   m̄ ← m̄ ∘ f
    h̄, z̄ ← Aᵀ ḡ,   h̄ ← h̄ + Vᵀ (o_h ∘ s̄) ∘ n_h
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from warpgrad.layers.hypernetwork import WarpHyperCell
from warpgrad.maze.tape import Tape


class _Step(NamedTuple):
    """What is kept of one time step; parts of larger pieces of memory, [units, batch]."""

    read: Tensor
    """[h, x, z, 1] from before the step, x from this step."""
    inputs: Tensor
    """[h, x] of it."""
    x: Tensor
    h: Tensor
    """From here on: after the step."""
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
    """Everything is kept as [steps, units, batch]: units that are treated alike then lie together in memory."""

    def __init__(self, cell: WarpHyperCell, length: int, batch: int) -> None:
        units, context = cell.hidden_size, cell.context_size
        inputs = units + cell.input_size
        self._units, self._inputs = units, inputs
        self.weights = [*_stacked(cell), cell.weight_hh, cell.weight_ih, cell.bias]
        self._a, self._p, self._v, self._w, b = (weight.detach() for weight in self.weights)

        def memory(*shape: int, steps: int = length) -> Tensor:
            return b.new_empty(steps, *shape, batch)

        read, cells = memory(inputs + context + 1, steps=length + 1), memory(context, steps=length + 1)
        read[0], read[:, -1], cells[0] = 0, 1, 0
        before, after = read[:-1], read[1:]
        gates, modulation = memory(4 * context), memory(3 * units + inputs)
        gated, mapped = memory(inputs), memory(3, units)
        mapped[:, 2] = b.unsqueeze(1)
        leave, enter, forget, candidate = gates.chunk(4, dim=1)
        onto, from_inputs = torch.split(modulation, [3 * units, inputs], dim=1)
        parts = _Step(
            before, before[:, :inputs], before[:, units:inputs],
            after[:, :units], after[:, inputs:-1], after[:, inputs:], cells[:-1], cells[1:], memory(context),
            gates, torch.unflatten(gates[:, : 3 * context], 1, (3, context)), leave, enter, forget, candidate,
            modulation, torch.unflatten(onto, 1, (3, units)), from_inputs, from_inputs[:, :units],
            gated, gated[:, :units], gated[:, units:], mapped, mapped[:, 0], mapped[:, 1],
        )  # fmt: skip
        # All views at once: taking them one by one in the steps would cost as much as the sums.
        self._steps = [_Step(*views) for views in zip(*(part.unbind() for part in parts), strict=True)]
        self.hidden = parts.h.transpose(1, 2)

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
        onto_h, onto_x, onto_b = (now.onto * now.mapped).unbind()
        return torch.tanh(onto_b.add_(onto_h).add_(onto_x), out=now.h).t()

    def gradients(self, gradient: Tensor) -> Sequence[Tensor]:
        units, inputs, last = self._units, self._inputs, self._steps[-1]
        a_back, p_back, v_back, w_back = (torch.zeros_like(of) for of in (self._a, self._p, self._v, self._w))
        h_back, z_back, m_back = (torch.zeros_like(of) for of in (last.h, last.z, last.z))
        b_back, onto_a, onto_p = torch.zeros_like(h_back), self._a[:, :-1].t(), self._p[:, :-1].t()
        gates_back, mapped_back = torch.empty_like(last.gates), torch.empty_like(last.mapped)
        modulation_back, through = torch.empty_like(last.modulation), torch.empty_like(last.gated)
        leave_back, enter_back, forget_back, candidate_back = gates_back.chunk(4)
        sigmoids_back, spare = gates_back[: 3 * len(leave_back)].view_as(last.sigmoids), torch.empty_like(last.sigmoids)
        onto_back, from_back = modulation_back[: 3 * units].view_as(last.onto), modulation_back[3 * units :]
        h_mapped_back, x_mapped_back, b_mapped_back = mapped_back.unbind()
        through_h, through_x = torch.split(through, [units, inputs - units])
        for now, loss_back in zip(reversed(self._steps), reversed(gradient.transpose(1, 2).unbind()), strict=True):
            h_back.add_(loss_back)
            total_back = h_back.addcmul_(h_back * now.h, now.h, value=-1)
            torch.mul(total_back, now.mapped, out=onto_back)
            torch.mul(total_back, now.onto, out=mapped_back)
            torch.mm(self._v.t(), h_mapped_back, out=through_h)
            torch.mm(self._w.t(), x_mapped_back, out=through_x)
            torch.mul(through, now.inputs, out=from_back)
            modulation_back.addcmul_(modulation_back * now.modulation, now.modulation, value=-1)
            z_back = torch.addmm(z_back, onto_p, modulation_back)
            torch.mul(z_back, now.squashed, out=leave_back)
            m_back.add_(z_back.mul_(now.leave)).addcmul_(z_back.mul_(now.squashed), now.squashed, value=-1)
            torch.mul(m_back, now.candidate, out=enter_back)
            torch.mul(m_back, now.memory_before, out=forget_back)
            torch.mul(m_back, now.enter, out=candidate_back)
            m_back.mul_(now.forget)
            torch.mul(sigmoids_back, now.sigmoids, out=spare)
            torch.addcmul(spare, spare, now.sigmoids, value=-1, out=sigmoids_back)
            candidate_back.addcmul_(candidate_back * now.candidate, now.candidate, value=-1)
            a_back.addmm_(gates_back, now.read.t())
            p_back.addmm_(modulation_back, now.z_and_one.t())
            v_back.addmm_(h_mapped_back, now.gated_h.t())
            w_back.addmm_(x_mapped_back, now.gated_x.t())
            b_back.add_(b_mapped_back)
            h_back, _, z_back = torch.split(onto_a @ gates_back, [units, inputs - units, len(z_back)])
            h_back.addcmul_(through_h, now.from_h)
        return [a_back, p_back, v_back, w_back, b_back.sum(dim=1)]


def _stacked(cell: WarpHyperCell) -> tuple[Tensor, Tensor]:
    """A and P, biases as their last columns, with rows and columns in the order of this module."""
    lstm, device = cell.meta_lstm, cell.weight_hh.device
    features, units = cell.input_size, cell.hidden_size
    # torch has the gates as enter, forget, candidate, leave, and this cell reads [x, h].
    enter, forget, candidate, leave = torch.arange(4 * cell.context_size, device=device).chunk(4)
    x, h = torch.split(lstm.weight_ih, [features, units], dim=1)
    a = torch.cat([h, x, lstm.weight_hh, (lstm.bias_ih + lstm.bias_hh).unsqueeze(1)], dim=1)
    h_in, h_out, x_in, x_out, b = torch.split(torch.arange(sum(cell.modulations), device=device), cell.modulations)
    weight, bias = cell.projection.weight, cell.projection.bias
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    p = torch.cat([weight, bias.unsqueeze(1)], dim=1)
    return a[torch.cat([leave, enter, forget, candidate])], p[torch.cat([h_out, x_out, b, h_in, x_in])]
