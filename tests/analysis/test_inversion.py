"""Ω(θ) = γ, solved for θ."""

from __future__ import annotations

import pytest
import torch
from torch.func import jacrev, vmap

from tests.support.geometry_problems import close, double_precision, draw, residual_omega, scatter
from warpgrad.analysis import invert
from warpgrad.errors import WarpgradError

__all__ = ["double_precision"]


def test_inversion_recovers_planted_points() -> None:
    for key in range(3):
        omega = residual_omega(2, 0.5, key=10 * key)
        planted = scatter(300, key)
        gamma = vmap(omega)(planted)
        assert (gamma - planted).norm(dim=1).mean() > 0.3  # far enough from the identity to need solving
        found = invert(omega, gamma, gamma)
        assert found.converged.all()
        assert found.residual.max() < 1e-12
        close(found.theta, planted, 1e-9)


def test_inversion_is_one_newton_step_for_a_linear_warp() -> None:
    projection, planted = draw(4, 4), draw(10, 4, key="planted")
    found = invert(lambda theta: projection @ theta, planted @ projection.mT, torch.zeros(10, 4), steps=1, path_steps=0)
    assert found.converged.all()
    close(found.theta, planted, 1e-11)


def test_inversion_gets_around_folds_where_newton_stalls() -> None:
    omega, gamma = residual_omega(2, 1.5, key=5), scatter(200, "folded")
    determinants = torch.linalg.det(vmap(jacrev(omega))(scatter(2000, "grid")))
    assert (determinants < 0).any()
    assert (determinants > 0).any()
    newton = invert(omega, gamma, gamma, path_steps=0)
    followed = invert(omega, gamma, gamma)
    assert not newton.converged.all()
    assert followed.converged.all()
    close(vmap(omega)(followed.theta), gamma, 1e-12)
    # What Newton has solved stays as it was.
    assert torch.equal(followed.theta[newton.converged], newton.theta[newton.converged])


def test_inversion_counts_what_has_no_solution() -> None:
    reachable = torch.tensor([[0.5, -0.9], [0.0, 0.0], [0.99, 0.3]])
    outside = torch.tensor([[1.5, 0.0], [0.2, -2.0]])
    found = invert(torch.tanh, torch.cat([reachable, outside]), torch.zeros(5, 2), path_steps=50)
    assert found.converged.tolist() == [True, True, True, False, False]
    close(found.theta[:3], torch.atanh(reachable), 1e-12)
    close(found.residual[3:], torch.tensor([0.5, 1.0]), 1e-6)  # the distance to the range of tanh
    assert torch.isfinite(found.theta).all()


def test_inversion_survives_rows_that_leave_the_finite_numbers() -> None:
    gamma = torch.tensor([[0.0, 1.0], [1.0, 2.0]])
    start = torch.tensor([[1.0, 1.0], [-1.0, 1.0]])  # log has no value at the second
    found = invert(torch.log, gamma, start, path_steps=20)
    assert found.converged.tolist() == [True, False]
    close(found.theta[0], gamma[0].exp(), 1e-12)
    start = torch.tensor([[1.0, 1.0], [0.0, 1.0]])  # the root has no slope at the second
    found = invert(torch.sqrt, gamma + 1, start, path_steps=0)
    assert found.converged.tolist() == [True, False]
    close(found.theta, torch.tensor([[1.0, 4.0], [0.0, 1.0]]), 1e-12)


def test_inversion_in_single_precision_and_with_a_wrong_shape() -> None:
    torch.set_default_dtype(torch.float32)
    omega = residual_omega(2, 0.5)
    planted = scatter(100)
    found = invert(omega, vmap(omega)(planted), planted + 0.3)
    assert found.theta.dtype == torch.float32
    assert found.converged.all()
    close(found.theta, planted, 1e-3)
    with pytest.raises(WarpgradError, match=r"one shape \[n, d\], not \(\(2,\), \(2,\)\)"):
        invert(omega, torch.zeros(2), torch.zeros(2))
