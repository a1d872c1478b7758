"""Algorithms 1, 2 and 3: what they hand to the meta-optimiser, when, and how it grows with K."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import warpgrad as wg
from tests.support.problems import (
    JudgedStart,
    Position,
    Quadratic,
    Recorder,
    conv_batch_norm,
    make_task,
    mlp,
    relative_error,
)
from warpgrad.algorithms import offline

KEYS = [11, 12, 13]
INITIALISERS = {
    "none": wg.Fixed,
    "leap": wg.Leap,
    "reptile": wg.Reptile,
    "fomaml": wg.FOMAML,
    "maml": wg.MAML,
    "prior": lambda: wg.GaussianPrior(wg.Leap(), std=0.1),
}


def run(algorithm, method, tasks, keys=KEYS):
    recorder = Recorder()
    algorithm.meta_step(method, tasks, keys, recorder)
    return recorder


def tasks_for(make):
    return [make_task(make, seed) for seed in range(3)]


@pytest.mark.parametrize("backend", ["loop", "auto"])
@pytest.mark.parametrize("initialiser", INITIALISERS)
def test_offline_with_all_points_at_once_equals_online(initialiser, backend):
    learner = wg.Learner(mlp())
    method = wg.Method(learner, wg.SGD(0.1, momentum=0.5), wg.Exact(), INITIALISERS[initialiser](), weight=0.3)
    online = run(wg.Online(steps=4, tasks=3, backend=backend), method, tasks_for(mlp))
    offline = run(wg.Offline(steps=4, tasks=3, samples=None, backend=backend), method, tasks_for(mlp))
    boxed = run(wg.Offline(steps=4, tasks=3, samples=None, interleave=True, backend=backend), method, tasks_for(mlp))
    for group in ("phi", "theta0", "prior"):
        assert len(online.of(group)) == len(offline.of(group)) == len(boxed.of(group))
        for expected, found, other in zip(online.of(group), offline.of(group), boxed.of(group), strict=True):
            assert relative_error(found, expected) < 1e-12
            assert relative_error(other, expected) < 1e-12


def test_offline_equals_online_with_statistics_in_the_buffer():
    learner = wg.Learner(conv_batch_norm())
    method = wg.Method(learner, wg.Adam(0.05, eps=0.1), wg.Exact(), wg.Reptile())
    tasks = tasks_for(conv_batch_norm)
    for last in (False, True):
        online = run(wg.Online(steps=3, tasks=3, include_last=last), method, tasks)
        offline = run(wg.Offline(steps=3, tasks=3, samples=None, include_last=last), method, tasks)
        assert relative_error(offline.of("phi")[0], online.of("phi")[0]) < 1e-12


def test_online_is_the_mean_over_tasks_and_steps():
    """Algorithm 1 by hand: the objective at θ_0 … θ_{K−1} of every task, and with `include_last` at θ_K."""
    learner = wg.Learner(mlp())
    method = wg.Method(learner, wg.SGD(0.1), wg.Exact())
    tasks = tasks_for(mlp)
    samples = []
    for task, key in zip(tasks, KEYS, strict=True):
        adaptation = wg.Adaptation(learner, method.rule, task, key)
        point = adaptation.start()
        for _ in range(4):
            step = wg.Exact().step(adaptation, point)
            samples.append(step.phi)
            point = step.transition.after
    total = {name: sum(sample[name] for sample in samples) for name in learner.phi}
    (mean,) = run(wg.Online(steps=4, tasks=3), method, tasks).of("phi")
    (summed,) = run(wg.Online(steps=4, tasks=3, reduction="sum"), method, tasks).of("phi")
    assert relative_error(summed, total) < 1e-12
    assert relative_error(mean, {name: value / 12 for name, value in total.items()}) < 1e-12
    (other,) = run(wg.Online(steps=4, tasks=3, include_last=True), method, tasks).of("phi")
    assert relative_error(other, mean) > 1e-3


@pytest.mark.parametrize("backend", ["loop", "auto"])
def test_online_adds_what_an_objective_makes_of_theta0_itself(backend):
    """g_φ + w Σ ∇_φ L_meta(θ_0; φ) against finite differences of that loss."""
    learner, weight, steps, h = wg.Learner(mlp()), 2.5, 4, 1e-5
    method, tasks = wg.Method(learner, wg.SGD(0.1), wg.Exact()), tasks_for(mlp)
    options = {"steps": steps, "tasks": 3, "reduction": "sum", "backend": backend}
    (plain,) = run(wg.Online(**options), method, tasks).of("phi")
    recorder = Recorder()
    judging = wg.Method(learner, wg.SGD(0.1), JudgedStart(weight))
    record = wg.Online(**options).meta_step(judging, tasks, KEYS, recorder)
    (judged,) = recorder.of("phi")

    def at_start():
        points = [wg.Adaptation(learner, method.rule, task, key) for task, key in zip(tasks, KEYS, strict=True)]
        return sum(one.meta_loss(one.start().theta, one.start().buffers, 0).item() for one in points)

    for name, value in learner.phi.items():
        flat = value.detach().view(-1)
        for place in (0, flat.numel() - 1):
            begin = flat[place].item()
            flat[place] = begin + h
            above = at_start()
            flat[place] = begin - h
            slope = (above - at_start()) / (2 * h)
            flat[place] = begin
            found = (judged[name] - plain[name]).view(-1)[place].item()
            assert found == pytest.approx(weight * slope, rel=1e-6, abs=1e-9)
    assert record["meta_loss_start"] == pytest.approx(at_start() / 3, rel=1e-12)


def test_offline_visits_every_point_once_and_flushes_the_remainder():
    """12 points in updates of 5: 5 + 5 + 2, each scaled by its own count; together they are all of them."""
    method = wg.Method(wg.Learner(mlp()), wg.SGD(0.1), wg.Exact(), wg.Leap())
    tasks = tasks_for(mlp)
    (whole,) = run(wg.Online(steps=4, tasks=3, reduction="sum"), method, tasks).of("phi")
    recorder = run(wg.Offline(steps=4, tasks=3, samples=5), method, tasks)
    parts = recorder.of("phi")
    assert [group for group, _ in recorder.seen] == ["phi", "phi", "phi", "theta0"]
    total = {name: 5 * parts[0][name] + 5 * parts[1][name] + 2 * parts[2][name] for name in whole}
    assert relative_error(total, whole) < 1e-12


def test_offline_order_is_random_and_keyed():
    method = wg.Method(wg.Learner(mlp()), wg.SGD(0.1), wg.Exact())
    first, again, other = (
        run(wg.Offline(steps=4, tasks=3), method, tasks_for(mlp), keys).of("phi") for keys in (KEYS, KEYS, [21, 22, 23])
    )
    assert len(first) == 12
    assert all(torch.equal(a[name], b[name]) for a, b in zip(first, again, strict=True) for name in a)
    assert any(not torch.equal(a[name], b[name]) for a, b in zip(first, other, strict=True) for name in a)


def test_a_share_of_the_points_is_replayed_at_random_and_theta0_learns_from_all():
    """5 of 12 points, in updates of 2: each is the gradient of a point of the full replay, drawn by the key."""
    method = wg.Method(wg.Learner(mlp()), wg.SGD(0.1), wg.Exact(), wg.Leap())
    tasks = tasks_for(mlp)
    whole = run(wg.Offline(steps=4, tasks=3), method, tasks)
    part = run(wg.Offline(steps=4, tasks=3, share=0.4), method, tasks)
    other = run(wg.Offline(steps=4, tasks=3, share=0.4), method, tasks, [21, 22, 23])
    assert (len(whole.of("phi")), len(part.of("phi"))) == (12, 5)
    matches = [
        [place for place, known in enumerate(whole.of("phi")) if relative_error(found, known) < 1e-12]
        for found in part.of("phi")
    ]
    assert all(len(match) == 1 for match in matches)
    assert len({match[0] for match in matches}) == 5
    assert any(relative_error(a, b) > 1e-6 for a, b in zip(part.of("phi"), other.of("phi"), strict=True))
    assert relative_error(part.of("theta0")[0], whole.of("theta0")[0]) < 1e-12
    assert len(run(wg.Offline(steps=4, tasks=3, share=0.4, samples=2), method, tasks).of("phi")) == 3


def test_the_replay_buffer_holds_only_the_share_that_is_replayed(monkeypatch):
    capacities = []
    made = offline.ReplayBuffer

    def watched(capacity, *rest):
        capacities.append(capacity)
        return made(capacity, *rest)

    monkeypatch.setattr(offline, "ReplayBuffer", watched)
    method = wg.Method(wg.Learner(mlp()), wg.SGD(0.1), wg.Exact(), wg.Leap())
    run(wg.Offline(steps=4, tasks=3, share=0.25), method, tasks_for(mlp))
    assert capacities == [3]


def test_the_interleaved_form_updates_theta0_with_every_phi_update():
    method = wg.Method(wg.Learner(mlp()), wg.SGD(0.1), wg.Exact(), wg.Leap(), weight=2.0)
    tasks = tasks_for(mlp)
    recorder = run(wg.Offline(steps=4, tasks=3, samples=5, interleave=True), method, tasks)
    assert [group for group, _ in recorder.seen] == ["phi", "theta0"] * 3
    (once,) = run(wg.Offline(steps=4, tasks=3, samples=5), method, tasks).of("theta0")
    total = {name: sum(part[name] for part in recorder.of("theta0")) for name in once}
    assert relative_error(total, once) < 1e-12


def test_continual_steps_theta_every_batch_and_phi_every_eta():
    """Algorithm 3 by hand with plain SGD, in-place objective and C = multi-task."""
    learner = wg.Learner(mlp())
    method = wg.Method(learner, wg.SGD(0.1), wg.InPlace(), wg.MultiTask())
    algorithm = wg.Continual(tasks=3, batches=2)
    update = wg.MetaOptimiser(method, partial(torch.optim.SGD, lr=0.5))
    theta = {name: value.detach().clone() for name, value in learner.theta0.items()}
    phi = {name: value.detach().clone() for name, value in learner.phi.items()}
    waiting = {name: torch.zeros_like(value) for name, value in phi.items()}
    for batch in range(4):
        tasks = [make_task(mlp, 3 * batch + i) for i in range(3)]
        algorithm.meta_step(method, tasks, KEYS, update)
        slopes = {name: torch.zeros_like(value) for name, value in {**theta, **phi}.items()}
        for task in tasks:
            leaf = {name: value.clone().requires_grad_() for name, value in {**theta, **phi}.items()}
            inputs, targets = task.adapt_batch(0)
            prediction = torch.func.functional_call(learner.module, leaf, (inputs,))
            loss = torch.nn.functional.mse_loss(prediction, targets)
            for name, slope in zip(leaf, torch.autograd.grad(loss, list(leaf.values())), strict=True):
                slopes[name] += slope
        theta = {name: value - 0.5 * slopes[name] / 3 for name, value in theta.items()}
        waiting = {name: value + slopes[name] for name, value in waiting.items()}
        if batch % 2 == 1:
            phi = {name: value - 0.5 * waiting[name] / 6 for name, value in phi.items()}
            waiting = {name: torch.zeros_like(value) for name, value in phi.items()}
        for name, value in {**theta, **phi}.items():
            torch.testing.assert_close(dict(learner.module.named_parameters())[name].detach(), value)


def test_continual_carries_its_sums_through_a_checkpoint():
    def stream(interrupt: bool):
        torch.manual_seed(1)
        learner = wg.Learner(mlp())
        method = wg.Method(learner, wg.SGD(0.1), wg.InPlace(), wg.MultiTask())
        update = wg.MetaOptimiser(method, partial(torch.optim.SGD, lr=0.5))
        algorithm = wg.Continual(tasks=2, batches=3)
        for batch in range(5):
            if interrupt:
                state, algorithm = algorithm.state(), wg.Continual(tasks=2, batches=3)
                algorithm.load_state(state)
            tasks = [make_task(mlp, 2 * batch + i) for i in range(2)]
            algorithm.meta_step(method, tasks, [batch, batch + 100], update)
        return learner.module.state_dict()

    whole, resumed = stream(False), stream(True)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_tasks_own_number_of_steps_goes_first():
    class Short(Quadratic):
        steps = 2

    learner = wg.Learner(Position(torch.ones(3, dtype=torch.float64), nn.Linear(3, 3).double()))
    method = wg.Method(learner, wg.SGD(0.1), wg.Exact())
    recorder = run(wg.Offline(steps=5, tasks=3), method, [Short(0), Short(1), Quadratic(2)])
    assert len(recorder.of("phi")) == 2 + 2 + 5


class OperationCount(TorchDispatchMode):
    """Counts tensor operations: a clock that no other process can disturb."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("initialiser", ["none", "leap", "reptile", "fomaml"])
