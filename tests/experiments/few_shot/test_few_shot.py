"""The few-shot experiment: presets, runs, evaluation on other episodes, tables and page, on tiny stores."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.support.experiment_runs import Runs, evaluation_of, group_of, on_record
from tests.support.few_shot_store import few_shot_store
from warpgrad.data import ClassImages, write
from warpgrad.data.prepared import prepared
from warpgrad.errors import WarpgradError
from warpgrad.experiments.base import Execution
from warpgrad.experiments.comparison import comparable, difference
from warpgrad.experiments.evaluation import trained_method
from warpgrad.experiments.few_shot import experiment as few_shot
from warpgrad.experiments.few_shot.config import COST, DATA, IN_TIME, LONG, METHODS, PROBES, FewShotConfig
from warpgrad.experiments.few_shot.evaluation import half_width
from warpgrad.experiments.few_shot.experiment import FewShot
from warpgrad.experiments.few_shot.methods import open_data, recipe
from warpgrad.experiments.few_shot.page import result_lines
from warpgrad.experiments.reproduction import cells
from warpgrad.experiments.runner import command, execute, run_name
from warpgrad.training.checkpoint import read_checkpoint
from warpgrad.training.run_directory import TIMES, newest_checkpoint

EXPERIMENT = FewShot()
TINY = {
    "ways": 3, "train_shots": 2, "query": 2, "filters": 3, "steps": 2, "meta_batch": 2, "meta_steps": 2,
    "validate_every": 1, "validation_episodes": 2, "test_episodes": 4, "test_steps": 3,
}  # fmt: skip

CIFAR_METHODS = ("warp-maml", "maml", "meta-sgd", "t-nets", "cavia")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return few_shot_store(tmp_path_factory.mktemp("store") / "patterns")


@pytest.fixture(scope="module")
def tiny(store):
    def make(**changes) -> FewShotConfig:
        return EXPERIMENT.config("small", **{**TINY, "data": str(store.path), **changes})

    return make


@pytest.fixture(scope="module")
def runs(tiny, tmp_path_factory) -> Runs:
    return Runs(EXPERIMENT, tiny, tmp_path_factory.mktemp("runs"))


def weights_of(run: Path):
    state = read_checkpoint(newest_checkpoint(run))
    return {
        f"{group}/{name}": value
        for group in ("module", "rule")
        for name, value in {
            **state["weights"][group],
            **{f"best/{n}": v for n, v in state["best"][group].items()},
        }.items()
    }


# Settings.


def test_the_paper_preset_is_the_papers():
    """Field by field: App. H, and ours where it is silent (step sizes, clipping, validation schedule, warp start)."""
    expected = {
        "preset": "paper", "method": "warp-maml", "seed": 0, "device": "cpu", "data": "mini-imagenet",
        "ways": 5, "shots": 1, "train_shots": None, "query": 15, "rotations": False, "flips": False,
        "filters": 128, "batch_norm": "batch", "steps": 5, "meta_batch": 1, "meta_steps": 60_000,
        "split": "test", "test_episodes": 600, "validation_episodes": 600, "test_steps": 5,
        "warp_init": "identity", "context": 100, "temperature": 0.5, "inner_lr": 0.05,
        "meta_lr": 0.001, "theta0_lr": 0.001, "rule_lr": 0.001, "meta_clip": 10.0,
        "validate_every": 1000, "patience": None, "test_curve_every": 0, "test_curve_episodes": 600,
    }  # fmt: skip
    assert dataclasses.asdict(EXPERIMENT.presets["paper"]) == expected


@pytest.mark.parametrize("data", ["mini-imagenet", "tiered-imagenet"])
@pytest.mark.parametrize(("shots", "train_shots"), [(1, 5), (5, 15)])
def test_meta_training_sees_more_shots_than_the_test(data, shots, train_shots):
    config = EXPERIMENT.config("paper", data=data, shots=shots)
    assert dataclasses.astuple(config.train_shape) == (5, train_shots, 15)
    assert dataclasses.astuple(config.test_shape) == (5, shots, 15)


def test_shots_that_the_paper_does_not_have_are_taken_as_they_are():
    assert EXPERIMENT.config("paper", shots=3).train_shape.shots == 3
    assert EXPERIMENT.config("paper", train_shots=2).train_shape.shots == 2


def test_the_small_preset_keeps_the_protocol_and_the_network():
    paper, small = (dataclasses.asdict(EXPERIMENT.presets[name]) for name in ("paper", "small"))
    changed = {name for name in paper if paper[name] != small[name]}
    assert changed == {
        "preset", "data", "filters", "meta_steps", "validate_every", "validation_episodes", "test_curve_episodes",
    }  # fmt: skip


def test_every_method_has_a_step_size_of_its_own():
    for method in METHODS:
        own = EXPERIMENT.config("small", method=method)
        assert own.inner_lr == EXPERIMENT.config("paper", method=method).inner_lr > 0
        assert EXPERIMENT.config("small", method=method, inner_lr=0.4).inner_lr == 0.4
    assert EXPERIMENT.config("small", method="cavia").inner_lr > 1, "its context begins at 0"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ways": 1}, "ways=1"),
        ({"shots": 0}, "shots=0"),
        ({"meta_steps": 0}, "meta_steps=0"),
        ({"test_episodes": 1}, "test_episodes=1"),
        ({"inner_lr": 0.0}, "inner_lr=0.0"),
        ({"meta_clip": 0.0}, "meta_clip=0.0"),
        ({"patience": 0}, "patience=0"),
        ({"test_curve_every": -1}, "test_curve_every=-1"),
        ({"test_curve_every": 5, "test_curve_episodes": 0}, "test_curve_episodes=0"),
        ({"method": "maml", "warp_init": "own"}, "maml does not use warp_init, a setting of warp-maml"),
        ({"method": "maml", "meta_lr": 0.1}, "maml does not use meta_lr"),
        ({"method": "cavia", "theta0_lr": 0.1}, "cavia does not use theta0_lr"),
        ({"method": "t-nets", "rule_lr": 0.1}, "t-nets does not use rule_lr"),
        ({"method": "sgd"}, "no method 'sgd'"),
    ],
)
def test_settings_that_cannot_be_run_are_refused_by_name(changes, words):
    with pytest.raises(WarpgradError, match=words):
        EXPERIMENT.config("small", **changes)


def test_a_store_without_splits_is_refused(tmp_path):
    pixels = torch.zeros(2, 1, 4, 4, dtype=torch.uint8).numpy()
    write(tmp_path / "s", [ClassImages("a", "", pixels)], name="bare", shape=(1, 4, 4), source="", licence="")
    with pytest.raises(WarpgradError, match=r"bare has no split 'train' \(its splits: none\)"):
        open_data(str(tmp_path / "s"))


@pytest.mark.parametrize("name", DATA)
def test_data_that_is_not_prepared_is_named_with_its_remedy(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WARPGRAD_DATA", raising=False)
    with pytest.raises(WarpgradError, match=f"data prepare {name}"):
        open_data(name)


# Runs.


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_and_is_tested_on_the_same_episodes(runs, method):
    found = evaluation_of(runs[method])
    assert list(found["accuracy"]) == ["0", "1", "2", "3"]
    # Two query images of each of three classes.
    assert all((value * 6 / 100) == pytest.approx(round(value * 6 / 100)) for value in found["accuracy"].values())
    assert found["metrics"]["accuracy"] == pytest.approx(sum(found["accuracy"].values()) / 4)
    assert found["metrics"]["accuracy"] == found["curve"][-1]
    assert found["metrics"]["interval"] == found["curve_interval"][-1]
    assert found["tested_at"] == [0, 1, 2, 3]
    assert (found["ways"], found["shots"], found["query"], found["split"]) == (3, 1, 2, "test")
    assert found["batch_norm"] == "batch"
    assert "statistics of the batch" in found["notes"][0]
    assert found["anew"] == []


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_was_stopped_ends_with_the_same_bytes(runs, tiny, tmp_path, method):
    execute(EXPERIMENT, tiny(method=method, meta_steps=1), Execution(tmp_path / "run", progress=False))
    execute(EXPERIMENT, tiny(method=method), Execution(tmp_path / "run", progress=False))
    resumed, straight = weights_of(tmp_path / "run"), weights_of(runs[method])
    assert set(resumed) == set(straight)
    for name, value in straight.items():
        assert torch.equal(value, resumed[name]), name
    assert evaluation_of(tmp_path / "run")["accuracy"] == evaluation_of(runs[method])["accuracy"]


@pytest.mark.parametrize("method", METHODS)
def test_every_group_of_meta_parameters_learns(runs, tiny, method):
    begun = recipe(tiny(method=method), (3, 32, 32)).method
    state = read_checkpoint(newest_checkpoint(runs[method]))["weights"]
    groups = {"theta0": begun.learner.learned_theta0, "phi": begun.learner.phi, "rule": begun.rule.meta}
    for group, parameters in groups.items():
        stored = state["rule" if group == "rule" else "module"]
        assert not [name for name, value in parameters.items() if torch.equal(stored[name], value)], group


def test_the_weights_with_the_best_validation_are_the_ones_tested(runs, tiny):
    scores = [line["validation/accuracy"] for line in metrics_of(runs["maml"])]
    assert len(scores) == 2
    path = newest_checkpoint(runs["maml"])
    state = read_checkpoint(path)
    assert state["early_stopping"]["best"] == max(scores)
    method, _ = trained_method(lambda _: recipe(tiny(method="maml"), (3, 32, 32)).method, path)
    for name, value in method.learner.theta0.items():
        assert torch.equal(value, state["best"]["module"][name])


def metrics_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def untimed(line: dict[str, float], but: Iterable[str] = ()) -> dict[str, float]:
    return {name: value for name, value in line.items() if name not in (*TIMES, *but)}


def test_test_episodes_are_scored_on_the_way_and_choose_nothing(runs, tiny, tmp_path, monkeypatch):
    """The same bytes with and without, though the test scores tell another meta-step to be the best."""
    scored = few_shot.score
    answers = iter([0.9, 0.1])

    def misleading(learner, tasks, **options):
        episodes = list(tasks)
        names = {task.name.split()[0] for task in episodes}
        found = scored(learner, episodes, **options)
        if names == {"validation"}:
            return found
        assert names == {"test"}
        assert len(episodes) == 3
        return {**found, "accuracy": next(answers)}

    monkeypatch.setattr(few_shot, "score", misleading)
    config = tiny(method="maml", test_curve_every=1, test_curve_episodes=3)
    execute(EXPERIMENT, config, Execution(tmp_path / "run", progress=False))
    assert [line["test/accuracy"] for line in metrics_of(tmp_path / "run")] == pytest.approx([90, 10])
    plain = metrics_of(runs["maml"])
    for with_tests, without in zip(metrics_of(tmp_path / "run"), plain, strict=True):
        own = {"test/accuracy", "test/loss"}
        assert own <= set(with_tests)
        assert untimed(with_tests, own) == untimed(without)
    watched, straight = weights_of(tmp_path / "run"), weights_of(runs["maml"])
    assert set(watched) == set(straight)
    assert all(torch.equal(value, watched[name]) for name, value in straight.items())
    states = [read_checkpoint(newest_checkpoint(run)) for run in (tmp_path / "run", runs["maml"])]
    assert states[0]["early_stopping"] == states[1]["early_stopping"]


def test_the_curve_of_a_search_does_not_see_test_classes(tiny, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(few_shot, "score", lambda _, tasks, **__: seen.extend(tasks) or {"accuracy": 0.5, "loss": 1.0})
    config = tiny(method="maml", test_curve_every=1, split="validation")
    EXPERIMENT.train(config, Execution(tmp_path / "run", progress=False))
    assert {task.name.split()[0] for task in seen} == {"validation"}
    assert all("test/accuracy" in line for line in metrics_of(tmp_path / "run"))


def test_a_run_stops_when_validation_no_longer_improves(tiny, tmp_path):
    config = tiny(method="reptile", meta_steps=30, patience=1)
    steps = EXPERIMENT.train(config, Execution(tmp_path / "run", progress=False))
    scores = [line["validation/accuracy"] for line in metrics_of(tmp_path / "run")]
    assert len(scores) == steps < 30
    assert scores[-1] <= scores[-2]
    assert all(later > earlier for earlier, later in pairwise(scores[:-1]))


def test_meta_training_learns_patterns(tiny, tmp_path):
    """Classes differ by a colour pattern: a few meta-steps must show."""
    config = tiny(method="warp-maml", filters=6, query=4, meta_steps=12, validate_every=12, test_episodes=10)
    summary = execute(EXPERIMENT, config, Execution(tmp_path / "run", progress=False))
    assert summary["metrics"]["accuracy"] > 60
    curve = evaluation_of(tmp_path / "run")["curve"]
    assert curve[-1] > curve[0] + 20


# Evaluation under other settings.


@pytest.mark.parametrize("method", [name for name in METHODS if name != "cavia"])
def test_other_ways_get_a_fresh_head_and_say_so(runs, tiny, method, capsys):
    found = EXPERIMENT.evaluate(tiny(method=method, ways=4, shots=2), runs[method])
    assert {"head.weight", "head.bias"} <= set(found["anew"])
    assert all(name.startswith("head") for name in found["anew"])
    assert (found["ways"], found["shots"]) == (4, 2)
    assert "re-initialised on every task" in capsys.readouterr().err
    assert found["accuracy"] == EXPERIMENT.evaluate(tiny(method=method, ways=4, shots=2), runs[method])["accuracy"]


def test_a_fresh_head_leaves_the_body_as_it_was_learned(runs, tiny):
    path = newest_checkpoint(runs["meta-sgd"])
    config = tiny(method="meta-sgd", ways=4)
    method, anew = trained_method(lambda fresh: recipe(config, (3, 32, 32), fresh_head=fresh).method, path)
    best = read_checkpoint(path)["best"]
    for name, value in method.learner.theta0.items():
        if not name.startswith("head"):
            assert torch.equal(value, best["module"][name])
            assert torch.equal(method.rule.meta[name], best["rule"][name])
    assert torch.equal(method.rule.meta["head.weight"], torch.full((4, 12), config.inner_lr))
    assert method.learner.starts["head.weight"] == "fresh"
    assert method.learner.starts["block1.conv.weight"] == "learned"
    assert sorted(set(anew)) == ["head.bias", "head.weight"]


def test_other_data_of_another_size_too(runs, tiny, tmp_path):
    other = few_shot_store(tmp_path / "larger", size=48, seed=1)
    found = EXPERIMENT.evaluate(tiny(method="warp-maml", data=str(other.path)), runs["warp-maml"])
    assert found["data"] == "patterns 48"
    assert found["anew"] == ["head.bias", "head.weight"]
    assert "normalised by the training classes of patterns 48, not by those of" in found["notes"][1]
    same = few_shot_store(tmp_path / "same", seed=2)
    assert EXPERIMENT.evaluate(tiny(method="warp-maml", data=str(same.path)), runs["warp-maml"])["anew"] == []


def test_what_cannot_be_carried_over_is_refused(runs, tiny, tmp_path):
    with pytest.raises(WarpgradError, match="does not adapt its head"):
        EXPERIMENT.evaluate(tiny(method="cavia", ways=4), runs["cavia"])
    grey = few_shot_store(tmp_path / "grey", channels=1)
    with pytest.raises(WarpgradError, match=r"block1\.conv\.weight"):
        EXPERIMENT.evaluate(tiny(method="maml", data=str(grey.path)), runs["maml"])
    with pytest.raises(WarpgradError, match="belongs to another model"):
        EXPERIMENT.evaluate(tiny(method="t-nets"), runs["maml"])


def test_running_statistics_and_rotations_are_options(runs, tiny):
    batch = evaluation_of(runs["maml"])
    running = EXPERIMENT.evaluate(tiny(method="maml", batch_norm="running"), runs["maml"])
    assert "running statistics" in running["notes"][0]
    assert running["curve"] != batch["curve"]
    turned = EXPERIMENT.evaluate(tiny(method="maml", rotations=True), runs["maml"])
    assert turned["accuracy"] != batch["accuracy"]


def test_the_interval_is_students():
    values = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64).numpy()
    assert half_width(values) == pytest.approx(3.18244630528371 * values.std(ddof=1) / 2, rel=1e-9)


# Tables, terminal and page.


def test_the_tables_are_the_published_ones():
    published = [table for table in EXPERIMENT.tables if table not in (PROBES, LONG)]
    found = {table.name: {row.label: row.paper for row in table.rows} for table in published}
    none = dict.fromkeys(("Warp-MAML", "Meta-SGD", "T-Nets", "CAVIA"))
    none |= {label + IN_TIME: None for label in ("Warp-MAML", "T-Nets", "CAVIA")}
    assert found == {
        "few-shot-cifar-1shot": {**none, "MAML": 58.9},
        "few-shot-cifar-5shot": {**none, "MAML": 71.5},
        "few-shot-mini-1shot": {
            "Warp-MAML": 52.3, "MAML": 48.7, "Reptile": 50.0, "Meta-SGD": 50.5, "(M)T-Net": 51.7, "CAVIA": 51.8,
        },
        "few-shot-mini-5shot": {
            "Warp-MAML": 68.4, "MAML": 63.2, "Reptile": 66.0, "Meta-SGD": 64.0, "(M)T-Net": None, "CAVIA": 65.9,
        },
        "few-shot-tiered-1shot": {"Warp-MAML": 57.2, "MAML": 51.7},
        "few-shot-tiered-5shot": {"Warp-MAML": 74.1, "MAML": 70.3},
    }  # fmt: skip
    for table in published:
        assert table.preset == ("small" if "cifar" in table.name else "paper")


def test_probes_of_step_sizes_never_see_test_classes(tmp_path):
    configs = [cell.config for cell in cells(EXPERIMENT, PROBES, tmp_path, "small", None)]
    assert {(config.split, config.meta_steps, config.seed) for config in configs} == {("validation", 500, 0)}
    assert {config.test_curve_every for config in configs} == {0}
    chosen = {method: EXPERIMENT.config("small", method=method).inner_lr for method in CIFAR_METHODS}
    assert {(config.method, config.inner_lr) for config in configs} >= set(chosen.items())


def test_every_method_of_the_tables_gets_as_many_trials_of_its_step_size(tmp_path):
    """On geometric grids, with what is known of their optimum inside them."""
    grids: dict[str, list[float]] = {}
    for cell in cells(EXPERIMENT, PROBES, tmp_path, "small", None):
        grids.setdefault(cell.config.method, []).append(cell.config.inner_lr)
    assert set(grids) == set(CIFAR_METHODS)
    for method, grid in grids.items():
        assert len(grid) == 6
        assert all(2.9 < larger / smaller < 3.5 for smaller, larger in pairwise(grid)), method
        assert EXPERIMENT.config("small", method=method).inner_lr in grid[1:-1], method
    # What earlier, shorter grids had at their edges: T-Nets' 0.05 and CAVIA's 20.
    assert grids["t-nets"][1] < 0.05 < grids["t-nets"][-2]
    assert grids["cavia"][1] < 20 < grids["cavia"][-2]


@pytest.mark.parametrize("shots", [1, 5])
@pytest.mark.parametrize("preset", ["small", "paper"])
def test_every_method_has_a_row_at_equal_meta_steps_and_one_at_equal_time(shots, preset, tmp_path):
    table = next(table for table in EXPERIMENT.tables if table.name == f"few-shot-cifar-{shots}shot")
    configs = {cell.row.label: cell.config for cell in cells(EXPERIMENT, table, tmp_path, preset, 1)}
    steps, validations = {"small": ({1: 2000, 5: 800}[shots], 8), "paper": (60_000, 60)}[preset]
    equal_steps = {label: config for label, config in configs.items() if not label.endswith(IN_TIME)}
    assert [config.method for config in equal_steps.values()] == list(CIFAR_METHODS)
    for label, config in equal_steps.items():
        assert config.meta_steps == steps
        in_time = configs.get(label + IN_TIME, config)
        cost = COST[shots][config.method]
        # Whole meta-steps between validations round it by less than half of one each.
        assert in_time.meta_steps * cost == pytest.approx(steps, abs=cost * validations / 2)
        assert in_time.method == config.method
        assert (label + IN_TIME in configs) == (cost != 1.0)
    # The best of more validations is better by chance alone.
    assert {config.meta_steps / config.validate_every for config in configs.values()} == {validations}
    assert len({run_name(EXPERIMENT, config) for config in configs.values()}) == len(configs), "a run in two rows"


def test_the_long_table_is_tested_on_the_way(tmp_path):
    found = cells(EXPERIMENT, LONG, tmp_path, "small", None)
    assert {(cell.row.label, cell.config.method) for cell in found} == {
        ("Warp-MAML", "warp-maml"), ("MAML", "maml"), ("Warp-MAML" + IN_TIME, "warp-maml"),
    }  # fmt: skip
    for cell in found:
        config = cell.config
        assert (config.data, config.shots, config.split) == ("cifar-fs", 1, "test")
        assert config.meta_steps / config.validate_every == 20
        if cell.row.label.endswith(IN_TIME):
            assert config.meta_steps * COST[1]["warp-maml"] == pytest.approx(10_000, abs=25)
        else:
            assert (config.meta_steps, config.test_curve_every) == (10_000, 1000)
    assert {cell.config.seed for cell in found} == {0, 1}


def test_the_cells_of_the_tables(tmp_path):
    tables = {table.name: table for table in EXPERIMENT.tables}
    small = cells(EXPERIMENT, tables["few-shot-cifar-5shot"], tmp_path, "small", None)
    counts = {row.label: sum(cell.row is row for cell in small) for row in tables["few-shot-cifar-5shot"].rows}
    assert set(counts.values()) == {2}
    one_shot = cells(EXPERIMENT, tables["few-shot-cifar-1shot"], tmp_path, "small", None)
    assert {seed: sum(cell.config.seed == seed for cell in one_shot) for seed in range(5)} == {
        0: 8, 1: 8, 2: 8, 3: 8, 4: 0,
    }  # fmt: skip
    assert {(cell.config.data, cell.config.shots, cell.config.filters) for cell in small} == {("cifar-fs", 5, 32)}
    large = cells(EXPERIMENT, tables["few-shot-mini-1shot"], tmp_path, "paper", None)
    assert {cell.row.label: cell.config.filters for cell in large} == {
        "Warp-MAML": 128, "CAVIA": 512, "MAML": 32, "Reptile": 32, "Meta-SGD": 32, "(M)T-Net": 32,
    }  # fmt: skip
    assert "--shots 5" in command(EXPERIMENT, small[0].config)


def test_the_terminal_and_the_page_compare_on_the_same_episodes(runs, tmp_path):
    groups = [group_of("Warp-MAML", [runs["warp-maml"]]), group_of("MAML", [runs["maml"]], 58.9)]
    header, rows = result_lines(groups)
    assert "patterns 32, 3-way 1-shot (test); batch-norm: batch" in header[0]
    assert [row[0] for row in rows] == ["Warp-MAML", "MAML"]
    assert rows[0][2] == ""
    assert rows[1][2] != ""
    assert rows[1][3] == "58.9"
    text = EXPERIMENT.page(groups, "Few shots").write(tmp_path / "page.html").read_text()
    for words in ("published 58.9", "Learning curves", "statistics of the batch", "Indicative only"):
        assert words in text


def test_differences_at_equal_time_are_to_warp_maml_in_that_time(runs, tmp_path):
    """A method whose meta-step costs what MAML's does has one row for both."""
    labels = {"Warp-MAML": "warp-maml", "MAML": "maml", "CAVIA": "cavia",
              "Warp-MAML" + IN_TIME: "fomaml", "CAVIA" + IN_TIME: "reptile"}  # fmt: skip
    groups = [group_of(label, [runs[method]]) for label, method in labels.items()]
    header, rows = result_lines(groups)
    assert header[-2] == "minus Warp-MAML, in MAML's time"
    assert {row[0] for row in rows if row[-2]} == {"MAML", "CAVIA, in MAML's time"}
    expected = difference(groups[1], groups[3])
    assert rows[1][-2] == expected.cell()
    assert rows[1][-2] != rows[1][-3] or difference(groups[1], groups[0]).mean == expected.mean
    assert all(len(row) == len(header) for row in rows)
    page = EXPERIMENT.page(groups, "Few shots").write(tmp_path / "page.html").read_text()
    assert 'id="at-equal-processor-time"' in page
    assert "meta-steps" in page
    assert len(result_lines(groups[:3])[0]) == len(header) - 1
    without = EXPERIMENT.page(groups[:3], "Few shots").write(tmp_path / "without.html").read_text()
    assert 'id="at-equal-processor-time"' not in without


