"""Tables, comparisons and the page of the alphabets experiment."""

from __future__ import annotations

import pytest

from experiment_runs import group_of
from omniglot_runs import EXPERIMENT, more_tasks, runs, store, tiny
from warpgrad.cli import parse
from warpgrad.commands import RunArguments
from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison import difference, distinct, per_task
from warpgrad.experiments.omniglot_config import OmniglotConfig
from warpgrad.experiments.reproduction import cells, finished
from warpgrad.experiments.runner import command

__all__ = ["more_tasks", "runs", "store", "tiny"]


def test_tables_hold_the_papers_figures_and_can_be_run(tmp_path, store):
    tables = {table.name: table for table in EXPERIMENT.tables}
    papers = {name: {row.label: row.paper for row in table.rows} for name, table in tables.items()}
    assert papers["omniglot"] == {
        "Warp-Leap": 83.8, "Leap": 74.8, "Reptile": 70.8, "Finetuning": 76.4, "MAML": 56.7, "FOMAML": None,
        "KFAC": 56.0, "SGD": 51.0,
    }  # fmt: skip
    assert list(papers["omniglot-tasks"].values()) == [49.5, 75.0, 83.8, 37.6, 59.5, 74.8]
    assert [paper for paper in papers["omniglot-ablation"].values() if paper is not None] == [
        84.4, 74.8, 83.1, 76.3, 83.1, 77.5, 79.4, 83.4, 84.7, 85.0, 86.3, 88.0, 88.1,
    ]  # fmt: skip
    assert list(papers["omniglot-natural"].values()) == [40.1, 58.2, 68.0, 81.3]
    assert [row.settings.get("samples", 1) for row in tables["omniglot-eta"].rows] == [1, 20, None]
    assert {name: table.seeds for name, table in tables.items()} == {
        "omniglot": 10, "omniglot-tasks": 10, "omniglot-ablation": 4, "omniglot-eta": 4, "omniglot-natural": 4,
        "omniglot-kfac": 2, "omniglot-authors": 1, "omniglot-demo": 2,
    }  # fmt: skip
    for table in tables.values():
        found = cells(EXPERIMENT, table, tmp_path, "paper", 1)
        assert len({cell.directory for cell in found}) == len(table.rows)
        assert not any(finished(EXPERIMENT, cell) for cell in found)
    natural = [cell.config for cell in cells(EXPERIMENT, tables["omniglot-natural"], tmp_path, "paper", 1)]
    assert {(config.test_batch, config.test_lr, config.theta0) for config in natural} == {(200, 1.0, "random")}
    small = cells(EXPERIMENT, tables["omniglot-natural"], tmp_path, "small", None)
    assert {cell.config.test_batch for cell in small} == {32}
    assert [cell.row.label for cell in small].count("SGD") == 4
    # The default of the ablation is the first row of the main table: one run serves both.
    shared = [
        cells(EXPERIMENT, tables[name], tmp_path, "small", 1)[0].directory for name in ("omniglot", "omniglot-eta")
    ]
    assert shared[0] == shared[1]
    online = next(row for row in tables["omniglot-ablation"].rows if row.label == "online")
    assert online.settings["meta_lr"] == 0.001


def test_differences_are_paired_by_alphabet_and_refused_where_tasks_differ(runs):
    first, second = group_of("A", [runs["warp-leap"]]), group_of("B", [runs["sgd"]])
    found = difference(first, second)
    ours, theirs = (per_task(group, "accuracy")[0] for group in (first, second))
    assert found.mean == pytest.approx(sum(ours[name] - theirs[name] for name in ours) / len(ours))
    moved = dict(second.evaluations[0], accuracy={"another": 1.0})
    assert difference(first, Group("B", second.runs, (moved,))) is None
    elsewhere = dict(second.evaluations[0], data="omniglot")
    assert difference(first, Group("B", second.runs, (elsewhere,))) is None


def test_the_page_and_the_lines_show_every_row_and_name_the_data(runs, more_tasks, tmp_path):
    groups = [group_of("Warp-Leap", [runs["warp-leap"]], 83.8), group_of("Leap", [runs["leap"]], 74.8)]
    groups += [group_of("Leap, 3 tasks", [more_tasks]), group_of("SGD", [runs["sgd"]])]
    header, rows = EXPERIMENT.lines(groups)
    assert header[0] == "on drawn"
    assert [row[0] for row in rows] == ["Warp-Leap", "Leap", "Leap, 3 tasks", "SGD"]
    assert [row[3] for row in rows] == ["83.8", "74.8", "", ""]
    assert all("indicative" in row[1] for row in rows)
    page = EXPERIMENT.page(groups, "Accuracy").write(tmp_path / "page.html").read_text()
    for words in ("Warp-Leap", "paper 83.8", "not</strong> Omniglot", "Learning curves", "meta-training tasks",
                  "Activations around warp-layers", "drawn alphabets", "minus Warp-Leap"):  # fmt: skip
        assert words in page, words
    alone = EXPERIMENT.page([groups[3]], "SGD").write(tmp_path / "sgd.html").read_text()
    assert "Activations around" not in alone
    assert "Number of meta-training tasks" not in alone


def test_rows_that_share_a_name_are_told_apart_by_their_settings(runs, more_tasks):
    """As `warpgrad report` hands them over: all Leap runs are called alike."""
    named = [group_of("leap", [runs["leap"]]), group_of("leap", [more_tasks]), group_of("sgd", [runs["sgd"]])]
    assert [group.label for group in distinct(named)] == ["leap, tasks=2", "leap, tasks=3", "sgd"]


def test_the_command_of_every_row_gives_back_its_settings(tmp_path):
    """`reproduce` starts each run by its command."""
    for table in EXPERIMENT.tables:
        for preset in EXPERIMENT.presets:
            for cell in cells(EXPERIMENT, table, tmp_path, preset, 1):
                words = command(EXPERIMENT, cell.config).split(" ")[3:]
                base = EXPERIMENT.config(preset)
                given = parse(RunArguments[OmniglotConfig], words, "warpgrad run omniglot", RunArguments(base))
                assert given.config == cell.config, cell.row.label
