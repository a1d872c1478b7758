"""The multi-shot experiment: presets, methods, evaluation, table and page, on a tiny store of invented images."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.data.tasks.test_many_shot import marked_store
from tests.support.experiment_runs import Runs, evaluation_of, group_of, on_record
from warpgrad.adaptation.adapt import adapt
from warpgrad.algorithms.method import load_weights
from warpgrad.cli.main import parse
from warpgrad.data.tasks.many_shot import ManyShotFamily
from warpgrad.errors import WarpgradError
from warpgrad.experiments.base import Execution, Group
from warpgrad.experiments.comparison import difference, setting
from warpgrad.experiments.evaluation import AdaptationCurve
from warpgrad.experiments.multi_shot import experiment as multi_shot
from warpgrad.experiments.multi_shot.config import METHODS, MultiShotConfig
from warpgrad.experiments.multi_shot.evaluation import scores_on_split
from warpgrad.experiments.multi_shot.experiment import MultiShot, open_images
from warpgrad.experiments.multi_shot.methods import recipe
from warpgrad.experiments.reproduction import cells
from warpgrad.experiments.runner import command, execute
from warpgrad.initialisers import Fixed, Leap, Reptile
from warpgrad.keys import fold
from warpgrad.objectives import Approximate, Exact
from warpgrad.training.checkpoint import read_checkpoint
from warpgrad.training.run_directory import TIMES, newest_checkpoint
from warpgrad.training.saving import load_learner

EXPERIMENT = MultiShot()
SHAPE = (3, 32, 32)
TINY = {
    "ways": 3, "shots": 8, "test_images": 4, "widths": (3, 3, 4, 4, 5, 5), "batch_size": 6, "steps": 3,
    "meta_batch": 2, "meta_steps": 2, "validate_every": 1, "validation_tasks": 2, "test_tasks": 3,
    "headline_steps": 4, "test_steps": 8, "test_every": 2, "test_curve_every": 0,
}  # fmt: skip
META_TRAINED = tuple(method for method in METHODS if method != "sgd")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return marked_store(tmp_path_factory.mktemp("store"), size=32)


def module_of(config: MultiShotConfig) -> nn.Module:
    """The network of a method as its meta-training begins."""
    return recipe(config, SHAPE).method.learner.module


@pytest.fixture(scope="module")
def tiny(store):
    def make(**changes) -> MultiShotConfig:
        return EXPERIMENT.config("small", **{**TINY, "data": str(store.path), **changes})

    return make


@pytest.fixture(scope="module")
def runs(tiny, tmp_path_factory) -> Runs:
    return Runs(EXPERIMENT, tiny, tmp_path_factory.mktemp("runs"))


def trained(config: MultiShotConfig, directory: Path):
    method = recipe(config, open_images(config).store.shape).method
    return load_learner(method, newest_checkpoint(directory)), method.rule


# Settings.


def test_the_paper_preset_is_the_papers():
    """Field by field: §4.2 and App. H; what they are silent about is ours."""
    stated = {
        "method": "warp-leap", "data": "tiered-imagenet", "ways": 10, "shots": 640, "test_images": 50,
        "widths": (64, 64, 160, 160, 256, 256), "batch_size": 64, "steps": 100, "momentum": 0.9,
        "objective": "exact", "meta_batch": 5, "meta_steps": 2000, "headline_steps": 100, "test_steps": 640,
    }  # fmt: skip
    ours = {
        "preset": "paper", "seed": 0, "device": "cpu", "meta_images": 0, "warp_init": "identity", "inner_lr": 0.02,
        "meta_lr": 0.001, "theta0_lr": 0.001, "meta_clip": None, "validate_every": 100, "validation_tasks": 20,
        "patience": None, "scratch_batch": 4, "test_curve_every": 100, "test_curve_tasks": 20, "split": "test",
        "test_tasks": 100, "test_every": 10,
    }  # fmt: skip
    assert dataclasses.asdict(EXPERIMENT.presets["paper"]) == {**stated, **ours}
    assert EXPERIMENT.sweep_metric == "auc"


def test_the_paper_network_is_the_one_of_the_appendix():
    config = EXPERIMENT.config("paper")
    method = recipe(config, (3, 84, 84)).method
    module = method.learner.module
    names = [f"{part}{place}" for place in range(1, 7) for part in ("block", "warp")]
    assert [name for name, _ in module.named_children()] == [*names, "flatten", "head"]
    parts = [[name for name, _ in module.get_submodule(f"block{place}").named_children()] for place in range(1, 7)]
    assert parts == [["conv", "norm", "activation", "pool"]] * 5 + [["conv", "norm", "activation"]]
    # 2×2×256 features, as the appendix says.
    assert module.get_submodule("head").weight.shape == (10, 2 * 2 * 256)
    widths = (64, 64, 160, 160, 256, 256)
    assert [tuple(value.shape) for name, value in method.learner.phi.items() if name.endswith("weight")] == [
        (width, width, 3, 3) for width in widths
    ]
    inputs = (3, *widths[:-1])
    for place, shape in enumerate(zip(widths, inputs, strict=True), start=1):
        assert method.learner.theta0[f"block{place}.conv.weight"].shape == (*shape, 3, 3)
    assert method.learner.batch_norm == "corrected"
    assert (method.rule.lr, method.rule.momentum) == (config.inner_lr, 0.9)
    online = recipe(config, (3, 84, 84)).algorithm
    assert (online.steps, online.tasks, online.reduction) == (100, 5, "mean")
    factories = recipe(config, (3, 84, 84)).optimiser
    assert {group: type(make([torch.zeros(1)])) for group, make in factories.items()} == {
        "phi": torch.optim.Adam,
        "theta0": torch.optim.Adam,
    }


def test_the_small_preset_keeps_the_protocol():
    paper, small = (dataclasses.asdict(EXPERIMENT.presets[name]) for name in ("paper", "small"))
    changed = {name for name in paper if paper[name] != small[name]}
    assert changed == {
        "preset", "data", "shots", "widths", "batch_size", "steps", "meta_batch", "meta_steps", "validate_every",
        "validation_tasks", "test_curve_every", "test_curve_tasks", "test_tasks", "headline_steps", "test_steps",
        "test_every",
    }  # fmt: skip
    assert small["headline_steps"] == small["steps"]
    assert 3 <= small["test_steps"] / small["steps"] <= 6
    assert len(small["widths"]) == len(paper["widths"]) == 6
    # Five poolings of a 32×32 image leave one place.
    assert module_of(EXPERIMENT.presets["small"]).get_submodule("head").weight.shape == (10, 48)


def test_training_from_scratch_takes_larger_batches(tiny):
    scratch, leap = tiny(method="sgd"), tiny(method="leap")
    assert (scratch.test_shape.batch_size, leap.test_shape.batch_size) == (24, 6)
    # On held-out tasks all training images are adapted to, whatever meta-training kept for its loss.
    assert tiny(meta_images=2).test_shape == leap.test_shape
    assert tiny(meta_images=2).train_shape.meta_images == 2


def test_every_method_has_a_step_size_of_its_own(tiny):
    for method in METHODS:
        own = tiny(method=method)
        assert recipe(own, SHAPE).method.rule.lr == own.inner_lr > 0
        given = tiny(method=method, inner_lr=0.3)
        assert recipe(given, SHAPE).method.rule.lr == given.inner_lr == 0.3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 0}, "steps=0"),
        ({"inner_lr": 0.0}, "inner_lr=0"),
        ({"momentum": 1.0}, r"momentum=1.0: it must be at least 0 and below 1"),
        ({"test_curve_every": -1}, "test_curve_every=-1"),
        ({"test_curve_tasks": 0}, "test_curve_tasks=0"),
        ({"meta_clip": 0.0}, "meta_clip=0"),
        ({"patience": 0}, "patience=0"),
        ({"widths": ()}, "name at least one block"),
        ({"widths": (4, 0)}, "at least 1 channel"),
        ({"headline_steps": 3}, "multiple of test_every=2"),
        ({"headline_steps": 10}, "up to test_steps=8"),
        ({"ways": 1}, "ways=1"),
        ({"meta_images": 8}, "meta_images=8 of 8 shots"),
        ({"method": "maml"}, "no method 'maml'"),
    ],
)
def test_settings_that_cannot_be_run_are_refused_by_name(tiny, changes, words):
    with pytest.raises(WarpgradError, match=words):
        tiny(**changes)


def test_data_that_are_not_there_are_named_with_the_command_that_makes_them(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WARPGRAD_DATA", raising=False)
    with pytest.raises(WarpgradError, match="data prepare fc100"):
        EXPERIMENT.train(tiny(data="fc100"), Execution(tmp_path / "run", progress=False))


# Methods.


def test_every_method_is_the_stated_choice_of_parts(tiny):
    def parts(**changes):
        method = recipe(tiny(**changes), SHAPE).method
        return type(method.objective), type(method.initialiser), bool(method.learner.phi), method.rule.momentum

    nothing = type(None)
    assert parts(method="warp-leap") == (Exact, Leap, True, 0.9)
    assert parts(method="warp-leap", objective="approximate") == (Approximate, Leap, True, 0.9)
    assert parts(method="leap") == (nothing, Leap, False, 0.9)
    assert parts(method="reptile") == (nothing, Reptile, False, 0.9)
    assert parts(method="sgd") == (nothing, Fixed, False, 0.9)
    leap = recipe(tiny(), SHAPE).method.initialiser
    assert (leap.loss, leap.norm, leap.stabilise) == (True, True, True)


def test_all_methods_begin_at_the_same_weights_and_the_same_function(tiny):
    plain = module_of(tiny(method="leap"))
    for method in METHODS:
        theta0 = recipe(tiny(method=method), SHAPE).method.learner.theta0
        assert set(theta0) == {name for name, _ in plain.named_parameters()}
        for name, value in plain.named_parameters():
            assert torch.equal(theta0[name], value), (method, name)
    images = torch.rand(4, *SHAPE)
    torch.testing.assert_close(module_of(tiny())(images), plain(images))
    own = module_of(tiny(warp_init="own"))
    assert not torch.allclose(own(images), plain(images), atol=1e-3)
    other = module_of(tiny(method="leap", seed=1))
    assert not torch.equal(plain.get_submodule("head").weight, other.get_submodule("head").weight)


def test_images_that_are_not_square_are_refused(tiny):
    with pytest.raises(WarpgradError, match="32×40"):
        recipe(tiny(), (3, 32, 40))


# Runs.


def test_every_method_meta_trains_and_is_tested_on_the_same_tasks(runs, store):
    found = {method: evaluation_of(runs[method]) for method in METHODS}
    for method, evaluation in found.items():
        assert evaluation["tested_at"] == [0, 2, 4, 6, 8]
        assert (evaluation["headline_steps"], evaluation["ways"], evaluation["shots"]) == (4, 3, [8, 8])
        assert evaluation["trained_steps"] == (None if method == "sgd" else 3)
        assert (evaluation["data"], evaluation["data_sha256"]) == ("marked", store.header.sha256)
        for name, curve in evaluation["curves"].items():
            assert len(curve) == 5
            assert evaluation["accuracy"][name] == curve[2]
            assert evaluation["accuracy_at_end"][name] == curve[4]
            assert evaluation["auc"][name] == pytest.approx((curve[0] + 2 * curve[1] + curve[2]) / 4)
            assert evaluation["auc_at_end"][name] == pytest.approx((curve[0] + 2 * sum(curve[1:4]) + curve[4]) / 8)
        summary = json.loads((runs[method] / "summary.json").read_text())
        assert summary["steps"] == (0 if method == "sgd" else 2)
        for measure in ("accuracy", "auc", "accuracy_at_end", "auc_at_end"):
            values = evaluation[measure].values()
            assert summary["metrics"][measure] == pytest.approx(sum(values) / 3)
        lines = [json.loads(line) for line in (runs[method] / "metrics.jsonl").read_text().splitlines()]
        if method != "sgd":
            assert all({"validation/auc", "validation/accuracy"} <= set(line) for line in lines)


def test_the_numbers_are_those_of_adapt(tiny, runs):
    config = tiny()
    learner, rule = trained(config, runs["warp-leap"])
    key = fold(config.seed, "held out", 1)
    task = list(ManyShotFamily(open_images(config), "test", config.test_shape).tasks(2))[1].with_seed(key)
    _, curve = adapt(learner, task, rule=rule, steps=8, key=key, curve=True, test_every=2)
    assert evaluation_of(runs["warp-leap"])["curves"]["1"] == [100 * score["accuracy"] for score in curve.scores]
    assert curve.tested_at == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("method", META_TRAINED)
def test_a_run_that_was_stopped_ends_with_the_same_bytes(tiny, runs, tmp_path, method):
    whole = tiny(method=method)
    EXPERIMENT.train(dataclasses.replace(whole, meta_steps=1), Execution(tmp_path / "halved", progress=False))
    EXPERIMENT.train(whole, Execution(tmp_path / "halved", progress=False))
    expected, found = (trained(whole, path)[0].module.state_dict() for path in (runs[method], tmp_path / "halved"))
    begun = recipe(whole, SHAPE).method.learner.module.state_dict()
    assert any(not torch.equal(begun[name], value) for name, value in expected.items())
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    again = EXPERIMENT.evaluate(whole, tmp_path / "halved")
    assert again["curves"] == evaluation_of(runs[method])["curves"]


def test_the_weights_with_the_best_validation_are_the_ones_tested(tiny, runs):
    lines = [json.loads(line) for line in (runs["leap"] / "metrics.jsonl").read_text().splitlines()]
    config = tiny(method="leap")
    learner, rule = trained(config, runs["leap"])
    scores = scores_on_split(config, open_images(config), learner, rule, "validation", config.validation_tasks)
    assert scores["auc"] == max(line["validation/auc"] for line in lines)


def metrics_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_test_tasks_are_scored_during_meta_training_and_choose_nothing(tiny, runs, tmp_path, monkeypatch):
    """The same bytes with and without, though the test scores tell another meta-step to be the best."""
    measured = multi_shot.scores_on_split
    answers = iter([99.0, 1.0])

    def misleading(config, images, learner, rule, split, tasks):
        found = measured(config, images, learner, rule, split, tasks)
        if split == "validation":
            return found
        assert (split, tasks) == ("test", 2)
        return {**found, "auc": next(answers)}

    monkeypatch.setattr(multi_shot, "scores_on_split", misleading)
    config = tiny(method="leap", test_curve_every=1, test_curve_tasks=2)
    EXPERIMENT.train(config, Execution(tmp_path / "run", progress=False))
    lines, plain = metrics_of(tmp_path / "run"), metrics_of(runs["leap"])
    assert [line["test/auc"] for line in lines] == [99.0, 1.0]
    for with_tests, without in zip(lines, plain, strict=True):
        assert {"test/accuracy", "test/auc", "test/loss"} <= set(with_tests)
        kept = {name: value for name, value in with_tests.items() if not name.startswith("test/")}
        first, second = ({n: v for n, v in line.items() if n not in TIMES} for line in (kept, without))
        assert first == second
    states = [read_checkpoint(newest_checkpoint(path)) for path in (tmp_path / "run", runs["leap"])]
    assert states[0]["early_stopping"] == states[1]["early_stopping"]
    for group in ("weights", "best"):
        first, second = (state[group]["module"] for state in states)
        assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_the_scores_on_the_way_are_those_of_the_first_test_tasks(tiny, runs, tmp_path):
    """After the last meta-step the weights are the run's own, so the curve's last point can be made from them."""
    config = tiny(method="leap", test_curve_every=2, test_curve_tasks=2)
    EXPERIMENT.train(config, Execution(tmp_path / "run", progress=False))
    first, last = metrics_of(tmp_path / "run")
    assert "test/auc" not in first
    method = recipe(config, SHAPE).method
    load_weights(method, read_checkpoint(newest_checkpoint(tmp_path / "run"))["weights"])
    curves = []
    for index in range(2):
        key = fold(config.seed, "held out", index)
        task = list(ManyShotFamily(open_images(config), "test", config.test_shape).tasks(index + 1))[index].with_seed(
            key
        )
        _, curve = adapt(method.learner, task, rule=method.rule, steps=3, key=key, curve=True, test_every=2)
        curves.append([100 * score["accuracy"] for score in curve.scores])
    assert last["test/accuracy"] == pytest.approx(sum(curve[-1] for curve in curves) / 2)
    areas = [(curve[0] + curve[1] + (curve[1] + curve[2]) / 2) / 3 for curve in curves]
    assert last["test/auc"] == pytest.approx(sum(areas) / 2)


def test_the_curve_of_a_search_does_not_see_test_classes(tiny, tmp_path, monkeypatch):
    seen = []
    answer = {"accuracy": 1.0, "auc": 1.0, "loss": 1.0}
    monkeypatch.setattr(multi_shot, "scores_on_split", lambda *given: seen.append(given[4]) or answer)
    EXPERIMENT.train(
        tiny(method="leap", test_curve_every=1, split="validation"), Execution(tmp_path / "run", progress=False)
    )
    assert seen == ["validation"] * 4


def test_other_ways_get_a_fresh_head_and_say_so(tiny, runs, capsys):
    found = EXPERIMENT.evaluate(tiny(method="warp-leap", ways=2), runs["warp-leap"])
    assert (
        "re-initialised on every task; these parameters start anew: head.bias, head.weight" in capsys.readouterr().err
    )
    assert (found["ways"], found["batch_norm"]) == (2, "corrected")
    assert "Batch-norm uses batch statistics in adaptation" in found["notes"][0]


def test_meta_steps_of_the_paper_preset_and_their_resumption(tmp_path):
    """The paper's network on 84×84 images, of which there are few; short trajectories and small batches for time."""
    large = marked_store(tmp_path, classes=10, images=6, size=84)
    changes = {"data": str(large.path), "test_images": 2, "batch_size": 4, "steps": 2, "meta_batch": 1}
    whole = EXPERIMENT.config("paper", **changes, meta_steps=2)
    EXPERIMENT.train(whole, Execution(tmp_path / "straight", progress=False))
    EXPERIMENT.train(dataclasses.replace(whole, meta_steps=1), Execution(tmp_path / "halved", progress=False))
    EXPERIMENT.train(whole, Execution(tmp_path / "halved", progress=False))
    expected, found = (trained(whole, tmp_path / name)[0] for name in ("straight", "halved"))
    begun = recipe(whole, (3, 84, 84)).method.learner
    for name in expected.phi:
        assert not torch.equal(expected.phi[name], begun.phi[name]), name
    for name, value in expected.module.state_dict().items():
        assert torch.equal(found.module.state_dict()[name], value), name


