"""A run that a user's own program makes is the same thing on disk as one of the command line: it can be reported."""

from __future__ import annotations

import json

import pytest

import warpgrad as wg
from tests.support.own_program import line, own_learner, own_training
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
    lines = [json.loads(line) for line in (runs[0] / "metrics.jsonl").read_text().splitlines()]
    assert summary["processor_seconds"] == pytest.approx(sum(line["cpu_seconds"] for line in lines))
    assert summary["wall_seconds"] == pytest.approx(sum(line["seconds"] + line["validation_seconds"] for line in lines))
    assert summary["stopped"] is None
    assert summary["parameters"] == {"phi": 20, "rule": 0, "theta0": 13, "prior": 0}
    for name in ("versions", "hardware", "command", "commit"):
        assert name in summary


def test_the_page_compares_methods_by_the_users_own_metrics(runs):
    html = run_page([read_run(path) for path in runs]).html()
    page = Parsed(html)
    for words in ("lines", "warp", "approximate", "validation/my own metric"):
        assert words in page.text
    for metric in ("validation/my own metric", "lr/phi", "gradient_norm/theta0"):
        assert f"{metric} against meta-steps" in html, "described for those who cannot see the chart"
    assert "Differences from warp" in page.text


def test_the_command_line_reports_them(runs, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, runs), "--out", str(tmp_path / "page.html")])
    assert ended.value.code == 0
    assert "validation/my own metric" in (tmp_path / "page.html").read_text()


PROGRAM = """
from tests.support.own_program import line, own_learner

def held_out():
    return own_learner(), [line(seed) for seed in (5, 6)]

def nothing():
    return None

def broken():
    raise KeyError("what is this")
"""


@pytest.fixture
def program(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(PROGRAM)
    return file


def command_line(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def test_evaluate_tests_a_run_on_the_tasks_that_the_program_names(runs, program, tmp_path, capsys):
    assert command_line("evaluate", runs[0], "--program", f"{program}:held_out", "--steps", 3) == 0
    learner = own_learner()
    method = wg.load_run(runs[0], learner)
    expected = wg.score(learner, [line(5), line(6)], rule=method.rule, steps=3)
    found = json.loads((runs[0] / "evaluation.json").read_text())
    assert found["metrics"]["test/loss"] == expected["loss"]
    assert len(found["per_task"]) == len(found["tasks"]) == 2
    assert "test/loss" in capsys.readouterr().out
    # It is part of the run from now on: the page has it, and the files are sound.
    assert read_run(runs[0]).summary["metrics"]["test/loss"] == expected["loss"]
    assert command_line("verify", runs[0]) == 0
    assert command_line("report", runs[0], "--out", tmp_path / "page.html") == 0
    assert "test/loss" in (tmp_path / "page.html").read_text()


def test_without_steps_a_run_is_tested_after_as_many_as_in_meta_training(runs, program):
    assert command_line("evaluate", runs[1], "--program", f"{program}:held_out") == 0
    assert json.loads((runs[1] / "evaluation.json").read_text())["steps"] == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "give a function that returns (learner, tasks) with --program FILE.py:FUNCTION"),
        (("--program", "nowhere.py:held_out"), "give FILE.py:FUNCTION"),
        (("--program", "{program}"), "give FILE.py:FUNCTION"),
        (("--program", "{program}:missing"), "has no function missing"),
        (("--program", "{program}:nothing"), "must return (learner, tasks), not NoneType"),
        (("--program", "{program}:broken"), "failed: KeyError: 'what is this'"),
        (("--program", "{program}:held_out", "--steps", "0"), "steps=0"),
    ],
)
def test_what_evaluate_cannot_do_with_an_own_run_is_one_sentence(runs, program, capsys, words, sentence):
    before = (runs[2] / "summary.json").read_bytes()
    assert command_line("evaluate", runs[2], *(word.format(program=program) for word in words)) == 2
    assert sentence in capsys.readouterr().err
    assert (runs[2] / "summary.json").read_bytes() == before
    assert not (runs[2] / "evaluation.json").exists()


def test_a_run_without_names_is_named_by_its_parts(tmp_path):
    own_training(tmp_path / "run", 1)
    run = read_run(tmp_path / "run")
    assert (run.method, run.title, run.name) == (
        "Online + Exact + Leap + SGD", "own runs", "Online + Exact + Leap + SGD, seed 0",
    )  # fmt: skip
    assert set(run.summary["metrics"]) == {"meta_loss", "task_loss_first", "task_loss_last"}
    own_training(tmp_path / "run", 3)
    assert read_run(tmp_path / "run").summary["steps"] == 3
