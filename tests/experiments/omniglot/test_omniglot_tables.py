"""Tables, comparisons and the page of the alphabets experiment."""

from __future__ import annotations

import dataclasses
import html
from collections import Counter
from pathlib import Path

import pytest

from tests.support.experiment_runs import group_of
from tests.support.omniglot_runs import EXPERIMENT, more_tasks, runs, store, tiny
from warpgrad.cli.main import parse
from warpgrad.errors import WarpgradError
from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison import difference, distinct, per_task
from warpgrad.experiments.omniglot.config import COSTS, OmniglotConfig
from warpgrad.experiments.reproduction import cells, finished
from warpgrad.experiments.runner import command
from warpgrad.report import Chart

__all__ = ["more_tasks", "runs", "store", "tiny"]


TABLES = {table.name: table for table in EXPERIMENT.tables}
PAPER = {
    "Warp-Leap": (49.5, 68.8, 75.0, 81.2, 82.7, 82.0, 83.8),
    "Leap": (37.6, 53.4, 59.5, 67.4, 70.0, 73.3, 74.8),
    "Reptile": (40.4, 53.1, 58.3, 65.0, 66.6, 69.4, 70.8),
    "Finetuning": (53.8, 64.6, 67.7, 71.3, 73.5, 75.4, 76.4),
    "MAML": (40.0, 48.6, 51.6, 54.1, 54.8, 56.6, 56.7),
}
"""Accuracy for 1, 3, 5, 10, 15, 20 and 25 meta-training tasks (App. E)."""


def found_at(name: str, preset: str, folder: Path, seeds: int | None = 1) -> dict[str, list[OmniglotConfig]]:
    """Row -> the settings of its runs, by seed."""
    found: dict[str, list[OmniglotConfig]] = {}
    for cell in cells(EXPERIMENT, TABLES[name], folder, preset, seeds):
        found.setdefault(cell.row.label, []).append(cell.config)
    return found


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("preset", EXPERIMENT.presets)
def test_every_table_can_be_run_at_every_preset_and_no_two_rows_are_the_same_run(tmp_path, name, preset):
    found = cells(EXPERIMENT, TABLES[name], tmp_path, preset, 1)
    assert len({cell.directory for cell in found}) == len(found) == len(TABLES[name].rows_at(preset))
    assert not any(finished(EXPERIMENT, cell) for cell in found)


def test_tables_hold_the_papers_figures():
    papers = {name: {row.label: row.paper for row in table.rows} for name, table in TABLES.items()}
    assert {label: paper for label, paper in papers["omniglot"].items() if paper is not None} == {
        **{method: figures[-1] for method, figures in PAPER.items()},
        "KFAC": 56.0, "SGD": 51.0, "Warp-Leap, two-layer warp": 88.0,
    }  # fmt: skip
    assert [paper for paper in papers["omniglot-ablation"].values() if paper is not None] == [
        84.4, 74.8, 83.1, 76.3, 83.1, 83.1, 77.5, 79.4, 83.4, 84.7, 85.0, 86.3, 88.0, 88.1,
    ]  # fmt: skip
    assert list(papers["omniglot-natural"].values()) == [40.1, 58.2, 68.0, 81.3]
    assert [row.settings.get("samples", 1) for row in TABLES["omniglot-eta"].rows] == [1, 20, None]


@pytest.mark.parametrize("preset", EXPERIMENT.presets)
def test_every_cell_of_the_tasks_axis_is_declared(tmp_path, preset):
    """Seven counts for each of the five methods that are meta-trained; KFAC and SGD have one figure each."""
    found = found_at("omniglot-tasks", preset, tmp_path)
    figures = {row.label: row.paper for row in TABLES["omniglot-tasks"].rows_at(preset)}
    expected = {"KFAC": 56.0, "SGD": 51.0}
    for method, papers in PAPER.items():
        for count, paper in zip((1, 3, 5, 10, 15, 20, 25), papers, strict=True):
            label = f"{method}, {count} {'task' if count == 1 else 'tasks'}"
            expected[label] = paper
            assert [config.tasks for config in found[label]] == [count]
            assert found[label][0].method == method.lower()
    assert figures == expected


def test_the_online_row_takes_the_printed_step_size_for_the_printed_sum(tmp_path):
    (online,) = found_at("omniglot-ablation", "small", tmp_path)["online"]
    assert (online.algorithm, online.reduction, online.meta_lr) == ("online", "sum", 0.001)


@pytest.mark.parametrize("preset", EXPERIMENT.presets)
def test_the_natural_gradient_is_compared_at_batch_200_and_step_1_at_every_preset(tmp_path, preset):
    for configs in found_at("omniglot-natural", preset, tmp_path).values():
        (config,) = configs
        assert (config.batch_size, config.test_batch, config.drawings_at(200)) == (200, (200,), 200)
        assert (config.test_lr, config.theta0) == (1.0, "random")


