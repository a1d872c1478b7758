"""Peak memory of one meta-step of Algorithm 1, alone in a process: `python memory_probe.py INITIALISER K`.

Prints the peak resident size in bytes, the number of live tensors seen half-way, and the bytes of θ.
"""

from __future__ import annotations

import gc
import sys

import torch
import torch.nn.functional as F
from torch import nn

import warpgrad as wg
from warpgrad.training.resources import peak_bytes

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

    def adapt_batch(self, k: int):
        if k == self.middle:
            gc.collect()
            self.live = sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())
        return super().adapt_batch(k)


def main(initialiser: str, steps: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    width = 500
    layers = [nn.Linear(8, width), nn.Tanh(), wg.Warp(nn.Linear(width, width)), nn.Linear(width, width)]
    learner = wg.Learner(nn.Sequential(*layers, nn.Tanh(), nn.Linear(width, 1)))
    task = Counting(torch.randn(16, 8), torch.randn(16, 1), F.mse_loss, batch_size=4)
    task.middle = steps // 2
    method = wg.Method(learner, wg.SGD(1e-3), wg.Exact(), INITIALISERS[initialiser]())
    wg.Online(steps=steps, tasks=1).meta_step(method, [task], [0], lambda group, gradient: None)
    size = sum(value.numel() * value.element_size() for value in learner.theta0.values())
    print(peak_bytes(), task.live, size)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
