"""Runs of the alphabets experiment: training, evaluation, resuming, activations."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from tests.support.experiment_runs import evaluation_of
from tests.support.omniglot_runs import EXPERIMENT, runs, store, tiny
from warpgrad.adaptation.adapt import adapt
from warpgrad.adaptation.base import Adaptation
from warpgrad.cli.report import report_command
from warpgrad.data import Alphabets
from warpgrad.data.tasks.alphabets import AlphabetTask
from warpgrad.errors import WarpgradError
from warpgrad.experiments.base import Execution
from warpgrad.experiments.omniglot.config import METHODS, SCRATCH
from warpgrad.experiments.omniglot.evaluation import activation_statistics, adapt_and_test
from warpgrad.experiments.omniglot.experiment import trained
from warpgrad.experiments.runner import execute
from warpgrad.keys import fold
from warpgrad.training.checkpoint import read_checkpoint
from warpgrad.training.run_directory import newest_checkpoint

__all__ = ["runs", "store", "tiny"]


def test_a_report_holds_all_methods_against_the_warp_whatever_the_order_of_the_runs(runs, tmp_path):
    report_command((runs["leap"], runs["sgd"], runs["warp-leap"]), out=tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    # All runs have one preset, so no name repeats it.
    assert "<span>warp-leap is ahead →</span>" in text


def metrics_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_every_method_meta_trains_and_is_tested_on_the_same_alphabets_at_both_batches(runs, store):
    found = {method: evaluation_of(runs[method]) for method in METHODS}
    for method, evaluation in found.items():
        assert evaluation["test_batch"] == [8, 5]
        assert evaluation["tested_at"] == [0, 2, 4]
        assert evaluation["data"] == "drawn"
        assert evaluation["data_sha256"] == store.header.sha256
        assert evaluation["batch_norm"] == "corrected"
        summary = json.loads((runs[method] / "summary.json").read_text())
        assert summary["steps"] == (0 if method in SCRATCH else 1)
        for batch in (8, 5):
            own = evaluation[f"accuracy_{batch}"]
            assert list(own) == list(found["leap"]["accuracy_8"]), method
            assert all(len(curve) == 3 for curve in evaluation["curves"][str(batch)].values())
            assert [curve[-1] for curve in evaluation["curves"][str(batch)].values()] == list(own.values())
            assert summary["metrics"][f"accuracy_{batch}"] == pytest.approx(sum(own.values()) / len(own))
        both = [summary["metrics"][f"accuracy_{batch}"] for batch in (8, 5)]
        assert summary["metrics"]["accuracy"] == pytest.approx(sum(both) / 2)
        assert json.loads((runs[method] / "config.json").read_text())["data"] == str(store.path)
    assert found["warp-leap"]["activations"]["8"]
    assert found["leap"]["activations"] == {"8": {}, "5": {}}


def test_the_numbers_are_those_of_adapt_at_each_batch(tiny, store, runs):
    """Accuracy from the library's own `adapt`; lengths from its definition; area by hand."""
    config = tiny(method="warp-leap")
    evaluation = evaluation_of(runs["warp-leap"])
    learner, rule = trained(config, runs["warp-leap"])
    name = next(iter(evaluation["accuracy_8"]))
    key = fold(config.seed, "held out", name)
    for batch in (8, 5):
        task = AlphabetTask(Alphabets(store, 0, config.protocol)[name], batch_size=batch, seed=key)
        _, curve = adapt(learner, task, rule=rule, steps=4, key=key, curve=True, test_every=2)
        scores = [100 * score["accuracy"] for score in curve.scores]
        assert evaluation["curves"][str(batch)][name] == pytest.approx(scores)
        assert evaluation[f"auc_{batch}"][name] == pytest.approx((scores[0] + 2 * scores[1] + scores[2]) / 4)
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
        length = sum(square**0.5 for square in squares)
        assert evaluation[f"length_{batch}"][name] == pytest.approx(length, rel=1e-5)
        with_loss = sum((squares[k] + (losses[k + 1] - losses[k]) ** 2) ** 0.5 for k in range(4))
        assert evaluation[f"length_with_loss_{batch}"][name] == pytest.approx(with_loss, rel=1e-5)
    assert adapt_and_test(adaptation, 4, 4).tested_at == [0, 4]


def test_sgd_and_kfac_take_four_times_the_batch_of_the_column(tiny, store, runs):
    config = tiny(method="sgd")
    learner, rule = trained(config, runs["sgd"])
    name, found = next(iter(evaluation_of(runs["sgd"])["curves"]["5"].items()))
    key = fold(config.seed, "held out", name)
    task = AlphabetTask(Alphabets(store, 0, config.protocol)[name], batch_size=20, seed=key)
    _, curve = adapt(learner, task, rule=rule, steps=4, key=key, curve=True, test_every=2)
    assert found == pytest.approx([100 * score["accuracy"] for score in curve.scores])


# Validation.


def test_validation_alphabets_are_others_and_too_few_are_refused(tiny, runs, tmp_path):
    result = EXPERIMENT.evaluate(tiny(method="leap", split="validation"), runs["leap"])
    assert result["split"] == "validation"
    assert len(result["accuracy_8"]) == 1
    assert not set(result["accuracy_8"]) & set(evaluation_of(runs["leap"])["accuracy_8"])
    with pytest.raises(WarpgradError, match="leaves none for validation"):
        EXPERIMENT.evaluate(tiny(method="sgd", tasks=4, split="validation"), runs["sgd"])
    with pytest.raises(WarpgradError, match=r"leaves none for validation.*validate-every 0"):
        EXPERIMENT.train(tiny(method="leap", tasks=4), Execution(tmp_path / "none", progress=False))
    with pytest.raises(WarpgradError, match="leaves 2 for validation, but validation_tasks=3"):
        EXPERIMENT.train(tiny(method="leap", validation_tasks=3), Execution(tmp_path / "few", progress=False))
    EXPERIMENT.train(tiny(method="leap", tasks=4, validate_every=0), Execution(tmp_path / "off", progress=False))