def test_the_page_and_the_lines_are_built_from_the_record_alone(runs, tmp_path, monkeypatch):
    groups = [group_of("Warp-MAML", [runs["warp-maml"]]), group_of("MAML", [runs["maml"]], 58.9)]
    found = on_record(EXPERIMENT.tables[0], groups, tmp_path / "record.json", monkeypatch)
    assert result_lines(found) == result_lines(groups)
    assert "Learning curves" in EXPERIMENT.page(found, "Recorded").write(tmp_path / "page.html").read_text()
    for recorded in found:
        evaluation = recorded.evaluations[0]
        assert set(evaluation) >= {"data", "data_sha256", "batch_norm", "accuracy", "curve", "tested_at"}
        assert len(evaluation["accuracy"]) == TINY["test_episodes"]
        assert all({"validation/accuracy", "cpu_seconds"} <= set(line) for line in recorded.runs[0].metrics)


def test_the_page_draws_the_tests_on_the_way(runs, tiny, tmp_path):
    config = tiny(method="anil", test_curve_every=1)
    execute(EXPERIMENT, config, Execution(tmp_path / "run", progress=False))
    text = EXPERIMENT.page([group_of("ANIL", [tmp_path / "run"])], "On the way").write(tmp_path / "p.html").read_text()
    assert "test/accuracy against meta-steps" in text
    assert "test scores during meta-training choose nothing" in text
    without = EXPERIMENT.page([group_of("ANIL", [runs["anil"]])], "Plain").write(tmp_path / "q.html").read_text()
    assert "test/accuracy against meta-steps" not in without


