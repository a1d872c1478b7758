"""A run directory is continued under its own settings alone, and says which one differs."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch

import warpgrad as wg
from tests.support.own_program import FAMILY, flat, own_learner, own_training
from warpgrad.rules import MetaSGD

SGD = torch.optim.SGD


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("settings") / "run"
    own_training(path, clip=1.0, schedule=partial(torch.optim.lr_scheduler.StepLR, step_size=3))
    return path


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algorithm": wg.Online(steps=3, tasks=2)}, "algorithm.steps = 2, not 3"),
        ({"algorithm": wg.Offline(steps=2, tasks=2)}, "algorithm = 'Online', not 'Offline'"),
        ({"objective": wg.Approximate()}, "objective = 'Exact', not 'Approximate'"),
        ({"rule": wg.SGD(0.2)}, "rule.lr = 0.1, not 0.2"),
        ({"rule": wg.SGD(wg.Learned(0.1))}, r"rule.lr = 0.1, not \{'learned': 0.1\}"),
        ({"rule": wg.Clip(wg.SGD(0.1), norm=1.0)}, "rule = 'SGD', not 'Clip'"),
        ({"initialiser": wg.Leap(norm=False)}, "initialiser.norm = True, not False"),
        ({"initialiser": wg.Reptile()}, "initialiser = 'Leap', not 'Reptile'"),
        ({"optimiser": partial(torch.optim.Adam, lr=0.777)}, r"optimiser.phi.lr = 0.01, not 0.777"),
        ({"optimiser": lambda values: torch.optim.Adam(values, lr=0.777)}, r"optimiser.phi.lr = 0.01, not 0.777"),
        ({"optimiser": {"phi": partial(SGD, lr=0.01)}}, "has clip.theta0 = 1.0, not None"),
        ({"clip": 2.0}, "clip.phi = 1.0, not 2.0"),
        ({"schedule": None}, "schedule = 'StepLR', not None"),
        ({"schedule": partial(torch.optim.lr_scheduler.StepLR, step_size=4)}, "schedule.step_size = 3, not 4"),
        ({"weight": 0.5}, "weight = 1.0, not 0.5"),
        ({"seed": 1}, "seed = 0, not 1"),
        ({"learner": own_learner(batch_norm="frozen")}, "learner.batch_norm"),
        ({"learner": own_learner(width=5)}, r"learner.phi = '2 parameters, 20 numbers"),
        ({"learner": own_learner(start={"3": "zero"})}, "learner.start"),
    ],
)
def test_what_differs_is_named(run, options, words):
    given = {"clip": 1.0, "schedule": partial(torch.optim.lr_scheduler.StepLR, step_size=3), **options}
    before = (run / "config.json").read_bytes()
    with pytest.raises(wg.WarpgradError, match=words):
        own_training(run, 3, **given)
    assert (run / "config.json").read_bytes() == before


def test_the_same_settings_written_otherwise_are_the_same(run):
    adam = {group: lambda values: torch.optim.Adam(values, lr=1e-2) for group in ("phi", "theta0", "rule", "prior")}
    algorithm = wg.Online(steps=2, tasks=2, backend="loop")
    schedule = partial(torch.optim.lr_scheduler.StepLR, step_size=3)
    _, records = own_training(run, 2, optimiser=adam, algorithm=algorithm, clip=1.0, schedule=schedule)
    assert len(records) == 2


def test_a_config_of_ones_own_is_kept_beside_them(tmp_path):
    own_training(tmp_path / "run", config={"width": 4, "rule": "mine"})
    kept = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (kept["width"], kept["config.rule"], kept["rule"]) == (4, "mine", "SGD")
    with pytest.raises(wg.WarpgradError, match="has width = 4, not 8"):
        own_training(tmp_path / "run", config={"width": 8, "rule": "mine"})


def test_the_config_of_an_experiment_is_left_as_it_is(tmp_path):
    config = {"experiment": "synthetic", "seed": 0, "meta_steps": 2}
    own_training(tmp_path / "run", config=config)
    kept = json.loads((tmp_path / "run" / "config.json").read_text())
    assert {name: kept[name] for name in config} == config
    assert set(kept) - set(config) <= {"format", "sha256", "checksum"}
    assert not (tmp_path / "run" / "summary.json").exists()


def test_init_from_continues_under_other_settings(run, tmp_path):
    learner = own_learner()
    begin = []
    own_training(
        tmp_path / "next", 1, learner=learner, init_from=run, rule=wg.SGD(wg.Learned(0.3)), objective=wg.Exact(),
        callbacks=[Begin(begin)],
    )  # fmt: skip
    first = own_learner()
    wg.load_run(run, first)
    assert torch.equal(begin[0], flat(first))
    assert not torch.equal(flat(learner), begin[0])
    # The call again goes on with its own run, not with the other one.
    again, records = own_training(tmp_path / "next", 1, init_from=run, rule=wg.SGD(wg.Learned(0.3)))
    assert len(records) == 1
    assert torch.equal(flat(again), flat(learner))
    with pytest.raises(wg.WarpgradError, match=r"init_from = .*, not None"):
        own_training(tmp_path / "next", 2, rule=wg.SGD(wg.Learned(0.3)))


def test_init_from_takes_what_a_rule_has_learned_where_it_fits(tmp_path):
    rule = MetaSGD(0.1)
    own_training(tmp_path / "run", 2, rule=rule)
    method = wg.Method(own_learner(), MetaSGD(0.7), wg.Exact(), wg.Leap())
    seen = []
    wg.meta_train(
        method, FAMILY, algorithm=wg.Online(steps=1, tasks=1), optimiser=partial(SGD, lr=0.0), meta_steps=1,
        init_from=tmp_path / "run", callbacks=[lambda *given: seen.append(dict(method.rule.meta))],
    )  # fmt: skip
    assert all(torch.equal(value, rule.meta[name]) for name, value in seen[0].items())


def test_init_from_another_model_is_refused(run):
    with pytest.raises(wg.WarpgradError, match="belongs to another model"):
        own_training(None, 1, learner=own_learner(width=6), init_from=run)


class Begin(wg.Callback):
    """The parameters that a training begins with."""

    def __init__(self, into):
        self.into = into

    def on_start(self, training):
        self.into.append(flat(training.method.learner))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {"deep": [float("nan")]}])
def test_a_setting_that_no_run_could_go_on_under_is_refused_before_it_begins(tmp_path, value):
    with pytest.raises(wg.WarpgradError, match=r"config\['width'\] is .* cannot be written to config.json"):
        own_training(tmp_path / "run", config={"width": value})
    assert not (tmp_path / "run").exists()
