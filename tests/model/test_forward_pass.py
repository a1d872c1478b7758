"""Exchanging a module's tensors: equal to `torch.func.functional_call`, and gone when the call is over."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from warpgrad.errors import WarpgradError
from warpgrad.model.forward_pass import Swapper
from warpgrad.model.learner import Learner


class Counting(nn.Module):
    """Puts a new tensor in the place of a buffer at every call, where batch-norm writes to the one that is there."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("absent", None)

    def forward(self, x):
        self.calls = self.calls + 1
        return x * self.weight * self.calls


def test_a_call_equals_functional_call_and_leaves_no_trace():
    torch.manual_seed(0)
    shared = nn.Linear(3, 3)
    module = nn.Sequential(shared, nn.BatchNorm1d(3), nn.Tanh(), shared, nn.LSTM(3, 2))
    own = dict(module.state_dict(keep_vars=True))
    before = {name: value.detach().clone() for name, value in own.items()}
    names = [name for name, _ in [*module.named_parameters(), *module.named_buffers()]]
    x = torch.randn(5, 3)
    tensors = {name: torch.rand_like(own[name].float()).to(own[name].dtype) for name in names}
    twin = copy.deepcopy(module)
    expected = functional_call(twin, {name: value.clone() for name, value in tensors.items()}, (x,))[0]
    with Swapper(module).holding(tensors):
        found = module(x)[0]
    assert torch.equal(found, expected)
    assert all(value is own[name] for name, value in module.state_dict(keep_vars=True).items())
    assert all(torch.equal(value, before[name]) for name, value in own.items())


def test_a_tied_parameter_is_exchanged_in_all_its_places():
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    with Swapper(module).holding({"0.weight": 2 * torch.eye(2)}):
        assert torch.equal(module(torch.ones(1, 2)), torch.full((1, 2), 4.0))


def test_a_module_that_fails_gets_its_tensors_back():
    module = nn.Linear(2, 2)
    own = module.weight
    with pytest.raises(RuntimeError), Swapper(module).holding({"weight": torch.zeros(2, 2)}):
        module(torch.ones(1, 5))
    assert module.weight is own


def test_a_buffer_that_the_module_assigns_anew_is_passed_on():
    learner = Learner(Counting(), warp=())
    forward = learner.bind(learner.start(0), learner.buffers())
    outputs = [float(forward(torch.ones(2)).detach()[0]) for _ in range(3)]
    assert outputs == [1.0, 2.0, 3.0]
    assert float(forward.buffers["calls"]) == 3.0
    assert float(learner.module.calls) == 0.0


def test_compiled_modules_are_refused():
    with (
        pytest.warns(DeprecationWarning, match="script"),
        pytest.raises(WarpgradError, match="compiled by TorchScript"),
    ):
        Swapper(nn.Sequential(torch.jit.script(nn.Linear(2, 2))))
