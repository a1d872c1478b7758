"""A run that a user's own program makes is the same thing on disk as one of the command line: it can be reported."""

from __future__ import annotations

import json

import pytest

import warpgrad as wg
from tests.support.own_program import line, own_training
from tests.support.report_pages import Parsed
from warpgrad.cli.main import main
from warpgrad.report import read_run, run_page


def validate(learner):
    return wg.score(learner, [line(3)], rule=wg.SGD(0.1), steps=2) | {"my own metric": 7.0}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two methods, two seeds each, named by the user."""
    place, found = tmp_path_factory.mktemp("own"), []
    for method, objective in (("warp", wg.Exact()), ("approximate", wg.Approximate())):
        for seed in (0, 1):
            path = place / f"{method}-{seed}"
            config = {"group": "lines", "method": method, "width": 4}
            own_training(path, 2, seed=seed, objective=objective, validate=validate, config=config)
            found.append(path)
    return found


def test_the_directory_has_the_contract(runs):
    names = {entry.name for entry in runs[0].iterdir()}
    assert {"config.json", "metrics.jsonl", "summary.json", "checkpoints"} <= names
    summary = json.loads((runs[0] / "summary.json").read_text())
    assert (summary["experiment"], summary["method"], summary["seed"], summary["steps"]) == ("lines", "warp", 0, 2)
    assert summary["metrics"]["validation/my own metric"] == 7.0
    assert summary["processor_seconds"] >= 0
    assert summary["wall_seconds"] > 0
    assert summary["stopped"] is None
    assert summary["parameters"] == {"phi": 20, "rule": 0, "theta0": 13, "prior": 0}
    for name in ("versions", "hardware", "command", "commit"):
        assert name in summary


def test_the_page_compares_methods_by_the_users_own_metrics(runs):
    page = Parsed(run_page([read_run(path) for path in runs]).html())
    for words in ("lines", "warp", "approximate", "validation/my own metric", "lr/phi", "gradient_norm/theta0"):
        assert words in page.text
    assert "Differences from warp" in page.text


def test_the_command_line_reports_them(runs, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, runs), "--out", str(tmp_path / "page.html")])
    assert ended.value.code == 0
    assert "validation/my own metric" in (tmp_path / "page.html").read_text()


def test_evaluate_says_what_it_would_need(runs, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", str(runs[0])])
    assert ended.value.code == 2
    assert "load it there with wg.load_run(" in capsys.readouterr().err


def test_a_run_without_names_is_named_by_its_parts(tmp_path):
    own_training(tmp_path / "run", 1)
    run = read_run(tmp_path / "run")
    assert (run.method, run.title, run.name) == (
        "Online + Exact + Leap + SGD", "own runs", "Online + Exact + Leap + SGD, seed 0",
    )  # fmt: skip
    assert set(run.summary["metrics"]) == {"meta_loss", "task_loss_first", "task_loss_last"}
    own_training(tmp_path / "run", 3)
    assert read_run(tmp_path / "run").summary["steps"] == 3
