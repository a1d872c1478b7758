"""Sine regression with a plain MLP: Algorithm 1 (online), the exact objective and Leap.

Every task is a sine wave of its own amplitude and phase, seen through ten points. The middle layer of the
network, chosen by its name, becomes the warp φ; the other layers are θ and adapt to each wave.

    python examples/mlp.py
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import warpgrad as wg
from warpgrad.keys import fold, generator

SEED = 0
STEPS = 10  # K
HELD_OUT = 100
RULE = wg.SGD(lr=0.02)


class MLP(nn.Module):
    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.first = nn.Linear(1, width)
        self.middle = nn.Linear(width, width)
        self.last = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(F.relu(self.middle(F.relu(self.first(x)))))
        return y


def sine_task(seed: int) -> wg.SupervisedTask:
    """y = a sin(x + b): ten points to adapt to, ten others for the meta-loss, fifty to test on."""
    draw = generator(seed, "sine")
    amplitude = 0.1 + 4.9 * torch.rand((), generator=draw)
    phase = math.pi * torch.rand((), generator=draw)

    def points(count: int) -> tuple[Tensor, Tensor]:
        x = 10 * torch.rand(count, 1, generator=draw) - 5
        return x, amplitude * torch.sin(x + phase)

    return wg.SupervisedTask(*points(10), F.mse_loss, meta=points(10), test=points(50))


def main(meta_steps: int = 600) -> dict[str, float]:
    torch.manual_seed(SEED)
    model = MLP()
    new_tasks = [sine_task(fold(SEED, "held out", index)) for index in range(HELD_OUT)]
    score = partial(wg.score, tasks=new_tasks, rule=RULE, steps=STEPS)
    plain = score(wg.Learner(model, warp=()))
    learner = wg.Learner(model, warp="middle")
    before = score(learner)
    wg.meta_train(
        wg.warp_leap(learner, RULE),
        wg.FunctionFamily(sine_task),
        algorithm=wg.Online(steps=STEPS, tasks=10),
        optimiser=partial(torch.optim.Adam, lr=3e-3),
        meta_steps=meta_steps,
        seed=SEED,
    )
    after = score(learner)
    print(f"{HELD_OUT} new sine waves, {STEPS} steps")
    rows = {"new model, every layer adapts": plain, "before meta-training": before, "after meta-training": after}
    for name, scores in rows.items():
        print(f"{name:<30} ", "  ".join(f"{key} {value:.3f}" for key, value in scores.items()))
    return {name: scores["loss"] for name, scores in zip(("plain", "before", "after"), rows.values(), strict=True)}


if __name__ == "__main__":
    main()
