"""One meta-step of the continual experiment at the paper's size: stacked points against a plain loop.

    python -m benchmarks.continual_step [--repetitions 5] [--tasks 5] [--out results/continual-step.json]

5 tasks × 100 steps, exact objective. Ways to the same gradient:

| way              | what it does                                                                               |
|------------------|--------------------------------------------------------------------------------------------|
| `loop`           | Algorithm 1, one task and one step at a time: the reference                                |
| `tasks stacked`  | Algorithm 1, the tasks stacked, step by step                                               |
| `recorded`       | the same, its steps played back from recordings: what the experiment uses                  |
| `points stacked` | adapt with the tasks stacked, then (task, step) points in stacks of 64, meta-batches padded |

Ways take turns within each repetition, so that a busy machine hits all alike; ratios are medians of the ratios within
repetitions, of processor time. Fails where the numbers differ by more than 1e-5, or the fastest gains less than 1.3×.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import interleaved
from warpgrad.algorithms import Algorithm, Offline, Online
from warpgrad.algorithms.method import ParameterGroup
from warpgrad.experiments.continual.experiment import ContinualLearning
from warpgrad.experiments.continual.families import SineMixtures
from warpgrad.experiments.continual.methods import build, family
from warpgrad.io import write_json
from warpgrad.tasks import Task
from warpgrad.tensors import Tensors
from warpgrad.training.resources import hardware, versions
from warpgrad.version import commit

TARGET = 1.3
TOLERANCE = 1e-5
WARM_UP = 3
"""Turns that are not counted: the stack is probed against the loop, and steps are recorded once they have been seen."""


def main() -> None:
    parser = argparse.ArgumentParser(description="One meta-step of the continual experiment: stacked against a loop.")
    parser.add_argument("--repetitions", type=int, default=5, help="How often each way is timed.")
    parser.add_argument("--tasks", type=int, default=5, help="Tasks per meta-step; the paper has 5.")
    parser.add_argument("--out", type=Path, help="A record, as JSON.")
    given = parser.parse_args()
    torch.set_num_threads(1)
    config = ContinualLearning().config("paper", tasks=given.tasks)
    steps = config.steps_per_subtask * config.subtasks
    source = family(config, "train")
    tasks = source.meta_batch(0, given.tasks)
    assert isinstance(source, SineMixtures)
    source.options["pad"] = True
    padded = source.meta_batch(0, given.tasks)
    size: dict[str, Any] = {"steps": steps, "tasks": given.tasks, "reduction": "sum"}
    algorithms: dict[str, tuple[Algorithm, list[Task]]] = {
        "loop": (Online(**size, backend="loop"), tasks),
        "tasks stacked": (Online(**size, backend="batched"), tasks),
        "recorded": (Online(**size, backend="traced"), tasks),
        "points stacked": (Offline(**size, samples=None, backend="batched"), padded),
    }
    method = build(config)
    keys = list(range(given.tasks))
    found: dict[str, Tensors] = {}

    def meta_step(name: str) -> None:
        def keep(group: ParameterGroup, gradient: Tensors) -> None:
            if group == "phi":
                found[name] = gradient

        algorithm, own_tasks = algorithms[name]
        algorithm.meta_step(method, own_tasks, keys, keep)

    timings = interleaved({name: partial(meta_step, name) for name in algorithms}, given.repetitions, warm_up=WARM_UP)
    errors = {name: _error(gradient, found["loop"]) for name, gradient in found.items()}
    print(f"{given.tasks} tasks × {steps} steps, exact, 1 thread, {given.repetitions} repetitions")
    print(f"{'way':<22}{'seconds':>9}{'ratio':>8}{'difference':>12}")
    ratios = {name: timings.ratio("loop", name) for name in algorithms}
    for name, ratio in ratios.items():
        print(f"{name:<22}{timings.time(name).median:>9.3f}{ratio.median:>7.2f}×{errors[name]:>12.1e}")
    if given.out is not None:
        write_json(
            given.out,
            {
                "ways": {
                    name: {
                        "seconds": timings.time(name).median,
                        "ratio": ratio.median,
                        "smallest and largest ratio": [ratio.low, ratio.high],
                        "difference": errors[name],
                    }
                    for name, ratio in ratios.items()
                },
                "command": shlex.join(["python", "-m", "benchmarks.continual_step", *sys.argv[1:]]),
                "versions": versions(),
                "hardware": hardware(),
                "commit": commit(),
            },
        )
    if max(errors.values()) > TOLERANCE:
        raise SystemExit(f"numbers differ by {max(errors.values()):.1e}, more than {TOLERANCE:g}")
    fastest = max(ratio.median for ratio in ratios.values())
    if fastest < TARGET:
        raise SystemExit(f"the fastest way gains {fastest:.2f}×, less than {TARGET}×")


def _error(gradient: Tensors, expected: Tensors) -> float:
    """Compute ‖found − expected‖ / ‖expected‖ over all of φ."""
    gaps = torch.cat([(gradient[name] - value).flatten() for name, value in expected.items()])
    return float(gaps.norm() / torch.cat([value.flatten() for value in expected.values()]).norm())


if __name__ == "__main__":
    main()
