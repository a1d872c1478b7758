"""Results on record: what they hold, what they refuse, and tables that are built from them alone."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from warpgrad.cli.main import main
from warpgrad.errors import WarpgradError
from warpgrad.experiments import records, reproduction, runner
from warpgrad.experiments.base import Execution, Results, Row, RunTable
from warpgrad.experiments.maze.experiment import MazeNavigation
from warpgrad.experiments.omniglot.experiment import Omniglot
from warpgrad.experiments.records import packed_series, read_record, unpacked_series, write_record
from warpgrad.experiments.reproduction import cells, check_real, reproduce
from warpgrad.experiments.runner import execute
from warpgrad.io import sealed, unsealed

TINY = {
    "meta_steps": 2, "episodes": 2, "size": 5, "length": 8, "hidden": 4, "validate_every": 1,
    "validation_episodes": 2, "test_episodes": 3,
}  # fmt: skip
ROWS = (Row("RNN", {**TINY, "method": "rnn"}, 160.0), Row("Memoryless", {**TINY, "method": "memoryless"}))
TABLE = RunTable("tiny", "Tiny", "maze", ROWS, seeds=2, preset="small")
EXPERIMENT = MazeNavigation()
OPTIONS = {"preset": "small", "seeds": None, "workers": 1}
CLEAN = "0123456789abcdef"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The finished runs of the table, as if from a clean checkout."""
    found = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "commit", lambda: CLEAN)
        for cell in cells(EXPERIMENT, TABLE, found, "small", None):
            execute(EXPERIMENT, cell.config, Execution(cell.directory, progress=False))
    return found


@pytest.fixture
def groups(root):
    return reproduce(EXPERIMENT, TABLE, root, **OPTIONS).groups


@pytest.fixture
def record(groups, tmp_path):
    path = tmp_path / "record.json"
    write_record(path, TABLE, "small", Results(groups))
    return path


def without(root, tmp_path, method: str):
    """The same folder without the runs of one method."""
    kept = tmp_path / "kept"
    kept.mkdir()
    for path in root.iterdir():
        if f"-{method}-" not in path.name:
            (kept / path.name).symlink_to(path)
    return kept


def test_an_entry_holds_all_that_an_examiner_asks_for(record, root):
    for entry in read_record(record).entries:
        assert {field.name for field in dataclasses.fields(EXPERIMENT.presets["small"])} <= set(entry["config"])
        assert entry["summary"]["commit"] == CLEAN
        assert entry["summary"]["processor_seconds"] > 0
        assert entry["summary"]["wall_seconds"] > 0
        assert len(entry["evaluation"]["returns"]["agent"]) == 3
        assert entry["series"]["step"] == [0, 1]
        assert len(entry["series"]["cpu_seconds"]) == len(entry["series"]["validation/return"]) == 2


def test_table_and_page_are_built_from_the_record_alone(groups, record, tmp_path, capsys):
    empty = tmp_path / "no runs"
    empty.mkdir()
    found = reproduce(EXPERIMENT, TABLE, empty, **OPTIONS, record=read_record(record)).groups
    assert "4 runs, 0 of them finished, 4 taken from the record" in capsys.readouterr().err
    assert not any(empty.iterdir())
    assert [(group.label, group.paper) for group in found] == [("RNN", 160.0), ("Memoryless", None)]
    assert EXPERIMENT.lines(found) == EXPERIMENT.lines(groups)
    EXPERIMENT.page(found, "Tiny").html()
    assert EXPERIMENT.lines(read_record(record).groups()) == EXPERIMENT.lines(groups)


def test_runs_that_are_not_at_hand_stand_as_they_are_on_record(root, record, tmp_path, capsys):
    kept = without(root, tmp_path, "memoryless")
    reproduce(EXPERIMENT, TABLE, kept, **OPTIONS, record=read_record(record))
    assert "4 runs, 2 of them finished, 2 taken from the record" in capsys.readouterr().err


def test_a_record_that_is_written_again_is_the_same(root, record, tmp_path):
    before = record.read_bytes()
    results = reproduce(EXPERIMENT, TABLE, without(root, tmp_path, "rnn"), **OPTIONS, record=read_record(record))
    write_record(record, TABLE, "small", results)
    assert record.read_bytes() == before


