"""Rules against `torch.optim`, and their derivatives where those are delicate."""

from __future__ import annotations

import pytest
import torch

import warpgrad as wg

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
