"""A small run for the tests that kill it: `python training_job.py RUN META_STEPS [CHECKPOINT_SECONDS]`."""

from __future__ import annotations

import sys
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

import warpgrad as wg
from warpgrad.keys import generator


def wave(seed: int) -> wg.SupervisedTask:
    draw = generator(seed, "wave")
    x = 4 * torch.rand(20, 1, generator=draw) - 2
    return wg.SupervisedTask(x, torch.sin(x + seed % 7), F.mse_loss, batch_size=5, seed=seed, test=(x, torch.sin(x)))


def score(learner: wg.Learner) -> dict[str, float]:
    _, curve = wg.adapt(learner, wave(3), rule=wg.SGD(0.05), steps=2, curve=True)
    return curve.scores[-1]


def train(run: str | None, meta_steps: int, *, checkpoint_seconds: float = 0.0, **options) -> tuple[wg.Learner, list]:
    """Every part that has a state of its own: dropout, momentum, a learned α, a prior, Adam, a schedule, validation."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    learner = wg.Learner(
        nn.Sequential(nn.Linear(1, 16), wg.Warp(nn.Linear(16, 16)), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
    )
    records = wg.meta_train(
        learner,
        wg.FunctionFamily(wave),
        algorithm=wg.Offline(steps=3, tasks=2, samples=2),
        rule=wg.SGD(wg.Learned(0.05), momentum=0.9),
        objective=wg.Exact(),
        initialiser=wg.GaussianPrior(wg.Leap(), std=0.1),
        optimiser=partial(torch.optim.Adam, lr=1e-3),
        schedule=partial(torch.optim.lr_scheduler.StepLR, step_size=4, gamma=0.5),
        validate=score,
        validate_every=2,
        early_stopping=wg.EarlyStopping("loss", patience=1000),
        meta_steps=meta_steps,
        run=run,
        checkpoint_seconds=checkpoint_seconds,
        **options,
    )
    return learner, records


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), checkpoint_seconds=float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)
