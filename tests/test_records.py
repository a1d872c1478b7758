"""Results on record: tables of which some runs are at hand, and the others stand as they were."""

from __future__ import annotations

import json

import pytest

from warpgrad.cli import main
from warpgrad.errors import WarpgradError
from warpgrad.experiments.base import Execution, Row, Table
from warpgrad.experiments.maze import MazeNavigation
from warpgrad.experiments.records import read_record, write_record
from warpgrad.experiments.reproduction import cells, reproduce
from warpgrad.experiments.runner import execute

TINY = {
    "meta_steps": 2, "episodes": 2, "size": 5, "length": 8, "hidden": 4, "validate_every": 1,
    "validation_episodes": 2, "test_episodes": 3,
}  # fmt: skip
ROWS = (Row("RNN", {**TINY, "method": "rnn"}), Row("Memoryless", {**TINY, "method": "memoryless"}))
TABLE = Table("tiny", "Tiny", "maze", ROWS, seeds=2, preset="small")
EXPERIMENT = MazeNavigation()
OPTIONS = {"preset": "small", "seeds": None, "workers": 1}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The finished runs of the table."""
    found = tmp_path_factory.mktemp("runs")
    for cell in cells(EXPERIMENT, TABLE, found, "small", None):
        execute(EXPERIMENT, cell.config, Execution(cell.directory, progress=False))
    return found


@pytest.fixture
def record(root, tmp_path):
    path = tmp_path / "record.json"
    write_record(path, reproduce(EXPERIMENT, TABLE, root, **OPTIONS), EXPERIMENT.recorded)
    return path


def without(root, tmp_path, method: str):
    """The same folder without the runs of one method."""
    kept = tmp_path / "kept"
    kept.mkdir()
    for path in root.iterdir():
        if f"-{method}-" not in path.name:
            (kept / path.name).symlink_to(path)
    return kept


def test_runs_that_are_not_at_hand_stand_as_they_are_on_record(root, record, tmp_path, capsys):
    kept = without(root, tmp_path, "memoryless")
    whole = reproduce(EXPERIMENT, TABLE, root, **OPTIONS)
    mixed = reproduce(EXPERIMENT, TABLE, kept, **OPTIONS, record=record)
    assert "4 runs, 2 of them finished, 2 as they are on record" in capsys.readouterr().err
    assert [group.label for group in mixed] == ["RNN", "Memoryless"]
    assert not mixed[1].runs[0].path.exists()
    assert EXPERIMENT.lines(mixed) == EXPERIMENT.lines(whole)
    assert EXPERIMENT.page(mixed, "Tiny").html() == EXPERIMENT.page(whole, "Tiny").html()


def test_a_record_that_is_written_again_is_the_same(root, record, tmp_path):
    before = record.read_bytes()
    groups = reproduce(EXPERIMENT, TABLE, without(root, tmp_path, "rnn"), **OPTIONS, record=record)
    write_record(record, groups, EXPERIMENT.recorded)
    assert record.read_bytes() == before


def test_a_run_is_a_line_with_numbers_of_seven_digits(root, tmp_path):
    groups = reproduce(EXPERIMENT, TABLE, root, **OPTIONS)
    groups[0].evaluations[0]["film"] = {"third": [1 / 3, 12345678.9], "count": 7, "none": None}
    write_record(tmp_path / "record.json", groups, EXPERIMENT.recorded)
    begin, *runs, end = (tmp_path / "record.json").read_text().splitlines()
    assert (begin, len(runs), end) == ("[", 4, "]")
    (first, *_) = read_record(tmp_path / "record.json")
    assert first["evaluation"]["film"] == {"third": [0.3333333, 12345680.0], "count": 7, "none": None}


@pytest.mark.parametrize("change", ["settings", "evaluation"])
def test_what_is_on_record_under_other_settings_or_in_part_is_run_again(root, record, tmp_path, change):
    entries = json.loads(record.read_bytes())
    (other,) = [entry for entry in entries if entry["label"] == "Memoryless" and entry["config"]["seed"] == 1]
    if change == "settings":
        other["config"]["lr"] = 0.5
    else:
        del other["evaluation"]["film"]
    record.write_text(json.dumps(entries))
    kept = without(root, tmp_path, "memoryless")
    groups = reproduce(EXPERIMENT, TABLE, kept, **OPTIONS, record=record)
    assert [run.path.exists() for run in groups[1].runs] == [False, True]
    expected = reproduce(EXPERIMENT, TABLE, root, **OPTIONS)
    for found, known in zip(groups[1].evaluations, expected[1].evaluations, strict=True):
        assert all(found[part] == known[part] for part in ("metrics", *EXPERIMENT.recorded))


def test_a_run_at_hand_goes_before_its_entry(root, record):
    entries = json.loads(record.read_bytes())
    entries[0]["summary"]["metrics"]["return"] = -1.0
    record.write_text(json.dumps(entries))
    groups = reproduce(EXPERIMENT, TABLE, root, **OPTIONS, record=record)
    assert groups[0].evaluations[0]["metrics"]["return"] != -1.0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["maze", "--keep"], "--keep goes with --record"),
        (["synthetic", "--keep", "--record", "none.json"], "records of synthetic hold no results per task"),
    ],
)
def test_keeping_needs_a_record_of_results_per_task(capsys, words, sentence):
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", *words])
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{", "{}", '[{"label": "RNN"}]', "[1]"])
def test_a_file_that_is_no_record_is_named_and_left_alone(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(WarpgradError, match=r"other\.json .*restore it or name another"):
        read_record(path)
    assert path.read_text() == content
