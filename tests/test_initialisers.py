"""C(θ0) against closed forms, autograd and an independent implementation."""

from __future__ import annotations

from itertools import pairwise

import higher
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import warpgrad as wg
from tests.support.problems import Position, Quadratic, Recorder, make_task, mlp, relative_error

STEPS, LR = 4, 0.1


def quadratic_learner(**options) -> wg.Learner:
    start = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    return wg.Learner(Position(start), warp=(), **options)


def theta0_gradient(learner, initialiser, tasks, steps=STEPS, rule=None):
    """What Algorithm 1 hands to the meta-optimiser for θ0."""
    recorder = Recorder()
    method = wg.Method(learner, rule or wg.SGD(LR), None, initialiser)
    wg.Online(steps=steps, tasks=len(tasks)).meta_step(method, tasks, list(range(len(tasks))), recorder)
    (found,) = recorder.of("theta0")
    return found


def descent(task: Quadratic, theta: torch.Tensor, steps=STEPS):
    """θ_0 … θ_K by hand."""
    path = [theta]
    for _ in range(steps):
        path.append(path[-1] - LR * task.a @ (path[-1] - task.c))
    return path


def task_loss(task, theta):
    return 0.5 * (theta - task.c) @ task.a @ (theta - task.c)


def test_maml_on_a_quadratic_is_its_closed_form():
    """θ_K = c + M^K (θ0 − c) with M = I − αA, so ∇ = (M^K)ᵀ B (θ_K − d)."""
    learner, task = quadratic_learner(), Quadratic()
    theta0 = learner.theta0["theta"].detach()
    power = torch.linalg.matrix_power(torch.eye(3, dtype=torch.float64) - LR * task.a, STEPS)
    last = task.c + power @ (theta0 - task.c)
    expected = power.T @ task.b @ (last - task.d)
    found = theta0_gradient(learner, wg.MAML(), [task])["theta"]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    first_order = theta0_gradient(learner, wg.FOMAML(), [task])["theta"]
    torch.testing.assert_close(first_order, task.b @ (last - task.d), rtol=1e-12, atol=1e-14)


