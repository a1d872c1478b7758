"""The synthetic experiment: presets and rules, curvature along descents, what is kept, pages from that alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import warpgrad as wg
from warpgrad.experiments.base import Execution, Group
from warpgrad.experiments.runner import execute
from warpgrad.experiments.synthetic.config import STEP_SIZES, SyntheticConfig, descending_at_test, tuned_lr
from warpgrad.experiments.synthetic.evaluation import EXAMPLES, FROM_X0, Test, descend_surfaces
from warpgrad.experiments.synthetic.experiment import Synthetic
from warpgrad.experiments.synthetic.methods import build, omega_of, omega_values, rule
from warpgrad.experiments.synthetic.page import methods, redrawn
from warpgrad.experiments.synthetic.results import (
    COMPARISONS,
    MET,
    SMOOTHER,
    advantage,
    between_groups,
    comparisons,
    names,
    scores,
    smoothness,
)
from warpgrad.experiments.synthetic.surfaces import (
    ResidualOmega,
    draw_coefficients,
    hessian,
    largest_eigenvalue,
    met,
    minima,
    surface,
)
from warpgrad.report.runs import read_run
from warpgrad.statistics.estimates import paired_difference
from warpgrad.training.run_directory import newest_checkpoint
from warpgrad.training.saving import load_learner

EXPERIMENT = Synthetic()
TINY: dict[str, Any] = {"meta_steps": 2, "surfaces": 2, "starts": 3, "steps": 4, "test_surfaces": 6, "test_starts": 2}


def bent(dtype: torch.dtype = torch.float64, scale: float = 0.1) -> nn.Module:
    """An Ω that bends the plane."""
    torch.manual_seed(4)
    omega = ResidualOmega(30)
    nn.init.normal_(omega.g[2].weight, std=scale)
    return omega.to(dtype).requires_grad_(False)


def run_group(label: str, directory: Path, seeds: int = 1, **changes: Any) -> Group:
    for seed in range(seeds):
        config = EXPERIMENT.config("long", **{**TINY, **changes}, seed=seed)
        execute(EXPERIMENT, config, Execution(directory / f"{label}-{seed}", progress=False))
    paths = [directory / f"{label}-{seed}" for seed in range(seeds)]
    evaluations = tuple(json.loads((path / "evaluation.json").read_text()) for path in paths)
    return Group(label, tuple(read_run(path) for path in paths), evaluations)


# Presets and rules


def test_the_long_preset_is_the_settled_reading() -> None:
    """Adam 1e-3 on the mean gradient, 1000 meta-steps of 10 surfaces × 10 starts; the rest is the paper's."""
    config, paper = EXPERIMENT.presets["long"], EXPERIMENT.presets["paper"]
    changed = {name: value for name, value in vars(config).items() if value != getattr(paper, name)}
    assert changed == {"preset": "long", "meta_steps": 1000, "surfaces": 10, "meta_optimiser": "adam", "meta_lr": 0.001}
    assert config.starts == 10
    table = next(table for table in EXPERIMENT.tables if table.name == "synthetic-long")
    assert (table.preset, table.seeds) == ("long", 10)
    rows = [EXPERIMENT.config("long", **row.settings) for row in table.rows]
    at_test = [descending_at_test(row) for row in rows]
    assert [row.inner_rule for row in rows] == ["sgd", "sgd", "adam"]
    # No step size was searched under the warp.
    assert at_test == [("sgd", 0.1), ("adam", config.tuned_adam_lr), ("adam", config.tuned_adam_lr)]


def test_every_table_declares_settings_that_can_be_run() -> None:
    for table in EXPERIMENT.tables:
        for row in table.rows:
            EXPERIMENT.config(table.preset, **row.settings_at(table.preset))