def test_a_run_is_a_line_with_numbers_of_seven_digits(groups, tmp_path):
    groups[0].evaluations[0]["film"] = {"third": [1 / 3, 12345678.9], "count": 7, "none": None}
    write_record(tmp_path / "record.json", TABLE, "small", Results(groups))
    _, *runs, _ = (tmp_path / "record.json").read_text().splitlines()
    assert len(runs) == 4
    first = read_record(tmp_path / "record.json").entries[0]
    assert first["evaluation"]["film"] == {"third": [0.3333333, 12345680.0], "count": 7, "none": None}


def edited(record):
    """The content of a record, without the checksum that an edit would break."""
    return {name: part for name, part in json.loads(record.read_bytes()).items() if name != "sha256"}


@pytest.mark.parametrize("pattern", [rb'"return": -?(\d)', rb'"(s)ha256"'])
def test_a_record_with_a_changed_digit_is_refused(record, pattern):
    """Also where it is the name of the checksum that has changed."""
    data = record.read_bytes()
    place = re.search(pattern, data).start(1)
    record.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    with pytest.raises(WarpgradError, match="damaged"):
        read_record(record)


@pytest.mark.parametrize(
    "change",
    [
        {"step": "x"},
        {"step": [0]},
        {"step": [[]]},
        {"seconds": None},
        {"seconds": ["a", "b"]},
        {"seconds": [[0, 1, 2]]},
    ],
)
def test_a_record_with_a_right_checksum_is_refused_if_its_series_make_no_sense(record, change):
    content = unsealed(json.loads(record.read_text()), record)
    content["runs"][0]["series"].update(change)
    record.write_text(json.dumps(sealed(content)))
    with pytest.raises(WarpgradError, match="is not a record"):
        read_record(record)


def test_what_is_on_record_under_other_settings_is_run_again(root, record, tmp_path):
    content = edited(record)
    (other,) = [entry for entry in content["runs"] if entry["label"] == "Memoryless" and entry["config"]["seed"] == 1]
    other["config"]["lr"] = 0.5
    record.write_text(json.dumps(content))
    kept = without(root, tmp_path, "memoryless")
    groups = reproduce(EXPERIMENT, TABLE, kept, **OPTIONS, record=read_record(record)).groups
    assert [run.path.exists() for run in groups[1].runs] == [False, True]
    expected = reproduce(EXPERIMENT, TABLE, root, **OPTIONS).groups
    for found, known in zip(groups[1].evaluations, expected[1].evaluations, strict=True):
        assert found["metrics"] == pytest.approx(known["metrics"])


def test_a_run_at_hand_goes_before_its_entry(root, record):
    content = edited(record)
    content["runs"][0]["summary"]["metrics"]["return"] = -1.0
    record.write_text(json.dumps(content))
    groups = reproduce(EXPERIMENT, TABLE, root, **OPTIONS, record=read_record(record)).groups
    assert groups[0].evaluations[0]["metrics"]["return"] != -1.0


def test_keeping_needs_a_record(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", "maze", "--keep"])
    assert "--keep needs --record" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("commit", "words"), [(f"{CLEAN}+changes", "source tree with uncommitted changes"), (None, "no commit")]
)
def test_runs_from_source_that_no_commit_holds_are_not_put_on_record(groups, tmp_path, commit, words, monkeypatch):
    groups[1].runs[0].summary["commit"] = commit
    path = tmp_path / "record.json"
    with pytest.raises(WarpgradError, match=words):
        write_record(path, TABLE, "small", Results(groups))
    assert not path.exists()
    monkeypatch.setattr(reproduction, "commit", lambda: commit)
    with pytest.raises(WarpgradError, match=words):
        reproduce(EXPERIMENT, TABLE, tmp_path / "none", **OPTIONS, recording=True)
    assert not (tmp_path / "none").exists()


