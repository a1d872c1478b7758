"""Which batch-norm policy should be the default? Three small problems, each policy on the same tasks and seeds.

    python -m benchmarks.batch_norm_default              # writes results/batch-norm-default.json

A newcomer adapts a model with batch-norm for ten steps and looks at the test loss. Problems: a sine regression with an
MLP, a classification of noisy patterns with a small ResNet, and a classification of short series with a 1-D ConvNet.
Each is adapted from a random start and after a short meta-training; test batches have one class mix, and one example.

The default is the policy that never refuses a test batch and whose losses are, on average over problems and settings,
nearest to the lowest of the three (`chosen`).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import warpgrad as wg
from warpgrad.keys import fold, generator
from warpgrad.model.normalisation import BatchNormPolicy
from warpgrad.training.resources import hardware, versions
from warpgrad.version import CHANGED, commit

POLICIES: tuple[BatchNormPolicy, ...] = ("running", "corrected", "batch")
STEPS, SEEDS, TASKS, META_STEPS = 10, 5, 8, 20
COMMAND = "python -m benchmarks.batch_norm_default"
RESULT = Path(__file__).parents[1] / "results" / "batch-norm-default.json"


def mlp() -> nn.Module:
    layers = [nn.Linear(1, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(32, 1))


def images() -> nn.Module:
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(32, 4))


def series() -> nn.Module:
    layers = [nn.Conv1d(1, 8, 5, padding=2), nn.BatchNorm1d(8), nn.ReLU()]
    layers += [nn.Conv1d(8, 8, 5, padding=2), nn.BatchNorm1d(8), nn.ReLU(), nn.AdaptiveAvgPool1d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(16, 3))


def sine(seed: int, single: bool) -> wg.SupervisedTask:
    draw = generator(seed, "sine")
    amplitude, phase = 0.5 + torch.rand((), generator=draw), math.pi * torch.rand((), generator=draw)

    def points(count: int) -> tuple[Tensor, Tensor]:
        x = 6 * torch.rand(count, 1, generator=draw) - 3
        return x, amplitude * torch.sin(x + phase)

    return tested(points(20), points(20), points(40), F.mse_loss, single)


def patterns(seed: int, shape: tuple[int, ...], classes: int, single: bool) -> wg.SupervisedTask:
    draw = generator(seed, "patterns", *shape)
    means = torch.randn(classes, *shape, generator=draw) + 0.5 * torch.randn((), generator=draw)

    def examples(each: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(classes).repeat(each)
        return means[labels] + 1.5 * torch.randn(len(labels), *shape, generator=draw), labels

    return tested(examples(5), examples(5), examples(10), F.cross_entropy, single)


class OneByOne(wg.SupervisedTask):
    """Test batches of one example, as a deployed model gets them."""

    def test_batches(self) -> list[tuple[Tensor, Tensor]]:
        return [(x[None], y[None]) for batch in super().test_batches() for x, y in zip(*batch, strict=True)]


def tested(
    adapt: tuple[Tensor, Tensor],
    meta: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
    single: bool,
) -> wg.SupervisedTask:
    return (OneByOne if single else wg.SupervisedTask)(*adapt, loss, meta=meta, test=test)


PROBLEMS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, bool], wg.SupervisedTask]]] = {
    "sine, MLP": (mlp, sine),
    "patterns, ConvNet": (images, lambda seed, single: patterns(seed, (1, 8, 8), 4, single)),
    "series, 1-D ConvNet": (series, lambda seed, single: patterns(seed, (1, 16), 3, single)),
}


def losses(problem: str, policy: BatchNormPolicy, seed: int) -> dict[str, float]:
    """Return mean test losses after `STEPS` steps, before and after meta-training, on whole batches and one by one."""
    make, draw = PROBLEMS[problem]
    torch.manual_seed(seed)
    learner = wg.Learner(make(), warp="3" if problem != "patterns, ConvNet" else "4", batch_norm=policy)
    rule = wg.SGD(0.05, momentum=0.9)
    found: dict[str, float] = {}

    def measure(when: str) -> None:
        for tests, single in (("batch", False), ("single", True)):
            tasks = [draw(fold(seed, "test", index), single) for index in range(TASKS)]
            try:
                found[f"{when}, {tests}"] = wg.score(learner, tasks, rule=rule, steps=STEPS)["loss"]
            except wg.WarpgradError:  # batch statistics of one vector do not exist
                found[f"{when}, {tests}"] = math.inf

    measure("random start")
    wg.meta_train(
        learner,
        wg.FunctionFamily(lambda draw_seed: draw(draw_seed, False)),
        algorithm=wg.Online(steps=STEPS, tasks=2),
        rule=rule,
        objective=wg.Approximate(),
        initialiser=wg.FOMAML(),
        optimiser=partial(torch.optim.Adam, lr=3e-3),
        meta_steps=META_STEPS,
        seed=seed,
    )
    measure("meta-trained")
    return found


def chosen(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the policy that works everywhere and has the smallest mean of its loss relative to the best one's."""
    cells: dict[tuple[str, str], dict[str, float | None]] = {}
    for row in rows:
        cells.setdefault((row["problem"], row["setting"]), {})[row["policy"]] = row["loss"]
    relative: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    for cell in cells.values():
        lowest = min(loss for loss in cell.values() if loss is not None)
        for policy, loss in cell.items():
            relative[policy].append(math.inf if loss is None else loss / lowest)
    return min(relative, key=lambda policy: mean(relative[policy]))


def main() -> None:
    made_by = commit()
    if made_by is None or made_by.endswith(CHANGED):
        raise SystemExit("the record names the commit that made it: commit what has changed first.")
    began, rows = time.process_time(), []
    for problem in PROBLEMS:
        for policy in POLICIES:
            runs = [losses(problem, policy, seed) for seed in range(SEEDS)]
            for setting in runs[0]:
                values = [run[setting] for run in runs]
                refused = any(math.isinf(value) for value in values)
                row: dict[str, Any] = {"problem": problem, "policy": policy, "setting": setting}
                row["loss"] = None if refused else round(mean(values), 4)
                row["deviation"] = None if refused else round(stdev(values), 4)
                row["by_seed"] = None if refused else [round(value, 4) for value in values]
                rows.append(row)
                print(f"{problem:<22} {policy:<10} {setting:<22} {row['loss']}", flush=True)
    record = {
        "command": COMMAND,
        "commit": made_by,
        "hardware": hardware(),
        "versions": versions(),
        "processor_seconds": round(time.process_time() - began, 1),
        "settings": {"steps": STEPS, "meta_steps": META_STEPS, "seeds": SEEDS, "tasks": TASKS},
        "rows": rows,
        "chosen": chosen(rows),
    }
    RESULT.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
