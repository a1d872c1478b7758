"""A user's own program in small: model, tasks, and a training with all parts given as keywords."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import warpgrad as wg
from warpgrad.keys import generator


def line(seed: int) -> wg.SupervisedTask:
    """y = a x with a slope of its own."""
    x = torch.rand(8, 1, generator=generator(seed, "line"))
    y = (seed % 5 - 2) * x
    return wg.SupervisedTask(x, y, F.mse_loss, test=(x, y), seed=seed)


FAMILY = wg.FunctionFamily(line)


def own_learner(width: int = 4, **options: Any) -> wg.Learner:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(1, width), nn.Tanh(), wg.Warp(nn.Linear(width, width)), nn.Linear(width, 1))
    return wg.Learner(module, **options)


def own_training(run=None, meta_steps: int = 2, *, learner: wg.Learner | None = None, **options: Any):
    """(learner, records) of `meta_train`; any keyword in place of the usual one."""
    learner = learner or own_learner()
    given = {
        "algorithm": wg.Online(steps=2, tasks=2),
        "rule": wg.SGD(0.1),
        "objective": wg.Exact(),
        "initialiser": wg.Leap(),
        "optimiser": partial(torch.optim.Adam, lr=1e-2),
        **options,
    }
    return learner, wg.meta_train(learner, FAMILY, meta_steps=meta_steps, run=run, **given)


def flat(learner: wg.Learner) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in learner.module.parameters()])
