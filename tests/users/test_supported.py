"""The table of docs/supported.md: what a user's module may be wrapped in, and under which names it is found."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

import warpgrad as wg
from tests.support import ROOT
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
    "a wrapped submodule": lambda: nested(nn.DataParallel),
}


def wrapped(name: str) -> None:
    """The wrapped module has the user's names and the plain numbers."""
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


def parametrised(name: str) -> None:
    """The weight is found by its own name, and its gradients are right."""
    module = nested(PARAMETRISED[name])
    learner = wg.Learner(module, warp="warp.weight")
    assert learner.phi
    assert all(path.startswith("warp.parametrizations.weight") for path in learner.phi)
    assert "warp.bias" in learner.theta0
    wg.check(learner, task(), wg.SGD(0.1), wg.Exact())
    fitted = wg.adapt(learner, task(), rule=wg.SGD(0.1), steps=2)
    torch.testing.assert_close(fitted.warp.weight, learner.module.eval().warp.weight)


def sharded() -> None:
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


class Called(nn.Module):
    """A first and a last layer that adapt and a part between them, which is the warp."""

    def __init__(self, part: nn.Module, call, width: int = 4) -> None:
        super().__init__()
        self.lower, self.warp, self.head, self._call = nn.Linear(3, width), part, nn.Linear(4, 2), call

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self._call(self.warp, torch.tanh(self.lower(x))))


class Same(nn.Module):
    """Calls a function of the input, with a weight so that there is a warp."""

    def __init__(self, function) -> None:
        super().__init__()
        self.linear, self._function = nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self._function(self.linear(x))


def differentiated(module: nn.Module, warp: str = "warp", one: wg.Task | None = None) -> wg.Learner:
    """Both orders of the module are right by differences in double precision."""
    learner = wg.Learner(module, warp=warp)
    for objective in (wg.Exact(), None):
        wg.check(learner, one or task(), wg.SGD(0.1), objective)
    return learner


def between(function) -> Called:
    torch.manual_seed(0)
    return Called(Same(function), lambda part, x: part(x))


def refused(make, words: str) -> None:
    with pytest.raises(wg.WarpgradError, match=words):
        make()


def adapted(module: nn.Module | wg.Learner, **options) -> nn.Module:
    learner = module if isinstance(module, wg.Learner) else wg.Learner(module, warp="warp")
    return wg.adapt(learner, task(), rule=wg.SGD(0.1), steps=2, **options)


def each(check, *names):
    return lambda: [check(name) for name in names]


def data_parallel() -> None:
    wrapped("`nn.DataParallel(module)`")
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        learner = wg.Learner(nn.parallel.DistributedDataParallel(plain()), warp="warp.weight")
        assert set(learner.phi) == {"warp.weight"}
        expected = adapted(wg.Learner(plain(), warp="warp.weight"))
        torch.testing.assert_close(adapted(learner).state_dict(), expected.state_dict())
    finally:
        distributed.destroy_process_group()


def spectral() -> None:
    parametrised("`parametrizations.spectral_norm`")
    learner = wg.Learner(nested(parametrizations.spectral_norm), warp="lower")
    before = learner.buffers()
    fitted = adapted(learner)
    assert any(not torch.equal(value, before[name]) for name, value in fitted.named_buffers())
    assert all(torch.equal(value, before[name]) for name, value in learner.module.named_buffers())


def weight_norms() -> None:
    parametrised("`parametrizations.weight_norm`")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        differentiated(nested(nn.utils.weight_norm))


def without_second_derivatives() -> None:
    differentiated(between(lambda x: torch.cdist(x, torch.eye(4, dtype=x.dtype))))
    differentiated(between(lambda x: F.pdist(x)[:8].view(8, 1).expand(8, 4)))
    differentiated(between(F.hardsigmoid))
    bag = Called(nn.EmbeddingBag(7, 4), lambda part, x: x + part(torch.arange(len(x))[:, None] % 7))
    differentiated(bag)


class Spelling(wg.SupervisedTask):
    def loss(self, forward, batch):
        log_probabilities = forward(batch[0]).log_softmax(1)[:, None].expand(-1, 2, -1)
        lengths = torch.full((2,), len(batch[0])), torch.ones(2, dtype=torch.long)
        return F.ctc_loss(log_probabilities, torch.ones(2, 1, dtype=torch.long), *lengths)


def other_operations() -> None:
    spelling = Spelling(*task().adapt_batch(0), F.mse_loss)
    learner = wg.Learner(plain(), warp="warp")
    for objective in (wg.Exact(), None):
        refused(lambda given=objective: wg.check(learner, spelling, wg.SGD(0.1), given), "ctc_loss")
    method = wg.Method(learner, wg.SGD(0.1), wg.Approximate(), wg.MAML())
    refused(lambda: wg.meta_gradient(method, [spelling], 0, algorithm=wg.Online(steps=1, tasks=1)), "ctc_loss")
    wg.check(learner, spelling, wg.SGD(0.1), wg.Approximate())


def recurrence_and_attention() -> None:
    for part in (nn.LSTM(4, 4, batch_first=True), nn.GRU(4, 4, batch_first=True)):
        differentiated(Called(part, lambda one, x: one(x[:, None])[0][:, 0]))
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    differentiated(Called(attention, lambda one, x: one(x[None], x[None], x[None])[0][0]))


def checkpointed(*, use_reentrant: bool) -> Called:
    torch.manual_seed(0)
    return Called(nn.Linear(4, 4), lambda part, x: checkpoint(part, x, use_reentrant=use_reentrant))


