"""A method is saved and loaded: in a fresh process, on another device, after a change of version."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

import pytest
import torch

import warpgrad as wg
from tests.support import ROOT
from tests.support.own_program import FAMILY, flat, line, own_learner, own_training
from warpgrad.rules import MaskedSGD, MetaCurvature, MetaSGD
from warpgrad.training import checkpoint
from warpgrad.training.parts import described, rebuilt

OPTIMISER = partial(torch.optim.Adam, lr=1e-2)
ONLINE = wg.Online(steps=2, tasks=2)

RULES = {
    "plain": lambda: wg.SGD(0.1, momentum=0.9, nesterov=True),
    "learned": lambda: wg.SGD(wg.Learned(0.1)),
    "adam": lambda: wg.Adam(wg.Learned(0.05), betas=(0.8, 0.99), eps=1e-3),
    "clipped": lambda: wg.Clip(wg.SGD(wg.Learned(0.1)), norm=2.0),
    "meta-sgd": lambda: MetaSGD(0.1),
    "meta-curvature": lambda: MetaCurvature(0.1),
}
INITIALISERS = {
    "leap": lambda: wg.Leap(norm=False),
    "prior": lambda: wg.GaussianPrior(wg.Reptile(), std=0.05),
    "fixed": wg.Fixed,
}


def scores(method: wg.Method) -> dict[str, float]:
    return wg.score(method.learner, [line(3)], rule=method.rule, steps=3)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("initialiser", INITIALISERS)
def test_what_is_loaded_adapts_and_trains_on_like_what_was_saved(tmp_path, rule, initialiser):
    method = wg.Method(own_learner(), RULES[rule](), wg.Exact(), INITIALISERS[initialiser](), weight=0.5)
    wg.meta_train(method, FAMILY, algorithm=ONLINE, optimiser=OPTIMISER, meta_steps=2)
    wg.save(tmp_path / "warp.safetensors", method)
    other = own_learner()
    with torch.no_grad():
        for value in other.module.parameters():
            value.zero_()
    loaded = wg.load(tmp_path / "warp.safetensors", other)
    assert torch.equal(flat(loaded.learner), flat(method.learner))
    assert (type(loaded.rule), type(loaded.objective), type(loaded.initialiser), loaded.weight) == (
        type(method.rule), type(method.objective), type(method.initialiser), 0.5,
    )  # fmt: skip
    for mine, saved in ((loaded.rule.meta, method.rule.meta), (loaded.initialiser.meta, method.initialiser.meta)):
        assert mine.keys() == saved.keys()
        assert all(torch.equal(mine[name], saved[name]) and mine[name].requires_grad for name in mine)
    assert scores(loaded) == scores(method)
    for one in (method, loaded):
        wg.meta_train(one, FAMILY, algorithm=ONLINE, optimiser=OPTIMISER, meta_steps=1, seed=5)
    assert torch.equal(flat(loaded.learner), flat(method.learner))


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
import pickle
pickle.Unpickler = pickle.loads = pickle.load = None  # nothing is unpickled
import warpgrad as wg
from tests.support.own_program import line, own_learner
method = {load}
print(repr(wg.score(method.learner, [line(3)], rule=method.rule, steps=3)["loss"]), method.rule.meta["lr"].item())
"""