# The table and the page.


def test_the_table_holds_the_papers_figures_and_can_be_run(tmp_path):
    table, _ = EXPERIMENT.tables
    assert {row.label: row.paper for row in table.rows} == {
        "Warp-Leap": 80.4, "Leap": 73.9, "Reptile": 76.5, "SGD": 58.1,
    }  # fmt: skip
    assert [row.settings["method"] for row in table.rows] == list(METHODS)
    for preset in EXPERIMENT.presets:
        every = cells(EXPERIMENT, table, tmp_path, preset, None)
        assert {(cell.row.label, cell.config.seed) for cell in every} == {
            (row.label, seed) for row in table.rows for seed in range(4)
        }
        for cell in cells(EXPERIMENT, table, tmp_path, preset, 1):
            words = command(EXPERIMENT, cell.config).split(" ")[3:]
            given = parse(["run", "multi-shot", "--preset", preset, *words]).keywords["settings"]
            assert given == cell.config


def test_every_run_of_the_table_leaves_a_curve_of_validation_and_test_tasks(tmp_path):
    """At every preset; training from scratch has no meta-steps to leave one for."""
    table, _ = EXPERIMENT.tables
    for preset in EXPERIMENT.presets:
        for cell in cells(EXPERIMENT, table, tmp_path, preset, 1):
            config = cell.config
            assert config.meta_steps // config.validate_every >= 8, preset
            assert config.meta_steps // config.test_curve_every >= 8, preset
            assert config.test_curve_tasks <= config.test_tasks