def test_results_on_other_episodes_are_not_compared(runs, tiny):
    one = group_of("MAML", [runs["maml"]])
    other = dataclasses.replace(one, evaluations=(EXPERIMENT.evaluate(tiny(method="maml", ways=4), runs["maml"]),))
    assert not comparable(one, other)
    assert result_lines([one, dataclasses.replace(other, label="4 ways")])[1][1][2] == ""
    assert comparable(one, one)
    found = one.evaluations[0]
    changes = ({"query": 3}, {"batch_norm": "running"}, {"data_sha256": "other"}, {"tested_at": list(range(9))})
    for change in changes:
        assert not comparable(one, dataclasses.replace(one, evaluations=({**found, **change},))), change


@pytest.mark.real_data
def test_a_meta_step_on_the_real_cifar_fs(tmp_path):
    found = prepared("cifar-fs")
    if found is None:
        pytest.skip("needs CIFAR-FS: warpgrad data prepare cifar-fs")
    config = EXPERIMENT.config(
        "small", data=str(found), filters=4, meta_steps=1, validate_every=1, validation_episodes=1, test_episodes=2
    )
    summary = execute(EXPERIMENT, config, Execution(tmp_path / "run", progress=False))
    assert summary["steps"] == 1
    assert evaluation_of(tmp_path / "run")["data"] == "cifar-fs"
