"""The continual experiment: the paper's settings, every method once, resuming, evaluation, page."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import warpgrad as wg
from warpgrad.analysis.forgetting import SCORES, Curves, forgetting_scores
from warpgrad.errors import WarpgradError
from warpgrad.experiments import find_table
from warpgrad.experiments.base import Execution, Group
from warpgrad.experiments.continual.config import (
    OURS,
    PRINTED,
    ContinualConfig,
    departures,
)
from warpgrad.experiments.continual.evaluation import (
    LOG_LOSS,
    ORDERS,
    curves_of,
    evaluation,
    held_out,
    prediction,
    validation,
)
from warpgrad.experiments.continual.experiment import ContinualLearning
from warpgrad.experiments.continual.methods import build, family, recipe, trained_learner
from warpgrad.experiments.continual.page import result_lines
from warpgrad.experiments.continual.results import beyond_share, difference
from warpgrad.experiments.reproduction import cells
from warpgrad.experiments.runner import execute
from warpgrad.layers.warps import Residual
from warpgrad.model.partition import is_warp
from warpgrad.report.runs import read_run
from warpgrad.tasks.continual import ContinualTask
from warpgrad.training.run_directory import TIMES, newest_checkpoint

EXPERIMENT = ContinualLearning()
TINY: dict[str, Any] = {
    "subtasks": 3,
    "steps_per_subtask": 3,
    "hidden": 8,
    "hidden_layers": 2,
    "warp_hidden": 4,
    "order": (1, 2, 0),
    "tasks": 2,
    "meta_steps": 2,
    "validate_every": 1,
    "validation_tasks": 2,
    "test_tasks": 3,
    "test_points": 4,
}


def tiny(**changes: Any) -> ContinualConfig:
    return EXPERIMENT.config("ours", **{**TINY, **changes})


def run(config: ContinualConfig, directory: Path) -> dict[str, Any]:
    return execute(EXPERIMENT, config, Execution(directory, progress=False))


# The paper's settings


def test_the_paper_preset_is_the_paper() -> None:
    stated = {
        "subtasks": 5,
        "steps_per_subtask": 20,
        "batch_size": 5,
        "lr": 0.001,
        "hidden": 200,
        "hidden_layers": 3,
        "warp_hidden": 100,
        "warp_tanh": "both",
        "weighting": "balanced",
        "objective": "exact",
        "meta_steps": 20_000,
        "tasks": 5,
        "meta_lr": 0.001,
        "meta_schedule": "constant",
        "meta_clip": 0.0,
        "judge_start": 0.0,
        "credit": "full",
        "patience": None,
        "direction_weight": 5.0,
        "start_functions": 40,
        "order": (1, 3, 4, 2, 0),
        "test_tasks": 100,
        "family": "sine",
        "method": "warpgrad",
    }
    config = EXPERIMENT.config("paper")
    assert {name: getattr(config, name) for name in stated} == stated
    assert {name: getattr(config, name) for name in PRINTED} == dict(PRINTED)


def test_small_is_the_paper_with_fewer_meta_steps() -> None:
    changed = different(EXPERIMENT.config("small"), EXPERIMENT.config("paper"))
    assert changed == {"preset", "meta_steps", "validate_every"}


def test_what_is_ours_is_a_preset_of_its_own_and_no_other_has_any_of_it() -> None:
    changed = different(EXPERIMENT.config("ours"), EXPERIMENT.config("paper"))
    assert changed == {"preset", "meta_steps", "validate_every", *OURS}
    assert set(departures(vars(EXPERIMENT.config("ours")))) == set(OURS)
    for preset in ("paper", "small"):
        assert departures(vars(EXPERIMENT.config(preset))) == ()


def different(first: ContinualConfig, second: ContinualConfig) -> set[str]:
    """The settings in which they differ."""
    names = (field.name for field in dataclasses.fields(first))
    return {name for name in names if getattr(first, name) != getattr(second, name)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"credit": "direction"}, ("credit",)),
        ({"weighting": "mean"}, ("weighting",)),
        ({"weighting": "printed"}, ()),
        ({"judge_start": 2.5}, ("judge_start",)),
        ({"meta_schedule": "cosine"}, ("meta_schedule",)),
        ({"meta_lr": 0.003}, ("meta_lr",)),
        ({"patience": 3}, ("patience",)),
        ({"meta_steps": 5000, "hidden_layers": 4}, ()),
        ({"method": "warp-current", "credit": "movement", "weighting": "mean"}, ()),
        ({"method": "warp-current", "judge_start": 1.0}, ("judge_start",)),
        ({"method": "no-warp", "meta_lr": 0.1}, ()),
    ],
)
def test_every_setting_that_is_ours_is_known_as_such(changes: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert departures(vars(EXPERIMENT.config("paper", **changes))) == expected


def test_the_network_of_the_paper() -> None:
    method = build(EXPERIMENT.config("paper"))
    linears = [child for child in method.learner.module if isinstance(child, nn.Linear)]  # type: ignore[union-attr]
    assert [(one.in_features, one.out_features) for one in linears] == [(1, 200), (200, 200), (200, 200), (200, 1)]
    kinds = [type(child) for child in method.learner.module]  # type: ignore[union-attr]
    assert kinds == [nn.Linear, nn.ReLU, Residual] * 3 + [nn.Linear]
    warps = [child for child in method.learner.module if isinstance(child, Residual)]  # type: ignore[union-attr]
    for warp in warps:
        inside = [child for child in warp.modules() if isinstance(child, nn.Linear | nn.Tanh)]
        assert [type(child) for child in inside] == [nn.Linear, nn.Tanh, nn.Linear, nn.Tanh]
        assert [child.out_features for child in inside if isinstance(child, nn.Linear)] == [100, 200]
        assert all(is_warp(child) for child in inside if isinstance(child, nn.Linear))
        x = torch.randn(2, 200)
        torch.testing.assert_close(warp(x), x + nn.Sequential(*inside)(x))
    assert sum(value.numel() for value in method.learner.phi.values()) == 3 * (200 * 100 + 100 + 100 * 200 + 200)
    assert set(method.learner.starts.values()) == {"fixed"}, "θ0 is random and not meta-learned"
    assert not method.parameters("theta0")
    assert isinstance(method.objective, wg.Exact)


def test_the_text_read_as_four_hidden_layers() -> None:
    module = build(EXPERIMENT.config("paper", hidden_layers=4)).learner.module
    linears = [child for child in module if isinstance(child, nn.Linear)]  # type: ignore[union-attr]
    assert [one.out_features for one in linears] == [200, 200, 200, 200, 1]
    assert sum(isinstance(child, Residual) for child in module) == 4  # type: ignore[union-attr]


def test_the_text_read_as_one_tanh_in_a_warp() -> None:
    module = build(EXPERIMENT.config("paper", warp_tanh="hidden")).learner.module
    assert sum(isinstance(child, nn.Tanh) for child in module.modules()) == 3
    assert sum(isinstance(child, nn.Tanh) for child in build(EXPERIMENT.config("paper")).learner.module.modules()) == 6


def test_one_meta_step_at_the_papers_size() -> None:
    config = EXPERIMENT.config("paper")
    method = build(config)
    start = {name: value.clone() for name, value in method.learner.theta0.items()}
    warp = {name: value.clone() for name, value in method.learner.phi.items()}
    records = wg.meta_train(
        method.learner,
        family(config, "train"),
        algorithm=recipe(config).algorithm,
        rule=method.rule,
        objective=method.objective,
        optimiser=lambda parameters: torch.optim.Adam(parameters, lr=config.meta_lr),
        meta_steps=1,
    )
    assert records[0]["meta_loss"] > 0
    assert all(torch.equal(value, start[name]) for name, value in method.learner.theta0.items())
    for name, value in method.learner.phi.items():
        moved = (value.detach() - warp[name].detach()).abs()
        # Adam's first step is β wherever the gradient is well above its ε: the sum keeps it there.
        assert 0.99e-3 < float(moved.median()) <= float(moved.max()) < 1.01e-3


def test_all_methods_start_at_the_same_theta0() -> None:
    found = [build(tiny(method=name)).learner.theta0 for name in EXPERIMENT.methods]
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        assert all(torch.equal(other[name], value) for name, value in found[0].items())
    assert not torch.equal(found[0]["head.weight"], build(tiny(seed=1)).learner.theta0["head.weight"])


def test_warp_current_is_judged_on_the_current_sub_task_alone() -> None:
    for method, expected in (("warpgrad", "mean"), ("warp-current", "current")):
        task = family(tiny(method=method), "train").sample(0)
        assert isinstance(task, ContinualTask)
        assert task.weighting == expected
    printed = family(tiny(weighting="printed"), "train").sample(0)
    assert isinstance(printed, ContinualTask)
    assert printed.weighting == "printed"


# Every method, whole


@pytest.mark.parametrize("method", EXPERIMENT.methods)
@pytest.mark.parametrize("source", ["sine", "alphabets"])
def test_each_method_takes_a_meta_step_and_is_tested(method: str, source: str, tmp_path: Path) -> None:
    config = tiny(method=method, family=source, meta_steps=1, alphabets=4)
    summary = run(config, tmp_path)
    learns = method in ("warpgrad", "warp-current")
    assert summary["steps"] == int(learns)
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [name.startswith("validation/") for record in records for name in record].count(True) == (
        0 if not learns else 22 if source == "sine" else 32  # both orders, five scores of each measure; θ0; the choice
    )
    measures = ["loss", LOG_LOSS] if source == "sine" else ["loss", LOG_LOSS, "accuracy"]
    assert set(summary["metrics"]) == {f"{a}/{b}/{c}" for a in ORDERS for b in measures for c in SCORES}
    result = json.loads((tmp_path / "evaluation.json").read_text())["orders"]
    for order, expected in (("sequential", [0, 1, 2]), ("shuffled", [1, 2, 0])):
        found = result[order]
        assert found["order"] == expected
        assert found["steps"] == list(range(10))
        assert len(found["curves"]["loss"]) == len(found["log_seen"]) == 10
        assert all(len(row) == 3 for row in found["curves"]["loss"])
        assert [len(values) for values in found["per_task"]["loss"].values()] == [3] * 5
    assert run(config, tmp_path) == summary, "a finished run is not repeated"


def test_meta_training_lowers_the_loss_of_held_out_tasks() -> None:
    """Twenty-five meta-steps at a larger step size are enough to see φ learn to adapt and to remember."""
    config = tiny(lr=0.01, hidden=24, warp_hidden=16, meta_lr=0.01, tasks=4, validation_tasks=20, steps_per_subtask=5)
    method, validate = build(config), validation(config)
    before = validate(method.learner)
    wg.meta_train(
        method.learner,
        family(config, "train"),
        algorithm=recipe(config).algorithm,
        rule=method.rule,
        objective=method.objective,
        optimiser=lambda parameters: torch.optim.Adam(parameters, lr=config.meta_lr),
        meta_steps=25,
    )
    after = validate(method.learner)
    assert after["sequential/loss/final"] < 0.8 * before["sequential/loss/final"]
    assert after["sequential/loss/new"] < 0.8 * before["sequential/loss/new"]


def test_a_run_as_printed_that_was_stopped_ends_with_the_same_numbers(tmp_path: Path) -> None:
    # A run that is carried on needs a schedule that does not look ahead to its end, as the paper's does not.
    whole, halves = (EXPERIMENT.config("paper", **{**TINY, "meta_steps": count}) for count in (4, 2))
    run(whole, tmp_path / "whole")
    EXPERIMENT.train(halves, Execution(tmp_path / "halves", progress=False))
    run(dataclasses.replace(halves, meta_steps=4), tmp_path / "halves")
    first, second = (trained_learner(whole, tmp_path / name).module.state_dict() for name in ("whole", "halves"))
    assert all(torch.equal(second[name], value) for name, value in first.items())
    records = [
        [
            {key: value for key, value in json.loads(line).items() if key not in TIMES}
            for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        ]
        for name in ("whole", "halves")
    ]
    assert records[0] == records[1]
    evaluations = [json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("whole", "halves")]
    assert evaluations[0]["orders"] == evaluations[1]["orders"]
    assert newest_checkpoint(tmp_path / "halves").name == "step-00000004.safetensors"


def test_a_run_whose_schedule_has_an_end_is_not_carried_on(tmp_path: Path) -> None:
    run(tiny(meta_steps=2, meta_schedule="cosine"), tmp_path / "run")
    rates = torch.optim.lr_scheduler.CosineAnnealingLR
    schedule = recipe(tiny(meta_steps=7, meta_schedule="cosine")).schedule
    assert (schedule.func, schedule.keywords) == (rates, {"T_max": 7})  # type: ignore[union-attr]
    with pytest.raises(wg.WarpgradError, match="planned for 2 meta-steps"):
        run(tiny(meta_steps=3, meta_schedule="cosine"), tmp_path / "run")
    run(tiny(meta_steps=2, meta_schedule="cosine"), tmp_path / "run")


# Evaluation


def test_a_run_with_patience_ends_with_the_weights_that_kept_best(tmp_path: Path) -> None:
    # Steps of this size ruin the warp: what comes first keeps best, and the run stops two validations later.
    rash = {"meta_lr": 1.0, "validate_every": 1, "meta_schedule": "constant"}
    run(tiny(**rash, meta_steps=6, patience=2), tmp_path / "rash")
    kept = [json.loads(line) for line in (tmp_path / "rash" / "metrics.jsonl").read_text().splitlines()]
    scores = [record["validation/loss/old"] for record in kept]
    best = min(range(len(scores)), key=scores.__getitem__)
    assert len(scores) == best + 3 < 7
    for record in kept:
        both = [record[f"validation/{order}/loss/old"] for order in ORDERS]
        assert record["validation/loss/old"] == pytest.approx(sum(both) / 2)
    run(tiny(**rash, meta_steps=best + 1, patience=None), tmp_path / "short")
    ended, short = (
        json.loads((tmp_path / name / "evaluation.json").read_text())["metrics"] for name in ("rash", "short")
    )
    assert ended == short


def test_held_out_tasks_are_the_same_for_all_methods_and_in_both_orders() -> None:
    for order in ORDERS:
        first, second = (held_out(tiny(method=name), order, 2) for name in ("warpgrad", "ewc"))
        for a, b in zip(first, second, strict=True):
            assert a.order == b.order == ((0, 1, 2) if order == "sequential" else (1, 2, 0))
            assert all(torch.equal(a.adapt_batch(k)[0], b.adapt_batch(k)[0]) for k in range(9))
    names = {task.name for task in held_out(tiny(), "sequential", 50)}
    assert len(names) == 50
    assert not names & {task.name for task in held_out(tiny(split="validation"), "sequential", 50)}


@pytest.mark.parametrize("order", ORDERS)
def test_curves_are_what_adapt_gives_one_task_at_a_time(order: str) -> None:
    config = tiny(lr=0.05)
    learner, tasks = build(config).learner, held_out(config, order, 3)
    curves = curves_of(config, learner, tasks)
    torch.testing.assert_close(curves.scores[LOG_LOSS], curves.scores["loss"].log10())
    assert curves.steps == [0, 3, 6, 9]
    for place, task in enumerate(tasks):
        module = wg.adapt(learner, task, rule=wg.SGD(0.05), steps=9)
        losses = [float(task.measures["loss"](module(x), y).detach()) for x, y in task.test_batches()]
        expected = torch.tensor([losses[own] for own in task.order], dtype=torch.float64)
        torch.testing.assert_close(curves.scores["loss"][place, -1], expected, rtol=1e-5, atol=1e-7)


def test_scores_of_a_table_by_hand() -> None:
    """Two tasks; rows are steps 0, 2, 4, 6, columns sub-tasks in the order of learning."""
    table = torch.tensor(
        [
            [[9.0, 9.0, 9.0], [1.0, 9.0, 9.0], [3.0, 2.0, 9.0], [2.0, 5.0, 4.0]],
            [[9.0, 9.0, 9.0], [4.0, 9.0, 9.0], [1.0, 2.0, 9.0], [2.0, 2.0, 1.0]],
        ]
    )
    curves = Curves([0, 2, 4, 6], [2, 4, 6], {"loss": table, "accuracy": -table})
    found = forgetting_scores(curves)["loss"]
    expected = {
        "new": [(1 + 2 + 4) / 3, (4 + 2 + 1) / 3],
        "old": [(3 + (2 + 5) / 2) / 2, (1 + (2 + 2) / 2) / 2],
        "final": [11 / 3, 5 / 3],
        "forgetting": [((2 - 1) + (5 - 2)) / 2, ((2 - 1) + (2 - 2)) / 2],
        "transfer": [((1 - 2) + (2 - 5)) / 2, ((4 - 2) + (2 - 2)) / 2],
    }
    for name, values in expected.items():
        torch.testing.assert_close(found[name], torch.tensor(values))
    # The same story told in accuracies: what was lost and gained keeps its meaning.
    turned = forgetting_scores(curves)["accuracy"]
    torch.testing.assert_close(turned["forgetting"], found["forgetting"])
    torch.testing.assert_close(turned["transfer"], found["transfer"])
    torch.testing.assert_close(turned["final"], -found["final"])


def test_the_seen_curve_is_the_mean_over_current_and_earlier_sub_tasks() -> None:
    config = tiny(test_tasks=1)
    result = evaluation(config, build(config).learner)["orders"]["shuffled"]
    rows, seen = torch.tensor(result["curves"]["loss"]), torch.tensor(result["log_seen"])
    for k, count in ((0, 1), (1, 1), (3, 1), (4, 2), (6, 2), (7, 3), (9, 3)):
        assert float(seen[k]) == pytest.approx(float(rows[k, :count].mean().log10()), abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": 0}, "tasks=0"),
        ({"order": (0, 1)}, "does not name each of 3 sub-tasks once"),
        ({"meta_lr": 0.0}, "meta_lr=0.0: it must be finite and greater than 0"),
        ({"patience": 0}, "patience=0: it must be at least 1, or None"),
        ({"judge_start": -1.0}, "judge_start=-1.0"),
        ({"credit": "step", "objective": "approximate"}, "choose objective=exact, or credit=full"),
        ({"credit": "direction", "objective": "approximate"}, "credit=direction judges the step"),
        ({"direction_weight": 0.0}, "direction_weight=0.0"),
        ({"start_functions": 0}, "start_functions=0"),
        ({"meta_clip": -1.0}, "meta_clip=-1.0: it must be finite and at least 0"),
        ({"method": "no-warp", "lr": -1.0}, "lr=-1.0"),
        ({"method": "ewc", "strength": -1.0}, "strength=-1.0"),
        ({"method": "ewc", "decay": 1.5}, "decay=1.5"),
        ({"ways": 300}, "need 900 characters of an alphabet; at most 60"),
        ({"method": "maml"}, "no method 'maml'"),
        ({"alphabets": 2}, "alphabets=2: it must be at least 3"),
    ],
)
def test_settings_that_cannot_be_run_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WarpgradError, match=message):
        tiny(**changes)


# Page and tables


def test_tables_declare_settings_that_can_be_run() -> None:
    for table in EXPERIMENT.tables:
        for row in table.rows:
            EXPERIMENT.config(table.preset, **row.settings_at(table.preset))
    rows = {table.name: [row.settings.get("method", "warpgrad") for row in table.rows] for table in EXPERIMENT.tables}
    assert set(rows["continual"]) == set(EXPERIMENT.methods)


def test_reproduce_continual_runs_the_papers_20000_meta_steps_of_eq_11(tmp_path: Path) -> None:
    table = find_table("continual")
    assert table.preset == "paper"
    found = cells(EXPERIMENT, table, tmp_path, "paper", 1)
    warped = {cell.row.label: cell.config for cell in found if cell.config.method in ("warpgrad", "warp-current")}
    assert set(warped) == {"WarpGrad", "warp for the current sub-task"}
    for config in warped.values():
        assert isinstance(config, ContinualConfig)
        assert config.meta_steps == 20_000
        assert (config.credit, config.weighting, config.judge_start) == ("full", "balanced", 0.0)
        assert (config.meta_schedule, config.meta_lr, config.tasks) == ("constant", 0.001, 5)
    plain = different(warped["WarpGrad"], EXPERIMENT.config("paper"))  # type: ignore[arg-type]
    assert plain == set(), "nothing but the preset"
    run_names = {cell.directory.name for cell in found}
    assert "paper-warpgrad-seed0" in run_names


@pytest.mark.parametrize("preset", ["paper", "small", "ours"])
def test_a_row_is_called_ours_if_and_only_if_it_is_at_any_preset(preset: str, tmp_path: Path) -> None:
    for name in ("continual", "continual-ours", "continual-credit", "continual-baselines"):
        for cell in cells(EXPERIMENT, find_table(name), tmp_path, preset, 1):
            assert ("ours" in cell.row.label) == bool(departures(vars(cell.config))), (name, cell.row.label)


def test_a_table_with_ours_says_so_and_has_the_row_as_printed_at_the_same_length() -> None:
    with_ours = [table for table in EXPERIMENT.tables if any("ours" in row.label for row in table.rows)]
    assert {table.name for table in with_ours} == {"continual-ours", "continual-credit"}
    for table in with_ours:
        assert "ours" in table.title
        configs = {row.label: EXPERIMENT.config(table.preset, **row.settings_at(table.preset)) for row in table.rows}
        (printed,) = (config for label, config in configs.items() if "as printed" in label)
        assert departures(vars(printed)) == ()
        assert len({config.meta_steps for config in configs.values()}) == 1


def test_ours_is_called_so_in_lines_and_page_and_never_alone_beside_the_papers_levels(tmp_path: Path) -> None:
    """Whatever the runs were labelled, as by `warpgrad report`."""
    groups = {}
    for label, preset in (("mine", "ours"), ("theirs", "small")):
        run(EXPERIMENT.config(preset, **TINY), tmp_path / label)
        evaluation = json.loads((tmp_path / label / "evaluation.json").read_text())
        groups[label] = Group(label, (read_run(tmp_path / label),), (evaluation,))
    alone = [groups["mine"]]
    _, rows = result_lines(alone)
    assert rows
    assert all(row[0].startswith("mine, ours, ") for row in rows), "no row of the paper among them"
    text = EXPERIMENT.page(alone, "Continual").html()
    assert "mine, ours" in text
    assert "credit=direction" in text
    assert "No row follows Eq. 11 as printed" in text
    assert "~0.001" not in text
    both = [groups["theirs"], groups["mine"]]
    _, rows = result_lines(both)
    assert rows[-2][0] == "the paper, loss"
    assert {row[0].split(", sequential")[0] for row in rows[:2]} == {"theirs", "mine, ours"}
    text = EXPERIMENT.page(both, "Continual").html()
    assert text.count("~0.001") == 2, "in the cell of the row as printed alone, once for each order"
    assert "No row follows Eq. 11 as printed" not in text


def test_direction_weight_changes_numbers_and_is_in_the_config(tmp_path: Path) -> None:
    losses = []
    for weight in (5.0, 1.0):
        config = tiny(direction_weight=weight, meta_steps=3)
        run(config, tmp_path / str(weight))
        assert json.loads((tmp_path / str(weight) / "config.json").read_text())["direction_weight"] == weight
        losses.append(json.loads((tmp_path / str(weight) / "evaluation.json").read_text())["metrics"])
    assert losses[0] != losses[1]
    other = tiny(start_functions=3, meta_steps=3)
    run(other, tmp_path / "few")
    assert json.loads((tmp_path / "few" / "evaluation.json").read_text())["metrics"] != losses[0]


def test_the_page_is_built_without_the_run_directories(tmp_path: Path) -> None:
    run(EXPERIMENT.config("small", **TINY), tmp_path / "run")
    evaluation = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    group = Group("WarpGrad", (read_run(tmp_path / "run"),), ({"orders": evaluation["orders"]},))
    shutil.rmtree(tmp_path / "run")
    page = EXPERIMENT.page([group], "Continual")
    written = {path.name for path in page.write_figures(tmp_path / "figures")}
    assert {"predictions-as-sub-tasks-come-1.png", "loss-against-meta-steps-1.png"} <= written


def test_predictions_are_kept_before_and_after_every_sub_task() -> None:
    config = EXPERIMENT.config("small", **TINY, lr=0.05)
    learner = build(config).learner
    for order in ORDERS:
        (task,) = held_out(config, order, 1)
        kept = prediction(config, learner, task)
        x = torch.tensor(kept["x"])[:, None]
        assert len(kept["outputs"]) == 4
        for stage, steps in ((0, 0), (1, 3), (3, 9)):
            module = wg.adapt(learner, task, rule=wg.SGD(0.05), steps=steps) if steps else learner.module
            expected = module(x)[:, 0].detach()
            torch.testing.assert_close(torch.tensor(kept["outputs"][stage]), expected, rtol=1e-4, atol=1e-5)
        assert kept["intervals"][0] == pytest.approx([-5.0, -5.0 + 10 / 3])


def test_page_and_table_from_finished_runs(tmp_path: Path) -> None:
    groups = []
    for method in ("warpgrad", "ewc"):
        paths = [tmp_path / f"{method}-{seed}" for seed in (0, 1)]
        for seed, path in enumerate(paths):
            run(EXPERIMENT.config("small", **TINY, method=method, seed=seed), path)
        evaluations = tuple(json.loads((path / "evaluation.json").read_text()) for path in paths)
        groups.append(Group(method, tuple(read_run(path) for path in paths), evaluations))
    header, rows = result_lines(groups)
    assert len(rows) == 2 * 2 * 2 + 2 * 2 + 2
    share = beyond_share(groups[0], groups[1], "shuffled")
    olds = [[one["metrics"]["shuffled/loss/old"] for one in group.evaluations] for group in groups]
    assert share.mean == pytest.approx(sum(olds[0]) / 2 - 0.3 * sum(olds[1]) / 2, abs=1e-9)
    assert rows[-3][2] == share.cell()
    assert all(len(row) == len(header) for row in rows)
    assert [row[1:3] for row in rows[-2:]] == [["~0.001", "~0.01"], ["~-3", "~-2"]]
    gap = difference(groups[1], groups[0], "sequential", "loss", "final")
    finals = [[one["metrics"]["sequential/loss/final"] for one in group.evaluations] for group in groups[:2]]
    assert gap.mean == pytest.approx(sum(finals[1]) / 2 - sum(finals[0]) / 2, abs=1e-9)
    text = EXPERIMENT.page(groups, "Continual").write(tmp_path / "page.html").read_text()
    sections = ("Predictions as sub-tasks come", "Loss against meta-steps")
    for word in ("ewc − warpgrad, shuffled", "preset small", "~0.001", *sections):
        assert word in text
    # Each method by sub-task and its predictions, for light and for dark pages; four charts of losses beside them.
    assert text.count("<img") == text.count("<source") == 2 + 2
    assert text.count('<figure class="chart">') >= 4