def test_every_method_gets_as_many_trials_of_its_step_size_on_validation_classes(tmp_path):
    _, probes = EXPERIMENT.tables
    grids: dict[str, list[float]] = {}
    for cell in cells(EXPERIMENT, probes, tmp_path, "small", None):
        config = cell.config
        assert (config.split, config.seed, config.test_curve_every) == ("validation", 0, 0)
        assert config.from_scratch or (config.meta_steps, config.validate_every) == (100, 100)
        grids.setdefault(config.method, []).append(config.inner_lr)
    assert set(grids) == set(METHODS)
    for method, grid in grids.items():
        assert len(grid) == 5
        assert all(2.9 < larger / smaller < 3.4 for smaller, larger in pairwise(grid)), method
        assert EXPERIMENT.config("small", method=method).inner_lr in grid[1:-1], method


def test_widths_can_be_given_on_the_command_line():
    words = ["--widths", "8", "8", "12", "--meta-clip", "3"]
    given = parse(["run", "multi-shot", "--preset", "small", *words]).keywords["settings"]
    assert (given.widths, given.meta_clip) == ((8, 8, 12), 3.0)


def test_the_area_is_the_mean_height_of_the_curve():
    curve = AdaptationCurve([0, 10, 20, 50], [0.0, 10.0, 30.0, 30.0], [3.0, 2.0, 1.0, 1.5])
    assert curve.area == pytest.approx((50 + 200 + 900) / 50)
    assert curve.until(20).area == pytest.approx((50 + 200) / 20)
    assert curve.until(20).loss == [3.0, 2.0, 1.0]


