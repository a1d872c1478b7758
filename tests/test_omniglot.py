"""The alphabets experiment: presets, methods, evaluation, tables and page, on a tiny drawn store."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import warpgrad.experiments.omniglot_data as places
from test_alphabet_tasks import tiny_store
from warpgrad.adaptation import Adaptation
from warpgrad.algorithms import Offline, Online, Unrolled
from warpgrad.baselines.finetuning import JointTraining
from warpgrad.cli import parse
from warpgrad.commands import RunArguments
from warpgrad.data import Alphabets, open_store
from warpgrad.errors import WarpgradError
from warpgrad.experiments.base import Execution, Group
from warpgrad.experiments.comparison import difference, distinct, per_task
from warpgrad.experiments.omniglot import Omniglot, trained
from warpgrad.experiments.omniglot_activations import ActivationRecord, activation_statistics
from warpgrad.experiments.omniglot_config import METHODS, OmniglotConfig
from warpgrad.experiments.omniglot_evaluation import adapt_and_test
from warpgrad.experiments.omniglot_methods import network, recipe, training_tasks, warped_learner
from warpgrad.experiments.reproduction import cells, finished
from warpgrad.experiments.runner import command, execute
from warpgrad.fitting import adapt
from warpgrad.initialisers import FOMAML, Fixed, Leap, Reptile
from warpgrad.keys import fold
from warpgrad.layers import OMNIGLOT_WARPS
from warpgrad.learner import Learner
from warpgrad.objectives import Approximate, Exact
from warpgrad.report.runs import load_run
from warpgrad.tasks.alphabets import AlphabetTask, alphabet_tasks

EXPERIMENT = Omniglot()
TINY = {
    "tasks": 2, "held_out": 2, "characters": 6, "train_drawings": 4, "test_drawings": 2, "filters": 4, "batch_size": 6,
    "meta_batch": 3, "steps": 3, "maml_steps": 2, "meta_steps": 1, "test_steps": 4, "test_every": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tiny_store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def tiny(store):
    def make(**changes) -> OmniglotConfig:
        return EXPERIMENT.config("small", **{**TINY, "data": str(store.path), **changes})

    return make


@pytest.fixture(scope="module")
def runs(tiny, tmp_path_factory) -> dict[str, Path]:
    """Every method, meta-trained for one step and evaluated."""
    root = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        execute(EXPERIMENT, tiny(method=method), Execution(root / method, progress=False))
    return {method: root / method for method in METHODS}


@pytest.fixture(scope="module")
def more_tasks(tiny, tmp_path_factory) -> Path:
    """Leap on one alphabet more."""
    path = tmp_path_factory.mktemp("more") / "leap"
    execute(EXPERIMENT, tiny(method="leap", tasks=3), Execution(path, progress=False))
    return path


def evaluation_of(run: Path):
    return json.loads((run / "evaluation.json").read_text())


def group_of(label: str, paths: list[Path], paper: float | None = None) -> Group:
    found = tuple(load_run(path) for path in paths)
    return Group(label, found, tuple(evaluation_of(path) for path in paths), paper)


# Settings.


def test_the_paper_preset_is_the_papers():
    """Field by field: App. E, and where it is silent the settings of the programs published with it."""
    expected = {
        "preset": "paper", "method": "warp-leap", "seed": 0, "device": "cpu", "data": None,
        "tasks": 25, "held_out": 10, "characters": 20, "train_drawings": 15, "test_drawings": 5,
        "filters": 64, "batch_size": 128, "meta_batch": 20, "meta_drawings": 0,
        "steps": 100, "maml_steps": 5, "inner_lr": 0.1, "momentum": 0.0,
        "learned_alpha": False, "alpha_lr": 0.001, "alpha_clip": 0.001,
        "warp": "conv3x3", "warp_init": "own", "theta0": "learned",
        "objective": "exact", "algorithm": "offline", "samples": 1,
        "meta_lr": 0.1, "theta0_lr": None, "meta_steps": 1000,
        "scratch_batch": 4, "scratch_lr": 10.0,
        "kfac_damping": 0.03, "kfac_clip": 0.1, "kfac_fisher": "sampled",
        "kfac_estimate_every": 1, "kfac_invert_every": 5,
        "split": "test", "test_steps": 100, "test_every": 5,
    }  # fmt: skip
    assert dataclasses.asdict(EXPERIMENT.presets["paper"]) == expected
    rates = {method: EXPERIMENT.config("paper", method=method, data="drawn").outer_lr for method in METHODS}
    assert {method for method, rate in rates.items() if rate == 0.5} == {"maml", "fomaml"}
    assert set(rates.values()) == {0.1, 0.5}
    for method in METHODS:
        config = EXPERIMENT.config("paper", method=method, data="drawn")
        scratch = method in ("sgd", "kfac")
        assert (config.test_batch, config.test_lr) == ((512, 1.0) if scratch else (128, 0.1))


def test_the_small_preset_keeps_the_protocol_and_the_network():
    paper, small = (dataclasses.asdict(EXPERIMENT.presets[name]) for name in ("paper", "small"))
    changed = {name for name in paper if paper[name] != small[name]}
    assert changed == {"preset", "filters", "batch_size", "meta_batch", "meta_steps"}


def test_the_paper_network_is_the_one_of_the_appendix():
    config = EXPERIMENT.config("paper", data="drawn")
    learner = warped_learner(config)
    assert [name for name, _ in learner.module.named_children()] == [
        "block1", "warp1", "block2", "warp2", "block3", "warp3", "block4", "warp4", "flatten", "head",
    ]  # fmt: skip
    assert learner.module.get_submodule("head").weight.shape == (20, 64)
    assert {name: tuple(value.shape) for name, value in learner.phi.items() if "weight" in name} == {
        f"warp{place}.weight": (64, 64, 3, 3) for place in range(1, 5)
    }
    assert learner.batch_norm == "running"
    offline = recipe(config).algorithm
    assert isinstance(offline, Offline)
    assert (offline.steps, offline.tasks, offline.samples, offline.interleave) == (100, 20, 1, False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tasks": 0}, "tasks=0"),
        ({"meta_lr": 0.0}, "meta_lr=0"),
        ({"theta0_lr": -1.0}, "outer_lr=-1"),
        ({"warp": "conv5x5"}, "warp='conv5x5'"),
        ({"method": "adam"}, "no method 'adam'"),
        ({"method": "leap", "learned_alpha": True}, "does not learn α"),
        ({"method": "reptile", "theta0": "random"}, "theta0 cannot be random"),
        ({"method": "kfac", "momentum": 0.9}, "kfac has no momentum"),
    ],
)
def test_settings_that_cannot_be_run_are_refused_by_name(tiny, changes, words):
    with pytest.raises(WarpgradError, match=words):
        tiny(**changes)


# Which data.


def test_data_are_omniglot_only_where_it_was_prepared(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WARPGRAD_DATA", raising=False)
    assert EXPERIMENT.config("small").data == "drawn"
    with pytest.raises(WarpgradError, match="data prepare omniglot"):
        places.open_data("omniglot")
    folder = tmp_path / "raw"
    (folder / "prepared").mkdir(parents=True)
    (folder / "prepared" / "omniglot").symlink_to(store.path)
    monkeypatch.setenv("WARPGRAD_DATA", str(folder))
    assert EXPERIMENT.config("small").data == "omniglot"
    # What a result is called comes from the data set's own header, not from where it lies.
    assert places.data_name(places.open_data("omniglot")) == "drawn"
    assert EXPERIMENT.config("small", data=str(store.path)).data == str(store.path)


def test_drawn_alphabets_are_made_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WARPGRAD_DATA", raising=False)
    drawn = []

    def prepare(destination):
        drawn.append(destination)
        tiny_store(tmp_path)
        destination.parent.mkdir(exist_ok=True)
        (tmp_path / "alphabets").rename(destination)

    monkeypatch.setattr(places, "prepare_drawn", prepare)
    first, second = places.open_data("drawn"), places.open_data("drawn")
    assert drawn == [Path("data/drawn")]
    assert first.header == second.header
    assert "drawing alphabets into data/drawn" in capsys.readouterr().err

    def lost_the_race(destination):
        raise WarpgradError("exists already")

    monkeypatch.setattr(places, "prepare_drawn", lost_the_race)
    assert places._draw(Path("data/drawn")) == Path("data/drawn")
    with pytest.raises(WarpgradError, match="exists already"):
        places._draw(Path("data/elsewhere"))


# Methods.


def test_every_method_is_the_stated_choice_of_parts(tiny):
    def parts(**changes):
        chosen = recipe(tiny(**changes))
        method = chosen.method
        return type(chosen.algorithm), type(method.objective), type(method.initialiser), bool(method.learner.phi)

    nothing = type(None)
    assert parts(method="warp-leap") == (Offline, Exact, Leap, True)
    assert parts(method="warp-leap", algorithm="online", objective="approximate") == (Online, Approximate, Leap, True)
    assert parts(method="warp-leap", theta0="random") == (Offline, Exact, Fixed, True)
    assert parts(method="leap") == (Online, nothing, Leap, False)
    assert parts(method="reptile") == (Online, nothing, Reptile, False)
    assert parts(method="fomaml") == (Online, nothing, FOMAML, False)
    assert parts(method="maml") == (Unrolled, nothing, Fixed, False)
    assert parts(method="finetuning") == (JointTraining, nothing, Fixed, False)
    assert recipe(tiny(method="maml")).algorithm.steps == 2
    leap = recipe(tiny(method="warp-leap")).method.initialiser
    assert (leap.loss, leap.norm, leap.stabilise) == (True, True, True)
    alpha = recipe(tiny(learned_alpha=True))
    assert alpha.method.rule.meta["lr"].item() == pytest.approx(0.1)
    assert alpha.clip == {"rule": 0.001}
    assert alpha.optimiser["rule"]([torch.zeros(1)]).defaults["lr"] == 0.001


def test_all_methods_begin_at_the_same_weights(tiny):
    plain = network(tiny()).state_dict()
    for method in ("warp-leap", "leap", "maml", "finetuning"):
        weights = recipe(tiny(method=method)).method.learner.theta0
        found = {name.removeprefix("body."): value for name, value in weights.items()}
        for name in found:
            if not name.startswith("heads"):
                assert torch.equal(found[name], plain[name]), (method, name)
    other = network(tiny(seed=1)).state_dict()
    assert not torch.equal(plain["block1.conv.weight"], other["block1.conv.weight"])


def test_finetuning_has_a_head_of_its_own_for_each_training_alphabet(tiny, store, runs):
    config = tiny(method="finetuning")
    learner = recipe(config).method.learner
    heads = learner.module.get_submodule("heads")
    assert len(heads) == config.tasks == 2
    assert heads[0].weight.data_ptr() != heads[1].weight.data_ptr()
    assert not torch.equal(heads[0].weight, heads[1].weight)
    alphabets = Alphabets(store, 0, config.protocol)
    names = alphabets.split(2).train
    tasks = training_tasks(config, alphabet_tasks(alphabets, names, batch_size=6))
    for task in tasks.meta_batch(3, 5):
        assert names[task.head] == task.name
    tested, _ = trained(config, runs["finetuning"])
    assert {policy for name, policy in tested.starts.items() if name.startswith("head")} == {"fresh"}
    assert not torch.equal(tested.start(1)["head.weight"], tested.start(2)["head.weight"])
    assert torch.equal(tested.start(1)["block1.conv.weight"], tested.start(2)["block1.conv.weight"])
    begun = network(config).state_dict()["block1.conv.weight"]
    assert not torch.equal(tested.theta0["block1.conv.weight"], begun)


@pytest.mark.parametrize("warp", sorted(OMNIGLOT_WARPS))
def test_every_warp_architecture_takes_a_meta_step(tiny, store, warp):
    config = tiny(warp=warp, steps=2, meta_batch=1)
    learner = _one_meta_step(config, store)
    begun = warped_learner(config)
    assert learner.phi
    assert all(bool(torch.isfinite(value).all()) for value in learner.phi.values())
    assert any(not torch.equal(value, begun.phi[name]) for name, value in learner.phi.items())
    if warp.endswith("film"):
        embeddings = [name for name, policy in learner.starts.items() if policy == "zero"]
        assert embeddings
        assert all(".film." in name for name in embeddings)
        assert not set(embeddings) & set(learner.learned)
        assert all(float(learner.start(0)[name].abs().sum()) == 0.0 for name in embeddings)


def test_a_random_initialisation_is_never_changed_and_the_warp_is(tiny, store):
    config = tiny(theta0="random", steps=2)
    learner = _one_meta_step(config, store)
    plain = network(config).state_dict()
    assert all(torch.equal(value, plain[name]) for name, value in learner.theta0.items())
    assert not torch.equal(learner.phi["warp1.weight"], warped_learner(config).phi["warp1.weight"])


def test_an_identity_warp_begins_as_the_plain_network(tiny):
    config = tiny(warp="conv3x3", warp_init="identity")
    learner, plain = warped_learner(config), network(config)
    images = torch.rand(3, 1, 28, 28)
    forward = learner.bind(learner.start(0), learner.buffers(), training=True)
    torch.testing.assert_close(forward(images), plain(images))
    with pytest.raises(WarpgradError, match="cannot be made the identity"):
        warped_learner(tiny(warp="conv3x3+relu", warp_init="identity"))


def test_channels_last_changes_the_layout_and_not_the_numbers(tiny):
    config = tiny(filters=5)
    images, labels = torch.rand(4, 1, 28, 28, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    found = []
    for channels_last in (False, True):
        learner = Learner(network(config).double(), warp=(), channels_last=channels_last)
        theta = {name: value.detach().contiguous().requires_grad_() for name, value in learner.theta0.items()}
        loss = F.cross_entropy(learner.bind(theta, learner.buffers())(images), labels)
        found.append(torch.autograd.grad(loss, list(theta.values())))
    torch.testing.assert_close(found[0], found[1])
    bound = learner.bind(theta, learner.buffers())
    assert bound._weights["block2.conv.weight"].is_contiguous(memory_format=torch.channels_last)
    assert learner.theta0["block2.conv.weight"].is_contiguous(memory_format=torch.channels_last)
    # One input channel: both layouts fit, and the strides must say which.
    assert bound._weights["block1.conv.weight"].stride(1) == 1
    assert learner.module.block1.conv(images).is_contiguous(memory_format=torch.channels_last)


def test_batch_norm_follows_the_batch_in_adaptation_and_the_task_at_test(tiny, store):
    """Statistics are reset for every task, moved by adaptation alone, and used at test."""
    config = tiny()
    alphabets = Alphabets(store, 0, config.protocol)
    task = AlphabetTask(alphabets[alphabets.split(2).test[0]], batch_size=6)
    chosen = recipe(config).method
    learner = chosen.learner
    adaptation = Adaptation(learner, chosen.rule, task, 0)
    start = adaptation.start()
    mean, variance = "block1.norm.running_mean", "block1.norm.running_var"
    assert float(start.buffers[mean].abs().sum()) == 0.0
    assert torch.equal(start.buffers[variance], torch.ones(4))
    after = adaptation.step(start).after
    with torch.no_grad():
        images = task.adapt_batch(0)[0]
        pooled = F.max_pool2d(F.conv2d(images, start.theta["block1.conv.weight"], padding=1), 2)
    torch.testing.assert_close(after.buffers[mean], 0.1 * pooled.mean((0, 2, 3)))
    before = {name: value.clone() for name, value in after.buffers.items()}
    sample = Exact().step(adaptation, start)
    assert torch.equal(sample.transition.after.buffers[mean], after.buffers[mean])
    assert all(torch.equal(after.buffers[name], value) for name, value in before.items())
    # At test one image's output does not depend on the others in the batch; in adaptation it does.
    images = next(iter(task.test_batches()))[0]
    tested = [learner.bind(after.theta, after.buffers, training=False)(images[:count])[0] for count in (2, 6)]
    torch.testing.assert_close(tested[0], tested[1])
    adapted = [learner.bind(after.theta, after.buffers)(images[:count])[0] for count in (2, 6)]
    assert not torch.allclose(adapted[0], adapted[1], atol=1e-3)


# Runs.


def test_every_method_meta_trains_and_is_tested_on_the_same_alphabets(runs, store):
    found = {method: evaluation_of(path) for method, path in runs.items()}
    for method, evaluation in found.items():
        assert list(evaluation["accuracy"]) == list(found["leap"]["accuracy"]), method
        assert evaluation["tested_at"] == [0, 2, 4]
        assert evaluation["data"] == "drawn"
        assert evaluation["data_sha256"] == store.header.sha256
        assert all(len(curve) == 3 for curve in evaluation["curves"].values())
        summary = json.loads((runs[method] / "summary.json").read_text())
        assert summary["steps"] == (0 if method in ("sgd", "kfac") else 1)
        assert summary["metrics"]["accuracy"] == pytest.approx(
            sum(evaluation["accuracy"].values()) / len(evaluation["accuracy"])
        )
        assert json.loads((runs[method] / "config.json").read_text())["data"] == str(store.path)
    assert found["warp-leap"]["activations"]
    assert found["leap"]["activations"] == {}


def test_the_numbers_are_those_of_adapt(tiny, store, runs):
    """Accuracy from the library's own `adapt`; lengths from its definition; area by hand."""
    config = tiny(method="warp-leap")
    evaluation = evaluation_of(runs["warp-leap"])
    learner, rule = trained(config, runs["warp-leap"])
    name = next(iter(evaluation["accuracy"]))
    key = fold(config.seed, "held out", name)
    task = AlphabetTask(Alphabets(store, 0, config.protocol)[name], batch_size=6, seed=key)
    _, curve = adapt(learner, task, rule=rule, steps=4, key=key, curve=True, test_every=2)
    scores = [100 * score["accuracy"] for score in curve.scores]
    assert evaluation["curves"][name] == pytest.approx(scores)
    assert evaluation["auc"][name] == pytest.approx((scores[0] + 2 * scores[1] + scores[2]) / 4)
    adaptation = Adaptation(learner, rule, task, key)
    point, squares, losses = adaptation.start(), [], []
    for _ in range(4):
        transition = adaptation.step(point)
        squares.append(
            sum(float((transition.after.theta[n] - value).square().sum()) for n, value in point.theta.items())
        )
        losses.append(float(transition.loss))
        point = transition.after
    losses.append(float(adaptation.task_loss(point.theta, point.buffers, 4)[0].detach()))
    assert evaluation["length"][name] == pytest.approx(sum(square**0.5 for square in squares), rel=1e-5)
    with_loss = sum((squares[k] + (losses[k + 1] - losses[k]) ** 2) ** 0.5 for k in range(4))
    assert evaluation["length_with_loss"][name] == pytest.approx(with_loss, rel=1e-5)
    assert adapt_and_test(adaptation, 4, 4).tested_at == [0, 4]