AUTOCAST = """
import sys; sys.path.insert(0, sys.argv[1])
import torch, warpgrad as wg
from tests.users.test_supported import Called, adapted
from torch import nn
def inside(part, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return part(x).float()
found = []
for call, around in ((inside, False), (lambda part, x: part(x).float(), True)):
    torch.manual_seed(0)
    module = Called(nn.Linear(4, 4), call)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=around):
        found.append(adapted(module))
assert all(value.dtype == torch.float32 and value.isfinite().all() for one in found for value in one.parameters())
assert (found[0].head.weight - found[1].head.weight).abs().max() < 0.05
print("right")
"""


def autocast() -> None:
    done = subprocess.run([sys.executable, "-c", AUTOCAST, str(ROOT)], capture_output=True, text=True, check=False)
    if done.returncode < 0:
        pytest.skip(f"this processor has no bfloat16: signal {-done.returncode}")
    assert done.stdout.strip() == "right", done.stderr[-2000:]


def cached() -> None:
    def within(part, x):
        with parametrize.cached():
            return part(x)

    differentiated(Called(parametrizations.orthogonal(nn.Linear(4, 4)), within))
    with parametrize.cached():
        refused(lambda: adapted(nested(parametrizations.orthogonal)), "inside the model's forward")


def dropout() -> None:
    one, again, other = (adapted(between(nn.Dropout(0.5)), key=key).head.weight for key in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def outside_randomness() -> None:
    for draw, words in ((random.random, "Python's random"), (np.random.rand, "numpy")):
        with pytest.warns(UserWarning, match=words):
            adapted(between(lambda x, draw=draw: x * (1 + 1e-3 * draw())))


def batch_norm() -> None:
    for policy in ("running", "corrected", "batch", "frozen"):
        learner = wg.Learner(Called(nn.BatchNorm1d(4), lambda part, x: part(x)), warp="warp", batch_norm=policy)
        kept = {name: value.clone() for name, value in learner.module.named_buffers()}
        fitted = adapted(learner)
        assert all(torch.equal(value, kept[name]) for name, value in learner.module.named_buffers())
        if policy in ("running", "corrected"):
            assert not torch.equal(fitted.warp.running_mean, kept["warp.running_mean"])
        if policy == "batch":
            assert fitted.warp.running_mean is None
    assert wg.Learner(plain(), warp="warp").batch_norm == "corrected"


def tied() -> None:
    module = plain()
    module.second = module.lower
    learner = wg.Learner(module, warp="warp")
    assert [name for name in learner.theta0 if "weight" in name] == ["lower.weight", "head.weight"]
    fitted = adapted(learner)
    assert fitted.second.weight is fitted.lower.weight


def frozen() -> None:
    module = plain()
    module.head.requires_grad_(False)
    learner = wg.Learner(module, warp="warp")
    assert set(learner.constants) == {"head.weight", "head.bias"}
    assert torch.equal(adapted(learner).head.weight, module.head.weight)


def changed_afterwards() -> None:
    for change in (
        lambda module: setattr(module, "head", nn.Linear(4, 2)),
        lambda module: module.head.requires_grad_(False),
    ):
        learner = wg.Learner(plain(), warp="warp")
        change(learner.module)
        refused(lambda one=learner: adapted(one), "build the Learner again")


ROWS = {
    "`torch.compile(module)`, `module.compile()`, a compiled part": each(
        wrapped, *list(WRAPPED)[:3]
    ),
    "`nn.DataParallel(module)`, `DistributedDataParallel`": data_parallel,
    "a wrapped submodule": each(wrapped, "a wrapped submodule"),
    "FSDP": sharded,
    "TorchScript": lambda: refused(lambda: wg.Learner(torch.jit.script(plain()), warp="warp"), "TorchScript"),
    "`parametrize.register_parametrization`, `parametrizations.orthogonal`": each(
        parametrised,
        "`parametrize.register_parametrization`", "`parametrizations.orthogonal`",
    ),
    "`parametrizations.spectral_norm`": spectral,
    "`parametrizations.weight_norm`, `torch.nn.utils.weight_norm`": weight_norms,
    "`torch.cdist`, `F.pdist`, `nn.EmbeddingBag`, `nn.Hardsigmoid`": without_second_derivatives,
    "other operations without a second derivative (`F.ctc_loss`, …)": other_operations,
    "`nn.LSTM`, `nn.GRU`, attention": recurrence_and_attention,
    "`nn.Embedding(max_norm=…)`": lambda: refused(
        lambda: wg.Learner(nn.Sequential(nn.Embedding(5, 3, max_norm=1.0), nn.Linear(3, 2)), warp="1"), "max_norm=1.0"
    ),
    "`torch.utils.checkpoint(use_reentrant=False)`": lambda: differentiated(checkpointed(use_reentrant=False)),
    "`torch.utils.checkpoint(use_reentrant=True)`": lambda: refused(
        lambda: adapted(checkpointed(use_reentrant=True)), "use_reentrant=False"
    ),
    "`torch.autocast` inside or around": autocast,
    "`parametrize.cached()`": cached,
    "dropout and other use of torch's generator": dropout,
    "`random`, `numpy.random` in `forward`": outside_randomness,
    "batch-norm": batch_norm,
    "tied weights": tied,
    "frozen parameters (`requires_grad=False`)": frozen,
    "parameters replaced or frozen after `Learner(...)`": changed_afterwards,
}  # fmt: skip


def rows_of_the_page() -> list[str]:
    cells = re.findall(r"^\| (.*?) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [cell for cell in cells if cell != "in or around the module"]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("row", rows_of_the_page())
def test_every_row_of_the_page_is_so(row):
    ROWS[row]()


def test_nothing_is_tested_that_the_page_does_not_say():
    assert set(ROWS) == set(rows_of_the_page())