def test_differences_are_paired_by_task_and_refused_where_tasks_or_steps_differ(runs):
    first, second = group_of("A", [runs["warp-leap"]]), group_of("B", [runs["sgd"]])
    ours, theirs = (group.evaluations[0]["accuracy_at_end"] for group in (first, second))
    found = difference(first, second, "accuracy_at_end")
    assert found.mean == pytest.approx(sum(ours[name] - theirs[name] for name in ours) / 3)
    for change in ({"ways": 4}, {"shots": [7, 8]}, {"split": "validation"}, {"data": "FC100"}, {"headline_steps": 2}):
        moved = Group("B", second.runs, (dict(second.evaluations[0], **change),))
        assert difference(first, moved) is None, change
    longer = Group("B", second.runs, (dict(second.evaluations[0], tested_at=[0, 2, 4, 6, 10]),))
    assert difference(first, longer, "accuracy_at_end") is None
    assert difference(first, longer, "accuracy") == difference(first, second, "accuracy"), "as many steps"
    assert setting(first) == "marked, 3-way 8-shot (test)"
    fewer = Group("B", second.runs, (dict(second.evaluations[0], shots=[7, 8]),))
    assert setting(fewer) == "marked, 3-way 7 to 8-shot (test)"


def test_the_page_and_the_lines_are_built_from_the_record_alone(runs, tmp_path, monkeypatch):
    groups = [group_of(row.label, [runs[row.settings["method"]]], row.paper) for row in EXPERIMENT.tables[0].rows]
    found = on_record(EXPERIMENT.tables[0], groups, tmp_path / "record.json", monkeypatch)
    assert EXPERIMENT.lines(found) == EXPERIMENT.lines(groups)
    assert "Learning curves" in EXPERIMENT.page(found, "Recorded").write(tmp_path / "page.html").read_text()
    for group, recorded in zip(groups, found, strict=True):
        assert set(recorded.evaluations[0]) >= {"data", "data_sha256", "batch_norm", "accuracy", "auc", "curves"}
        for line, kept in zip(group.runs[0].metrics, recorded.runs[0].metrics, strict=True):
            assert kept["validation/auc"] == pytest.approx(line["validation/auc"], rel=1e-5)
            assert kept["validation/accuracy"] == pytest.approx(line["validation/accuracy"], rel=1e-5)


