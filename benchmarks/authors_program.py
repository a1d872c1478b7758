"""First-order Warp-Leap by the authors' package, for the row `authors`. It imports nothing of this library.

    PYTHONPATH=FOLDER python benchmarks/authors_program.py FILTERS BATCH CLASSES STEPS REPETITIONS

FOLDER holds the package `warpgrad` of the authors. Prints one line of JSON: processor seconds of every meta-step, each
of which adapts to one task for STEPS steps, then updates warp and initialisation.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import warpgrad

RATE = 0.01


class Network(nn.Module):
    """Four blocks of convolution, pooling, batch-norm and ReLU, each with a 3×3 warp behind it, and a linear head."""

    def __init__(self, filters: int, classes: int) -> None:
        super().__init__()
        self.blocks, self.warps = nn.ModuleList(), nn.ModuleList()
        for channels in (1, filters, filters, filters):
            convolution = nn.Conv2d(channels, filters, 3, padding=1)
            self.blocks.append(nn.Sequential(convolution, nn.MaxPool2d(2), nn.BatchNorm2d(filters), nn.ReLU()))
            self.warps.append(nn.Conv2d(filters, filters, 3, padding=1))
        self.head = nn.Linear(filters, classes)

    def init_adaptation(self) -> None:
        """Reset running statistics before every task; their wrapper calls this method by its name."""
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()

    def forward(self, x: Tensor) -> Tensor:
        for block, warp in zip(self.blocks, self.warps, strict=True):
            x = warp(block(x))
        found: Tensor = self.head(x.flatten(1))
        return found


class Batches:
    """A task's loader, which returns the same batches over and over and is its own data set."""

    def __init__(self, size: int, classes: int, steps: int) -> None:
        draw = torch.Generator().manual_seed(0)
        self._batches = [
            (torch.rand(size, 1, 28, 28, generator=draw), torch.randint(classes, (size,), generator=draw))
            for _ in range(max(steps, 2))
        ]
        self.dataset = self

    def train(self) -> None:
        """Do nothing: there is no other mode."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self._batches)


def main(filters: int, size: int, classes: int, steps: int, repetitions: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network, batches = Network(filters, classes), Batches(size, classes, steps)
    theirs: Any = warpgrad
    model: Any = theirs.Warp(
        model=network,
        adapt_modules=[*network.blocks, network.head],
        warp_modules=list(network.warps),
        updater=theirs.DualUpdater(F.cross_entropy, approx=True),
        buffer=theirs.ReplayBuffer(),
        optimizer_parameters=theirs.OptimizerParameters(trainable=False, default_lr=RATE, default_momentum=0.0),
    )
    meta = torch.optim.SGD([*model.init_parameters(), *model.warp_parameters()], lr=RATE)

    def update() -> None:
        meta.step()
        meta.zero_grad()

    def meta_step() -> None:
        model.register_task(batches)
        model.collect()
        model.init_adaptation()
        optimiser = torch.optim.SGD(model.optimizer_parameter_groups(), lr=RATE)
        for place, (x, y) in enumerate(batches):
            if place == steps:
                break
            torch.autograd.backward(F.cross_entropy(model(x), y))
            optimiser.step()
            optimiser.zero_grad()
        model.backward(update, lr=RATE)

    seconds = []
    for turn in range(repetitions + 1):
        began = time.process_time()
        meta_step()
        if turn:  # the first one warms up
            seconds.append(time.process_time() - began)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
