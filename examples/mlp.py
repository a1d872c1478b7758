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


def score(learner: wg.Learner) -> tuple[float, float]:
    """Mean held-out loss of new tasks before the first step and after step K."""
    curves = []
    for index in range(HELD_OUT):
        task = sine_task(fold(SEED, "held out", index))
        _, curve = wg.adapt(learner, task, rule=RULE, steps=STEPS, curve=True, test_every=STEPS)
        curves.append([scores["loss"] for scores in curve.scores])
    start, end = torch.tensor(curves).mean(0).tolist()
    return start, end


def main(meta_steps: int = 600) -> dict[str, float]:
    torch.manual_seed(SEED)
    model = MLP()
    plain = score(wg.Learner(model, warp=()))
    learner = wg.Learner(model, warp="middle")
    before = score(learner)
    wg.meta_train(
        learner,
        wg.FunctionFamily(sine_task),
        algorithm=wg.Online(steps=STEPS, tasks=10),
        rule=RULE,
        objective=wg.Exact(),
        initialiser=wg.Leap(),
        optimiser=partial(torch.optim.Adam, lr=3e-3),
        meta_steps=meta_steps,
        seed=SEED,
    )
    after = score(learner)
    print(f"loss on {HELD_OUT} new sine waves      step 0    step {STEPS}")
    print(f"new model, every layer adapts  {plain[0]:7.3f}   {plain[1]:8.3f}")
    print(f"before meta-training           {before[0]:7.3f}   {before[1]:8.3f}")
    print(f"after {meta_steps:4} meta-steps          {after[0]:7.3f}   {after[1]:8.3f}")
    return {"plain": plain[1], "before": before[1], "after": after[1], "after_start": after[0]}


if __name__ == "__main__":
    main()