def test_validation_alphabets_are_others(tiny, runs):
    result = EXPERIMENT.evaluate(tiny(method="leap", split="validation"), runs["leap"])
    assert result["split"] == "validation"
    assert not set(result["accuracy"]) & set(evaluation_of(runs["leap"])["accuracy"])
    with pytest.raises(WarpgradError, match="leaves none for validation"):
        EXPERIMENT.evaluate(tiny(method="sgd", tasks=3, split="validation"), runs["sgd"])


def test_a_run_that_was_stopped_ends_with_the_same_bytes(tiny, tmp_path):
    straight, halved = tmp_path / "straight", tmp_path / "halved"
    whole = tiny(meta_steps=2, learned_alpha=True, momentum=0.5)
    EXPERIMENT.train(whole, Execution(straight, progress=False))
    EXPERIMENT.train(dataclasses.replace(whole, meta_steps=1), Execution(halved, progress=False))
    EXPERIMENT.train(whole, Execution(halved, progress=False))
    expected, rule = trained(whole, straight)
    found, other = trained(whole, halved)
    for name, value in expected.module.state_dict().items():
        assert torch.equal(found.module.state_dict()[name], value), name
    assert torch.equal(rule.meta["lr"], other.meta["lr"])
    assert float(rule.meta["lr"].detach()) != pytest.approx(0.1, abs=1e-9)


