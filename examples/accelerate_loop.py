"""Meta-training in a loop of one's own, under Hugging Face Accelerate.

Each process draws its own share of every meta-batch; `accelerator.reduce` makes the gradients their mean.

    pip install accelerate
    python examples/accelerate_loop.py
    accelerate launch --num_processes 2 --cpu examples/accelerate_loop.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn

import warpgrad as wg
from warpgrad.keys import fold, generator

SEED = 0
STEPS = 5  # K
TASKS = 4
HELD_OUT = 50
RULE = wg.SGD(lr=0.05)


def parabola_task(seed: int) -> wg.SupervisedTask:
    """y = a x² + b with an a and b of its own."""
    draw = generator(seed, "parabola")
    curvature, offset = 4 * torch.rand(2, generator=draw) - 2
    x = 2 * torch.rand(30, 1, generator=draw) - 1
    y = curvature * x.square() + offset
    return wg.SupervisedTask(x[:10], y[:10], F.mse_loss, meta=(x[10:20], y[10:20]), test=(x[20:], y[20:]))


def main(meta_steps: int = 200) -> dict[str, float]:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(SEED)  # the same start in every process
    module = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), wg.Warp(nn.Linear(16, 16)), nn.Tanh(), nn.Linear(16, 1))
    learner = wg.Learner(module.to(accelerator.device))
    method = wg.Method(learner, RULE, wg.Exact(), wg.Leap())
    algorithm = wg.Online(steps=STEPS, tasks=TASKS)
    parameters = [*method.parameters("phi").values(), *method.parameters("theta0").values()]
    optimiser = accelerator.prepare(torch.optim.Adam(parameters, lr=1e-2))
    new_tasks = [parabola_task(fold(SEED, "held out", index)) for index in range(HELD_OUT)]
    before = wg.score(learner, new_tasks, rule=RULE, steps=STEPS)["loss"]
    family, mine = wg.FunctionFamily(parabola_task), accelerator.process_index
    for step in range(meta_steps):
        # With one process, these are the keys of `wg.meta_train(..., seed=SEED)`.
        key = fold(SEED, step) if accelerator.num_processes == 1 else fold(SEED, step, "process", mine)
        wg.meta_gradient(method, family, key, algorithm=algorithm).assign()
        for value in parameters:
            if value.grad is not None:
                value.grad = accelerator.reduce(value.grad, reduction="mean")
        optimiser.step()
        optimiser.zero_grad()
    after = wg.score(learner, new_tasks, rule=RULE, steps=STEPS)["loss"]
    accelerator.print(f"{HELD_OUT} new parabolas, {STEPS} steps: loss {before:.3f} before, {after:.3f} after")
    return {"before": before, "after": after}


if __name__ == "__main__":
    main()
