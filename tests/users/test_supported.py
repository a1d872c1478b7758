"""The table of docs/supported.md: what a user's module may be wrapped in, and under which names it is found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import warpgrad as wg
from warpgrad.keys import generator

PAGE = Path(__file__).parents[2] / "docs" / "supported.md"
pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated"
)  # where torch.compile is imported


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lower, self.warp, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.warp(torch.tanh(self.lower(x)))))


def task() -> wg.SupervisedTask:
    draw = generator(0, "supported")
    return wg.SupervisedTask(torch.randn(8, 3, generator=draw), torch.randn(8, 2, generator=draw), F.mse_loss)


def plain() -> Net:
    torch.manual_seed(0)
    return Net()


def nested(wrap) -> Net:
    module = plain()
    module.warp = wrap(module.warp)
    return module


def compiled_in_place() -> Net:
    module = plain()
    module.compile()
    return module


WRAPPED = {
    "`torch.compile(module)`": lambda: torch.compile(plain()),
    "`module.compile()`": compiled_in_place,
    "a compiled part": lambda: nested(torch.compile),
    "`nn.DataParallel(module)`": lambda: nn.DataParallel(plain()),
    "a wrapped part": lambda: nested(nn.DataParallel),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped_modules_have_the_users_names_and_the_plain_numbers(name):
    learner = wg.Learner(WRAPPED[name](), warp="warp.weight", start={"head": "fixed"})
    expected = wg.Learner(plain(), warp="warp.weight", start={"head": "fixed"})
    assert len(learner.phi) == 1
    assert len(learner.theta0) == 5
    wg.check(learner, task(), wg.SGD(0.1), wg.Exact())
    found, right = (wg.adapt(one, task(), rule=wg.SGD(0.1), steps=3) for one in (learner, expected))
    assert isinstance(found, Net)
    x = torch.randn(5, 3)
    with torch.no_grad():
        torch.testing.assert_close(found(x), right(x))


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).T


PARAMETRISED = {
    "`parametrize.register_parametrization`": lambda layer: parametrize.register_parametrization(
        layer, "weight", Symmetric()
    ),
    "`parametrizations.weight_norm`": parametrizations.weight_norm,
    "`parametrizations.spectral_norm`": parametrizations.spectral_norm,
    "`parametrizations.orthogonal`": parametrizations.orthogonal,
}


@pytest.mark.parametrize("name", PARAMETRISED)
def test_parametrised_weights_are_found_by_their_own_name(name):
    module = nested(PARAMETRISED[name])
    learner = wg.Learner(module, warp="warp.weight")
    assert learner.phi
    assert all(path.startswith("warp.parametrizations.weight") for path in learner.phi)
    assert "warp.bias" in learner.theta0
    wg.check(learner, task(), wg.SGD(0.1), wg.Exact())
    fitted = wg.adapt(learner, task(), rule=wg.SGD(0.1), steps=2)
    torch.testing.assert_close(fitted.warp.weight, learner.module.eval().warp.weight)


def test_what_is_sharded_is_refused_by_name():
    class FullyShardedDataParallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Net()

    with pytest.raises(wg.WarpgradError, match=r"is sharded over processes \(FSDP\)"):
        wg.Learner(FullyShardedDataParallel(), warp=())


def test_a_submodule_that_is_merely_called_module_keeps_its_name():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module, self.fc = nn.ModuleDict({"fc": nn.Linear(2, 2)}), nn.Linear(2, 2)

    assert set(wg.Learner(Own(), warp="fc").phi) == {"fc.weight", "fc.bias"}


def test_the_page_has_a_row_for_every_case():
    rows = re.findall(r"^\| (.*?) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for name in (*WRAPPED, *PARAMETRISED):
        assert any(name in row for row in rows), name