def test_the_work_of_algorithm_1_is_linear_in_k(initialiser):
    method = wg.Method(wg.Learner(mlp()), wg.SGD(0.1), wg.Exact(), INITIALISERS[initialiser]())

    def work(steps: int) -> int:
        with OperationCount() as counter:
            run(wg.Online(steps=steps, tasks=1), method, [make_task(mlp)], [1])
        return counter.count

    ten, twenty, forty = work(10), work(20), work(40)
    assert forty - twenty == 2 * (twenty - ten)
    assert ten > 100


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: wg.Online(steps=0, tasks=1), "steps=0: it must be at least 1"),
        (lambda: wg.Online(steps=1, tasks=0), "tasks=0: it must be at least 1"),
        (lambda: wg.Offline(steps=1, tasks=1, samples=0), "samples=0"),
        (lambda: wg.Offline(steps=1, tasks=1, share=0.0), "share=0.0"),
        (lambda: wg.Offline(steps=1, tasks=1, share=1.5), "share=1.5"),
        (lambda: wg.Offline(steps=1, tasks=1, share=0.5, interleave=True), "leave share= at 1"),
        (lambda: wg.Continual(tasks=1, batches=0), "batches=0"),
        (lambda: wg.Online(steps=1, tasks=1, reduction="max"), "reduction='max'"),
        (lambda: wg.Online(steps=1, tasks=1, backend="warp"), "backend='warp'"),
        (lambda: wg.Online(steps=1, tasks=1, chunk=0), "chunk=0"),
    ],
)
def test_bad_settings_are_refused_in_words(make, words):
    with pytest.raises(wg.WarpgradError, match=words):
        make()