def test_a_run_on_other_data_is_not_taken_up(tiny, runs):
    with pytest.raises(WarpgradError, match="data"):
        EXPERIMENT.train(tiny(method="sgd", data="elsewhere"), Execution(runs["sgd"], progress=False))


# Activations.


def test_activation_statistics_are_those_of_whitened_and_unwhitened_data():
    torch.manual_seed(3)
    rows = torch.randn(500, 3, dtype=torch.float64)
    rows = rows - rows.mean(0)
    white = rows @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(rows.T)).T)
    images = white.reshape(5, 10, 10, 3).movedim(-1, 1)
    mean, distance = activation_statistics(images)
    assert mean == pytest.approx(0.0, abs=1e-12)
    assert distance == pytest.approx(0.0, abs=1e-10)
    stretched = images * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).view(1, 3, 1, 1) + 0.5
    mean, distance = activation_statistics(stretched)
    assert mean == pytest.approx(0.5)
    assert distance == pytest.approx(0 + 3 + 8)


def test_statistics_are_taken_on_both_sides_of_every_warp(tiny):
    learner = warped_learner(tiny())
    record = ActivationRecord(learner.module)
    images = torch.rand(7, 1, 28, 28)
    with record.watching(), torch.no_grad():
        learner.module.eval()(images)
    with torch.no_grad():
        before = learner.module.get_submodule("block1")(images)
        after = learner.module.get_submodule("warp1")(before)
    means = record.means()
    assert {name: len(values) for name, values in means.items()} == dict.fromkeys(
        ("mean_before", "distance_before", "mean_after", "distance_after"), 4
    )
    assert means["mean_before"][0] == pytest.approx(float(before.mean()), rel=1e-4)
    assert means["mean_after"][0] == pytest.approx(float(after.mean()), rel=1e-4)
    assert means["distance_after"][0] == pytest.approx(activation_statistics(after)[1], rel=1e-4)
    assert ActivationRecord(network(tiny())).means() == {}


