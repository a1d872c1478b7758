"""Winners of a declared search, and whether they sit at the edge of what was tried."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT
from warpgrad.cli.run import initial_settings
from warpgrad.errors import WarpgradError
from warpgrad.experiments.base import Diverged, Experiment, Group
from warpgrad.experiments.comparison import Trial, check_searched, edge_winners, search_lines, trials_of
from warpgrad.experiments.few_shot.experiment import FewShot
from warpgrad.experiments.multi_shot.experiment import MultiShot
from warpgrad.experiments.omniglot.experiment import Omniglot
from warpgrad.experiments.records import read_record
from warpgrad.experiments.runner import run_settings
from warpgrad.experiments.text_intents.config import META, TUNED
from warpgrad.experiments.text_intents.experiment import TextIntents
from warpgrad.report.runs import Run

SEARCHED = [
    experiment
    for experiment in (FewShot(), MultiShot(), Omniglot(), TextIntents())
    if (ROOT / "results" / f"{experiment.name}-steps.json").is_file()
]


def winners_on_record(experiment: Experiment[Any]) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Label -> method and the settings that won the search on record, an equal one with winners inside its grids."""
    record = read_record(ROOT / "results" / f"{experiment.name}-steps.json")
    tried = trials_of(record.groups(), experiment.sweep_metric, record.diverged)
    methods = {trial.method: trial.settings["method"] for trial in tried}
    return {winner.method: (methods[winner.method], winner.settings) for winner in check_searched(tried)}


@pytest.mark.parametrize("experiment", SEARCHED, ids=lambda experiment: experiment.name)
def test_presets_take_the_settings_that_won_the_search_on_record(experiment):
    found = winners_on_record(experiment)
    assert len(found) >= 4
    for label, (method, settings) in found.items():
        config = experiment.config("small", method=method)
        if label == "Random θ0":  # another batch of SGD, and so a row of its own
            main = next(table for table in experiment.tables if table.name == experiment.name)
            (row,) = (row for row in main.rows if row.label == "Random θ0, no warp, step size searched")
            config = experiment.config("small", **row.settings)
        used = vars(config) | ({"theta0_lr": config.outer_lr} if experiment.name == "omniglot" else {})
        assert {name: used[name] for name in settings} == dict(settings), label


@pytest.mark.skipif("text-intents" not in [each.name for each in SEARCHED], reason="this search is not on record yet")
def test_adaptation_to_sentences_is_as_long_as_was_best_in_the_search_on_record():
    experiment = TextIntents()
    groups = read_record(ROOT / "results" / "text-intents-steps.json").groups()
    winners = {winner.method: winner for winner in edge_winners(trials_of(groups, experiment.sweep_metric))}
    compared = []
    for group in groups:
        (found,) = (evaluation["metrics"] for evaluation in group.evaluations)
        config, won = group.runs[0].config, winners[group.label.split(",")[0]].settings
        if config["method"] in (*META, *TUNED) and {name: config[name] for name in won} == won:
            assert experiment.config("small", method=config["method"]).adaptation_steps == found["steps"], group.label
            compared.append(config["method"])
    assert sorted(compared) == sorted((*META, *TUNED))


def test_the_command_line_begins_with_the_step_size_of_the_method_it_names(tmp_path):
    declared = FewShot().declaration
    for words in (["--method", "cavia", "--preset", "small"], ["--preset=paper", "--method=cavia"]):
        assert initial_settings(declared, words).inner_lr == 150.0
    assert initial_settings(declared, []).inner_lr == 0.15, "the preset's own method"
    chosen = tmp_path / "best.json"
    chosen.write_text(json.dumps({"experiment": "few-shot", "preset": "small", "method": "cavia", "filters": 64}))
    assert initial_settings(declared, ["--config", str(chosen)]).inner_lr == 150.0
    # What a search found is in the settings of a run, so that a run never goes on under another search's.
    assert run_settings(FewShot(), FewShot().config("small", method="cavia"))["inner_lr"] == 150.0


def trials(method: str, scores: dict[float, float], **other) -> list[Trial]:
    return [Trial(method, {"method": method, "lr": lr, "seed": 0, **other}, score) for lr, score in scores.items()]


