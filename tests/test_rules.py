"""Rules against `torch.optim` and closed forms: their updates, their meta-gradients, and delicate derivatives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import warpgrad as wg
from tests.support.problems import Position, Quadratic, Recorder, make_task, mlp, relative_error
from warpgrad.adaptation.stacked import BatchedAdaptation
from warpgrad.algorithms import Online, Unrolled
from warpgrad.algorithms.method import Method
from warpgrad.errors import WarpgradError
from warpgrad.keys import generator
from warpgrad.layers.baselines import MaskNoise
from warpgrad.objectives import Exact
from warpgrad.rules import MaskedSGD, MetaCurvature, MetaSGD, sides

CASES = {
    "sgd": (lambda: wg.SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "weight decay": (
        lambda: wg.SGD(0.1, weight_decay=0.3),
        lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.3),
    ),
    "momentum": (lambda: wg.SGD(0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "nesterov": (
        lambda: wg.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    ),
    "adam": (lambda: wg.Adam(0.05), lambda p: torch.optim.Adam(p, 0.05)),
    "adam with options": (
        lambda: wg.Adam(0.05, betas=(0.5, 0.8), eps=0.01, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, 0.05, betas=(0.5, 0.8), eps=0.01, weight_decay=0.1),
    ),
    "learned": (lambda: wg.SGD(wg.Learned(0.1)), lambda p: torch.optim.SGD(p, 0.1)),
}


@pytest.mark.parametrize("case", CASES)
def test_rules_step_as_torch_optim_does(case):
    make, reference = CASES[case]
    rule = make()
    theta = {"a": torch.randn(3, 2, dtype=torch.float64), "b": torch.randn(4, dtype=torch.float64)}
    twins = {name: value.clone().requires_grad_() for name, value in theta.items()}
    optimiser = reference(list(twins.values()))
    state = rule.init(theta)
    for _ in range(5):
        gradient = {name: torch.randn_like(value) for name, value in theta.items()}
        for name, twin in twins.items():
            twin.grad = gradient[name].clone()
        optimiser.step()
        with torch.no_grad():
            theta, state = rule.update(gradient, state, theta, rule.meta)
    for name, twin in twins.items():
        torch.testing.assert_close(theta[name], twin.detach(), rtol=1e-7, atol=1e-9)


def test_clipping_scales_the_whole_gradient_to_the_norm():
    rule = wg.Clip(wg.SGD(1.0), norm=1.0)
    theta = {"a": torch.zeros(2), "b": torch.zeros(1)}
    large, _ = rule.update({"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])}, {}, theta, {})
    torch.testing.assert_close(torch.cat([large["a"], large["b"]]), torch.tensor([-0.6, 0.0, -0.8]))
    small, _ = rule.update({"a": torch.tensor([0.3, 0.0]), "b": torch.tensor([0.4])}, {}, theta, {})
    torch.testing.assert_close(torch.cat([small["a"], small["b"]]), torch.tensor([-0.3, 0.0, -0.4]))


def test_clipping_by_value_cuts_each_entry():
    rule = wg.Clip(wg.SGD(1.0), value=0.5)
    moved, _ = rule.update({"a": torch.tensor([2.0, -0.2])}, {}, {"a": torch.zeros(2)}, {})
    torch.testing.assert_close(moved["a"], torch.tensor([-0.5, 0.2]))


@pytest.mark.parametrize("make", [lambda: wg.Adam(0.1), lambda: wg.Clip(wg.SGD(0.1), norm=1.0)])
def test_the_second_derivative_is_finite_where_the_gradient_is_zero(make):
    """√ has slope ∞ at 0; a unit that is switched off must not turn the meta-gradient into NaN."""
    rule = make()
    gradient = torch.zeros(3, requires_grad=True)
    theta = {"a": torch.ones(3)}
    moved, _ = rule.update({"a": gradient}, rule.init(theta), theta, {})
    (slope,) = torch.autograd.grad(moved["a"].sum(), gradient)
    assert torch.isfinite(slope).all()


def test_adams_slope_at_zero_is_the_true_one():
    """From a zero state the first step is −α g / (|g| + ε), whose slope at 0 is −α/ε."""
    rule = wg.Adam(0.1, eps=0.5)
    gradient = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    theta = {"a": torch.ones(1, dtype=torch.float64)}
    moved, _ = rule.update({"a": gradient}, rule.init(theta), theta, {})
    (slope,) = torch.autograd.grad(moved["a"].sum(), gradient)
    assert float(slope) == pytest.approx(-0.1 / 0.5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: wg.SGD(0.0), r"SGD\(lr=0.0\).*greater than 0"),
        (lambda: wg.SGD(-1.0), "greater than 0"),
        (lambda: wg.SGD(float("nan")), "lr=nan: it must be finite"),
        (lambda: wg.SGD(wg.Learned(-0.1)), "greater than 0"),
        (lambda: wg.Adam(0.0), r"Adam\(lr=0.0\).*greater than 0"),
        (lambda: wg.SGD(0.1, momentum=1.0), "below 1"),
        (lambda: wg.SGD(0.1, nesterov=True), "needs momentum"),
        (lambda: wg.SGD(0.1, weight_decay=-1.0), "weight_decay=-1.0: it must be at least 0"),
        (lambda: wg.Adam(0.1, betas=(0.9, 1.0)), "below 1"),
        (lambda: wg.Adam(0.1, eps=0.0), "eps=0.0: it must be greater than 0"),
        (lambda: wg.Clip(wg.SGD(0.1)), "exactly one of"),
        (lambda: wg.Clip(wg.SGD(0.1), norm=0.0), "greater than 0"),
    ],
)
def test_bad_settings_are_refused_in_words(make, words):
    with pytest.raises(wg.WarpgradError, match=words):
        make()


START = torch.tensor([0.3, -1.1, 0.7], dtype=torch.float64)


def meta_gradients(learner, rule, task, steps):
    """What Unrolled hands to the meta-optimiser: (θ0, rule)."""
    seen = Recorder()
    Unrolled(steps=steps, tasks=1).meta_step(Method(learner, rule), [task], [0], seen)
    return seen.of("theta0")[0], seen.of("rule")[0]


def drawn(shape, *key):
    return torch.randn(shape, generator=generator(*key), dtype=torch.float64)


class WithoutState(wg.Rule):
    def update(self, gradient, state, theta, meta):
        return {name: value - 0.1 * gradient[name] for name, value in theta.items()}


def test_a_rule_that_returns_only_theta_is_told_what_to_return():
    learner = wg.Learner(nn.Sequential(nn.Linear(1, 1), wg.Warp(nn.Linear(1, 1))))
    x = torch.ones(2, 1)
    task = wg.SupervisedTask(x, x, nn.functional.mse_loss)
    with pytest.raises(wg.WarpgradError, match=r"WithoutState.update must return two dictionaries.*return new_theta"):
        wg.adapt(learner, task, rule=WithoutState(), steps=1)


def test_one_step_of_meta_sgd_has_the_closed_form():
    """θ1 = θ0 − α∘g with g = A(θ0 − c), r = B(θ1 − d): ∂L/∂α = −g∘r and ∂L/∂θ0 = (I − diag(α)A)ᵀ r."""
    task = Quadratic(1)
    rule = MetaSGD(0.2)
    learner = wg.Learner(Position(START), warp=())
    rule.prepare(learner.theta0)
    alpha = torch.tensor([0.1, 0.4, -0.2], dtype=torch.float64)
    rule.meta["theta"].data.copy_(alpha)
    theta0, learned = meta_gradients(learner, rule, task, 1)
    slope = task.a @ (START - task.c)
    residual = task.b @ (START - alpha * slope - task.d)
    torch.testing.assert_close(learned["theta"], -slope * residual, rtol=1e-12, atol=0)
    expected = (torch.eye(3, dtype=torch.float64) - alpha[:, None] * task.a).T @ residual
    torch.testing.assert_close(theta0["theta"], expected, rtol=1e-12, atol=0)


def test_meta_sgd_through_three_steps_is_the_derivative_of_its_definition():
    task = Quadratic(2)
    rule = MetaSGD(0.15)
    theta0, learned = meta_gradients(wg.Learner(Position(START), warp=()), rule, task, 3)

    def definition(theta, alpha):
        for _ in range(3):
            theta = theta - alpha * (task.a @ (theta - task.c))
        return 0.5 * (theta - task.d) @ task.b @ (theta - task.d)

    arguments = (START, torch.full((3,), 0.15, dtype=torch.float64))
    of_theta, of_alpha = torch.func.grad(definition, argnums=(0, 1))(*arguments)
    torch.testing.assert_close(theta0["theta"], of_theta, rtol=1e-11, atol=0)
    torch.testing.assert_close(learned["theta"], of_alpha, rtol=1e-11, atol=0)


def test_meta_sgd_begins_as_sgd_with_one_step_size_for_each_entry():
    rule, plain = MetaSGD(0.1), wg.SGD(0.1)
    theta = {"w": drawn((4, 3), "w"), "b": drawn((4,), "b")}
    gradient = {"w": drawn((4, 3), "gw"), "b": drawn((4,), "gb")}
    rule.prepare(theta)
    assert {name: value.shape for name, value in rule.meta.items()} == {n: v.shape for n, v in theta.items()}
    found, expected = (one.update(gradient, {}, theta, one.meta)[0] for one in (rule, plain))
    for name in theta:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("make", [MetaSGD, MetaCurvature])
def test_what_was_learned_survives_a_second_preparation(make):
    rule, theta = make(0.1), {"w": drawn((2, 2), "w").float()}
    rule.prepare(theta)
    for value in rule.meta.values():
        value.data.add_(1.0)
    kept = {name: value.clone() for name, value in rule.meta.items()}
    rule.prepare({"w": theta["w"].double()})
    for name, value in rule.meta.items():
        assert value.dtype == torch.float64
        assert value.requires_grad
        assert torch.equal(value, kept[name].double())


@pytest.mark.parametrize("shape", [(4,), (3, 5), (3, 2, 3, 3)])
def test_meta_curvature_is_the_kronecker_product_of_its_factors(shape):
    rule = MetaCurvature(0.3)
    theta, gradient = {"w": drawn(shape, "w")}, {"w": drawn(shape, "g")}
    rule.prepare(theta)
    assert [tuple(value.shape) for value in rule.meta.values()] == [(size, size) for size in sides(theta["w"].shape)]
    plain = theta["w"] - 0.3 * gradient["w"]
    torch.testing.assert_close(rule.update(gradient, {}, theta, rule.meta)[0]["w"], plain, rtol=1e-14, atol=1e-15)
    product = torch.ones(1, 1, dtype=torch.float64)
    for place, value in enumerate(rule.meta.values()):
        value.data.copy_(drawn(value.shape, "factor", place))
        product = torch.kron(product, value.detach())
    found = rule.update(gradient, {}, theta, rule.meta)[0]["w"]
    expected = theta["w"] - 0.3 * (product @ gradient["w"].flatten()).reshape(shape)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_meta_curvature_through_two_steps_is_the_derivative_of_its_definition():
    """For a linear regression: W' = W − α M_o G M_iᵀ and b' = b − α M_b g."""
    model = nn.Linear(3, 2).double()
    inputs, targets, others, aims = (drawn((6, size), "data", place) for place, size in enumerate((3, 2, 3, 2)))
    task = wg.SupervisedTask(inputs, targets, F.mse_loss, meta=(others, aims))
    rule = MetaCurvature(0.2)
    learner = wg.Learner(model, warp=())
    rule.prepare(learner.theta0)
    for place, value in enumerate(rule.meta.values()):
        value.data.add_(0.3 * drawn(value.shape, "factor", place))
    theta0, learned = meta_gradients(learner, rule, task, 2)

    def definition(weight, bias, factors):
        for _ in range(2):
            residual = 2 * (inputs @ weight.T + bias - targets) / targets.numel()
            slope, slope_bias = residual.T @ inputs, residual.sum(0)
            weight = weight - 0.2 * factors["weight/out"] @ slope @ factors["weight/in"].T
            bias = bias - 0.2 * factors["bias/out"] @ slope_bias
        return (others @ weight.T + bias - aims).square().mean()

    arguments = (model.weight.detach(), model.bias.detach(), {n: v.detach() for n, v in rule.meta.items()})
    of_weight, of_bias, of_factors = torch.func.grad(definition, argnums=(0, 1, 2))(*arguments)
    assert relative_error(theta0, {"weight": of_weight, "bias": of_bias}) < 1e-12
    assert relative_error(learned, of_factors) < 1e-12


@pytest.mark.parametrize("make", [MetaSGD, MetaCurvature])
def test_stacked_tasks_are_updated_as_single_ones(make):
    rule = make(0.1)
    learner = wg.Learner(mlp())
    method = Method(learner, rule, Exact())
    for place, value in enumerate(rule.meta.values()):
        value.data.add_(0.05 * drawn(value.shape, "moved", place))
    tasks = [make_task(mlp, seed) for seed in range(3)]
    gradients = {}
    for backend in ("loop", "batched"):
        seen = Recorder()
        Online(steps=2, tasks=3, backend=backend).meta_step(method, tasks, [1, 2, 3], seen)
        gradients[backend] = seen.of("rule")[0]
    assert relative_error(gradients["batched"], gradients["loop"]) < 1e-10
    stack = BatchedAdaptation(learner, rule, tasks, [1, 2, 3])
    one = wg.Adaptation(learner, rule, tasks[1], 2)
    found = stack.split(stack.step(stack.start()).after.theta)[1]
    assert relative_error(found, one.step(one.start()).after.theta) < 1e-12


# Masks.


def masked(temperature: float = 0.5) -> tuple[MaskedSGD, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    rule = MaskedSGD(0.1, {"w": "noise", "b": "noise"}, temperature=temperature)
    theta = {"w": drawn((3, 2), "w"), "b": drawn((3,), "b"), "free": drawn((2,), "f"), "noise": drawn((3,), "n")}
    rule.prepare(theta)
    rule.meta["noise"].data.copy_(torch.tensor([1.0, -0.5, 0.2]))
    return rule, theta, {name: drawn(value.shape, "g", name) for name, value in theta.items()}


def test_rows_move_by_their_masks_and_the_noise_never_does():
    rule, theta, gradient = masked()
    found, _ = rule.update(gradient, {}, theta, rule.meta)
    mask = 1 / (1 + torch.exp(-(rule.meta["noise"].detach() + theta["noise"]) / 0.5))
    for row in range(3):
        torch.testing.assert_close(found["w"][row], theta["w"][row] - 0.1 * mask[row] * gradient["w"][row])
        torch.testing.assert_close(found["b"][row], theta["b"][row] - 0.1 * mask[row] * gradient["b"][row])
    torch.testing.assert_close(found["free"], theta["free"] - 0.1 * gradient["free"])
    assert torch.equal(found["noise"], theta["noise"])


def test_a_cold_mask_is_all_or_nothing():
    rule, theta, gradient = masked(temperature=1e-4)
    found, _ = rule.update(gradient, {}, theta, rule.meta)
    adapted = rule.meta["noise"].detach() + theta["noise"] > 0
    assert 0 < int(adapted.sum()) < 3
    expected = theta["w"] - 0.1 * adapted.double()[:, None] * gradient["w"]
    torch.testing.assert_close(found["w"], expected, rtol=1e-14, atol=1e-15)


def test_noise_makes_a_row_adapt_with_the_probability_of_its_logit():
    noise = MaskNoise(200_000).noise.detach()
    for logit in (-2.0, 0.0, 1.0):
        probability = 1 / (1 + float(torch.exp(torch.tensor(-logit))))
        share = float((noise + logit > 0).double().mean())
        assert abs(share - probability) < 4 * (probability * (1 - probability) / 200_000) ** 0.5
    x = drawn((2, 3), "x")
    assert MaskNoise(3)(x) is x


def test_masks_that_do_not_fit_are_refused():
    with pytest.raises(WarpgradError, match="'noise' must have one entry for each row of 'w'"):
        MaskedSGD(0.1, {"w": "noise"}).prepare({"w": torch.zeros(3, 2), "noise": torch.zeros(2)})
    with pytest.raises(WarpgradError, match="temperature=0"):
        MaskedSGD(0.1, {}, temperature=0)
    for make in (MetaSGD, MetaCurvature):
        with pytest.raises(WarpgradError, match="greater than 0"):
            make(0.0)
