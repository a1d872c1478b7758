"""The examples under Lightning and Accelerate learn, and take the very steps that `meta_train` takes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from functools import partial

import pytest
import torch

import warpgrad as wg
from tests.support import ROOT

# Other people's packages warn as they please.
pytestmark = pytest.mark.filterwarnings("ignore")

EXAMPLES = {"lightning_module": ("lightning", "line_task"), "accelerate_loop": ("accelerate", "parabola_task")}


def example(name: str):
    pytest.importorskip(EXAMPLES[name][0], reason="make integrations")
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.HELD_OUT = 5
    return module


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_trainer_takes_the_steps_of_meta_train(name, monkeypatch):
    """Bit by bit: the loop around the arithmetic is another, the arithmetic is not."""
    module = example(name)
    methods = []
    made = wg.Method
    monkeypatch.setattr(wg, "Method", lambda *parts: methods.append(made(*parts)) or methods[-1])
    result = module.main(meta_steps=6)
    assert result["after"] != result["before"]
    (theirs,) = methods
    monkeypatch.undo()
    torch.manual_seed(module.SEED)
    nn = torch.nn
    own = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), wg.Warp(nn.Linear(16, 16)), nn.Tanh(), nn.Linear(16, 1))
    method = wg.Method(wg.Learner(own), module.RULE, wg.Exact(), wg.Leap())
    wg.meta_train(
        method, wg.FunctionFamily(getattr(module, EXAMPLES[name][1])), meta_steps=6, seed=module.SEED,
        algorithm=wg.Online(steps=module.STEPS, tasks=4), optimiser=partial(torch.optim.Adam, lr=1e-2),
    )  # fmt: skip
    found = theirs.learner.module.state_dict()
    assert all(torch.equal(value, found[key]) for key, value in own.state_dict().items())


def test_meta_training_under_a_trainer_helps():
    module = example("lightning_module")
    result = module.main(meta_steps=120)
    assert result["after"] < 0.7 * result["before"]


def test_two_processes_share_the_work_of_a_loop():
    example("accelerate_loop")
    script = (
        "import sys, runpy; sys.path.insert(0, 'examples'); import accelerate_loop as e; e.HELD_OUT = 3; "
        "e.main(meta_steps=3)"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [*command, sys.executable, "-c", script],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("3 new parabolas") == 1
