"""Row maml: backpropagation through adaptation, by this library, TorchOpt and higher, on the same networks and tasks.

The other libraries are called as their own documentation has MAML: a differentiable SGD that replaces the weights of
an ordinary module. One that cannot be imported is named with the reason and left out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.library import NOISE, Piece, difference
from benchmarks.timing import Figure, Way, figure, interleaved
from benchmarks.workloads import FixedBatches, Workload, conv, mlp
from warpgrad.adaptation.traced import traced_at_once
from warpgrad.algorithms import Unrolled
from warpgrad.algorithms.method import Method
from warpgrad.errors import WarpgradError
from warpgrad.rules import SGD
from warpgrad.tasks.supervised import Loss
from warpgrad.tensors import Tensors

MOST = 1.0
"""No slower than either."""

LOSSES: Mapping[str, Loss] = MappingProxyType({"conv": F.cross_entropy, "mlp": F.mse_loss})

MAML = Callable[[Any, Workload, nn.Module, FixedBatches], Tensor]
"""(the other library, workload, module, task) -> L_meta(θ_K), with a graph back to the module's weights."""


def with_higher(higher: Any, work: Workload, module: nn.Module, task: FixedBatches) -> Tensor:
    loss = LOSSES[work.name]
    optimiser = torch.optim.SGD(module.parameters(), lr=work.rate)
    with higher.innerloop_ctx(module, optimiser, copy_initial_weights=False) as (functional, differentiable):
        for k in range(work.steps):
            inputs, targets = task.adapt_batch(k)
            differentiable.step(loss(functional(inputs), targets))
        inputs, targets = task.meta_batch(work.steps)
        found: Tensor = loss(functional(inputs), targets)
    return found


def with_torchopt(torchopt: Any, work: Workload, module: nn.Module, task: FixedBatches) -> Tensor:
    loss = LOSSES[work.name]
    optimiser = torchopt.MetaSGD(module, lr=work.rate)
    before = torchopt.extract_state_dict(module, by="reference", detach_buffers=True)
    for k in range(work.steps):
        inputs, targets = task.adapt_batch(k)
        optimiser.step(loss(module(inputs), targets))
    inputs, targets = task.meta_batch(work.steps)
    found: Tensor = loss(module(inputs), targets)
    torchopt.recover_state_dict(module, before)
    return found


PEERS: Mapping[str, MAML] = MappingProxyType({"torchopt": with_torchopt, "higher": with_higher})


def present() -> tuple[dict[str, Any], dict[str, str]]:
    """Return the other libraries that can be imported, and why the rest cannot."""
    modules: dict[str, Any] = {}
    absent: dict[str, str] = {}
    for name in PEERS:
        try:
            modules[name] = importlib.import_module(name)
        except ImportError as error:
            absent[name] = str(error)
    return modules, absent


def workload(name: str, quick: bool) -> Workload:
    """Return a network without warp, with K = 5 and two tasks."""
    make = {"conv": conv, "mlp": mlp}[name]
    return make(quick, warp=False, steps=2 if quick else 5, tasks=2)


def ours(work: Workload) -> Piece:
    method = Method(work.make(), SGD(work.rate))
    return Piece(work, method, Unrolled(steps=work.steps, tasks=len(work.tasks)))


def theirs(name: str, library: Any, work: Workload) -> Callable[[], Tensors]:
    """Return a function that computes the mean of the tasks' gradients for θ0 by another library."""
    module = work.make().module.train()
    parameters = dict(module.named_parameters())

    def gradients() -> Tensors:
        total = {key: torch.zeros_like(value) for key, value in parameters.items()}
        for task in work.tasks:
            assert isinstance(task, FixedBatches)
            loss = PEERS[name](library, work, module, task)
            for kept, value in zip(total.values(), torch.autograd.grad(loss, list(parameters.values())), strict=True):
                kept += value / len(work.tasks)
        return total

    return gradients


def check(name: str, quick: bool, modules: Mapping[str, Any]) -> None:
    """Check that all libraries find the same meta-gradient, in double precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        work = workload(name, quick)
        expected = ours(work).gradients()["theta0"]
        for peer, module in modules.items():
            gap = difference(expected, theirs(peer, module, work)())
            if not gap <= NOISE:
                raise WarpgradError(f"bench: {peer} and this library differ by {gap:.1e} in MAML's gradient on {name}.")
    finally:
        torch.set_default_dtype(before)


def measure(repetitions: int, quick: bool) -> tuple[list[Figure], dict[str, str]]:
    """Time MAML's meta-gradient on both networks; also return the libraries that are absent."""
    modules, absent = present()
    figures: list[Figure] = []
    for name in LOSSES:
        check(name, quick, modules)
        work = workload(name, quick)
        ways: dict[str, Way] = {"warpgrad": ours(work).gradients}
        ways.update({peer: theirs(peer, module, work) for peer, module in modules.items()})
        with traced_at_once():
            timings = interleaved(ways, repetitions)
        for peer in modules:
            words = (f"MAML on {name}, K = {work.steps}", peer)
            figures.append(figure(timings, "maml", "warpgrad", peer, work.points, words=words, most=MOST))
    return figures, absent