@pytest.mark.parametrize("what", ["file", "run"])
def test_a_fresh_process_gets_the_same_numbers(tmp_path, what):
    method = wg.Method(own_learner(), wg.SGD(wg.Learned(0.1)), wg.Exact(), wg.Leap())
    wg.meta_train(method, FAMILY, algorithm=ONLINE, optimiser=OPTIMISER, meta_steps=2, run=tmp_path / "run")
    wg.save(tmp_path / "warp.safetensors", method)
    name = {"file": "warp.safetensors", "run": "run"}[what]
    load = f"wg.{'load' if what == 'file' else 'load_run'}({str(tmp_path / name)!r}, own_learner())"
    command = [sys.executable, "-c", SCRIPT.format(root=str(ROOT), load=load)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loss, lr = done.stdout.split()
    assert float(loss) == scores(method)["loss"]
    assert float(lr) == method.rule.meta["lr"].item() != 0.1


def test_a_run_gives_its_best_weights(tmp_path):
    left, seen = iter([3.0, 1.0, 2.0]), []

    def validate(learner):
        seen.append(flat(learner))
        return {"loss": next(left)}

    own_training(
        tmp_path / "run", 3, validate=validate, early_stopping=wg.EarlyStopping("loss", patience=9),
        rule=wg.SGD(wg.Learned(0.1)),
    )  # fmt: skip
    method = wg.load_run(tmp_path / "run", own_learner())
    assert torch.equal(flat(method.learner), seen[1])


def test_a_rule_of_ones_own_is_passed_by_whoever_loads(tmp_path):
    class Halving(wg.SGD):
        """A rule that this library does not know."""

    method = wg.Method(own_learner(), Halving(wg.Learned(0.3)), wg.Exact())
    wg.save(tmp_path / "warp.safetensors", method)
    with pytest.raises(wg.WarpgradError, match=r"the rule is Halving, .* pass rule=Halving\(...\)"):
        wg.load(tmp_path / "warp.safetensors", own_learner())
    loaded = wg.load(tmp_path / "warp.safetensors", own_learner(), rule=Halving(wg.Learned(0.1)))
    assert loaded.rule.meta["lr"].item() == pytest.approx(0.3)


@pytest.mark.parametrize(
    "rule",
    [MaskedSGD(0.1, {"w": "noise"}, temperature=0.7), wg.Clip(wg.SGD(0.1), value=0.5), wg.Adam(wg.Learned(0.1))],
    ids=lambda rule: type(rule).__name__,
)
def test_a_description_builds_the_same_part_again(rule):
    description = json.loads(json.dumps(described(rule)))
    again = rebuilt(description, wg.Rule, "rule")
    assert described(again) == described(rule)
    assert again.meta.keys() == rule.meta.keys()


def test_damage_another_model_and_other_versions_are_named(tmp_path):
    path = tmp_path / "warp.safetensors"
    method = wg.Method(own_learner(), wg.SGD(0.1), wg.Exact())
    wg.save(path, method)
    with pytest.raises(wg.WarpgradError, match="belongs to another model"):
        wg.load(path, own_learner(width=6))
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + b"\0\1\2")
    with pytest.raises(wg.WarpgradError, match="is damaged"):
        wg.load(path, own_learner())
    state = {"version": "9.9", "weights": {}, "parts": {
        "rule": {"class": "Lion", "arguments": {}}, "objective": None, "weight": 1.0,
        "initialiser": {"class": "Fixed", "arguments": {}},
    }}  # fmt: skip
    checkpoint.write_checkpoint(path, state)
    with pytest.raises(
        wg.WarpgradError, match=r"written by warpgrad 9.9 and read by .*: the rule is Lion, which is not"
    ):
        wg.load(path, own_learner())
    state["parts"]["rule"] = {"class": "SGD", "arguments": {"lr": 0.1, "colour": "red"}}
    checkpoint.write_checkpoint(path, state)
    with pytest.raises(wg.WarpgradError, match=r"the rule SGD\(lr, colour\) cannot be built in this version"):
        wg.load(path, own_learner())
    state["parts"]["rule"] = {"class": "Fixed", "arguments": {}}
    checkpoint.write_checkpoint(path, state)
    with pytest.raises(wg.WarpgradError, match="the rule is Fixed, which is not"):
        wg.load(path, own_learner())
    checkpoint.write_checkpoint(path, {"weights": {}})
    with pytest.raises(wg.WarpgradError, match="does not record the parts of the method; pass rule="):
        wg.load(path, own_learner())
    with pytest.raises(wg.WarpgradError, match="is not a run directory"):
        wg.load_run(tmp_path, own_learner())
    with pytest.raises(wg.WarpgradError, match="does not exist"):
        wg.load(tmp_path / "nothing", own_learner())


def test_tensors_come_to_the_learners_device(tmp_path, monkeypatch):
    """No accelerator is here: what is asked of the file is what counts."""
    wg.save(tmp_path / "warp.safetensors", wg.Method(own_learner(), MetaSGD(0.1), wg.Exact()))
    asked, read = [], checkpoint.read_checkpoint
    monkeypatch.setattr(checkpoint, "read_checkpoint", lambda path, device: asked.append(str(device)) or read(path))
    monkeypatch.setattr(wg.Learner, "device", property(lambda self: torch.device("cuda:3")))
    wg.load(tmp_path / "warp.safetensors", own_learner())
    assert asked == ["cuda:3"]