@pytest.mark.parametrize("method", ["warp-leap", "finetuning"])
def test_scores_on_the_way_are_those_of_a_test_on_the_same_alphabets(tiny, runs, method):
    """At every test batch: accuracy, AUC and loss of the weights as they are after that meta-step."""
    (line,) = metrics_of(runs[method])
    tested = EXPERIMENT.evaluate(tiny(method=method, split="validation"), runs[method])["metrics"]
    scores = {name.removeprefix("validation/"): value for name, value in line.items() if "validation/" in name}
    expected = {f"{name}_{batch}" for name in ("accuracy", "auc", "loss") for batch in (8, 5)} | {"accuracy", "auc"}
    assert set(scores) == expected
    assert scores == pytest.approx({name: tested[name] for name in expected})


@pytest.mark.parametrize("method", ["warp-leap", "finetuning"])
def test_validation_changes_no_byte_of_what_is_learned(tiny, tmp_path, method):
    found = []
    for validate_every in (0, 1):
        config = tiny(method=method, meta_steps=2, validate_every=validate_every)
        directory = tmp_path / str(validate_every)
        EXPERIMENT.train(config, Execution(directory, progress=False))
        found.append(trained(config, directory)[0].module.state_dict())
        assert any("validation/accuracy_8" in line for line in metrics_of(directory)) == bool(validate_every)
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


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


def test_a_cosine_schedule_ends_at_zero_and_such_a_run_is_not_carried_on(tiny, tmp_path):
    config = tiny(meta_steps=2, meta_schedule="cosine", theta0_lr=0.1)
    EXPERIMENT.train(config, Execution(tmp_path, progress=False))
    state = read_checkpoint(newest_checkpoint(tmp_path), torch.device("cpu"))
    rates = {group: item["param_groups"][0]["lr"] for group, item in state["update"]["optimisers"].items()}
    assert rates == pytest.approx({"phi": 0.0, "theta0": 0.0})
    with pytest.raises(WarpgradError, match="its schedule ends there"):
        EXPERIMENT.train(dataclasses.replace(config, meta_steps=3), Execution(tmp_path, progress=False))


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


def test_activations_are_those_of_the_adapted_batch_by_step_and_layer(tiny, store, runs):
    """θ_k on batch k with batch statistics, for every test after the first; kept for each step, averaged over tasks."""
    config = tiny(method="warp-leap")
    learner, rule = trained(config, runs["warp-leap"])
    alphabets = Alphabets(store, 0, config.protocol)
    names = alphabets.split(config.tasks).test
    expected = []
    for name in names:
        key = fold(config.seed, "held out", name)
        task = AlphabetTask(alphabets[name], batch_size=5, seed=key)
        adaptation = Adaptation(learner, rule, task, key)
        point = adaptation.start()
        for _ in range(2):
            point = adaptation.step(point).after
        forward = learner.bind(point.theta, point.buffers)
        found = {}
        layer = learner.module.get_submodule("warp2")
        handle = layer.register_forward_hook(lambda _, inputs, output, found=found: found.update(i=inputs[0], o=output))
        forward(task.adapt_batch(2)[0])
        handle.remove()
        expected.append([*activation_statistics(found["i"]), *activation_statistics(found["o"])])
    kept = evaluation_of(runs["warp-leap"])["activations"]["5"]
    assert kept["steps"] == [2, 4]
    assert {name: (len(rows), len(rows[0])) for name, rows in kept.items() if name != "steps"} == dict.fromkeys(
        ("mean_before", "distance_before", "mean_after", "distance_after"), (2, 4)
    )
    at_step_2 = [kept[name][0][1] for name in ("mean_before", "distance_before", "mean_after", "distance_after")]
    assert at_step_2 == pytest.approx(torch.tensor(expected).mean(dim=0).tolist(), rel=1e-4)


def test_sizes_of_activations_at_the_start_are_measured_and_kept(tiny, runs):
    warped = evaluation_of(runs["warp-leap"])["sizes_at_start"]
    assert len(warped["before"]) == 4
    assert warped["after"] == pytest.approx(warped["before"], rel=2e-3)
    assert warped["head"] == pytest.approx(warped["after"][-1])
    plain = evaluation_of(runs["leap"])["sizes_at_start"]
    assert (plain["before"], plain["after"]) == ([], [])
    assert plain["head"] > 0


@pytest.mark.slow
@pytest.mark.real_data
def test_a_meta_step_on_real_omniglot(tmp_path):
    """The published archives through `data prepare`, 46 alphabets, and one meta-step of each kind of method."""
    import os

    from warpgrad.cli.main import dispatch

    if not os.environ.get("WARPGRAD_DATA"):
        pytest.skip("WARPGRAD_DATA names no folder with Omniglot's archives")
    dispatch(["data", "prepare", "omniglot", "--out", str(tmp_path / "omniglot")])
    sizes = {"filters": 8, "batch_size": 8, "meta_batch": 2, "steps": 3, "meta_steps": 1, "test_steps": 3}
    for method in ("warp-leap", "finetuning", "kfac"):
        config = EXPERIMENT.config("small", method=method, data=str(tmp_path / "omniglot"), **sizes)
        execute(EXPERIMENT, config, Execution(tmp_path / method, progress=False))
        evaluation = evaluation_of(tmp_path / method)
        assert evaluation["data"] == "omniglot"
        assert len(evaluation["accuracy_128"]) == len(evaluation["accuracy_20"]) == 10
