"""Runs of the alphabets experiment: training, evaluation, resuming, activations."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from experiment_runs import evaluation_of
from omniglot_runs import EXPERIMENT, runs, store, tiny
from warpgrad.adaptation import Adaptation
from warpgrad.data import Alphabets
from warpgrad.errors import WarpgradError
from warpgrad.experiments.base import Execution
from warpgrad.experiments.omniglot import trained
from warpgrad.experiments.omniglot_activations import ActivationRecord, activation_statistics
from warpgrad.experiments.omniglot_config import METHODS, SCRATCH
from warpgrad.experiments.omniglot_evaluation import adapt_and_test
from warpgrad.experiments.omniglot_methods import network, warped_learner
from warpgrad.experiments.runner import execute
from warpgrad.fitting import adapt
from warpgrad.keys import fold
from warpgrad.tasks.alphabets import AlphabetTask

__all__ = ["runs", "store", "tiny"]


def test_every_method_meta_trains_and_is_tested_on_the_same_alphabets(runs, store):
    found = {method: evaluation_of(runs[method]) for method in METHODS}
    for method, evaluation in found.items():
        assert list(evaluation["accuracy"]) == list(found["leap"]["accuracy"]), method
        assert evaluation["tested_at"] == [0, 2, 4]
        assert evaluation["data"] == "drawn"
        assert evaluation["data_sha256"] == store.header.sha256
        assert all(len(curve) == 3 for curve in evaluation["curves"].values())
        summary = json.loads((runs[method] / "summary.json").read_text())
        assert summary["steps"] == (0 if method in SCRATCH else 1)
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
