"""Compiled steps: the loop's numbers, the same bits after a resume, and a sentence wherever there is no compiler."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import warpgrad as wg
from tests.support import ROOT
from tests.support.problems import Recorder, make_task, mlp, relative_error
from warpgrad.adaptation import compiled as compiling
from warpgrad.adaptation.compiled import compiler
from warpgrad.adaptation.graphs import reorder_products
from warpgrad.algorithms import backend

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


def wide():
    """Layers wider than a batch, so that gradients are of low rank."""
    return nn.Sequential(
        nn.Linear(3, 12), nn.Tanh(), wg.Warp(nn.Linear(12, 12)), nn.Tanh(), nn.Linear(12, 2)
    ).double()  # fmt: skip


def test_thin_factors_are_multiplied_first_and_added_as_they_are_made():
    """θ − α gᵀx and its products with thin matrices never make a matrix of θ's size but θ' itself."""

    def step(theta, g, x, probe):
        gradient = torch.bmm(x.transpose(1, 2), g).transpose(1, 2)
        return torch.add(theta, gradient, alpha=-0.1), torch.bmm(probe, 2.0 * torch.bmm(x.transpose(1, 2), g))

    shapes = (3, 9, 9), (3, 2, 9), (3, 2, 9), (3, 2, 9)
    given = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    graph = make_fx(step, tracing_mode="fake")(*given)
    reorder_products(graph.graph)
    graph.recompile()
    for found, expected in zip(graph(*given), step(*given), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    made = [node for node in graph.graph.nodes if node.op == "call_function" and node.meta["val"].shape == (3, 9, 9)]
    assert [node.target for node in made] == [torch.ops.aten.baddbmm.default]


def test_products_that_are_needed_whole_stay():
    def both(a, b, c):
        product = a @ b
        return product, c + product, c @ product.t()

    given = [torch.randn(shape, dtype=torch.float64) for shape in ((6, 6), (6, 6), (6, 6))]
    graph = make_fx(both, tracing_mode="fake")(*given)
    reorder_products(graph.graph)
    graph.recompile()
    for found, expected in zip(graph(*given), both(*given), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def gradients(method, algorithm, tasks, meta_steps=2):
    recorder = Recorder()
    for step in range(meta_steps):
        algorithm.meta_step(method, tasks, [place + 10 * step for place in range(len(tasks))], recorder)
    return recorder.seen


@needs_compiler
@pytest.mark.parametrize(
    ("rule", "objective", "initialiser"),
    [
        (wg.SGD(0.1, momentum=0.9), wg.Exact(), wg.Fixed()),
        pytest.param(wg.SGD(wg.Learned(0.1)), wg.Exact(), wg.Leap(), marks=pytest.mark.slow),
        pytest.param(wg.SGD(0.1), wg.Approximate(), wg.Reptile(), marks=pytest.mark.slow),
        pytest.param(wg.Adam(0.05, eps=0.1), wg.Exact(), wg.FOMAML(), marks=pytest.mark.slow),
        pytest.param(wg.Clip(wg.SGD(0.1), norm=0.05), wg.InPlace(), wg.MultiTask(), marks=pytest.mark.slow),
    ],
    ids=["momentum", "learned-leap", "approximate-reptile", "adam-fomaml", "clip-multi-task"],
)
def test_compiled_steps_have_the_numbers_of_the_loop(rule, objective, initialiser):
    torch.manual_seed(0)
    method = wg.Method(wg.Learner(wide()), rule, objective, initialiser)
    tasks = [make_task(mlp, seed) for seed in range(3)]
    found = gradients(method, wg.Online(steps=3, tasks=3, backend="compiled"), tasks)
    expected = gradients(method, wg.Online(steps=3, tasks=3, backend="loop"), tasks)
    assert [group for group, _ in found] == [group for group, _ in expected]
    for (_, ours), (_, theirs) in zip(found, expected, strict=True):
        assert relative_error(ours, theirs) < 1e-10


@needs_compiler
@pytest.mark.slow
def test_compiled_replay_has_the_numbers_of_the_loop():
    torch.manual_seed(0)
    method = wg.Method(wg.Learner(wide()), wg.SGD(0.1), wg.Exact(), wg.Leap())
    tasks = [make_task(mlp, seed) for seed in range(3)]
    found = gradients(method, wg.Offline(steps=3, tasks=3, samples=4, backend="compiled"), tasks)
    expected = gradients(method, wg.Offline(steps=3, tasks=3, samples=4, backend="loop"), tasks)
    for (_, ours), (_, theirs) in zip(found, expected, strict=True):
        assert relative_error(ours, theirs) < 1e-10


JOB = """
import json, logging, sys
from functools import partial
import torch
import warpgrad as wg
from tests.adaptation.test_compiled import train
from torch._dynamo.utils import counters
from warpgrad.algorithms import backend