def test_a_long_meta_step_learns_from_ten_surfaces(tmp_path: Path) -> None:
    """Its gradient is the mean over those of the ten surfaces, each with its own ten starts."""
    config = EXPERIMENT.config("long", meta_steps=1, steps=3)
    before = build(config).learner.module.state_dict()
    assert EXPERIMENT.train(config, Execution(tmp_path / "run", progress=False)) == 1
    after = load_learner(build(config), newest_checkpoint(tmp_path / "run")).module.state_dict()
    moved = (after["omega.g.2.weight"] - before["omega.g.2.weight"]).abs()
    # Adam's first step is β wherever the gradient is well above its ε.
    assert float(moved.median()) == pytest.approx(1e-3, rel=1e-3)
    one = EXPERIMENT.config("long", meta_steps=1, steps=3, surfaces=1)
    EXPERIMENT.train(one, Execution(tmp_path / "one", progress=False))
    losses = [json.loads((tmp_path / name / "metrics.jsonl").read_text())["task_loss_first"] for name in ("run", "one")]
    assert losses[0] != losses[1], "ten surfaces are not one"


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_the_inner_rule_descends_in_training_and_in_test(name: str, tmp_path: Path) -> None:
    config = EXPERIMENT.config("long", **TINY, inner_rule=name, lr=0.15)
    expected = {"sgd": wg.SGD(0.15), "momentum": wg.SGD(0.15, momentum=0.9), "adam": wg.Adam(0.15)}[name]
    test = Test(config)
    found = test.columns(bent(torch.float32))[0]
    by_hand = descend_surfaces(None, expected, test.x0, test.coefficients, config.steps)
    assert torch.equal(found["plain"].thetas, by_hand.thetas)
    through = descend_surfaces(bent(torch.float32), expected, test.x0, test.coefficients, config.steps)
    assert torch.equal(found["warp"].thetas, through.thetas)
    # In meta-training, the last task loss is that after K − 1 steps of the rule.
    EXPERIMENT.train(config, Execution(tmp_path / name, progress=False))
    first = json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[0])
    other = EXPERIMENT.config("long", **TINY, inner_rule="adam" if name != "adam" else "sgd", lr=0.15)
    EXPERIMENT.train(other, Execution(tmp_path / "other", progress=False))
    second = json.loads((tmp_path / "other" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["task_loss_first"] == second["task_loss_first"]
    assert first["task_loss_last"] != second["task_loss_last"]


def test_another_rule_can_descend_through_the_same_warp_at_test(tmp_path: Path) -> None:
    """Adam under a warp that was learned with gradient descent: the plain counterparts are Adam's, Ω is the same."""
    other = run_group("WarpGrad", tmp_path / "other", test_rule="adam", test_lr=0.2)
    same = run_group("WarpGrad", tmp_path / "same")
    assert other.evaluations[0]["omega"] == same.evaluations[0]["omega"]
    config = EXPERIMENT.config("long", **TINY, test_rule="adam", test_lr=0.2)
    test = Test(config)
    omega = omega_of(30, same.evaluations[0]["omega"])
    by_hand = descend_surfaces(omega, wg.Adam(0.2), test.x0, test.coefficients, config.steps)
    found = torch.tensor(other.evaluations[0]["final"]["warp"])
    torch.testing.assert_close(found, by_hand.heights[-1].reshape(6, 2).mean(dim=1), rtol=1e-5, atol=1e-6)
    assert names(other)["plain"] == "Adam 0.2 (tuned) from x0"
    assert names(same)["plain"] == "gradient descent 0.1 from x0"
    for changes in ({"test_rule": "adam"}, {"test_lr": 0.2}):
        with pytest.raises(wg.WarpgradError, match="go together"):
            EXPERIMENT.config("long", **changes)
    with pytest.raises(wg.WarpgradError, match="no-warp has no warp"):
        EXPERIMENT.config("long", method="no-warp", test_rule="adam", test_lr=0.2)


def test_epsilon_is_the_inner_rules_and_not_the_baselines() -> None:
    config = EXPERIMENT.config("long", **TINY, inner_rule="adam", lr=0.2, adam_eps=0.1)
    inner = build(config).rule
    assert isinstance(inner, wg.Adam)
    assert inner.eps == 0.1
    columns, _ = Test(config).columns(bent(torch.float32))
    assert not torch.equal(columns["plain"].heights, columns["adam_tuned"].heights)
    usual = EXPERIMENT.config("long", **TINY, inner_rule="adam", lr=0.2)
    assert torch.equal(Test(usual).columns(bent(torch.float32))[0]["adam_tuned"].heights, columns["adam_tuned"].heights)


def test_baselines_without_a_warp_are_at_their_best_step_sizes_on_validation_surfaces() -> None:
    """As many step sizes for each rule; the best is the preset's, and neither the smallest nor the largest."""
    config = EXPERIMENT.presets["paper"]
    tests = [Test(EXPERIMENT.config("paper", split="validation", seed=seed)) for seed in range(4)]
    starts, coefficients = (torch.cat([getattr(test, name) for test in tests]) for name in ("x0", "coefficients"))
    table = next(table for table in EXPERIMENT.tables if table.name == "synthetic-steps")
    declared = {(row.settings["inner_rule"], row.settings["lr"]) for row in table.rows}
    assert declared == {(name, lr) for name, lrs in STEP_SIZES.items() for lr in lrs}
    assert all(row.settings["split"] == "validation" for row in table.rows)
    assert len({len(lrs) for lrs in STEP_SIZES.values()}) == 1
    for name, lrs in STEP_SIZES.items():
        ends = [
            float(
                descend_surfaces(None, rule(config, name, lr), starts, coefficients, config.steps)
                .heights[-1]
                .double()
                .mean()
            )  # type: ignore[arg-type]
            for lr in lrs
        ]
        best = int(np.argmin(ends))
        assert lrs[best] == tuned_lr(config, name)  # type: ignore[arg-type]
        assert 0 < best < len(lrs) - 1


def test_a_rule_without_a_warp_is_tested_and_takes_no_meta_steps(tmp_path: Path) -> None:
    group = run_group("plain", tmp_path, method="no-warp", inner_rule="adam", lr=0.3, split="validation")
    assert group.runs[0].summary["steps"] == 0
    assert list(group.evaluations[0]["final"]) == list(names(group)) == ["plain"]
    other = run_group("other", tmp_path, method="no-warp", inner_rule="sgd", split="validation")
    header, rows = EXPERIMENT.lines([group, other])
    assert [row[0] for row in rows] == ["plain", "other"]
    assert all(len(row) == len(header) for row in rows)
    assert "loss from x0" in EXPERIMENT.page([group, other], "Steps").html()
    assert EXPERIMENT.lines([group])[1][0][0] == "Adam 0.3 from x0"


# Curvature


def differences(function: Any, place: Tensor, step: float = 1e-4) -> Tensor:
    """The Hessian [2, 2] by central differences of the values alone."""
    found = torch.zeros(2, 2, dtype=torch.float64)
    unit = step * torch.eye(2, dtype=torch.float64)
    for i in range(2):
        for j in range(2):
            corners = [function(place + a * unit[i] + b * unit[j]) * a * b for a in (1, -1) for b in (1, -1)]
            found[i, j] = sum(corners) / (4 * step**2)
    return found


@pytest.mark.parametrize("warped", [False, True])
def test_the_hessian_is_that_of_finite_differences(warped: bool) -> None:
    omega = bent() if warped else nn.Identity()
    draw = torch.Generator().manual_seed(1)
    places = 4 * torch.rand(12, 2, generator=draw, dtype=torch.float64) - 2
    coefficients = torch.stack([draw_coefficients(seed) for seed in range(12)]).double()
    found = hessian(omega, places, coefficients)
    for own, place, exact in zip(coefficients, places, found, strict=True):
        expected = differences(lambda theta, own=own: surface(omega(theta), own), place)
        torch.testing.assert_close(exact, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        largest_eigenvalue(found), torch.linalg.eigvalsh(found).abs().amax(dim=1), rtol=1e-12, atol=1e-14
    )
    if warped:
        native = hessian(nn.Identity(), omega(places), coefficients)
        assert (largest_eigenvalue(found) - largest_eigenvalue(native)).abs().max() > 0.1, "Ω changes the curvature"


def test_the_curvature_that_is_met_is_the_largest_along_the_path() -> None:
    omega = bent()
    coefficients = torch.stack([draw_coefficients(seed) for seed in range(5)]).double()
    draw = torch.Generator().manual_seed(2)
    thetas = 4 * torch.rand(7, 5, 2, generator=draw, dtype=torch.float64) - 2
    found = met(omega, thetas, coefficients)
    for place in range(5):
        own = coefficients[place : place + 1].expand(7, -1)
        path = thetas[:, place]
        native = largest_eigenvalue(hessian(nn.Identity(), omega(path), own))
        areas = torch.stack([torch.linalg.det(torch.func.jacrev(omega)(theta)).abs() for theta in path])
        torch.testing.assert_close(found.theta[place], largest_eigenvalue(hessian(omega, path, own)).max())
        torch.testing.assert_close(found.x[place], native.max())
        torch.testing.assert_close(found.scaled[place], (areas * native).max())
    plain = met(None, omega(thetas), coefficients)
    torch.testing.assert_close(plain.x, found.x)


def test_an_omega_that_only_shrinks_the_plane_is_not_called_smooth() -> None:
    coefficients = torch.stack([draw_coefficients(seed) for seed in range(5)]).double()
    thetas = torch.randn(6, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = met(lambda theta: 0.5 * theta, thetas, coefficients)
    torch.testing.assert_close(found.theta, 0.25 * found.x)
    torch.testing.assert_close(found.theta, found.scaled)


# What is kept


def test_means_over_starts_give_the_statistics_of_all_starts() -> None:
    draw = np.random.default_rng(0)
    every = {seed: {task: draw.normal(size=10).tolist() for task in range(20)} for seed in range(5)}
    other = {seed: {task: draw.normal(size=10).tolist() for task in range(20)} for seed in range(5)}
    means = [
        {seed: {task: float(np.mean(v)) for task, v in own.items()} for seed, own in one.items()}
        for one in (every, other)
    ]
    for seeds in (5, 1):
        full = paired_difference(*({seed: one[seed] for seed in range(seeds)} for one in (every, other)))
        short = paired_difference(*({seed: one[seed] for seed in range(seeds)} for one in means))
        assert short.mean == pytest.approx(full.mean, abs=1e-14)
        assert short.interval.low == pytest.approx(full.interval.low, abs=1e-13)
        assert short.interval.high == pytest.approx(full.interval.high, abs=1e-13)


def test_the_evaluation_keeps_the_means_of_every_surface() -> None:
    config = EXPERIMENT.config("paper", test_surfaces=5, test_starts=4, steps=6)
    test, omega = Test(config), bent(torch.float32)
    columns, matched = test.columns(omega)
    assert matched.all()
    found = test.result(omega)
    for name, column in columns.items():
        by_hand = column.heights[-1].double().reshape(5, 4).mean(dim=1)
        torch.testing.assert_close(torch.tensor(found["final"][name], dtype=torch.float64), by_hand)
        if name in FROM_X0:
            assert found["matched"]["final"][name] == pytest.approx(found["final"][name])
    assert found["matched"]["counts"] == [4] * 5
    curved = met(omega, columns["warp"].thetas, test.coefficients)
    by_hand = curved.theta.double().reshape(5, 4).mean(dim=1)
    torch.testing.assert_close(torch.tensor(found["curvature"]["warp"]["theta"], dtype=torch.float64), by_hand)


class Squash(nn.Module):
    """An Ω that reaches the square (−1, 1)² alone."""

    def __init__(self) -> None:
        super().__init__()
        self.size = nn.Parameter(torch.ones(()))

    def forward(self, theta: Tensor) -> Tensor:
        return self.size * theta.tanh()


def test_starts_that_cannot_be_matched_are_left_out_of_the_comparison_from_x0() -> None:
    config = EXPERIMENT.config("paper", test_surfaces=8, test_starts=2, steps=2)
    test = Test(config)
    columns, matched = test.columns(Squash())
    inside = (test.x0.abs() < 1).all(dim=1)
    assert torch.equal(matched, inside)
    counts = inside.reshape(8, 2).sum(dim=1).tolist()
    assert {0, 1} <= set(counts), "some surfaces must have no such start, and some one"
    found = test.result(Squash())
    assert found["matched"]["counts"] == counts
    for name in FROM_X0:
        ends = columns[name].heights[-1].double().reshape(8, 2)
        by_hand = [
            float(own[kept].mean()) if kept.any() else None
            for own, kept in zip(ends, inside.reshape(8, 2), strict=True)
        ]
        assert found["matched"]["final"][name] == by_hand
    for name in ("plain", "warp_matched"):
        assert [value is None for value in found["curvature"][name]["x"]] == [count == 0 for count in counts]
    assert None not in found["curvature"]["warp"]["theta"]
    group = Group("g", (Fake(config),), (found,))  # type: ignore[arg-type]
    assert list(scores(group, "plain", matched_only=True)[0]) == [place for place, count in enumerate(counts) if count]
    assert len(scores(group, "plain", matched_only=False)[0]) == 8


class Fake:
    """What results read of a run."""

    seed = 0

    def __init__(self, config: SyntheticConfig) -> None:
        self.config = vars(config)


def test_surfaces_to_draw_are_the_first_that_have_a_minimum() -> None:
    config = EXPERIMENT.config("paper", test_surfaces=20, test_starts=2, steps=3, seed=1)
    test = Test(config)
    found = test.result(bent(torch.float32))["examples"]
    expected = [place for place, points in enumerate(minima(test.surfaces)) if len(points)][:EXAMPLES]
    assert [example["surface"] for example in found] == expected
    assert expected != list(range(EXAMPLES)), "some surface without a minimum must be among the first"
    for example in found:
        place = example["surface"]
        assert torch.equal(torch.tensor(example["coefficients"]), test.surfaces[place])
        assert torch.equal(torch.tensor(example["starts"]), test.x0.reshape(20, 2, 2)[place])


def test_descents_are_drawn_again_from_seven_digits_as_they_were_tested() -> None:
    config = EXPERIMENT.config("paper", test_surfaces=8, test_starts=3, steps=20, inner_rule="adam")
    test, omega = Test(config), bent(torch.float32)
    columns, _ = test.columns(omega)
    kept = rounded(test.result(omega))
    drawn, examples = redrawn(kept, config)
    torch.testing.assert_close(drawn(test.x0), omega(test.x0), rtol=1e-5, atol=1e-5)
    assert len(examples) == EXAMPLES
    for example, own in zip(kept["examples"], examples, strict=True):
        places = slice(3 * example["surface"], 3 * example["surface"] + 3)
        for name in ("sgd_tuned", "adam_tuned"):
            tested = columns[name].thetas[:, places].double().numpy()
            np.testing.assert_allclose(own.paths[name], tested, atol=1e-3)
        np.testing.assert_allclose(own.theta, columns["warp"].thetas[:, places].numpy(), atol=1e-3)
        np.testing.assert_allclose(own.paths["warp"][0], omega(test.x0[places]).numpy(), atol=1e-5)
        by_hand = float(columns["warp"].heights[-1, places].mean())
        assert own.final["warp"] == pytest.approx(by_hand, rel=1e-5)


def test_omega_comes_back_from_its_record() -> None:
    omega = bent(torch.float32)
    theta = torch.randn(9, 2)
    assert torch.equal(omega_of(30, json.loads(json.dumps(omega_values(omega))))(theta), omega(theta))


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def test_an_evaluation_at_full_size_stays_below_a_hundred_kilobytes() -> None:
    found = Test(EXPERIMENT.config("long")).result(bent(torch.float32))
    assert len(found["final"]["warp"]) == 200
    assert len(json.dumps(rounded(found))) < 100_000


def test_page_and_table_are_built_without_the_run_directories(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    groups = [
        run_group("WarpGrad", runs, seeds=2),
        run_group("WarpGrad with Adam as the inner rule", runs, seeds=2, inner_rule="adam", lr=0.2),
    ]
    shutil.rmtree(runs)
    for shown in (groups, groups[:1]):
        header, rows = EXPERIMENT.lines(shown)
        assert all(len(row) == len(header) for row in rows)
        page = EXPERIMENT.page(shown, "Surfaces")
        text = page.html()
        for words in (
            "What is geometry",
            "Surfaces and descents",
            "What the warp does to the plane",
            "in the order in which they were drawn",
        ):
            assert words in text
        assert "largest curvature" in "".join(row[0] for row in rows).lower()
    one = {row[0] for row in EXPERIMENT.lines(groups[:1])[1]}
    assert {f"{item.label} (loss lower by)" for item in COMPARISONS} <= one
    assert {f"largest curvature: {item.label} by" for item in SMOOTHER} <= one
    assert len([row for row in one if ": largest curvature in" in row]) == len(MET)


def test_a_page_begins_with_the_warp_and_draws_it_in_one_colour(tmp_path: Path) -> None:
    """As `warpgrad report` hands them over, with the runs without a warp first."""
    groups = [run_group("no-warp, long", tmp_path, method="no-warp"), run_group("warpgrad, long", tmp_path)]
    page = EXPERIMENT.page(groups, "Surfaces")
    assert page.sections[0].title == "What is geometry, and what is not: WarpGrad"
    assert all("warpgrad, long" not in section.title for section in page.sections)


def test_with_adam_inside_its_plain_counterparts_are_adams(tmp_path: Path) -> None:
    group = run_group("WarpGrad", tmp_path, inner_rule="adam", lr=0.2)
    known = names(group)
    assert known["plain"] == "Adam 0.2 (tuned) from x0"
    assert known["plain_shifted"] == "Adam 0.2 (tuned) from Ω(x0)"
    assert "adam_tuned" not in known, "it would be the plain column again"
    assert {methods(group)[column][0] for column in ("plain", "plain_shifted")} == {"Adam"}
    test = Test(EXPERIMENT.config("long", **TINY, inner_rule="adam", lr=0.2))
    columns, _ = test.columns(bent(torch.float32))
    assert torch.equal(columns["plain"].heights, columns["adam_tuned"].heights)
    labels = {item.label for item in comparisons(group)}
    assert {"geometry, from x0", "geometry, from Ω(x0)", "shift of the start"} <= labels
    assert "geometry, from x0, against tuned gradient descent" in labels
    assert "shift and geometry, against tuned Adam" not in labels, "that is shift and geometry itself"


def test_differences_are_those_of_the_levels(tmp_path: Path) -> None:
    first, second = run_group("a", tmp_path, seeds=2), run_group("b", tmp_path, seeds=2, inner_rule="adam", lr=0.2)
    metrics = [evaluation["metrics"] for evaluation in first.evaluations]
    for item in comparisons(first):
        gap = np.mean([own[f"loss/{item.worse}"] - own[f"loss/{item.better}"] for own in metrics])
        assert advantage(first, item).mean == pytest.approx(gap, abs=1e-6)
    for item in SMOOTHER:
        levels = [
            own[f"curvature/{item.worse}/{item.space}"] - own[f"curvature/{item.better}/theta"] for own in metrics
        ]
        assert smoothness(first, item).mean == pytest.approx(np.mean(levels), abs=1e-5)
    between = between_groups(first, second)
    assert between is not None
    ends = [[one["metrics"]["loss/warp"] for one in group.evaluations] for group in (first, second)]
    assert between.mean == pytest.approx(np.mean(ends[0]) - np.mean(ends[1]), abs=1e-6)
    elsewhere = run_group("c", tmp_path, seeds=2, test_surfaces=7)
    assert between_groups(first, elsewhere) is None, "other surfaces are not compared"
