"""Meta-training as a Lightning module: `meta_gradient` in `training_step`, Lightning's trainer around it.

The trainer brings its loggers, checkpoints and callbacks. A batch of its data loader is the key of a meta-step, from
which the tasks are drawn; φ and θ0 have an optimiser each, so optimisation is manual.

    pip install lightning
    python examples/lightning_module.py
"""

from __future__ import annotations

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import warpgrad as wg
from warpgrad.keys import fold, generator

SEED = 0
STEPS = 5  # K
HELD_OUT = 50
RULE = wg.SGD(lr=0.05)


def line_task(seed: int) -> wg.SupervisedTask:
    """y = a x + b with an a and b of its own."""
    draw = generator(seed, "line")
    slope, offset = 4 * torch.rand(2, generator=draw) - 2
    x = 2 * torch.rand(30, 1, generator=draw) - 1
    y = slope * x + offset
    return wg.SupervisedTask(x[:10], y[:10], F.mse_loss, meta=(x[10:20], y[10:20]), test=(x[20:], y[20:]))


class MetaLearning(L.LightningModule):  # type: ignore[misc] # not installed where types are checked
    """A method, meta-learned by Lightning's trainer."""

    def __init__(self, method: wg.Method, tasks: wg.TaskFamily, algorithm: wg.Algorithm) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.module = method.learner.module  # so that Lightning saves its weights and moves them
        self.method, self.tasks, self.algorithm = method, tasks, algorithm

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        groups = (self.method.parameters("phi"), self.method.parameters("theta0"))
        return [torch.optim.Adam(group.values(), lr=1e-2) for group in groups]

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        del batch_idx
        found = wg.meta_gradient(self.method, self.tasks, int(batch), algorithm=self.algorithm)
        found.assign()
        optimisers = self.optimizers()
        assert isinstance(optimisers, list)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        self.log_dict({f"train/{name}": value for name, value in found.losses.items()})


def main(meta_steps: int = 200) -> dict[str, float]:
    torch.manual_seed(SEED)
    module = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), wg.Warp(nn.Linear(16, 16)), nn.Tanh(), nn.Linear(16, 1))
    learner = wg.Learner(module)
    new_tasks = [line_task(fold(SEED, "held out", index)) for index in range(HELD_OUT)]
    before = wg.score(learner, new_tasks, rule=RULE, steps=STEPS)["loss"]
    method = wg.Method(learner, RULE, wg.Exact(), wg.Leap())
    lightning = MetaLearning(method, wg.FunctionFamily(line_task), wg.Online(steps=STEPS, tasks=4))
    # The keys that `wg.meta_train(..., seed=SEED)` would use, meta-step by meta-step.
    keys: DataLoader[int] = DataLoader([fold(SEED, step) for step in range(meta_steps)], batch_size=None)  # type: ignore[arg-type]
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(lightning, keys)
    after = wg.score(learner, new_tasks, rule=RULE, steps=STEPS)["loss"]
    print(f"{HELD_OUT} new lines, {STEPS} steps: loss {before:.3f} before meta-training, {after:.3f} after")
    return {"before": before, "after": after}


if __name__ == "__main__":
    main()
