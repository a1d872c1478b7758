"""Results on record: a table of which some rows are run again, and the others stand as they were."""

from __future__ import annotations

import json

import pytest

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


def test_rows_that_are_not_named_stand_as_they_are_on_record(root, record, tmp_path):
    kept = without(root, tmp_path, "memoryless")
    whole = reproduce(EXPERIMENT, TABLE, root, **OPTIONS)
    mixed = reproduce(EXPERIMENT, TABLE, kept, **OPTIONS, rows=["RNN"], record=record)
    assert [group.label for group in mixed] == ["RNN", "Memoryless"]
    assert not mixed[1].runs[0].path.exists()
    assert EXPERIMENT.lines(mixed) == EXPERIMENT.lines(whole)
    assert EXPERIMENT.page(mixed, "Tiny").html() == EXPERIMENT.page(whole, "Tiny").html()


def test_a_record_that_is_written_again_is_the_same(root, record, tmp_path):
    before = record.read_bytes()
    groups = reproduce(EXPERIMENT, TABLE, without(root, tmp_path, "rnn"), **OPTIONS, rows=["Memoryless"], record=record)
    write_record(record, groups, EXPERIMENT.recorded)
    assert record.read_bytes() == before


def test_what_is_on_record_under_other_settings_is_left_out_and_said(root, record, capsys):
    entries = json.loads(record.read_bytes())
    for entry in entries:
        if entry["label"] == "Memoryless":
            entry["config"]["lr"] = 0.5
    record.write_text(json.dumps(entries))
    groups = reproduce(EXPERIMENT, TABLE, root, **OPTIONS, rows=["RNN"], record=record)
    assert [group.label for group in groups] == ["RNN"]
    assert capsys.readouterr().err.count("not on record under these settings: left out") == 2


def test_rows_without_a_record_are_left_out(root, tmp_path):
    absent = tmp_path / "none.json"
    assert [group.label for group in reproduce(EXPERIMENT, TABLE, root, **OPTIONS, rows=["RNN"], record=absent)] == [
        "RNN"
    ]
    assert [group.label for group in reproduce(EXPERIMENT, TABLE, root, **OPTIONS, rows=["RNN"])] == ["RNN"]


def test_a_row_that_does_not_exist_is_named(root):
    with pytest.raises(WarpgradError, match="tiny has no row 'LSTM'; its rows are 'RNN', 'Memoryless'"):
        reproduce(EXPERIMENT, TABLE, root, **OPTIONS, rows=["LSTM"])


@pytest.mark.parametrize("content", ["{", "{}", '[{"label": "RNN"}]', "[1]"])
def test_a_file_that_is_no_record_is_named_and_left_alone(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(WarpgradError, match=r"other\.json .*restore it or name another"):
        read_record(path)
    assert path.read_text() == content