@pytest.mark.parametrize("preset", EXPERIMENT.presets)
def test_beside_every_row_at_equal_meta_steps_stands_one_at_equal_processor_time(tmp_path, preset):
    found = found_at("omniglot", preset, tmp_path)
    for method in ("Leap", "Finetuning", "Reptile", "MAML"):
        (same,), (as_long,) = found[method], found[f"{method}, equal processor time"]
        costs = COSTS[preset]
        assert same.meta_steps == found["Warp-Leap"][0].meta_steps
        ratio = as_long.meta_steps * costs[same.method] / (same.meta_steps * costs["warp-leap"])
        assert ratio == pytest.approx(1.0, abs=0.02)
        assert dataclasses.replace(as_long, meta_steps=same.meta_steps) == same
    (control,) = found["Random θ0, no warp"]
    assert (control.method, control.drawings_at(128), control.test_lr) == ("sgd", 128, 0.1)


def test_seeds_are_as_declared(tmp_path):
    def seeds(name, preset):
        return {label: len(configs) for label, configs in found_at(name, preset, tmp_path, None).items()}

    medium = seeds("omniglot", "medium")
    assert {label for label, count in medium.items() if count == 4} >= {
        "Warp-Leap", "Leap", "Leap, equal processor time", "Finetuning", "Finetuning, equal processor time",
    }  # fmt: skip
    assert medium["Warp-Leap, two-layer warp"] == medium["MAML"] == medium["Reptile, equal processor time"] == 2
    assert medium["Warp-Leap, every point replayed, layers' own start"] == 1
    ablation = seeds("omniglot-ablation", "small")
    assert {label for label, count in ablation.items() if count == 4 and "equal" not in label} == {
        "3×3 conv, offline, exact (default)", "no warp (Leap)", "approximate objective", "online", "3×3 conv + ReLU",
        "2-layer + BN + Res",
    }  # fmt: skip
    assert min(ablation.values()) == 2
    assert seeds("omniglot-natural", "small") == {"SGD": 4, "KFAC": 4, "linear warp": 2, "non-linear warp": 2}
    assert set(seeds("omniglot", "paper").values()) == {10}
    # The default of the ablation is the first row of the main table: one run serves both.
    first = [
        cells(EXPERIMENT, TABLES[name], tmp_path, "small", 1)[0].directory for name in ("omniglot", "omniglot-eta")
    ]
    assert first[0] == first[1]


def test_step_sizes_are_searched_on_validation_with_as_many_trials_for_every_method(tmp_path):
    """Every grid spans a factor of ten or more, and the meta-trained methods have as much processor time."""
    rows = TABLES["omniglot-steps"].rows
    counts = Counter(row.label.split(",")[0] for row in rows)
    assert counts == dict.fromkeys(
        ("Warp-Leap", "Leap", "Reptile", "FOMAML", "MAML", "Finetuning", "SGD", "KFAC", "Random θ0"), 7
    )
    assert all(row.settings["split"] == "validation" for row in rows)
    for method in counts:
        own = [row.settings for row in rows if row.label.split(",")[0] == method]
        for name in own[0]:
            tried = {settings[name] for settings in own}
            if len(tried) > 1:
                assert len(tried) >= 4, (method, name)
                assert max(tried) >= 10 * min(tried), (method, name)
    for configs in found_at("omniglot-steps", "small", tmp_path).values():
        (config,) = configs
        if not config.from_scratch:
            wanted = 20 * COSTS["small"]["warp-leap"] / COSTS["small"][config.method]
            assert abs(config.meta_steps - wanted) <= 0.5


def test_the_recipe_is_at_most_sixteen_short_runs_on_validation_at_32_filters(tmp_path):
    found = [config for configs in found_at("omniglot-recipe", "small", tmp_path, None).values() for config in configs]
    assert len(found) <= 16
    assert {(config.filters, config.split, config.method) for config in found} == {(32, "validation", "warp-leap")}
    for name, values in {
        "warp_init": {"own", "scaled", "identity"}, "share": {0.1, 0.2, 0.5, 1.0}, "batch_size": {20, 64},
        "objective": {"exact", "approximate"}, "meta_optimiser": {"sgd", "adam"},
        "meta_schedule": {"constant", "cosine"},
    }.items():  # fmt: skip
        assert {getattr(config, name) for config in found} == values


def test_differences_are_paired_by_alphabet_and_refused_where_conditions_differ(runs):
    first, second = group_of("A", [runs["warp-leap"]]), group_of("B", [runs["sgd"]])
    for measure in ("accuracy_8", "accuracy_5"):
        found = difference(first, second, measure)
        ours, theirs = (per_task(group, measure)[0] for group in (first, second))
        assert found.mean == pytest.approx(sum(ours[name] - theirs[name] for name in ours) / len(ours))
    for name, other in (("accuracy_8", {"another": 1.0}), ("data", "omniglot"), ("batch_norm", "running")):
        changed = dict(second.evaluations[0], **{name: other})
        assert difference(first, Group("B", second.runs, (changed,)), "accuracy_8") is None, name