def test_the_unrolled_algorithm_and_the_maml_initialiser_agree():
    learner, tasks = quadratic_learner(), [Quadratic(0), Quadratic(1)]
    recorder = Recorder()
    wg.Unrolled(steps=STEPS, tasks=2).meta_step(wg.Method(learner, wg.SGD(LR)), tasks, [0, 1], recorder)
    found = theta0_gradient(learner, wg.MAML(), tasks)
    torch.testing.assert_close(recorder.of("theta0")[0]["theta"], found["theta"], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_maml_equals_the_library_higher(momentum):
    """All gradients of the unrolled objective (θ0 and φ) against an implementation that shares no code with ours."""
    module = mlp()
    learner, task = wg.Learner(module), make_task(mlp)
    recorder = Recorder()
    method = wg.Method(learner, wg.SGD(0.2, momentum=momentum))
    wg.Unrolled(steps=STEPS, tasks=1).meta_step(method, [task], [0], recorder)

    groups = [{"params": list(learner.theta0.values())}, {"params": list(learner.phi.values()), "lr": 0.0}]
    optimiser = torch.optim.SGD(groups, lr=0.2, momentum=momentum)
    with higher.innerloop_ctx(module, optimiser, copy_initial_weights=False) as (functional, inner):
        for k in range(STEPS):
            inputs, targets = task.adapt_batch(k)
            inner.step(F.mse_loss(functional(inputs), targets))
        inputs, targets = task.meta_batch(STEPS)
        F.mse_loss(functional(inputs), targets).backward()
    for group, parameters in (("theta0", learner.theta0), ("phi", learner.phi)):
        expected = {name: value.grad for name, value in parameters.items()}
        assert relative_error(recorder.of(group)[0], expected) < 1e-10


def test_reptile_is_the_way_travelled():
    learner, tasks = quadratic_learner(), [Quadratic(0), Quadratic(1)]
    theta0 = learner.theta0["theta"].detach()
    expected = sum(theta0 - descent(task, theta0)[-1] for task in tasks) / 2
    found = theta0_gradient(learner, wg.Reptile(), tasks)["theta"]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_multi_task_is_the_gradient_at_the_start():
    learner, task = quadratic_learner(), Quadratic()
    theta0 = learner.theta0["theta"].detach()
    found = theta0_gradient(learner, wg.MultiTask(), [task])["theta"]
    torch.testing.assert_close(found, task.a @ (theta0 - task.c), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("loss", [True, False])
@pytest.mark.parametrize("norm", [True, False])
def test_leap_on_a_quadratic_is_equation_17(loss, norm):
    """The printed gradient, and the derivative of Eq. 16 with the Jacobian of θ_{k−1} taken as the identity."""
    learner, task = quadratic_learner(), Quadratic()
    path = descent(task, learner.theta0["theta"].detach())
    printed = torch.zeros(3, dtype=torch.float64)
    derived = torch.zeros(3, dtype=torch.float64)
    for before, after in pairwise(path):
        drop = task_loss(task, after) - task_loss(task, before)
        assert drop < 0, "the loss must fall at every step for −|ΔL| to equal ΔL"
        gap = after - before
        length = (gap @ gap + (drop**2 if loss else 0.0)).sqrt()
        term = gap + (drop * (task.a @ (before - task.c)) if loss else 0.0)
        printed -= term / length if norm else term

        moving = before.clone().requires_grad_()
        square = (after - moving).square().sum()
        if loss:
            square = square + (task_loss(task, after) - task_loss(task, moving)).square()
        derived += torch.autograd.grad(square.sqrt() if norm else square / 2, moving)[0]
    found = theta0_gradient(learner, wg.Leap(loss=loss, norm=norm), [task])["theta"]
    torch.testing.assert_close(found, printed, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(found, derived, rtol=1e-11, atol=1e-13)


def test_leaps_stabiliser_turns_a_rising_loss_around():
    theta, after = {"t": torch.tensor([0.0])}, {"t": torch.tensor([3.0])}
    gradient = {"t": torch.tensor([1.0])}
    falling, rising = torch.tensor(1.0), torch.tensor(5.0)
    plain = wg.Leap(stabilise=False).increment(theta, after, falling, rising, gradient)
    stable = wg.Leap(stabilise=True).increment(theta, after, falling, rising, gradient)
    torch.testing.assert_close(plain["t"], torch.tensor([-(4.0 + 3.0) / 5.0]))
    torch.testing.assert_close(stable["t"], torch.tensor([-(-4.0 + 3.0) / 5.0]))


def test_leap_ignores_a_segment_of_length_zero():
    still = {"t": torch.ones(2)}
    loss = torch.tensor(1.0)
    found = wg.Leap().increment(still, still, loss, loss, {"t": torch.ones(2)})
    assert torch.equal(found["t"], torch.zeros(2))


@pytest.mark.parametrize("inner", [wg.Reptile, wg.FOMAML, wg.MAML, wg.Leap])
def test_the_gaussian_prior_is_reparameterised(inner):
    """g_μ is C's gradient at the start that was drawn, and g_logσ is g_μ ∘ ε ∘ σ."""
    learner, task = quadratic_learner(), Quadratic()
    prior = wg.GaussianPrior(inner(), std=0.3)
    recorder = Recorder()
    method = wg.Method(learner, wg.SGD(LR), None, prior)
    wg.Online(steps=STEPS, tasks=1).meta_step(method, [task], [7], recorder)
    drawn = prior.start(learner, 7)
    noise = drawn.noise["theta"]
    mean = learner.theta0["theta"].detach()
    torch.testing.assert_close(drawn.theta["theta"], mean + 0.3 * noise)

    at_draw = wg.Learner(Position(drawn.theta["theta"]), warp=())
    expected = theta0_gradient(at_draw, inner(), [task])["theta"]
    torch.testing.assert_close(recorder.of("theta0")[0]["theta"], expected, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(recorder.of("prior")[0]["theta"], expected * noise * 0.3, rtol=1e-6, atol=1e-9)


def test_the_prior_draws_by_key():
    learner = quadratic_learner()
    prior = wg.GaussianPrior(wg.Reptile(), std=0.3)
    prior.prepare(learner)
    first, again, other = (prior.start(learner, key).theta["theta"] for key in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_only_learned_parameters_receive_gradients_and_count_in_distances():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.theta = nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
            self.shift = nn.Parameter(torch.ones(3, dtype=torch.float64))

        def forward(self):
            return self.theta + self.shift

    learner = wg.Learner(Two(), warp=(), start={"shift": "zero"})
    task = Quadratic()
    assert torch.equal(learner.start(0)["shift"], torch.zeros(3, dtype=torch.float64))
    found = theta0_gradient(learner, wg.Leap(), [task])
    assert set(found) == {"theta"}
    # With both halves moving alike, θ alone travels the path of a learner with twice the step size.
    theta, shift = learner.theta0["theta"].detach(), torch.zeros(3, dtype=torch.float64)
    expected = torch.zeros(3, dtype=torch.float64)
    for _ in range(STEPS):
        slope = task.a @ (theta + shift - task.c)
        before = task_loss(task, theta + shift)
        theta, shift = theta - LR * slope, shift - LR * slope
        drop = task_loss(task, theta + shift) - before
        moved = -LR * slope
        expected -= (moved + drop * slope) / (moved @ moved + drop**2).sqrt()
    torch.testing.assert_close(found["theta"], expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: wg.GaussianPrior(wg.Reptile(), std=0.0), "greater than 0"),
        (lambda: wg.GaussianPrior(wg.GaussianPrior(wg.Reptile())), "takes a plain initialiser"),
    ],
)
def test_bad_priors_are_refused(make, words):
    with pytest.raises(wg.WarpgradError, match=words):
        make()
