"""What a meta-step of each method of the alphabets experiment costs, in processor seconds and relative to Leap's.

    python -m benchmarks.meta_step_cost --preset small [--repetitions 3] [--steps 20] [--tasks 5] [--out costs.json]

Methods take turns within each repetition, so that a busy machine hits all alike; what is reported is the median. The
costs of `steps` steps on `tasks` tasks are multiplied up to the preset's: a meta-step is a sum over both (MAML unrolls
its own number of steps, which is not shortened). The ratios are in `warpgrad.experiments.omniglot.config.COSTS`, from
where the rows at equal processor time take their meta-steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import interleaved
from warpgrad.algorithms.meta_optimiser import MetaOptimiser
from warpgrad.cli.outer import keep_freed_memory
from warpgrad.data import Alphabets
from warpgrad.data.tasks.alphabets import alphabet_tasks
from warpgrad.experiments.omniglot.config import PRESETS, OmniglotConfig
from warpgrad.experiments.omniglot.methods import open_data, recipe, starting_drawings, training_tasks
from warpgrad.keys import fold

WAYS: dict[str, dict[str, Any]] = {
    "leap": {"method": "leap"},
    "reptile": {"method": "reptile"},
    "fomaml": {"method": "fomaml"},
    "maml": {"method": "maml"},
    "finetuning": {"method": "finetuning"},
    "warp-leap": {},
    "warp-leap, two-layer+bn+res": {"warp": "two-layer+bn+res"},
    "warp-leap, approximate": {"objective": "approximate"},
    "warp-leap, share 1": {"share": 1.0},
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Processor seconds of a meta-step, method by method.")
    parser.add_argument("--preset", default="small", choices=list(PRESETS), help="Whose sizes.")
    parser.add_argument("--data", default=None, help="As in `warpgrad run omniglot`.")
    parser.add_argument("--repetitions", type=int, default=3, help="How often each method is timed.")
    parser.add_argument("--steps", type=int, default=20, help="K of the meta-steps that are timed.")
    parser.add_argument("--tasks", type=int, default=5, help="Their tasks.")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for the result.")
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    preset = dataclasses.replace(PRESETS[given.preset], data=given.data or PRESETS[given.preset].data)
    short = dataclasses.replace(preset, steps=given.steps, meta_batch=given.tasks)
    ways = {name: meta_step(dataclasses.replace(short, **changes)) for name, changes in WAYS.items()}
    timings = interleaved(ways, given.repetitions)
    costs = {name: timings.time(name).median * longer(name, preset, short) for name in ways}
    for name, cost in costs.items():
        print(f"{name:<30} {cost:8.2f} s  {cost / costs['leap']:6.2f} × Leap")
    if given.out is not None:
        ratios = {name: round(cost / costs["leap"], 3) for name, cost in costs.items()}
        kept = {"preset": given.preset, "seconds": costs, "ratios": ratios, "measured": vars(given) | {"out": None}}
        given.out.write_text(json.dumps(kept, indent=1) + "\n")


def longer(name: str, preset: OmniglotConfig, short: OmniglotConfig) -> float:
    """Return how many times more work a meta-step of the preset does."""
    tasks = preset.meta_batch / short.meta_batch
    return tasks if name == "maml" else tasks * preset.steps / short.steps


def meta_step(config: OmniglotConfig) -> Callable[[], None]:
    """Return a function that takes one meta-step per call, each with other tasks."""
    alphabets = Alphabets(open_data(config.data), config.seed, config.protocol)
    names = alphabets.split(config.tasks).train
    tasks = training_tasks(config, alphabet_tasks(alphabets, names, batch_size=config.batch_size))
    chosen = recipe(config, starting_drawings(config, alphabets))
    update = MetaOptimiser(chosen.method, chosen.optimiser, clip=chosen.clip)

    numbers = count()

    def take() -> None:
        step = next(numbers)
        batch = tasks.meta_batch(fold(config.seed, step), config.meta_batch)
        keys = [fold(config.seed, step, place) for place in range(len(batch))]
        chosen.algorithm.meta_step(chosen.method, batch, keys, update)

    return take


if __name__ == "__main__":
    main()
