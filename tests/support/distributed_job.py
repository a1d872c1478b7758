"""What the tests of several processes run in each of them: `python distributed_job.py JOB PLACE`."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import warpgrad as wg
from tests.support.problems import JudgedStart, conv_batch_norm, make_task, mlp
from warpgrad.algorithms.method import weights
from warpgrad.baselines import HeadedTask, JointTraining, MultiHeaded
from warpgrad.tasks.base import TaskFamily
from warpgrad.training import checkpoint, distributed
from warpgrad.training.distributed import leave
from warpgrad.training.run_directory import TIMES

RANK = int(os.environ.get("RANK", "0"))
INITIALISERS = {
    "leap": wg.Leap,
    "reptile": wg.Reptile,
    "fixed": wg.Fixed,
    "prior": lambda: wg.GaussianPrior(wg.Leap(), std=0.1),
    "multi-task": wg.MultiTask,
}


LAST = {"include_last": True}

# name -> (model, algorithm, objective, initialiser)
CASES = {
    f"{name}, {tasks} tasks": (make, partial(algorithm, tasks=tasks), objective, initialiser)
    for tasks in (3, 1)
    for name, make, algorithm, objective, initialiser in [
        ("online", mlp, partial(wg.Online, steps=3), wg.Exact, "leap"),
        ("loop, sum", mlp, partial(wg.Online, steps=3, backend="loop", reduction="sum"), wg.Approximate, "prior"),
        ("online, statistics, last", conv_batch_norm, partial(wg.Online, steps=2, **LAST), JudgedStart, "leap"),
        ("reptile", mlp, partial(wg.Online, steps=3), None, "reptile"),
        ("offline, η = 1", mlp, partial(wg.Offline, steps=3, samples=1), wg.Exact, "leap"),
        ("offline, η = 2", mlp, partial(wg.Offline, steps=3, samples=2), wg.Exact, "leap"),
        ("offline, η = 3", mlp, partial(wg.Offline, steps=3, samples=3, include_last=True), wg.Exact, "fixed"),
        ("offline, all", mlp, partial(wg.Offline, steps=3, samples=None), wg.Exact, "leap"),
        ("offline, share", mlp, partial(wg.Offline, steps=4, samples=2, share=0.3), wg.Exact, "leap"),
        ("offline, interleaved", mlp, partial(wg.Offline, steps=3, samples=2, interleave=True), wg.Exact, "prior"),
        ("offline, θ0 alone", mlp, partial(wg.Offline, steps=3, samples=None), None, "leap"),
        ("continual", mlp, partial(wg.Continual, batches=2), wg.InPlace, "multi-task"),
        ("unrolled", mlp, partial(wg.Unrolled, steps=2), None, "fixed"),
        ("joint training", None, partial(JointTraining, steps=2), None, "fixed"),
        ("joint training, averaged", None, partial(JointTraining, steps=2, averaged=True), None, "fixed"),
    ]
}  # fmt: skip


class Headed(TaskFamily):
    """Three tasks with a head each."""

    def sample(self, seed: int) -> HeadedTask:
        raise NotImplementedError

    def meta_batch(self, seed: int, size: int) -> list[wg.Task]:
        return [HeadedTask(make_task(mlp, seed % 1000 + place), (seed + place) % 3) for place in range(size)]


def score(learner: wg.Learner) -> dict[str, float]:
    """A validation that no rank but the first may do."""
    assert RANK == 0
    return {"size": sum(float(value.detach().square().sum()) for value in learner.theta0.values())}


def one_case(name: str) -> dict:
    """Three meta-steps; what every rank ends with."""
    make, algorithm, objective, initialiser = CASES[name]
    torch.manual_seed(RANK)  # only rank 0's weights count
    if make is None:
        module = MultiHeaded(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), [nn.Linear(4, 2) for _ in range(3)]).double()
        learner, tasks = wg.Learner(module, warp=(), allow_unused=True), Headed()
    else:
        # Where θ0 alone is learned, nothing may be left as a warp that would not be.
        alone = objective is None and not isinstance(algorithm(), wg.Unrolled)
        learner = wg.Learner(make(), warp=() if alone else None)
        tasks = wg.FunctionFamily(partial(make_task, make))
    exact = objective is wg.Exact
    rule = wg.SGD(wg.Learned(0.1) if exact else 0.1, momentum=0.5)
    given = INITIALISERS[initialiser]()
    records = wg.meta_train(
        learner, tasks, algorithm=algorithm(), rule=rule, objective=objective and objective(), initialiser=given,
        weight=0.3, optimiser=partial(torch.optim.SGD, lr=0.1, momentum=0.9), clip=1.0, meta_steps=3,
        validate=score, validate_every=2,
    )  # fmt: skip
    method = wg.Method(learner, rule, None, given)
    return {
        "weights": checkpoint.cloned(weights(method)),
        "records": [{name: value for name, value in record.items() if name not in TIMES} for record in records],
    }


def equality(place: Path) -> None:
    distributed.PARCELS_AT_ONCE = 1  # as if there were more parcels than can be under way at a time
    checkpoint.write_checkpoint(place / f"rank{RANK}.safetensors", {name: one_case(name) for name in CASES})


class Rotting(wg.FunctionFamily):
    """One of the tasks of the third meta-step is beyond repair: the last, which is not rank 0's."""

    calls = 0

    def meta_batch(self, seed: int, size: int) -> list[wg.Task]:
        self.calls += 1
        batch = super().meta_batch(seed, size)
        if self.calls == 3:
            batch[-1] = wg.SupervisedTask(torch.ones(4, 3).double(), torch.full((4, 2), 1e400).double(), F.mse_loss)
            batch[-1].name = "rotten"
        return batch


class Deadly(wg.FunctionFamily):
    """In the meta-step and on the rank of DIE (`RANK:STEP`), the process is killed or falls silent; once only."""

    calls = 0

    def meta_batch(self, seed: int, size: int) -> list[wg.Task]:
        rank, step, how = os.environ.get("DIE", "-1:0:kill").split(":")
        if (int(rank), int(step)) == (RANK, self.calls) and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(3600)
        self.calls += 1
        return super().meta_batch(seed, size)


def run(place: Path, family: type[wg.FunctionFamily], meta_steps: int = 6, **options) -> None:
    torch.manual_seed(0)
    wg.meta_train(
        wg.Learner(mlp()), family(partial(make_task, mlp)), algorithm=wg.Offline(steps=2, tasks=3, samples=2),
        rule=wg.SGD(wg.Learned(0.1)), objective=wg.Exact(), initialiser=wg.Leap(),
        optimiser=partial(torch.optim.Adam, lr=0.01), meta_steps=meta_steps, run=place / "run", **options,
    )  # fmt: skip


JOBS = {
    "equality": equality,
    "rotten": partial(run, family=Rotting, checkpoint_seconds=3600),
    "deadly": partial(run, family=Deadly, checkpoint_seconds=0.0),
    "stream": partial(run, family=wg.FunctionFamily, meta_steps=1_000_000, checkpoint_seconds=3600),
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        JOBS[sys.argv[1]](Path(sys.argv[2]))
    except wg.WarpgradError as complaint:
        print(f"warpgrad: {complaint}", file=sys.stderr)
        leave(2)
    leave(0)
