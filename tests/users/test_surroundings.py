"""What a user's program puts around or into a forward pass: the numbers stay right, or one sentence says why not."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import warpgrad as wg
from warpgrad.adaptation.traced import TracedGraphs, traced_at_once
from warpgrad.keys import generator


class Net(nn.Module):
    """A model with dropout and batch-norm whose body may be checkpointed."""

    def __init__(self, variant: str | None = None) -> None:
        super().__init__()
        self.lower, self.warp, self.norm = nn.Linear(3, 8), nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.dropout, self.head = nn.Dropout(0.3), nn.Linear(8, 2)
        self.variant = variant

    def inside(self, x: Tensor) -> Tensor:
        return self.norm(torch.tanh(self.warp(x)))

    def body(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.lower(x))
        x = checkpoint(self.inside, x, use_reentrant=False) if self.variant == "nested" else self.inside(x)
        return self.dropout(x)

    def forward(self, x: Tensor) -> Tensor:
        if self.variant is None:
            return self.head(self.body(x))
        return self.head(checkpoint(self.body, x, use_reentrant=self.variant == "reentrant"))


def task(seed: int = 0, dtype: torch.dtype = torch.float64, **options) -> wg.SupervisedTask:
    draw = generator(seed, "users")

    def data() -> tuple[Tensor, Tensor]:
        return torch.randn(8, 3, generator=draw).to(dtype), torch.randn(8, 2, generator=draw).to(dtype)

    return wg.SupervisedTask(*data(), F.mse_loss, meta=data(), test=data(), name=f"t{seed}", **options)


def learner(module: nn.Module | None = None, **options) -> wg.Learner:
    torch.manual_seed(0)
    return wg.Learner(Net().double() if module is None else module, **{"warp": "warp", **options})


def trained(learner: wg.Learner, **options) -> list[dict[str, float]]:
    settings = {
        "algorithm": wg.Online(steps=2, tasks=2),
        "rule": wg.SGD(0.1),
        "objective": wg.Exact(),
        "initialiser": wg.Leap(),
        "optimiser": partial(torch.optim.Adam, lr=1e-2),
        "meta_steps": 2,
    }
    return wg.meta_train(learner, wg.TaskList([task(0), task(1)]), **{**settings, **options})


def same(one: wg.Learner, other: wg.Learner) -> None:
    for name, value in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("variant", ["plain", "nested"])
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"initialiser": wg.MAML()},
        {"algorithm": wg.Unrolled(steps=2, tasks=2), "objective": None, "initialiser": None},
    ],
    ids=["exact", "maml", "unrolled"],
)
def test_checkpointed_parts_are_computed_again_with_the_same_parameters(variant, parts):
    learners = []
    for one in (None, variant):
        torch.manual_seed(3)
        learners.append(wg.Learner(Net(one).double(), warp="warp"))
        trained(learners[-1], **parts)
    same(*learners)


class Selective(Net):
    """Checkpoints that keep some results, or that do not keep the state of the generator."""

    def forward(self, x: Tensor) -> Tensor:
        options = {"preserve_rng_state": False}
        if self.variant == "selective":
            kept = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
            options = {"context_fn": partial(create_selective_checkpoint_contexts, kept)}
        return self.head(checkpoint(self.body, x, use_reentrant=False, **options))


@pytest.mark.parametrize("variant", ["selective", "generator not kept"])
@pytest.mark.parametrize("parts", [{}, {"initialiser": wg.MAML()}], ids=["exact", "maml"])
def test_checkpoints_of_other_kinds_have_the_numbers_of_none(variant, parts):
    learners = []
    for module in (Net, partial(Selective, variant)):
        torch.manual_seed(3)
        learners.append(wg.Learner(module().double(), warp="warp"))
        trained(learners[-1], **parts)
    same(*learners)


def test_adaptation_through_a_checkpoint_is_gradient_descent():
    own = learner(Net("plain").double().eval())
    for module in own.module.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    twin = Net().double().train()
    twin.load_state_dict(own.state_dict())
    twin.dropout.p = 0.0
    fitted = wg.adapt(own, task(), rule=wg.SGD(0.1), steps=3)
    optimiser = torch.optim.SGD([value for name, value in twin.named_parameters() if "warp" not in name], 0.1)
    for k in range(3):
        x, y = task().adapt_batch(k)
        optimiser.zero_grad()
        F.mse_loss(twin(x), y).backward()
        optimiser.step()
    for name, value in twin.named_parameters():
        torch.testing.assert_close(dict(fitted.named_parameters())[name], value, rtol=1e-12, atol=1e-12)


def test_reentrant_checkpoints_are_refused_where_gradients_are_on():
    with pytest.raises(wg.WarpgradError, match="use_reentrant=False"):
        wg.adapt(learner(Net("reentrant").double()), task(), rule=wg.SGD(0.1), steps=1)
    with torch.no_grad():
        own = learner(Net("reentrant").double())
        own.bind(own.start(0), own.buffers(), training=False)(torch.zeros(2, 3, requires_grad=True).double())
    x = torch.ones(2, 3, requires_grad=True)
    checkpoint(torch.sin, x, use_reentrant=True).sum().backward()  # outside a learner nothing has changed
    torch.testing.assert_close(x.grad, torch.ones(2, 3).cos())


AUTOCAST = """
import sys
from functools import partial
import torch, torch.nn.functional as F
from torch import nn
import warpgrad as wg
from warpgrad.keys import generator

