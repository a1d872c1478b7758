"""Warp-LSTM and Warp-HyperNetwork: recurrence, partition, open gates."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import warpgrad as wg
from tests.support.layer_problems import draw
from warpgrad.layers import HyperState, WarpHyperCell, WarpHyperNetwork, WarpLSTM


def test_warp_lstm_is_a_stacked_lstm_shared_between_task_and_warp():
    plain = nn.LSTM(3, 5, num_layers=4)
    warped = WarpLSTM(3, 5, pairs=2)
    for layer, own in enumerate([warped.task[0], warped.warp[0], warped.task[1], warped.warp[1]]):
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(own, f"{kind}_l0").data.copy_(getattr(plain, f"{kind}_l{layer}").data)
    x = draw(7, 2, 3)
    begin = (draw(4, 2, 5), draw(4, 2, 5) / 2)
    for state in (None, begin):
        expected, (h, c) = plain(x, state)
        outputs, (own_h, own_c) = warped(x, state)
        torch.testing.assert_close(outputs, expected)
        torch.testing.assert_close(own_h, h)
        torch.testing.assert_close(own_c, c)


def test_warp_lstm_partition():
    learner = wg.Learner(WarpLSTM(3, 5, pairs=2))
    kinds = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    assert set(learner.theta0) == {f"task.{i}.{kind}" for i in (0, 1) for kind in kinds}
    assert set(learner.phi) == {f"warp.{i}.{kind}" for i in (0, 1) for kind in kinds}


@pytest.mark.parametrize("skip_input", [False, True])
def test_warp_lstm_step_by_step_equals_the_whole_sequence(skip_input: bool):
    warped = WarpLSTM(3, 5, pairs=2, skip_input=skip_input)
    x = draw(6, 2, 3)
    whole, last = warped(x)
    assert whole.shape == (6, 2, 5)
    assert last[0].shape == last[1].shape == (4, 2, 5)
    state, steps = None, []
    for t in range(6):
        output, state = warped(x[t : t + 1], state)
        steps.append(output)
    torch.testing.assert_close(torch.cat(steps), whole)
    torch.testing.assert_close(state, last)
    first = WarpLSTM(3, 5, pairs=2, skip_input=skip_input, batch_first=True)
    first.load_state_dict(warped.state_dict())
    torch.testing.assert_close(first(x.transpose(0, 1))[0], whole.transpose(0, 1))


# --- Warp-HyperNetwork


def test_the_cell_computes_equation_20_with_five_distinct_gates():
    cell = WarpHyperCell(3, 5, context_size=4).double()
    x, h = draw(2, 3, dtype=torch.float64), draw(2, 5, dtype=torch.float64)
    z, memory = draw(2, 4, dtype=torch.float64), draw(2, 4, dtype=torch.float64) / 2
    output, state = cell(x, HyperState((h,), (z, memory)))
    z, memory = cell.meta_lstm(torch.cat([x, h], 1), (z, memory))
    rows = {"h1": 5, "h2": 5, "x1": 3, "x2": 5, "b": 5}
    projections = dict(zip(rows, cell.projection.weight.split(list(rows.values())), strict=True))
    for i in range(2):
        u = {name: torch.diag(torch.tanh(p @ z[i])) for name, p in projections.items()}
        w, v, b = cell.weight_ih, cell.weight_hh, cell.bias
        expected = torch.tanh(u["h2"] @ v @ u["h1"] @ h[i] + u["x2"] @ w @ u["x1"] @ x[i] + u["b"] @ b)
        torch.testing.assert_close(output[i], expected)
    assert torch.equal(state.task[0], output)
    torch.testing.assert_close(state.meta, (z, memory))


@pytest.mark.parametrize(("task", "plain"), [("rnn", nn.RNNCell), ("lstm", nn.LSTMCell)])
def test_open_gates_leave_the_plain_cell(task, plain):
    cell = WarpHyperCell(3, 5, task=task, gate_bias=50.0)  # tanh(50) is 1 to the last bit
    nn.init.zeros_(cell.projection.weight)
    reference = plain(3, 5)
    reference.load_state_dict(
        {
            "weight_ih": cell.weight_ih,
            "weight_hh": cell.weight_hh,
            "bias_ih": cell.bias,
            "bias_hh": torch.zeros_like(cell.bias),
        }
    )
    x, h, c = draw(2, 3), draw(2, 5), draw(2, 5) / 2
    output, state = cell(x, HyperState((h,) if task == "rnn" else (h, c), (torch.zeros(2, 5),) * 2))
    expected = (reference(x, h),) if task == "rnn" else reference(x, (h, c))
    torch.testing.assert_close(state.task, tuple(expected))
    assert torch.equal(output, state.task[0])


@pytest.mark.parametrize("task", ["rnn", "lstm"])
def test_hypernetwork_step_by_step_equals_the_whole_sequence(task):
    network = WarpHyperNetwork(WarpHyperCell(3, 5, context_size=4, task=task))
    x = draw(6, 2, 3)
    whole, last = network(x)
    assert whole.shape == (6, 2, 5)
    state, steps = None, []
    for t in range(6):
        output, state = network.cell(x[t], state)
        steps.append(output)
    torch.testing.assert_close(torch.stack(steps), whole, rtol=0, atol=0)
    torch.testing.assert_close(tuple(state), tuple(last), rtol=0, atol=0)
    half, middle = network(x[:3])
    rest, end = network(x[3:], middle)
    torch.testing.assert_close(torch.cat([half, rest]), whole, rtol=0, atol=0)
    torch.testing.assert_close(tuple(end), tuple(last), rtol=0, atol=0)
    first = WarpHyperNetwork(network.cell, batch_first=True)
    torch.testing.assert_close(first(x.transpose(0, 1))[0], whole.transpose(0, 1))


def test_hypernetwork_partition_and_fresh_task_parameters():
    network = WarpHyperNetwork(WarpHyperCell(3, 5))
    task = {f"cell.{name}" for name in ("weight_ih", "weight_hh", "bias")}
    meta = {f"cell.meta_lstm.{n}" for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    learner = wg.Learner(network, start={"cell.*": "fresh"})
    assert set(learner.theta0) == task
    assert set(learner.phi) == meta | {"cell.projection.weight"}
    one, two = learner.start(1), learner.start(2)
    for name in task:
        assert not torch.equal(one[name], two[name])
        assert one[name].abs().max() <= 5**-0.5