def test_the_page_and_the_lines_show_every_row_and_name_the_data(runs, more_tasks, tmp_path):
    groups = [group_of("Warp-Leap", [runs["warp-leap"]], 83.8), group_of("Leap", [runs["leap"]], 74.8)]
    groups += [group_of("Leap, 3 tasks", [more_tasks]), group_of("SGD", [runs["sgd"]])]
    header, rows = EXPERIMENT.lines(groups)
    assert header[0] == "on drawn"
    assert [row[0] for row in rows] == ["Warp-Leap", "Leap", "Leap, 3 tasks", "SGD"]
    assert [title for title in header if "accuracy" in title] == [
        "accuracy % at batch 8 [95 % interval]", "accuracy % at batch 5 [95 % interval]"
    ]  # fmt: skip
    assert [row[5] for row in rows] == ["83.8", "74.8", "", ""]
    assert all("indicative" in row[1] and "indicative" in row[3] for row in rows)
    page = EXPERIMENT.page(groups, "Accuracy").write(tmp_path / "page.html").read_text()
    for words in ("Warp-Leap", "paper 83.8", "not</strong> Omniglot", "Learning curves", "meta-training tasks",
                  "Activations around warp-layers", "drawn alphabets", "minus Warp-Leap", "after 4 steps, batch 8",
                  "after 4 steps, batch 5", "At batch 8: ", "At batch 5: ", "Size of activations at the start",
                  "validation/accuracy_8 against meta-steps", "validation/accuracy_8 against processor seconds",
                  "corrected for their initial values"):  # fmt: skip
        assert words in page, words
    curves = page[page.index("Learning curves") :]
    assert "Accuracy against adaptation steps for every row, batch 8." in curves
    assert "Accuracy against adaptation steps for every row, batch 5." in curves
    sizes = groups[0].evaluations[0]["sizes_at_start"]
    assert f"{sizes['before'][0]:.3f} → {sizes['after'][0]:.3f}" in page
    alone = EXPERIMENT.page([groups[3]], "SGD").write(tmp_path / "sgd.html").read_text()
    assert "the paper's figures beside them" in html.unescape(page)
    assert "the paper's figures" not in html.unescape(alone)
    assert "minus" not in alone[: alone.index("Learning curves")]
    assert "Activations around" not in alone
    assert "Number of meta-training tasks" not in alone
    assert "validation/accuracy_8" not in alone
    other = dict(groups[3].evaluations[0], test_batch=[7])
    with pytest.raises(WarpgradError, match="tested at different batch sizes"):
        EXPERIMENT.lines([groups[0], Group("SGD", groups[3].runs, (other,))])


def test_the_page_of_a_search_names_the_best_of_each_method(tiny, runs, tmp_path):
    found = []
    for label, method, rate in (("Leap, α 0.1", "leap", 0.1), ("Leap, α 0.3", "leap", 0.3), ("SGD, α 0.1", "sgd", 0.1)):
        group = group_of(label, [runs[method]])
        run = dataclasses.replace(group.runs[0], config={**group.runs[0].config, "inner_lr": rate})
        evaluation = {**group.evaluations[0], "split": "validation"}
        evaluation["metrics"] = {**evaluation["metrics"], "accuracy": 100 * rate}
        found.append(Group(label, (run,), (evaluation,)))
    page = EXPERIMENT.page(found, "Steps").write(tmp_path / "steps.html").read_text()
    winners = page[page.index("Best of each method") :]
    assert "inner_lr 0.3" in winners
    assert "at an edge" in winners


def test_the_page_of_a_search_shows_the_layers_of_the_best_trials_alone(runs):
    found = []
    for label, method in (("Warp-Leap, α 0.1", "warp-leap"), ("Warp-Leap, α 0.3", "warp-leap"), ("SGD, α 0.1", "sgd")):
        group = group_of(label, [runs[method]])
        found.append(Group(label, group.runs, ({**group.evaluations[0], "split": "validation"},)))
    sections = {section.title: section for section in EXPERIMENT.page(found, "Steps").sections}
    drawn = [block for block in sections["Activations around warp-layers"].all() if isinstance(block, Chart)]
    assert {chart.title for chart in drawn} == {"Warp-Leap, α 0.1"}


def test_rows_that_share_a_name_are_told_apart_by_their_settings(runs, more_tasks):
    """As `warpgrad report` hands them over: all Leap runs are called alike."""
    named = [group_of("leap", [runs["leap"]]), group_of("leap", [more_tasks]), group_of("sgd", [runs["sgd"]])]
    assert [group.label for group in distinct(named)] == ["leap, tasks=2", "leap, tasks=3", "sgd"]
    assert [group.label for group in distinct([group_of("SGD, α 3e-05", [runs["sgd"]])])] == ["SGD, α 3·10⁻⁵"]


def test_the_command_of_every_row_gives_back_its_settings(tmp_path):
    """`reproduce` starts each run by its command."""
    for table in EXPERIMENT.tables:
        for preset in EXPERIMENT.presets if table.preset == "paper" else (table.preset,):
            for cell in cells(EXPERIMENT, table, tmp_path, preset, 1):
                words = command(EXPERIMENT, cell.config).split(" ")[3:]
                given = parse(["run", "omniglot", "--preset", preset, *words]).keywords["settings"]
                assert given == cell.config, cell.row.label