def test_the_page_and_the_lines_show_every_row_at_both_horizons(tiny, runs, tmp_path):
    papers = {"warp-leap": 80.4, "leap": 73.9, "reptile": 76.5, "sgd": 58.1}
    groups = [group_of(method, [runs[method]], paper) for method, paper in papers.items()]
    header, rows = EXPERIMENT.lines(groups)
    assert header[0] == "marked, 3-way 8-shot (test)"
    assert ("after 4 steps" in header[1], header[3]) == (True, "after 8 steps")
    assert [row[0] for row in rows] == list(papers)
    assert [row[-1] for row in rows] == ["80.4", "73.9", "76.5", "58.1"]
    assert all(len(row) == len(header) for row in rows)
    page = EXPERIMENT.page(groups, "Accuracy").write(tmp_path / "page.html").read_text()
    for words in ("paper 80.4 (tieredImageNet)", "not</strong> on tieredImageNet", "Learning curves", "after 8 steps",
                  "AUC over 4 steps", "Meta-training", "validation", "minus warp-leap", "reptile"):  # fmt: skip
        assert words in page, words
    assert "test/auc against meta-steps" not in page
    watched = tiny(method="leap", test_curve_every=1)
    execute(EXPERIMENT, watched, Execution(tmp_path / "watched", progress=False))
    with_curve = EXPERIMENT.page([group_of("leap", [tmp_path / "watched"])], "Curve")
    drawn = with_curve.write(tmp_path / "curve.html").read_text()
    assert "test/auc against meta-steps" in drawn
    assert "test scores during meta-training choose nothing" in drawn
    alone = EXPERIMENT.page([groups[3]], "SGD").write(tmp_path / "sgd.html").read_text()
    assert 'id="meta-training"' not in alone
    assert 'id="meta-training"' in page
