"""Eqs. 7-10 for an explicit Ω: closed forms, finite differences, and the step on a quadratic."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import jacrev, vmap

import warpgrad as wg
from tests.support.geometry_problems import Vector, close, double_precision, draw, residual_omega
from warpgrad.adaptation.base import Adaptation
from warpgrad.analysis import (
    Omega,
    condition_number,
    ideal_step,
    is_positive_definite,
    jacobian,
    metric_inverse,
    pushed_forward,
    taylor_error,
    warp_jacobians,
)
from warpgrad.errors import NonFiniteError

__all__ = ["double_precision"]


@pytest.mark.parametrize("rows", [2, 4, 5])
def test_jacobian_is_that_of_central_differences(rows: int) -> None:
    out = draw(rows, 4, key="out")
    warp = residual_omega(4, 0.7)

    def omega(theta: Tensor) -> Tensor:
        return out @ warp(theta)

    theta, step = draw(4, key="at"), 1e-5
    columns = [(omega(theta + step * unit) - omega(theta - step * unit)) / (2 * step) for unit in torch.eye(4)]
    found = jacobian(omega, theta)
    assert found.shape == (rows, 4)
    close(found, torch.stack(columns, dim=1), 1e-9)


def test_metric_is_differentiable_in_what_omega_is_made_of() -> None:
    projection = draw(3, 3).requires_grad_()
    trace = metric_inverse(lambda theta: projection @ theta, draw(3, key="at")).trace()
    (slope,) = torch.autograd.grad(trace, projection)
    close(slope, 2 * projection.detach(), 1e-14)  # d tr(T Tᵀ) / dT = 2 T


def test_metric_of_a_non_degenerate_warp_is_symmetric_positive_definite() -> None:
    omega = residual_omega(3, 0.3)
    points = draw(50, 3, key="points")
    metrics = vmap(lambda theta: metric_inverse(omega, theta))(points)
    assert (metrics - metrics.mT).abs().max() < 1e-15
    assert is_positive_definite(metrics).all()
    derivatives = vmap(jacrev(omega))(points)
    close(condition_number(metrics), torch.linalg.cond(derivatives) ** 2, 1e-10)
    # v ↦ vᵀ G⁻¹ v is a squared length for any v.
    directions = draw(50, 3, key="directions")
    assert (torch.einsum("ni,nij,nj->n", directions, metrics, directions) > 0).all()


def test_condition_number_of_a_known_spectrum() -> None:
    stretch = torch.tensor([1.0, 2.0, 3.0])
    metric = metric_inverse(lambda theta: stretch * theta, torch.zeros(3))
    assert torch.equal(metric, torch.diag(torch.tensor([1.0, 4.0, 9.0])))
    assert condition_number(metric).item() == 9.0
    assert condition_number(metric.inverse()).item() == pytest.approx(9.0, rel=1e-14)


DEGENERATE: dict[str, tuple[Omega, Tensor]] = {
    "a projection": (lambda theta: torch.stack([theta.sum(), 2 * theta.sum()]), torch.ones(2)),
    "a fold": (lambda theta: theta * theta, torch.tensor([0.0, 1.0])),
    "onto a curved surface": (lambda theta: torch.cat([theta, theta.square().sum(0, True)]), torch.ones(2)),
    "a constant": (lambda theta: torch.ones(2) + 0 * theta, torch.ones(2)),
}


@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_degenerate_warp_is_detected(name: str, dtype: torch.dtype) -> None:
    omega, theta = DEGENERATE[name]
    metric = metric_inverse(lambda at: omega(at).to(dtype), theta.to(dtype))
    assert metric.dtype == dtype
    assert not is_positive_definite(metric)
    assert condition_number(metric) > 0.01 / torch.finfo(dtype).eps


def test_positive_definiteness_asks_for_symmetry_and_keeps_its_tolerance() -> None:
    assert not is_positive_definite(torch.tensor([[2.0, 0.5], [0.0, 2.0]]))
    assert not is_positive_definite(torch.diag(torch.tensor([1.0, -1.0])))
    thin = torch.diag(torch.tensor([1.0, 1e-6]))
    assert is_positive_definite(thin)
    assert not is_positive_definite(thin, tolerance=1e-5)
    stacked = torch.stack([thin, torch.eye(2), -torch.eye(2)])
    assert is_positive_definite(stacked, tolerance=1e-5).tolist() == [False, True, False]
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        is_positive_definite(thin * torch.nan)


def a_loss(gamma: Tensor) -> Tensor:
    return torch.cos(gamma).prod() + gamma.square().sum() + gamma.exp().sum()


def test_push_forward_is_the_preconditioned_gradient() -> None:
    omega, theta = residual_omega(3, 0.8), draw(3, key="at")
    pushed = pushed_forward(a_loss, omega, theta)
    slope = torch.func.grad(a_loss)(omega(theta))
    close(pushed.gamma, omega(theta), 1e-15)
    close(pushed.delta_theta, jacobian(omega, theta).mT @ slope, 1e-13)  # Eq. 7
    close(pushed.delta_gamma, metric_inverse(omega, theta) @ slope, 1e-12)  # Eq. 8
    assert pushed.delta_gamma @ slope > 0
    close(ideal_step(a_loss, omega, theta, 0.1), omega(theta) - 0.1 * metric_inverse(omega, theta) @ slope, 1e-12)


def fitted_slope(error: Callable[[float], Tensor]) -> float:
    """The power of α that the error falls as, by least squares over two decades."""
    alphas = torch.logspace(-3, -5, 9)
    logs = torch.stack([error(float(alpha)).abs().log() for alpha in alphas])
    x = alphas.log() - alphas.log().mean()
    return float((x @ (logs - logs.mean())) / (x @ x))


def test_taylor_error_falls_as_the_square_of_the_step() -> None:
    omega, theta = residual_omega(3, 0.8), draw(3, key="at")
    assert fitted_slope(lambda alpha: taylor_error(a_loss, omega, theta, alpha)) == pytest.approx(2, abs=0.05)

    def without_the_metric(alpha: float) -> Tensor:
        pushed = pushed_forward(a_loss, omega, theta)
        plain = pushed.gamma - alpha * torch.func.grad(a_loss)(pushed.gamma)
        return a_loss(omega(theta - alpha * pushed.delta_theta)) - a_loss(plain)

    # A step under any other metric is off in the first order: the test can tell.
    assert fitted_slope(without_the_metric) == pytest.approx(1, abs=0.05)


def test_taylor_error_of_an_affine_warp_is_rounding() -> None:
    projection, shift = draw(3, 3), draw(3, key="shift")
    error = taylor_error(a_loss, lambda theta: projection @ theta + shift, draw(3, key="at"), 0.05)
    assert error.abs() < 1e-13


class Quadratic(wg.Task):
    """L(γ) = ½ γᵀAγ − bᵀγ."""

    def __init__(self, size: int) -> None:
        root = draw(size, size, key="root")
        self.matrix = root @ root.mT / size + torch.eye(size)
        self.target = draw(size, key="target")

    def adapt_batch(self, k: int) -> None:
        return None

    def meta_batch(self, k: int) -> None:
        return None

    def loss(self, forward: wg.Forward, batch: None) -> Tensor:
        gamma = forward()
        return 0.5 * gamma @ self.matrix @ gamma - self.target @ gamma


def test_linear_warp_takes_the_preconditioned_step_on_a_quadratic() -> None:
    learner, task, alpha = wg.Learner(Vector(6)), Quadratic(6), 0.05
    projection = learner.phi["warp.weight"].detach()
    adaptation = Adaptation(learner, wg.SGD(alpha), task, key=0)
    point = adaptation.start()
    gamma = projection @ point.theta["theta"]
    for _ in range(5):
        point = adaptation.step(point).after
        gamma = gamma - alpha * projection @ projection.mT @ (task.matrix @ gamma - task.target)
        close(projection @ point.theta["theta"], gamma, 1e-12)
    assert (gamma - projection @ learner.theta0["theta"].detach()).norm() > 0.1
    # A vector that passes through a warp-layer is one example, and D_x ω = T.
    (found,) = warp_jacobians(learner, point.theta, point.buffers, ()).values()
    close(found, projection.unsqueeze(0), 1e-15)
