"""One Warp-Leap meta-step, data included, against the same arithmetic in a bare loop over tensors in memory.

    python -m benchmarks.omniglot_step [--repetitions 5] [--steps 20] [--tasks 2] [--filters 32] [--batch-size 20]

| way           | what it does                                                                                    |
|---------------|-------------------------------------------------------------------------------------------------|
| `warpgrad`    | Algorithm 2 with Leap through the library, with its data: chosen, transformed, batched          |
| `bare`        | the same network, batches and formulas written out below: no library, no data, no checks         |
| `approximate` | `warpgrad` with the first-order objective                                                       |
| `built-in`    | `warpgrad` with PyTorch's own second derivatives: what `model.second_order` saves         |

`bare` uses the library's second-order kernels too, so that both do the same arithmetic. Ways take turns within each
repetition, so that a busy machine hits all alike; ratios are medians of ratios of processor time within repetitions.
Fails where θ0 and φ after a meta-step in double precision differ between `warpgrad` and `bare`, or a target is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from benchmarks.timing import MILLI, interleaved
from warpgrad.algorithms.meta_optimiser import MetaOptimiser
from warpgrad.cli.outer import keep_freed_memory
from warpgrad.data import Alphabets
from warpgrad.data.tasks.alphabets import alphabet_tasks
from warpgrad.data.tasks.episodes import Classification, ImageBatch
from warpgrad.experiments.omniglot.config import PRESETS, OmniglotConfig
from warpgrad.experiments.omniglot.methods import open_data, recipe, warped_learner
from warpgrad.keys import fold, generator
from warpgrad.model.learner import Learner
from warpgrad.model.second_order import SecondOrderKernels
from warpgrad.tasks.base import Task
from warpgrad.tensors import Tensors, laid_channels_last

OVER_BARE, OVER_APPROXIMATE = 1.15, 2.5
CHECKED_STEPS = 3
"""Numbers are compared after a few updates: differences grow with every step of η = 1."""
NOISE = 1e-9
"""What may differ in double precision. In single precision sums in another order can put a unit on the other side of
its ReLU, and φ jumps by some percent."""


def main() -> None:
    parser = argparse.ArgumentParser(description="One Warp-Leap meta-step against a bare loop.")
    parser.add_argument("--repetitions", type=int, default=5, help="How often each way is timed.")
    parser.add_argument("--steps", type=int, default=20, help="K.")
    parser.add_argument("--tasks", type=int, default=2, help="Tasks in the meta-step.")
    parser.add_argument("--filters", type=int, default=32, help="Channels of each block.")
    parser.add_argument("--batch-size", type=int, default=20, help="Drawings per batch.")
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    config = configuration(given.steps, given.tasks, given.filters, given.batch_size)
    check(dataclasses.replace(config, steps=CHECKED_STEPS))
    ways = ways_of(config)
    timings = interleaved(ways, given.repetitions)
    points = config.steps * config.meta_batch
    print(f"{'way':<12} {'ms per (task, step)':>20} {'ratio to warpgrad':>18}")
    for name in ways:
        ratio = timings.ratio(name, "warpgrad").median
        print(f"{name:<12} {timings.time(name).scaled(MILLI / points).median:20.1f} {ratio:18.3f}")
    over_bare = timings.ratio("warpgrad", "bare").median
    over_approximate = timings.ratio("warpgrad", "approximate").median
    print(f"warpgrad / bare {over_bare:.3f} (at most {OVER_BARE})")
    print(f"exact / approximate {over_approximate:.2f} (at most {OVER_APPROXIMATE})")
    if over_bare > OVER_BARE or over_approximate > OVER_APPROXIMATE:
        raise SystemExit(1)


def configuration(steps: int, tasks: int, filters: int, batch_size: int) -> OmniglotConfig:
    """Return the paper's settings: the bare loop replays every point and begins where warps draw their own weights."""
    return dataclasses.replace(PRESETS["paper"], steps=steps, meta_batch=tasks, filters=filters, batch_size=batch_size)


class Doubled(Classification):
    """A task whose images are in double precision."""

    def __init__(self, task: Task) -> None:
        self.name, self._task = task.name, task

    def adapt_batch(self, k: int) -> ImageBatch:
        images, labels = self._task.adapt_batch(k)
        return images.double(), labels

    def meta_batch(self, k: int) -> ImageBatch:
        images, labels = self._task.meta_batch(k)
        return images.double(), labels