DTYPE = getattr(torch, sys.argv[1])

class Net(nn.Module):
    def __init__(self, own):
        super().__init__()
        self.lower, self.warp, self.head, self.own = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 2), own
        self.conv = nn.Conv1d(1, 1, 3, padding=1)
    def forward(self, x):
        with torch.autocast("cpu", dtype=DTYPE, enabled=self.own or torch.is_autocast_enabled("cpu")):
            x = torch.tanh(self.conv(x.unsqueeze(1)).squeeze(1))
            return self.head(torch.tanh(self.warp(torch.tanh(self.lower(x))))).float()

def task(seed):
    draw = generator(seed, "users")
    data = lambda: (torch.randn(8, 3, generator=draw), torch.randn(8, 2, generator=draw))
    return wg.SupervisedTask(*data(), F.mse_loss, meta=data(), test=data())

def run(inside, backend):
    torch.manual_seed(0)
    learner = wg.Learner(Net(inside), warp="warp")
    tasks = wg.TaskList([task(0), task(1)])
    rule = wg.SGD(0.1)
    with torch.autocast("cpu", dtype=DTYPE, enabled=not inside):
        wg.meta_train(
            learner, tasks, algorithm=wg.Online(steps=3, tasks=2, backend=backend), rule=rule, objective=wg.Exact(),
            initialiser=wg.Leap(), optimiser=partial(torch.optim.Adam, lr=1e-2), meta_steps=4,
        )
        fitted = wg.adapt(learner, task(2), rule=rule, steps=3)
        score = wg.score(learner, [task(2)], rule=rule, steps=3)["loss"]
    return {**learner.state_dict(), **{"fitted." + name: value for name, value in fitted.state_dict().items()}}, score

for backend in ("loop", "auto"):
    (expected, right), (found, got) = run(True, backend), run(False, backend)
    assert right == got, (backend, right, got)
    assert all(torch.equal(value, found[name]) for name, value in expected.items()), backend
print("equal")
"""


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_autocast_around_meta_training_is_autocast_inside_the_model(dtype, tmp_path):
    """Inside the model autocast ends, and forgets its copies, at every pass: those numbers are the reference."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(AUTOCAST))
    probe = f"import torch; a = torch.ones(8, 8, dtype=torch.{dtype}); torch.nn.functional.linear(a, a).sum().item()"
    if subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"this processor cannot multiply {dtype}")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program), dtype], capture_output=True, text=True, check=False
    )
    if done.returncode < 0:
        pytest.skip(f"{dtype} autocast is not for this processor: signal {-done.returncode}")
    assert done.stdout.strip().endswith("equal"), done.stderr[-2000:]


def test_a_traced_step_is_not_used_under_another_precision():
    """Graphs are forgotten when autocast is switched on or off between meta-steps."""
    own, rule, graphs, evaluated = learner(), wg.SGD(0.1), TracedGraphs(), 0

    def product(groups, batches):
        nonlocal evaluated
        evaluated += 1
        return {"products": {"product": groups["factors"]["factor"] * batches[0]}}

    def meta_step() -> int:
        """How often a meta-step has evaluated the product itself, and not by its graph."""
        before = evaluated
        graphs.begin(own, rule)
        found = graphs.run("product", product, {"factors": {"factor": torch.full((2,), 3.0)}}, [torch.ones(2)])
        assert found is not None
        assert found["products"]["product"].tolist() == [3.0, 3.0]
        return evaluated - before

    with traced_at_once():
        assert meta_step() > 0
        assert meta_step() == 0
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert meta_step() > 0
            assert meta_step() == 0


def test_cached_parametrisations_are_refused_around_and_allowed_inside():
    class Inside(Net):
        def forward(self, x: Tensor) -> Tensor:
            with parametrize.cached():
                return super().forward(x)

    parametrizations.spectral_norm(own := Inside().double().lower)
    module = Inside().double()
    module.lower = own
    trained(learner(module), meta_steps=1)
    with parametrize.cached(), pytest.raises(wg.WarpgradError, match="use it inside the model's forward"):
        trained(learner(), meta_steps=1)


