"""The surfaces of App. D, their minima, and descent on them."""

from __future__ import annotations

import math

import pytest
import torch

import warpgrad as wg
from warpgrad.experiments.base import Execution
from warpgrad.experiments.synthetic.config import SyntheticConfig
from warpgrad.experiments.synthetic.evaluation import Test, descend_surfaces
from warpgrad.experiments.synthetic.experiment import Synthetic
from warpgrad.experiments.synthetic.methods import build
from warpgrad.experiments.synthetic.surfaces import (
    Position,
    ResidualOmega,
    SurfaceFamily,
    draw_coefficients,
    minima,
    reached,
    surface,
)
from warpgrad.training.run_directory import newest_checkpoint
from warpgrad.training.saving import load_learner


def by_hand(x1, x2, s, a, b, peaks=False):
    third = x2 if peaks else x1
    return (
        b[0] * (a[0] - x1) ** 2 * math.exp(-(x1**2) - (x2 + a[1]) ** 2)
        - b[1] * (x1 / s - x1**3 - x2**5) * math.exp(-(x1**2) - x2**2)
        - b[2] * math.exp(-((x1 + a[2]) ** 2) - third**2)
    )


@pytest.mark.parametrize("peaks", [False, True])
def test_the_surface_is_the_printed_formula(peaks):
    s, a, b = 4, (1, -1, 0), (3, -2, 5)
    coefficients = torch.tensor([s, *a, *b, int(peaks)], dtype=torch.float64)
    for x1, x2 in [(0.3, -0.7), (-1.2, 0.4), (2.0, 1.5)]:
        found = surface(torch.tensor([x1, x2], dtype=torch.float64), coefficients)
        assert float(found) == pytest.approx(by_hand(x1, x2, s, a, b, peaks), abs=1e-14)


def test_coefficients_are_drawn_from_the_stated_sets():
    drawn = torch.stack([draw_coefficients(seed) for seed in range(600)])
    assert set(drawn[:, 0].tolist()) == set(range(1, 11))
    assert set(drawn[:, 1:4].flatten().tolist()) == {-1, 0, 1}
    assert set(drawn[:, 4:7].flatten().tolist()) == set(range(-5, 6))
    assert torch.equal(draw_coefficients(5), draw_coefficients(5))


def test_a_meta_batch_is_one_surface_from_several_starts():
    batch = SurfaceFamily().meta_batch(3, 4)
    assert len({id(task) for task in batch}) == 1
    assert not torch.equal(batch[0].coefficients, SurfaceFamily().meta_batch(4, 4)[0].coefficients)
    learner = wg.Learner(Position(ResidualOmega()), warp="omega", start={"theta": "fresh"})
    starts = torch.stack([learner.start(key)["theta"] for key in range(400)])
    assert float(starts.abs().max()) < 3.0
    assert float(starts.abs().max()) > 2.9
    assert float(starts.mean()) == pytest.approx(0.0, abs=0.2)


def test_a_meta_batch_can_be_ten_surfaces_with_ten_starts_each():
    batch = SurfaceFamily(surfaces=10).meta_batch(3, 100)
    assert [len({id(task) for task in batch[begin : begin + 10]}) for begin in range(0, 100, 10)] == [1] * 10
    assert len({tuple(task.coefficients.tolist()) for task in batch}) == 10
    assert torch.equal(batch[0].coefficients, SurfaceFamily().meta_batch(3, 10)[0].coefficients)
    again = SurfaceFamily(surfaces=10).meta_batch(3, 100)
    assert all(torch.equal(one.coefficients, other.coefficients) for one, other in zip(batch, again, strict=True))


def test_minima_of_surfaces_with_known_ones():
    """−b3 exp(−(x1+a3)² − x2²), alone, has one minimum; a ridge in x1 alone has none; a flat surface has none."""
    peaks = torch.tensor([1.0, 0, 0, 1, 0, 0, 5, 1])
    ridge = torch.tensor([1.0, 0, 0, 1, 0, 0, 5, 0])
    flat = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0])
    one, none, nothing = minima(torch.stack([peaks, ridge, flat]))
    torch.testing.assert_close(one, torch.tensor([[-1.0, 0.0]], dtype=torch.float64), atol=1e-8, rtol=0)
    assert len(none) == len(nothing) == 0
    hits = reached(torch.tensor([[-1.05, 0.02], [-1.2, 0.0]]), one)
    assert hits.tolist() == [True, False]


def test_every_minimum_found_is_one_and_none_is_missed():
    """Against long plain descents: whatever they settle in, in the inside of the square, must be in the list."""
    coefficients = torch.stack([draw_coefficients(seed) for seed in range(6)]).double()
    found = minima(coefficients)
    draw = torch.Generator().manual_seed(0)
    compared = 0
    for own, points in zip(coefficients, found, strict=True):
        for point in points:
            curvature = torch.func.jacrev(torch.func.grad(surface))(point, own)
            assert torch.linalg.eigvalsh(curvature).min() > 0
            assert torch.func.grad(surface)(point, own).norm() < 1e-8
        place = 4 * torch.rand(30, 2, generator=draw, dtype=torch.float64) - 2
        for _ in range(1500):
            place = place - 0.04 * torch.vmap(torch.func.grad(surface), (0, None))(place, own)
        curvature = torch.vmap(torch.func.jacrev(torch.func.grad(surface)), (0, None))(place, own)
        strict = torch.linalg.eigvalsh(curvature)[:, 0] > 0.05
        settled = torch.vmap(torch.func.grad(surface), (0, None))(place, own).norm(dim=1) < 1e-6
        settled &= strict & (place.abs().amax(dim=1) < 2.9)
        compared += int(settled.sum())
        if settled.any():
            assert reached(place[settled], points).all()
    assert compared > 50, "too few descents settled for this to prove anything"