def check(config: OmniglotConfig) -> None:
    """Check that the library and the bare loop do the same."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        ways = ways_of(config, Doubled)
        ours, theirs = ways["warpgrad"](), ways["bare"]()
    finally:
        torch.set_default_dtype(before)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name].detach(), value.detach(), rtol=NOISE, atol=NOISE)


def ways_of(
    config: OmniglotConfig, kind: Callable[[Task], Task] = lambda task: task
) -> dict[str, Callable[[], Tensors]]:
    """Return every way to one meta-step; each begins at the same weights and returns θ0 and φ after it."""
    alphabets = Alphabets(open_data(config.data), config.seed, config.protocol)
    family = alphabet_tasks(alphabets, alphabets.split(config.tasks).train, batch_size=config.batch_size)
    tasks = [kind(task) for task in family.meta_batch(0, config.meta_batch)]
    keys = list(range(config.meta_batch))
    # Made before any clock starts; one more than the steps, for Leap's last loss.
    batches = [[(task.adapt_batch(k), task.meta_batch(k)) for k in range(config.steps + 1)] for task in tasks]

    def ours(**changes: Any) -> Tensors:
        chosen = recipe(dataclasses.replace(config, **changes))
        update = MetaOptimiser(chosen.method, chosen.optimiser)
        chosen.algorithm.meta_step(chosen.method, tasks, keys, update)
        return {**chosen.method.learner.theta0, **chosen.method.learner.phi}

    return {
        "warpgrad": ours,
        "bare": partial(bare, config, batches, keys),
        "approximate": partial(ours, objective="approximate"),
        "built-in": partial(with_built_in, ours),
    }


def bare(config: OmniglotConfig, batches: list[list[Any]], keys: list[int]) -> Tensors:
    """Run Algorithm 2 with Leap, η = 1, SGD everywhere, and nothing else."""
    learner = warped_learner(config)
    module, theta0, phi = learner.module, learner.theta0, list(learner.phi.values())
    names = list(theta0)
    step_size = config.inner_lr
    fresh = {name: value.clone() for name, value in learner.buffers().items()}
    pull = {name: torch.zeros_like(value) for name, value in theta0.items()}
    points: list[tuple[int, int, Tensors, Tensors]] = []

    def forward(theta: Tensors, buffers: Tensors, batch: Any) -> Tensor:
        images, labels = batch
        laid = {name: laid_channels_last(value) for name, value in theta.items()}
        return F.cross_entropy(functional_call(module, {**laid, **buffers}, (images,), tie_weights=False), labels)

    module.train()
    for place, task in enumerate(batches):
        theta = {name: value.detach() for name, value in theta0.items()}
        buffers, before = fresh, None
        for k, (batch, _) in enumerate(task[:-1]):
            points.append((place, k, theta, buffers))
            leaves = {name: value.detach().requires_grad_() for name, value in theta.items()}
            buffers = {name: value.clone() for name, value in buffers.items()}
            loss = forward(leaves, buffers, batch)
            gradient = dict(zip(names, torch.autograd.grad(loss, list(leaves.values())), strict=True))
            new = {name: value - step_size * gradient[name] for name, value in theta.items()}
            if before is not None:
                add_segment(pull, *before, loss.detach())
            before, theta = (theta, new, gradient, loss.detach()), new
        assert before is not None
        with torch.no_grad():
            after = forward(theta, {name: value.clone() for name, value in buffers.items()}, task[-1][0])
        add_segment(pull, *before, after)
    order = torch.randperm(len(points), generator=generator(fold(*keys), "replay"))
    for chosen in order.tolist():
        place, k, theta, buffers = points[chosen]
        adapt, judge = batches[place][k]
        leaves = {name: value.detach().requires_grad_() for name, value in theta.items()}
        laid = {name: laid_channels_last(value) for name, value in leaves.items()}
        buffers = {name: value.clone() for name, value in buffers.items()}
        with SecondOrderKernels(constant=laid.values()):
            loss = forward(laid, buffers, adapt)
        slopes = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
        new = {name: value - step_size * slope for (name, value), slope in zip(theta.items(), slopes, strict=True)}
        meta_loss = forward(new, {name: value.clone() for name, value in buffers.items()}, judge)
        with torch.no_grad():
            for value, slope in zip(phi, torch.autograd.grad(meta_loss, phi), strict=True):
                value -= config.meta_lr * slope
    with torch.no_grad():
        for name, value in theta0.items():
            value -= config.outer_lr * pull[name] / len(batches)
    return {**{name: value.detach() for name, value in theta0.items()}, **learner.phi}


def add_segment(pull: Tensors, theta: Tensors, new: Tensors, gradient: Tensors, loss: Tensor, after: Tensor) -> None:
    """Add one segment of Eq. 17."""
    drop = after - loss
    moved = {name: new[name] - value for name, value in theta.items()}
    length = (sum((value.square().sum() for value in moved.values()), drop.square())).sqrt()
    for name, value in moved.items():
        pull[name] -= (value - drop.abs() * gradient[name]) / length


def with_built_in(way: Callable[[], Tensors]) -> Tensors:
    """Run a way with PyTorch's own second derivatives."""
    kernels = Learner._kernels
    Learner._kernels = lambda *_: nullcontext()  # type: ignore[method-assign]
    try:
        return way()
    finally:
        Learner._kernels = kernels  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
