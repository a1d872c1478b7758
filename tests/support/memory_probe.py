"""What is measured in processes of its own, by `benchmarks.fresh_process`."""

from __future__ import annotations

import gc
from typing import Any

import torch

import warpgrad as wg
from benchmarks.memory import problem, theta_bytes

INITIALISERS = {
    "none": wg.Fixed,
    "leap": wg.Leap,
    "reptile": wg.Reptile,
    "fomaml": wg.FOMAML,
    "maml": wg.MAML,
}


class Counting(wg.SupervisedTask):
    """Counts the tensors that are alive when the step in the middle of the trajectory begins."""

    live = 0
    middle = 0

    def adapt_batch(self, k: int) -> Any:
        if k == self.middle:
            gc.collect()
            self.live = sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())
        return super().adapt_batch(k)


def meta_step(initialiser: str, steps: int) -> tuple[int, int]:
    """One meta-step of Algorithm 1: the number of live tensors seen half-way, and the bytes of θ."""
    torch.set_num_threads(1)
    learner, task = problem(Counting)
    task.middle = steps // 2
    method = wg.Method(learner, wg.SGD(1e-3), wg.Exact(), INITIALISERS[initialiser]())
    wg.Online(steps=steps, tasks=1).meta_step(method, [task], [0], lambda group, gradient: None)
    return task.live, theta_bytes(learner)


def hold(megabytes: int) -> int:
    """Hold so many for a moment, and let go of them."""
    torch.ones(megabytes * 1_000_000 // 4)
    return megabytes
