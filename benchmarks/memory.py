"""Row memory: peak resident memory of one meta-step against K, each figure from a separate process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.fresh_process import peak_memory
from warpgrad.algorithms import Algorithm, Offline, Online, Unrolled
from warpgrad.algorithms.meta_optimiser import MetaOptimiser
from warpgrad.algorithms.method import Method
from warpgrad.keys import generator
from warpgrad.model.learner import Learner
from warpgrad.model.partition import Warp
from warpgrad.objectives import Exact
from warpgrad.rules import SGD
from warpgrad.tasks.supervised import SupervisedTask

T = TypeVar("T", bound=SupervisedTask)

WIDTH = 500

METHODS: Mapping[str, Callable[[int], Algorithm]] = MappingProxyType(
    {
        "online": lambda steps: Online(steps=steps, tasks=1),
        "offline": lambda steps: Offline(steps=steps, tasks=1),
        "maml": lambda steps: Unrolled(steps=steps, tasks=1),
    }
)
STEPS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"online": (10, 40, 160, 640), "offline": (10, 40, 160), "maml": (10, 20, 40, 80)}
)
QUICK_STEPS: Mapping[str, tuple[int, ...]] = MappingProxyType({"online": (2, 4), "offline": (2, 4), "maml": (2, 4)})


@dataclass(frozen=True)
class Peak:
    """The peak bytes of a meta-step of K steps, and the bytes of one θ."""

    method: str
    steps: int
    peak: int
    theta: int

    def record(self) -> dict[str, Any]:
        return {"method": self.method, "steps": self.steps, "bytes": self.peak, "theta_bytes": self.theta}


def measure(quick: bool) -> list[Peak]:
    return [probe(name, steps) for name, each in (QUICK_STEPS if quick else STEPS).items() for steps in each]


def grows(peaks: list[Peak]) -> bool:
    """Return whether the longest online meta-step needs one θ more than the shortest; a trajectory needs hundreds."""
    online = [peak for peak in peaks if peak.method == "online"]
    return online[-1].peak - online[0].peak > 0.9 * online[0].theta


def probe(method: str, steps: int) -> Peak:
    """Measure one meta-step in a fresh process."""
    peak, theta = peak_memory(meta_step, method, steps)
    return Peak(method, steps, peak, theta)


def meta_step(name: str, steps: int) -> int:
    """Take a meta-step in this process, and return the bytes of θ."""
    torch.set_num_threads(1)
    warp = name != "maml"
    learner, task = problem(SupervisedTask, warp=warp)
    method = Method(learner, SGD(1e-3), Exact() if warp else None)
    update = MetaOptimiser(method, partial(torch.optim.SGD, lr=1e-3))
    METHODS[name](steps).meta_step(method, [task], [0], update)
    return theta_bytes(learner)


def problem(kind: Callable[..., T], *, warp: bool = True) -> tuple[Learner, T]:
    """Return a network whose θ is large compared with its batches, and a task of this kind for it."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, WIDTH), nn.Tanh(), Warp(nn.Linear(WIDTH, WIDTH)), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    learner = Learner(nn.Sequential(*layers, nn.Linear(WIDTH, 1)), warp=None if warp else ())
    draw = generator("bench", "memory")
    inputs, targets = torch.randn(16, 8, generator=draw), torch.randn(16, 1, generator=draw)
    return learner, kind(inputs, targets, F.mse_loss, batch_size=4)


def theta_bytes(learner: Learner) -> int:
    return sum(value.numel() * value.element_size() for value in learner.theta0.values())