class LayerDrop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lower, self.warp = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.warp(torch.tanh(self.lower(x)) if random.random() < 0.9 else self.lower(x))


def test_python_randomness_in_forward_is_named_and_never_traced(caplog, monkeypatch):
    with pytest.warns(UserWarning, match="LayerDrop draws from Python's random"):
        wg.adapt(learner(LayerDrop().double()), task(), rule=wg.SGD(0.1), steps=1)
    random.seed(0)
    own = learner(LayerDrop().double())
    algorithm = wg.Online(steps=2, tasks=2)
    # As if the two backends had agreed by chance.
    monkeypatch.setattr("warpgrad.algorithms.backend.why_not_stackable", lambda *arguments: None)
    with warnings.catch_warnings(), traced_at_once(), caplog.at_level("INFO"):
        warnings.simplefilter("ignore")
        trained(own, algorithm=algorithm)
    assert "they draw from Python's random" in caplog.text


def test_torch_randomness_is_no_reason_to_warn():
    wg.adapt(learner(), task(), rule=wg.SGD(0.1), steps=4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.load_state_dict({k: v.clone() for k, v in m.state_dict().items()}, assign=True), "assign=True"),
        (lambda m: setattr(m, "lower", nn.Linear(3, 8).double()), "'lower.weight' was replaced in the module"),
        (lambda m: delattr(m, "lower"), "'lower.weight' is gone from the module"),
        (lambda m: m.lower.requires_grad_(False), "requires_grad of parameter 'lower.weight' was changed to False"),
        (lambda m: m.warp.requires_grad_(False), "requires_grad of parameter 'warp.weight' was changed to False"),
    ],
)
def test_what_changes_in_the_module_after_learner_is_noticed(change, words):
    own = learner()
    change(own.module)
    with pytest.raises(wg.WarpgradError, match=words):
        wg.adapt(own, task(), rule=wg.SGD(0.1), steps=1)
    with pytest.raises(wg.WarpgradError, match=words):
        trained(own)


def test_a_module_moved_after_learner_is_used_as_it_is():
    own = learner()
    own.module.float()
    fitted = wg.adapt(own, task(dtype=torch.float32), rule=wg.SGD(0.1), steps=2)
    assert fitted.lower.weight.dtype == torch.float32
    twin = learner().to(torch.float32)
    assert isinstance(twin, wg.Learner)
    other = wg.adapt(twin, task(dtype=torch.float32), rule=wg.SGD(0.1), steps=2)
    torch.testing.assert_close(fitted.state_dict(), other.state_dict())


def test_adapt_keeps_the_requires_grad_flags():
    module = Net().double()
    module.norm.requires_grad_(False)
    fitted = wg.adapt(learner(module), task(), rule=wg.SGD(0.1), steps=1)
    frozen = {name for name, value in fitted.named_parameters() if not value.requires_grad}
    assert frozen == {"norm.weight", "norm.bias"}


def test_an_embedding_that_rewrites_its_weight_is_refused():
    module = nn.Sequential(nn.Embedding(5, 3, max_norm=1.0), nn.Linear(3, 2))
    with pytest.raises(wg.WarpgradError, match=r"max_norm=1\.0, which rewrites"):
        wg.Learner(module, warp="1")
    wg.Learner(module, warp=(), constant="0")


def test_state_dict_goes_round_and_names_what_does_not_fit():
    own = learner()
    trained(own)
    other = wg.Learner(Net().double(), warp="warp")
    other.load_state_dict({name: value.clone() for name, value in own.state_dict().items()})
    same(own, other)
    with pytest.raises(wg.WarpgradError, match=r"the state has no 'head.bias'"):
        other.load_state_dict({name: value for name, value in own.state_dict().items() if name != "head.bias"})
    with pytest.raises(wg.WarpgradError, match="which the learner's Net does not have"):
        other.load_state_dict({**own.state_dict(), "more": torch.zeros(1)})
    with pytest.raises(wg.WarpgradError, match=r"'head\.bias' has the shape"):
        other.load_state_dict({**own.state_dict(), "head.bias": torch.zeros(7)})


def test_repr_shows_the_split_with_names_and_counts():
    text = repr(learner(constant="norm"))
    assert "Learner(Net" in text
    lines = dict(zip(("θ", "φ", "constant"), text.splitlines()[1:], strict=True))
    assert "50 in   4  lower.weight, lower.bias, head.weight, head.bias" in lines["θ"]
    assert "72 in   2  warp.weight, warp.bias" in lines["φ"]
    assert "16 in   2  norm.weight, norm.bias" in lines["constant"]
