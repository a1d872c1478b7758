"""The explicit Ω of linear warp-layers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import warpgrad as wg
from tests.support.geometry_problems import Residual, Vector, close, double_precision, draw, regression
from warpgrad.adaptation.base import Adaptation
from warpgrad.analysis import as_vector, from_vector, ideal_step, is_positive_definite, linear_omega, metric_inverse
from warpgrad.errors import WarpgradError

__all__ = ["double_precision"]


def linear_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(3, 4),
        wg.Warp(nn.Linear(4, 5)),
        nn.Tanh(),
        nn.Sequential(nn.Linear(5, 4), wg.Warp(nn.Linear(4, 4, bias=False)), nn.LayerNorm(4)),
        nn.Linear(4, 3, bias=False),
        wg.Warp(nn.Linear(3, 3, bias=False)),
        nn.Tanh(),
        nn.Linear(3, 2),
    )


def without_warps() -> nn.Sequential:
    """The same names with warp-layers replaced by the identity; the first layer has the size of T W."""
    model = linear_model()
    model[0], model[1], model[3][1], model[5] = nn.Linear(3, 5), nn.Identity(), nn.Identity(), nn.Identity()
    return model


def test_warped_model_at_theta_is_the_plain_model_at_omega_of_theta() -> None:
    learner, plain = wg.Learner(linear_model()), without_warps()
    omega = linear_omega(learner)
    x = draw(7, 3, key="x")
    for key in range(3):
        theta = {name: draw(*value.shape, key=f"{name}{key}") for name, value in learner.theta0.items()}
        gamma = from_vector(omega(as_vector(theta)), dict(plain.named_parameters()))
        close(functional_call(plain, gamma, (x,)), learner.bind(theta, {})(x), 1e-12)


def test_adaptation_under_linear_warps_is_the_ideal_step_of_the_plain_model() -> None:
    learner, plain, task, alpha = wg.Learner(linear_model()), without_warps(), regression(), 0.1
    omega, x, y = linear_omega(learner), *task.adapt_batch(0)

    def native(gamma: Tensor) -> Tensor:
        return F.mse_loss(functional_call(plain, from_vector(gamma, dict(plain.named_parameters())), (x,)), y)

    adaptation = Adaptation(learner, wg.SGD(alpha), task, key=0)
    point = adaptation.start()
    for _ in range(3):
        ideal = ideal_step(native, omega, as_vector(point.theta), alpha)
        point = adaptation.step(point).after
        close(omega(as_vector(point.theta)), ideal, 1e-12)


def test_metric_of_linear_warps_is_block_diagonal_and_the_same_everywhere() -> None:
    model = nn.Sequential(nn.Linear(3, 4), wg.Warp(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 2))
    learner = wg.Learner(model)
    omega, size = linear_omega(learner), as_vector(learner.theta0).numel()
    metric = metric_inverse(omega, draw(size, key="here")).detach()
    assert torch.equal(metric, metric_inverse(omega, draw(size, key="there")).detach())
    block = (model[1].weight @ model[1].weight.mT).detach()
    expected = torch.block_diag(torch.kron(block, torch.eye(3)), block, torch.eye(4 * 2 + 2))
    close(metric, expected, 1e-14)
    assert is_positive_definite(metric)
    with torch.no_grad():
        model[1].weight[0] = model[1].weight[1]  # Ω reads φ anew: it is degenerate now
    assert not is_positive_definite(metric_inverse(omega, draw(size)).detach())


def shared_task_layer() -> nn.Sequential:
    shared = nn.Linear(3, 3)
    return nn.Sequential(shared, wg.Warp(nn.Linear(3, 3)), nn.Tanh(), shared, wg.Warp(nn.Linear(3, 3)))


def tied_warps() -> nn.Sequential:
    warps = [wg.Warp(nn.Linear(3, 3, bias=False)) for _ in range(2)]
    warps[1].weight = warps[0].weight
    return nn.Sequential(nn.Linear(3, 3), warps[0], nn.Tanh(), nn.Linear(3, 3), warps[1])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh(), wg.Warp(nn.Linear(3, 3))), "'2.bias'"),
        (lambda: nn.Sequential(wg.Warp(nn.Linear(3, 3)), nn.Linear(3, 3)), "'0.bias'"),
        (lambda: nn.Sequential(nn.Linear(3, 3), wg.Warp(Residual(3))), "'1.body.0.bias'"),
        (lambda: nn.Sequential(nn.Linear(3, 3), *(wg.Warp(nn.Linear(3, 3)) for _ in "ab")), "'2.bias'"),
        (
            lambda: nn.Sequential(nn.Linear(3, 3, bias=False), wg.Warp(nn.Linear(3, 3))),
            "with a bias only where that layer has one too",
        ),
        (lambda: Vector(3), "'warp.weight'"),
        (lambda: nn.Sequential(nn.Conv1d(3, 3, 1), wg.Warp(nn.Linear(3, 3))), "'1.bias'"),
        (shared_task_layer, "'4.bias'"),
        (tied_warps, "tied parameters"),
    ],
)
def test_no_explicit_omega_is_an_error_that_names_why(model: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(WarpgradError, match=message):
        linear_omega(wg.Learner(model()))


def test_flattening_goes_back_and_forth() -> None:
    tensors = {"a": draw(2, 3), "b": draw(4), "c": draw(1, 1, 2)}
    again = from_vector(as_vector(tensors), tensors)
    assert list(again) == list(tensors)
    assert all(torch.equal(again[name], value) for name, value in tensors.items())
    with pytest.raises(WarpgradError, match=r"12 numbers is needed, not shape \(11,\)"):
        from_vector(torch.zeros(11), tensors)
