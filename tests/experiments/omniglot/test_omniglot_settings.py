"""The alphabets experiment: presets, what is refused, and which data are used."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import warpgrad.data
import warpgrad.experiments.omniglot.methods as places
from tests.data.tasks.test_alphabets import tiny_store
from tests.support.omniglot_runs import EXPERIMENT, store, tiny
from warpgrad.algorithms import Offline
from warpgrad.data.prepared import data_name
from warpgrad.errors import WarpgradError
from warpgrad.experiments.omniglot.config import METHODS, SCRATCH
from warpgrad.experiments.omniglot.methods import recipe, warped_learner

__all__ = ["store", "tiny"]


def test_the_paper_preset_is_the_papers():
    """Field by field: App. E, and where it is silent the settings of the programs published with it."""
    expected = {
        "preset": "paper", "method": "warp-leap", "seed": 0, "device": "cpu", "data": None,
        "tasks": 25, "held_out": 10, "characters": 20, "train_drawings": 15, "test_drawings": 5,
        "filters": 64, "batch_size": 128, "meta_batch": 20, "meta_drawings": 0,
        "steps": 100, "maml_steps": 5, "inner_lr": 0.1, "momentum": 0.0,
        "learned_alpha": False, "alpha_lr": 0.001, "alpha_clip": 0.001,
        "warp": "conv3x3", "warp_init": "own", "theta0": "learned",
        "objective": "exact", "algorithm": "offline", "reduction": "mean", "samples": 1, "share": 1.0,
        "meta_optimiser": "sgd", "meta_lr": 0.1, "theta0_lr": None, "meta_schedule": "constant",
        "averaged_steps": False, "meta_steps": 1000, "validate_every": 20, "validation_tasks": 3,
        "scratch_batch": 4, "scratch_lr": 10.0,
        "kfac_damping": 0.03, "kfac_clip": 0.1, "kfac_fisher": "sampled",
        "kfac_estimate_every": 1, "kfac_invert_every": 5,
        "split": "test", "batch_norm": "corrected", "test_batch": (128, 20), "test_steps": 100, "test_every": 5,
    }  # fmt: skip
    assert dataclasses.asdict(EXPERIMENT.presets["paper"]) == expected
    rates = {method: EXPERIMENT.config("paper", method=method, data="drawn").outer_lr for method in METHODS}
    assert {method for method, rate in rates.items() if rate == 0.5} == {"maml", "fomaml"}
    assert set(rates.values()) == {0.1, 0.5}
    for method in METHODS:
        config = EXPERIMENT.config("paper", method=method, data="drawn")
        scratch = method in SCRATCH
        assert (config.drawings_at(128), config.drawings_at(20)) == ((512, 80) if scratch else (128, 20))
        assert config.test_lr == (1.0 if scratch else 0.1)


def test_the_shorter_presets_keep_the_protocol_and_test_at_both_batches():
    paper, medium, small = (dataclasses.asdict(EXPERIMENT.presets[name]) for name in ("paper", "medium", "small"))
    changed = {name for name in paper if paper[name] != medium[name]}
    assert changed == {"preset", "batch_size", "meta_batch", "share", "warp_init", "meta_steps"}
    assert (medium["filters"], medium["batch_size"], medium["meta_batch"], medium["share"]) == (64, 20, 5, 0.2)
    assert {name for name in paper if medium[name] != small[name]} == {"preset", "filters", "meta_steps"}
    assert (small["filters"], small["meta_steps"], small["warp_init"]) == (32, 40, "scaled")
    assert EXPERIMENT.presets["demo"].test_batch == (20,)
    assert EXPERIMENT.presets["demo"].warp_init == "scaled"


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
    assert learner.batch_norm == "corrected"
    offline = recipe(config).algorithm
    assert isinstance(offline, Offline)
    assert (offline.steps, offline.tasks, offline.samples, offline.interleave) == (100, 20, 1, False)
    assert (offline.share, offline.reduction) == (1.0, "mean")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tasks": 0}, "tasks=0"),
        ({"meta_lr": 0.0}, "meta_lr=0"),
        ({"theta0_lr": -1.0}, "theta0_lr=-1"),
        ({"warp": "conv5x5"}, "warp='conv5x5'"),
        ({"method": "adam"}, "no method 'adam'"),
        ({"method": "leap", "learned_alpha": True}, "does not learn α"),
        ({"method": "reptile", "theta0": "random"}, "theta0 cannot be random"),
        ({"method": "kfac", "momentum": 0.9}, "kfac has no momentum"),
        ({"share": 0.0}, "share=0.0"),
        ({"algorithm": "online"}, "share=0.2: Algorithm 1 replays nothing"),
        ({"test_batch": ()}, r"test_batch=\(\)"),
        ({"test_batch": (20, 20)}, "each once"),
        ({"validation_tasks": 0}, "validation_tasks=0"),
        ({"validate_every": -1}, "validate_every=-1"),
        ({"averaged_steps": True}, "warp-leap does not use averaged_steps, a setting of finetuning"),
        ({"method": "leap", "share": 0.5}, "leap does not use share"),
        ({"method": "reptile", "warp_init": "own"}, "reptile does not use warp_init"),
        ({"warp": "conv3x3+relu", "warp_init": "identity"}, "ReLU cannot be made the identity map"),
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
    assert data_name(places.open_data("omniglot")) == "drawn"
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

    monkeypatch.setattr(warpgrad.data, "prepare_drawn", prepare)
    first, second = places.open_data("drawn"), places.open_data("drawn")
    assert drawn == [Path("data/drawn")]
    assert first.header == second.header
    assert "drawing alphabets into data/drawn" in capsys.readouterr().err


def test_who_loses_the_race_to_draw_takes_what_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WARPGRAD_DATA", raising=False)

    def another_was_first(destination):
        tiny_store(tmp_path)
        destination.parent.mkdir(exist_ok=True)
        (tmp_path / "alphabets").rename(destination)
        raise WarpgradError("already exists")

    def refused(destination):
        raise WarpgradError("the disk is full")

    monkeypatch.setattr(warpgrad.data, "prepare_drawn", refused)
    with pytest.raises(WarpgradError, match="the disk is full"):
        places.open_data("drawn")
    monkeypatch.setattr(warpgrad.data, "prepare_drawn", another_was_first)
    assert data_name(places.open_data("drawn")) == "drawn"
