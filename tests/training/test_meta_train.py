"""`adapt` hands back a plain module; `meta_train` improves it."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import warpgrad as wg
from tests.support.problems import conv_batch_norm, make_task, mlp, point_after


def test_adapt_returns_the_users_own_class_with_the_adapted_weights():
    module = conv_batch_norm()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    learner, task = wg.Learner(module, batch_norm="running"), make_task(conv_batch_norm)
    fitted = wg.adapt(learner, task, rule=wg.SGD(0.1), steps=3, key=5)
    point = point_after(wg.Adaptation(learner, wg.SGD(0.1), task, 5), 3)
    state = fitted.state_dict()
    assert type(fitted) is type(module)
    assert not fitted.training
    assert set(state) == set(before)
    for name, value in {**point.theta, **point.buffers, **learner.phi}.items():
        assert torch.equal(state[name], value)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    own = {value.data_ptr() for value in module.state_dict().values()}
    assert not own & {value.data_ptr() for value in state.values()}


def test_the_fitted_module_runs_saves_and_exports_without_the_library(tmp_path):
    fitted = wg.adapt(wg.Learner(mlp()), make_task(mlp), rule=wg.SGD(0.1), steps=2)
    x = torch.randn(4, 3, dtype=torch.float64)
    torch.save(fitted, tmp_path / "module.pt")
    torch.export.save(torch.export.export(fitted, (x,)), tmp_path / "module.pt2")
    torch.save({"x": x, "y": fitted(x).detach()}, tmp_path / "expected.pt")
    script = f"""
import sys, torch
sys.modules["warpgrad"] = None  # any import of the library would now fail
kept = torch.load({str(tmp_path / "expected.pt")!r})
module = torch.load({str(tmp_path / "module.pt")!r}, weights_only=False)
program = torch.export.load({str(tmp_path / "module.pt2")!r}).module()
assert torch.equal(module(kept["x"]), kept["y"])
torch.testing.assert_close(program(kept["x"]), kept["y"])
assert not any("warpgrad" in str(vars(child)) for child in module.modules())
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("policy", ["running", "batch", "frozen"])
def test_the_fitted_module_tests_as_its_policy_says(policy):
    learner, task = wg.Learner(conv_batch_norm(), batch_norm=policy), make_task(conv_batch_norm)
    fitted = wg.adapt(learner, task, rule=wg.SGD(0.1), steps=3)
    point = point_after(wg.Adaptation(learner, wg.SGD(0.1), task, 0), 3)
    ((x, _),) = task.test_batches()
    expected = learner.bind(point.theta, point.buffers, training=False)(x)
    torch.testing.assert_close(fitted(x), expected)


def test_the_learning_curve_on_request():
    learner, task = wg.Learner(mlp()), make_task(mlp)
    _, curve = wg.adapt(learner, task, rule=wg.SGD(0.1), steps=5, curve=True, test_every=2)
    assert curve.tested_at == [0, 2, 4, 5]
    assert len(curve.losses) == 5
    ((x, y),) = task.test_batches()
    point = point_after(wg.Adaptation(learner, wg.SGD(0.1), task, 0), 4)
    expected = F.mse_loss(learner.bind(point.theta, {}, training=False)(x), y).item()
    assert curve.scores[2]["loss"] == pytest.approx(expected)
    with pytest.raises(wg.WarpgradError, match="steps=0"):
        wg.adapt(learner, task, rule=wg.SGD(0.1), steps=0)
    with pytest.raises(wg.WarpgradError, match="test_every=0"):
        wg.adapt(learner, task, rule=wg.SGD(0.1), steps=1, curve=True, test_every=0)


def sine(seed: int) -> wg.SupervisedTask:
    draw = torch.Generator().manual_seed(seed)
    x = 10 * torch.rand(60, 1, generator=draw) - 5
    y = (0.5 + 4 * torch.rand((), generator=draw)) * torch.sin(x + 3.14 * torch.rand((), generator=draw))
    halves = {"meta": (x[20:40], y[20:40]), "test": (x[40:], y[40:])}
    return wg.SupervisedTask(x[:20], y[:20], F.mse_loss, batch_size=10, seed=seed, name=f"sine {seed}", **halves)