def test_descend_is_plain_gradient_descent():
    coefficients = torch.stack([draw_coefficients(seed) for seed in range(3)])
    starts = torch.tensor([[0.5, 0.3], [-1.0, 0.2], [0.1, -0.9]])
    found = descend_surfaces(None, wg.SGD(0.1), starts, coefficients, 20)
    place = starts.clone()
    for k in range(21):
        place.requires_grad_()
        heights = surface(place, coefficients)
        torch.testing.assert_close(found.heights[k], heights.detach())
        torch.testing.assert_close(found.thetas[k], place.detach())
        place = (place - 0.1 * torch.autograd.grad(heights.sum(), place)[0]).detach()


def test_an_untrained_warp_is_plain_descent_in_every_column():
    """Ω starts as the identity: nothing is shifted, nothing is bent."""
    config = SyntheticConfig(test_surfaces=5, test_starts=3, steps=10)
    omega = build(config).learner.module.omega
    columns, matched = Test(config).columns(omega)
    assert matched.all()
    for name in ("warp", "warp_matched", "plain_shifted"):
        torch.testing.assert_close(columns[name].heights, columns["plain"].heights, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(columns["tuned_shifted"].heights, columns["sgd_tuned"].heights, rtol=1e-5, atol=1e-6)
    metrics = Test(config).result(omega)["metrics"]
    assert metrics["mean_shift"] == 0.0
    assert metrics["orientation_kept"] == 1.0
    for name in ("warp", "warp_matched"):
        for space in ("theta", "x", "scaled"):
            assert metrics[f"curvature/{name}/{space}"] == pytest.approx(metrics["curvature/plain/x"], rel=1e-5)


def test_matched_starts_begin_where_gradient_descent_begins():
    config = SyntheticConfig(test_surfaces=4, test_starts=5, steps=2)
    omega = build(config).learner.module.omega.requires_grad_(False)
    torch.nn.init.normal_(omega.g[2].weight, std=0.05)
    test = Test(config)
    columns, matched = test.columns(omega)
    assert matched.all()
    torch.testing.assert_close(omega(columns["warp_matched"].thetas[0]), test.x0, rtol=1e-4, atol=1e-5)
    for name in ("plain_shifted", "tuned_shifted"):
        torch.testing.assert_close(columns[name].thetas[0], omega(test.x0))
        torch.testing.assert_close(columns[name].heights[0], columns["warp"].heights[0])


def test_the_paper_preset_is_the_papers():
    config = Synthetic().presets["paper"]
    stated = {"meta_steps": 100, "starts": 10, "steps": 100, "lr": 0.1, "hidden": 30, "form": "printed"}
    stated |= {"surfaces": 1, "inner_rule": "sgd"}
    assert {name: getattr(config, name) for name in stated} == stated
    module = build(config).learner.module
    assert [type(layer).__name__ for layer in module.omega.g] == ["Linear", "Tanh", "Linear"]
    assert module.omega.g[0].out_features == 30
    assert config.objective == "exact"
    assert (config.test_surfaces, config.test_starts) == (200, 10)
    assert next(table for table in Synthetic().tables if table.name == "synthetic").seeds == 10


def test_the_paper_preset_takes_a_meta_step(tmp_path):
    experiment = Synthetic()
    config = experiment.config("paper", meta_steps=1)
    before = build(config).learner.module.state_dict()
    assert experiment.train(config, Execution(tmp_path / "run", progress=False)) == 1
    after = load_learner(build(config), newest_checkpoint(tmp_path / "run")).module.state_dict()
    assert not torch.equal(before["omega.g.2.weight"], after["omega.g.2.weight"])
    assert torch.equal(before["theta"], after["theta"]), "starts are drawn afresh, never learned"


def test_bad_settings_are_refused():
    with pytest.raises(wg.WarpgradError, match="form='flat' is unknown"):
        SurfaceFamily("flat")
    with pytest.raises(wg.WarpgradError, match="surfaces=0: a meta-batch needs at least 1 surface"):
        SurfaceFamily(surfaces=0)
    with pytest.raises(wg.WarpgradError, match="15 tasks cannot be shared equally by 10 surfaces"):
        SurfaceFamily(surfaces=10).meta_batch(0, 15)
    for changes, words in [
        ({"steps": 0}, "steps=0: it must be at least 1"),
        ({"meta_lr": 0.0}, "meta_lr=0.0"),
        ({"surfaces": 0}, "surfaces=0"),
        ({"tuned_adam_lr": 0.0}, "tuned_adam_lr=0.0"),
        ({"momentum": 1.0}, "momentum=1.0: it must be between 0 and 1"),
        ({"method": "sgd"}, "synthetic has no method 'sgd'"),
    ]:
        with pytest.raises(wg.WarpgradError, match=words):
            Synthetic().config("paper", **changes)
    with pytest.raises(wg.WarpgradError, match="no preset 'huge'; choose one of paper, small"):
        Synthetic().config("huge")
