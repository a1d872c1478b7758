"""The public surface does not change by accident, and every public name is shown at work."""

import doctest
import inspect
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import warpgrad as wg
from tests.support.surface import SNAPSHOT, described, public_names, snapshot
from warpgrad import analysis, baselines, layers, objectives, rules, tasks, training
from warpgrad.adaptation import META_BATCH, Role, Trajectory

ROOT = Path(__file__).parents[2]


def test_the_surface_is_the_one_on_record():
    """If the change is meant: python -m tests.support.surface, and a line in CHANGELOG.md."""
    assert snapshot() == SNAPSHOT.read_text()


def test_every_exported_name_is_there_and_sorted_out_once():
    names = [name for package, name, _ in public_names() if package == "warpgrad"]
    assert len(names) == len(set(names)) > 50
    assert set(names) <= set(dir(wg))
    meanings = {}
    for package, name, value in public_names():
        if package == "warpgrad.zoo":  # `wg.zoo.load` is never written without its package
            continue
        assert meanings.setdefault(name, value) is value, f"{package}.{name} has two meanings"


@pytest.fixture
def shown(tmp_path):
    """What the examples may speak of beside the library: a small model, a task and its family, a method."""
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), wg.Warp(nn.Linear(4, 4)), nn.Linear(4, 1))
    x = torch.linspace(-1, 1, 16).reshape(8, 2)
    y = x.sum(dim=1, keepdim=True)
    task = wg.SupervisedTask(x, y, F.mse_loss, test=(x, y))
    learner = wg.Learner(model)
    adaptation = wg.Adaptation(learner, wg.SGD(0.1), task, key=0)
    return {
        "torch": torch, "nn": nn, "F": F, "wg": wg, "Trajectory": Trajectory, "META_BATCH": META_BATCH, "Role": Role,
        "layers": layers, "rules": rules,
        "tasks": tasks, "objectives": objectives, "training": training, "analysis": analysis, "baselines": baselines,
        "model": model, "learner": learner, "x": x, "y": y, "task": task, "family": wg.TaskList([task, task]),
        "method": wg.Method(learner, wg.SGD(0.1), wg.Exact(), wg.Leap()), "adaptation": adaptation,
        "start": adaptation.start(), "adam": partial(torch.optim.Adam, lr=1e-2), "folder": tmp_path,
        "ignore": lambda group, gradient: None,
    }  # fmt: skip


@pytest.mark.parametrize("path", sorted(described()))
def test_public_name_has_a_docstring_whose_example_runs(path, shown):
    text = inspect.getdoc(described()[path]) or ""
    _, found, example = text.partition("Example:\n")
    assert found, f"{path} has no 'Example:' in its docstring"
    test = doctest.DocTestParser().get_doctest(example, shown, path, None, None)
    assert 1 <= len(test.examples) <= 5
    said = []
    result = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(test, out=said.append)
    assert result.failed == 0, "".join(said)


@pytest.mark.slow
def test_types_are_those_a_user_relies_on():
    """`tests/public/typed_api.py` holds `assert_type`s; mypy says whether they are true, and none is silenced."""
    checked = ROOT / "tests" / "public" / "typed_api.py"
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", str(checked)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