def sine_learner() -> wg.Learner:
    torch.manual_seed(3)
    layers = [nn.Linear(1, 32), wg.Warp(nn.Linear(32, 32)), nn.Tanh()]
    layers += [nn.Linear(32, 32), wg.Warp(nn.Linear(32, 32)), nn.Tanh(), nn.Linear(32, 1)]
    return wg.Learner(nn.Sequential(*layers))


def held_out_loss(learner: wg.Learner) -> float:
    total = 0.0
    for seed in range(1000, 1020):
        _, curve = wg.adapt(learner, sine(seed), rule=wg.SGD(0.02), steps=10, curve=True)
        total += curve.scores[-1]["loss"] / 20
    return total


@pytest.mark.parametrize("objective", [wg.Exact, wg.Approximate])
def test_meta_training_helps_on_held_out_tasks(objective):
    learner = sine_learner()
    before = held_out_loss(learner)
    options = {"rule": wg.SGD(0.02), "objective": objective(), "initialiser": wg.Reptile()}
    optimiser = {
        "phi": partial(torch.optim.Adam, lr=3e-3),
        "theta0": partial(torch.optim.SGD, lr=0.5),
    }
    algorithm = wg.Offline(steps=10, tasks=5, samples=10)
    wg.meta_train(learner, wg.FunctionFamily(sine), algorithm=algorithm, optimiser=optimiser, meta_steps=60, **options)
    assert held_out_loss(learner) < 0.6 * before


def test_the_same_seed_gives_the_same_bytes():
    def trained(seed):
        learner = sine_learner()
        wg.meta_train(
            learner, wg.FunctionFamily(sine), algorithm=wg.Offline(steps=3, tasks=2, samples=2),
            rule=wg.SGD(0.02), objective=wg.Exact(), initialiser=wg.Leap(),
            optimiser=partial(torch.optim.Adam, lr=1e-3), meta_steps=3, seed=seed,
        )  # fmt: skip
        return torch.cat([value.flatten() for value in learner.module.state_dict().values()])

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))


def test_groups_have_their_own_optimisers_and_clipping():
    learner = sine_learner()
    rule = wg.SGD(wg.Learned(0.02))
    method = wg.Method(learner, rule, wg.Exact(), wg.Leap())
    update = wg.MetaOptimiser(
        method, {"rule": partial(torch.optim.SGD, lr=1.0), "phi": partial(torch.optim.SGD, lr=1.0)},
        clip={"rule": 0.001},
    )  # fmt: skip
    theta = learner.theta0["0.weight"].detach().clone()
    update("rule", {"lr": torch.tensor(50.0)})
    update("theta0", {"0.weight": torch.ones_like(theta)})
    assert rule.meta["lr"].item() == pytest.approx(0.019)
    assert torch.equal(learner.theta0["0.weight"], theta)
    with pytest.raises(wg.NonFiniteError, match=r"meta-gradient of phi parameter '1.weight' is not finite"):
        update("phi", {"1.weight": torch.full((32, 32), float("inf"))})
    with pytest.raises(wg.WarpgradError, match="optimiser group 'omega' is unknown"):
        wg.MetaOptimiser(method, {"omega": partial(torch.optim.SGD, lr=1.0)})


def test_task_lists_are_shuffled_and_cycled_with_new_draws():
    tasks = [sine(seed) for seed in range(3)]
    family = wg.TaskList(tasks)
    batch = family.meta_batch(5, 7)
    originals = [[task.name for task in tasks].index(own.name) for own in batch]
    assert sorted(originals[:3]) == sorted(originals[3:6]) == [0, 1, 2]
    again = family.meta_batch(5, 7)
    assert all(torch.equal(a.adapt_batch(0)[0], b.adapt_batch(0)[0]) for a, b in zip(batch, again, strict=True))
    place = originals.index(originals[6])
    assert not torch.equal(batch[6].adapt_batch(0)[0], batch[place].adapt_batch(0)[0])