torch.set_num_threads(1)
backend.WORTH_COMPILING = 1
learner = train(sys.argv[1], int(sys.argv[2]))
print(json.dumps([{name: value.tolist() for name, value in learner.phi.items()}, dict(counters["inductor"])]))
"""


def train(run, meta_steps, **options):
    torch.manual_seed(0)
    learner = wg.Learner(wide())
    wg.meta_train(
        learner,
        wg.FunctionFamily(lambda seed: make_task(mlp, seed)),
        algorithm=wg.Online(steps=3, tasks=2, **options),
        rule=wg.SGD(0.1),
        objective=wg.Exact(),
        optimiser=partial(torch.optim.Adam, lr=1e-2),
        meta_steps=meta_steps,
        run=run,
        checkpoint_seconds=0,
    )
    return learner


def in_a_process(run, meta_steps):
    command = [sys.executable, "-W", "error", "-c", JOB, str(run), str(meta_steps)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@needs_compiler
def test_a_resumed_run_is_compiled_as_an_unbroken_one_and_loads_what_was_built(tmp_path, monkeypatch):
    """A second process compiles nothing, prints nothing, and ends with the bits of one that was not stopped."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "built"))
    (_, first), _ = in_a_process(tmp_path / "run", 2)
    (resumed, second), _ = in_a_process(tmp_path / "run", 4)
    (unbroken, _), said = in_a_process(tmp_path / "whole", 4)
    assert first["fxgraph_cache_miss"] == 1
    assert "fxgraph_cache_miss" not in second
    assert second["fxgraph_cache_hit"] == 1
    assert resumed == unbroken
    assert said == ""


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("damage", ["libraries", "entries", "folder"])
def test_what_was_built_and_is_of_no_use_is_built_anew(damage, tmp_path, monkeypatch):
    """Libraries cut off, entries overwritten, or a folder that cannot be written to: the numbers stay."""
    built = tmp_path / "built"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(built))
    in_a_process(tmp_path / "run", 2)
    (unbroken, _), _ = in_a_process(tmp_path / "whole", 4)
    if damage == "folder":  # a file where a folder is to be: nothing can be locked, hence nothing be written
        shutil.rmtree(built)
        built.mkdir()
        (built / "locks").write_text("")
    for file in built.rglob("*") if damage != "folder" else ():
        if file.is_file() and (file.suffix == ".so") == (damage == "libraries"):
            file.write_bytes(file.read_bytes()[:100] if damage == "libraries" else b"damaged")
    (resumed, _), _ = in_a_process(tmp_path / "run", 4)
    assert resumed == unbroken


@needs_compiler
@pytest.mark.slow
def test_two_processes_compile_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "built"))
    with ThreadPoolExecutor() as both:
        first, second = both.map(lambda name: in_a_process(tmp_path / name, 2), ("first", "second"))
    assert first[0][0] == second[0][0]


def fail(*_):
    raise OSError("No space left on device")


def as_it_is(graph, _):
    """In place of the compiler: quick, and of the same numbers."""
    return graph.forward


@pytest.fixture
def compiles_all(monkeypatch):
    """Every run is long enough, and there is a compiler."""
    monkeypatch.setattr(backend, "WORTH_COMPILING", 1)
    monkeypatch.setattr(backend, "compiler", lambda: "g++")


@pytest.mark.usefixtures("compiles_all")
def test_a_run_that_was_compiled_is_refused_where_the_compiler_fails(tmp_path, monkeypatch):
    """Its numbers would change in the middle."""
    monkeypatch.setattr(compiling, "compiled", as_it_is)
    train(tmp_path / "run", 1)
    monkeypatch.setattr(compiling, "compiled", fail)
    with pytest.raises(
        wg.WarpgradError, match=r"steps of this run are compiled, but here the compiler failed: No space"
    ):
        train(tmp_path / "run", 2)
    train(tmp_path / "run", 2, backend="traced")


@pytest.mark.usefixtures("compiles_all")
def test_steps_that_could_not_be_compiled_stay_traced_when_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "compiled", fail)
    train(tmp_path / "run", 1)
    asked = []
    monkeypatch.setattr(compiling, "compiled", lambda *given: asked.append(given) or as_it_is(*given))
    train(tmp_path / "run", 2)
    assert asked == []


def test_a_short_run_is_not_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "built"))
    train(tmp_path / "run", 2)
    assert not (tmp_path / "built").exists()


def test_without_a_compiler_auto_traces_and_compiled_is_refused(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(backend, "WORTH_COMPILING", 1)
    train(None, 1)
    with pytest.raises(wg.WarpgradError, match=r"no C.. compiler was found: install g.., or set CXX to one"):
        train(None, 1, backend="compiled")


@needs_compiler
def test_a_compiled_run_is_not_resumed_where_there_is_no_compiler(tmp_path, monkeypatch):
    """Its numbers would change in the middle; whoever asks for another backend by name gets it."""
    monkeypatch.setattr(backend, "WORTH_COMPILING", 1)
    train(tmp_path / "run", 1)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(wg.WarpgradError, match=r"steps of this run are compiled, but no C.. compiler was found"):
        train(tmp_path / "run", 2)
    train(tmp_path / "run", 2, backend="traced")


@needs_compiler
def test_a_run_that_was_begun_short_stays_traced(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "built"))
    train(tmp_path / "run", 1)
    monkeypatch.setattr(backend, "WORTH_COMPILING", 1)
    train(tmp_path / "run", 2)
    assert not (tmp_path / "built").exists()


class Dropping(nn.Module):
    """Decides by the values of tensors, so it cannot be traced."""

    def __init__(self):
        super().__init__()
        self.linear, self.warp = nn.Linear(3, 2), wg.Warp(nn.Linear(2, 2))

    def forward(self, x):
        y = self.warp(self.linear(x))
        return y if float(self.linear.weight.sum()) > -1e9 else -y


def test_what_cannot_be_compiled_is_refused_in_a_sentence():
    method = wg.Method(wg.Learner(Dropping().double()), wg.SGD(0.1), wg.Exact())
    tasks = [make_task(mlp, seed) for seed in range(2)]
    with pytest.raises(wg.WarpgradError, match="backend='compiled' cannot be used"):
        gradients(method, wg.Online(steps=1, tasks=2, backend="compiled"), tasks, 1)