# Tables and the page.


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


@pytest.mark.slow
@pytest.mark.real_data
def test_a_meta_step_on_real_omniglot(tmp_path):
    """The published archives through `data prepare`, 46 alphabets, and one meta-step of each kind of method."""
    import os

    from warpgrad.data_commands import data

    if not os.environ.get("WARPGRAD_DATA"):
        pytest.skip("WARPGRAD_DATA names no folder with Omniglot's archives")
    data(["prepare", "omniglot", "--out", str(tmp_path / "omniglot")])
    sizes = {"filters": 8, "batch_size": 8, "meta_batch": 2, "steps": 3, "meta_steps": 1, "test_steps": 3}
    for method in ("warp-leap", "finetuning", "kfac"):
        config = EXPERIMENT.config("small", method=method, data=str(tmp_path / "omniglot"), **sizes)
        execute(EXPERIMENT, config, Execution(tmp_path / method, progress=False))
        evaluation = evaluation_of(tmp_path / method)
        assert evaluation["data"] == "omniglot"
        assert len(evaluation["accuracy"]) == 10


def _one_meta_step(config: OmniglotConfig, store) -> Learner:
    from warpgrad.meta_optimiser import MetaOptimiser

    alphabets = Alphabets(open_store(store.path), config.seed, config.protocol)
    tasks = alphabet_tasks(alphabets, alphabets.split(config.tasks).train, batch_size=config.batch_size)
    chosen = recipe(config)
    update = MetaOptimiser(chosen.method, chosen.optimiser, clip=chosen.clip)
    batch = tasks.meta_batch(0, config.meta_batch)
    chosen.algorithm.meta_step(chosen.method, batch, list(range(len(batch))), update)
    return chosen.method.learner
