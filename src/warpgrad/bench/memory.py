"""Row memory: peak resident memory of one meta-step against K, each figure from a process of its own.

python -m warpgrad.bench.memory online 640           # prints the peak and the size of θ, in bytes
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from warpgrad.algorithms import Algorithm, Offline, Online, Unrolled
from warpgrad.algorithms.meta_optimiser import MetaOptimiser
from warpgrad.algorithms.method import Method
from warpgrad.errors import WarpgradError
from warpgrad.keys import generator
from warpgrad.model.learner import Learner
from warpgrad.model.partition import Warp
from warpgrad.objectives import Exact
from warpgrad.rules import SGD
from warpgrad.tasks.supervised import SupervisedTask

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
    """Bytes at most held by a meta-step of K steps, and those of one θ."""

    method: str
    steps: int
    peak: int
    theta: int

    def record(self) -> dict[str, Any]:
        return {"method": self.method, "steps": self.steps, "bytes": self.peak, "theta_bytes": self.theta}


def measure(quick: bool) -> list[Peak]:
    return [probe(name, steps) for name, each in (QUICK_STEPS if quick else STEPS).items() for steps in each]


def grows(peaks: list[Peak]) -> bool:
    """Whether the longest online meta-step needs another θ more than the shortest: a kept trajectory needs hundreds."""
    online = [peak for peak in peaks if peak.method == "online"]
    return online[-1].peak - online[0].peak > 0.9 * online[0].theta


def probe(method: str, steps: int) -> Peak:
    """One meta-step in a fresh process."""
    # Freed blocks go back to the system at once, so that the peak shows what is held and not what malloc kept.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, "-m", "warpgrad.bench.memory", method, str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise WarpgradError(f"bench: the memory of {method} at K = {steps} could not be measured: {reason}")
    peak, theta = (int(number) for number in done.stdout.split())
    return Peak(method, steps, peak, theta)


def peak_bytes() -> int:
    """The high-water mark of this program alone; `ru_maxrss` would carry over that of the process that started it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def main(name: str, steps: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [nn.Linear(8, WIDTH), nn.Tanh(), Warp(nn.Linear(WIDTH, WIDTH)), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    learner = Learner(nn.Sequential(*layers, nn.Linear(WIDTH, 1)), warp=() if name == "maml" else None)
    draw = generator("bench", "memory")
    task = SupervisedTask(
        torch.randn(16, 8, generator=draw), torch.randn(16, 1, generator=draw), F.mse_loss, batch_size=4
    )
    method = Method(learner, SGD(1e-3), None if name == "maml" else Exact())
    update = MetaOptimiser(method, partial(torch.optim.SGD, lr=1e-3))
    METHODS[name](steps).meta_step(method, [task], [0], update)
    print(peak_bytes(), sum(value.numel() * value.element_size() for value in learner.theta0.values()))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