def test_drawn_data_do_not_stand_in_for_real_ones_on_record(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # no prepared data set here
    monkeypatch.delenv("WARPGRAD_DATA", raising=False)
    experiment = Omniglot()
    named = {table.name: table for table in experiment.tables}
    for name, preset, drawn in (("omniglot", "small", True), ("omniglot-demo", "demo", False)):
        todo = cells(experiment, named[name], tmp_path, preset, 1)
        if drawn:
            with pytest.raises(WarpgradError, match="would run on drawn alphabets"):
                check_real(experiment, preset, todo)
        else:
            check_real(experiment, preset, todo)


@pytest.mark.parametrize(("before", "now", "refused"), [
    ("omniglot", "drawn", True), ("omniglot", "cifar-fs", True), ("omniglot", None, True),
    ("omniglot", "omniglot", False), ("drawn", "omniglot", False),
])  # fmt: skip
def test_a_record_of_real_data_is_not_overwritten_by_anything_else(groups, tmp_path, before, now, refused):
    def put(data):
        for group in groups:
            for evaluation in group.evaluations:
                evaluation.pop("data", None)
                if data is not None:
                    evaluation["data"] = data
        write_record(path, TABLE, "small", Results(groups))

    path = tmp_path / "record.json"
    put(before)
    kept = path.read_bytes()
    if refused:
        with pytest.raises(WarpgradError, match=f"is a record of runs on {before}.*give another file"):
            put(now)
        assert path.read_bytes() == kept
    else:
        put(now)


def test_data_that_a_table_leaves_open_are_found_on_record_where_none_are_at_hand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WARPGRAD_DATA", raising=False)
    experiment = Omniglot()
    table = next(table for table in experiment.tables if table.name == "omniglot")
    cell = cells(experiment, table, tmp_path, "small", 1)[0]
    wanted = reproduction.asked_for(experiment, "small", cell)
    assert (cell.config.data, wanted["data"]) == ("drawn", None)
    entry = {"label": "Warp-Leap", "config": {**wanted, "data": "omniglot", "format": 1}, "summary": {"seed": 0},
             "series": {}, "evaluation": {}}  # fmt: skip
    known = records.Record("omniglot", "", "small", {"Warp-Leap": None}, [entry])
    assert known.find(wanted) is not None
    assert known.find({**wanted, "filters": 7}) is None


def test_long_series_are_kept_in_blocks_and_short_ones_whole():
    short = [{"step": k, "loss": 0.1 * k, "cpu_seconds": 1.0} for k in range(5)]
    assert unpacked_series(packed_series(short)) == [pytest.approx(line) for line in short]
    long = [{"step": k, "loss": float(k), "cpu_seconds": 1.0} for k in range(2500)]
    long[7]["validation/loss"] = 3.0
    packed = packed_series(long)
    assert packed["block"] == 3
    lines = unpacked_series(packed)
    assert lines[0] == {"step": 2, "loss": 1.0, "cpu_seconds": 3.0}
    assert {"step": 7, "validation/loss": 3.0} in lines
    assert sum(line.get("cpu_seconds", 0.0) for line in lines) == 2500
    assert packed_series([]) == {"block": 1}
    assert unpacked_series({"block": 1}) == []


@pytest.mark.parametrize("content", ["{", "{}", '[{"label": "RNN"}]', "[1]", '{"format": 2, "table": "t", "runs": []}'])
def test_a_file_that_is_no_record_is_named_and_left_alone(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(WarpgradError, match=r"other\.json .*restore it or give another"):
        read_record(path)
    assert path.read_text() == content


def test_a_trial_that_diverges_is_a_result_of_a_search_and_fails_any_other_table(groups, root, tmp_path):
    # A step size of 1e30 makes the weights infinite within two updates.
    lost = Row("RNN, lr 1e+30", {**TINY, "method": "rnn", "lr": 1e30, "meta_steps": 3})
    search = dataclasses.replace(TABLE, rows=(*ROWS, lost), seeds=1, search=True)
    kept = without(root, tmp_path, "none")
    results = reproduce(EXPERIMENT, search, kept, **OPTIONS)
    assert [group.label for group in results.groups] == ["RNN", "Memoryless"]
    (trial,) = results.diverged
    assert (trial.label, trial.config["lr"]) == ("RNN, lr 1e+30", 1e30)
    path = tmp_path / "search.json"
    write_record(path, search, "small", results)
    (tmp_path / "no runs").mkdir()
    again = reproduce(EXPERIMENT, search, tmp_path / "no runs", **OPTIONS, record=read_record(path))
    assert again.diverged == results.diverged
    assert not any((tmp_path / "no runs").iterdir())
    with pytest.raises(WarpgradError, match="1 of 3 runs failed"):
        reproduce(EXPERIMENT, dataclasses.replace(search, search=False), kept, **OPTIONS)