def test_parts_that_could_never_learn_are_refused():
    warped, plain = wg.Learner(mlp()), wg.Learner(mlp(), warp=())
    with pytest.raises(
        wg.WarpgradError, match="the rule learns lr, which would never change because Approximate stops"
    ):
        wg.Method(warped, wg.SGD(wg.Learned(0.1)), wg.Approximate())
    with pytest.raises(wg.WarpgradError, match="the rule learns lr, which would never change because InPlace stops"):
        wg.Method(warped, wg.SGD(wg.Learned(0.1)), wg.InPlace())
    with pytest.raises(wg.WarpgradError, match="Exact has nothing to learn: the model has no warp parameters"):
        wg.Method(plain, wg.SGD(0.1), wg.Exact())
    wg.Method(plain, wg.SGD(wg.Learned(0.1)), wg.Exact())
    with pytest.raises(wg.WarpgradError, match=r"weight=-1\.0: it must be at least 0"):
        wg.Method(warped, wg.SGD(0.1), wg.Exact(), weight=-1.0)
    with pytest.raises(wg.WarpgradError, match="Unrolled learns θ0, φ and the rule"):
        run(wg.Unrolled(steps=1, tasks=3), wg.Method(warped, wg.SGD(0.1), wg.Exact()), tasks_for(mlp))