def test_the_winner_is_the_best_of_its_method_and_edges_are_the_ends_of_what_was_tried():
    inside = trials("inside", {0.01: 1.0, 0.1: 3.0, 1.0: 2.0})
    largest = trials("largest", {0.01: 1.0, 0.1: 2.0, 1.0: 3.0})
    smallest = trials("smallest", {0.01: 3.0, 0.1: 2.0, 1.0: 1.0}, momentum=0.9)
    first, second, third = edge_winners([*inside, *largest, *smallest])
    assert (first.method, first.trials, first.score, dict(first.settings), first.edges) == (
        "inside", 3, 3.0, {"lr": 0.1}, ()
    )  # fmt: skip
    assert (second.settings["lr"], second.edges) == (1.0, ("lr",))
    # What is the same in all trials is no choice, hence no edge.
    assert (dict(third.settings), third.edges) == ({"lr": 0.01}, ("lr",))
    lowest = edge_winners(inside, best="lowest")[0]
    assert (lowest.settings["lr"], lowest.edges) == (0.01, ("lr",))


def test_every_setting_has_edges_of_its_own_and_what_is_no_number_has_none():
    tried = [(0.1, 1, "a", None), (0.2, 2, "b", 5), (0.3, 3, "c", 6), (0.2, 3, "a", None)]
    found = [
        Trial("m", {"lr": lr, "width": width, "kind": kind, "clip": clip}, score)
        for score, (lr, width, kind, clip) in enumerate(tried)
    ]
    (winner,) = edge_winners(found)
    assert dict(winner.settings) == {"lr": 0.2, "width": 3, "kind": "a", "clip": None}
    assert winner.edges == ("width",)
    flags = [Trial("m", {"flag": flag}, float(flag)) for flag in (False, True)]
    assert edge_winners(flags)[0].edges == ()


def test_a_trial_that_diverged_cannot_win():
    (winner,) = edge_winners(trials("m", {0.01: 1.0, 0.1: 2.0, 1.0: math.nan}))
    assert (winner.settings["lr"], winner.edges) == (0.1, ())
    with pytest.raises(WarpgradError, match="no trial of m has a finite score"):
        edge_winners(trials("m", {0.1: math.nan}))


def test_a_search_counts_only_with_equal_numbers_of_trials_and_winners_inside():
    good = {0.01: 1.0, 0.1: 3.0, 1.0: 2.0}
    assert [winner.method for winner in check_searched([*trials("a", good), *trials("b", good)])] == ["a", "b"]
    with pytest.raises(WarpgradError, match="different numbers of trials \\(a 3, b 2\\)"):
        check_searched([*trials("a", good), *trials("b", {0.1: 1.0, 1.0: 2.0})])
    with pytest.raises(WarpgradError, match=r"b won at the edge of its grid \(lr=1\): try values beyond it"):
        check_searched([*trials("a", good), *trials("b", {0.01: 1.0, 0.1: 2.0, 1.0: 3.0})])


def test_runs_of_an_earlier_version_without_the_checksum_of_their_data_are_trials_too():
    groups = [
        Group(f"SGD, α {lr}", (Run(Path(), {"lr": lr, "data": "a", **read}, {}, []),), ({"metrics": {"auc": lr}},))
        for lr, read in ((0.1, {}), (0.3, {"data_sha256": "0" * 64}))
    ]
    (winner,) = edge_winners(trials_of(groups, "auc"))
    assert dict(winner.settings) == {"lr": 0.3}


def test_rows_of_a_table_are_trials_of_what_their_label_names_judged_by_the_mean_over_seeds():
    def group(label: str, lr: float, *scores: float) -> Group:
        runs = tuple(Run(Path(), {"method": "sgd", "lr": lr}, {"seed": seed}, []) for seed, _ in enumerate(scores))
        return Group(label, runs, tuple({"metrics": {"auc": score}} for score in scores))

    groups = [group("SGD, α 0.1", 0.1, 1.0, 3.0), group("Control, α 0.2", 0.2, 4.0)]
    assert [(trial.method, trial.score, trial.settings["lr"]) for trial in trials_of(groups, "auc")] == [
        ("SGD", 2.0, 0.1), ("Control", 4.0, 0.2)
    ]  # fmt: skip
    lost = trials_of(groups, "auc", [Diverged("SGD, α 3", {"method": "sgd", "lr": 3.0}, "loss is NaN")])[-1]
    assert (lost.method, lost.settings["lr"], math.isnan(lost.score)) == ("SGD", 3.0, True)


def test_the_outcome_of_a_search_names_winners_and_what_diverged():
    header, rows = search_lines([*trials("a", {0.1: 1.0, 1.0: 3.0, 10.0: math.nan}), *trials("b", {0.1: 2.0})], "auc")
    assert header[2:] == ["diverged", "best settings", "auc", "at an edge"]
    assert rows == [["a", "3", "1", "lr 1.0", "3.0", "no"], ["b", "1", "0", "", "2.0", "no"]]
