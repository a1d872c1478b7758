"""Forecasting with a two-layer GRU: Algorithm 1 (online), the exact objective and first-order MAML.

Every task is a noisy oscillator of its own frequency and damping; the model reads a series and predicts the next
value at each step. The second recurrent layer becomes the warp φ by a pattern on parameter names, which cuts
through the middle of one `nn.GRU`; the first layer and the linear head are θ.

    python examples/gru.py
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import warpgrad as wg
from warpgrad.keys import fold, generator

SEED = 0
STEPS = 5  # K
HELD_OUT = 50
LENGTH = 12
RULE = wg.Clip(wg.SGD(lr=0.2, momentum=0.9), norm=1.0)


class Forecaster(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.gru = nn.GRU(1, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, series: Tensor) -> Tensor:
        forecast: Tensor = self.head(self.gru(series)[0])
        return forecast


def oscillator_task(seed: int) -> wg.SupervisedTask:
    """x_t = 2r cos(ω) x_{t−1} − r² x_{t−2} + noise, an AR(2) process with ω and r of its own."""
    draw = generator(seed, "oscillator")
    frequency = math.pi * (0.2 + 0.6 * torch.rand((), generator=draw))
    radius = 0.95 + 0.05 * torch.rand((), generator=draw)

    def series(count: int) -> tuple[Tensor, Tensor]:
        values = list(torch.randn(2, count, generator=draw))
        for _ in range(LENGTH - 1):
            noise = 0.1 * torch.randn(count, generator=draw)
            values.append(2 * radius * frequency.cos() * values[-1] - radius**2 * values[-2] + noise)
        path = torch.stack(values, dim=1).unsqueeze(-1)
        return path[:, :-1], path[:, 1:]

    return wg.SupervisedTask(*series(8), F.mse_loss, meta=series(8), test=series(32))


def main(meta_steps: int = 150) -> dict[str, float]:
    torch.manual_seed(SEED)
    model = Forecaster()
    new_tasks = [oscillator_task(fold(SEED, "held out", index)) for index in range(HELD_OUT)]
    score = partial(wg.score, tasks=new_tasks, rule=RULE, steps=STEPS)
    plain = score(wg.Learner(model, warp=()))
    learner = wg.Learner(model, warp="gru.*_l1")
    before = score(learner)
    wg.meta_train(
        learner,
        wg.FunctionFamily(oscillator_task),
        algorithm=wg.Online(steps=STEPS, tasks=2),
        rule=RULE,
        objective=wg.Exact(),
        initialiser=wg.FOMAML(),
        optimiser=partial(torch.optim.Adam, lr=1e-2),
        meta_steps=meta_steps,
        seed=SEED,
    )
    after = score(learner)
    print(f"{HELD_OUT} new oscillators, {STEPS} steps")
    rows = {"new model, every layer adapts": plain, "before meta-training": before, "after meta-training": after}
    for name, scores in rows.items():
        print(f"{name:<30} ", "  ".join(f"{key} {value:.3f}" for key, value in scores.items()))
    return {name: scores["loss"] for name, scores in zip(("plain", "before", "after"), rows.values(), strict=True)}


if __name__ == "__main__":
    main()
