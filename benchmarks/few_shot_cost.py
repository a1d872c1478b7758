"""Processor seconds of one meta-step of each few-shot method, and what it costs beside MAML's.

    python -m benchmarks.few_shot_cost [--repetitions 15] [--data cifar-fs] [--methods warp-maml maml cavia]

At preset `small`, one thread, for 1-shot and for 5-shot tests, whose meta-training sees 5 and 15 images of each class.
A meta-step is the whole of it: the episode drawn, adaptation, meta-gradients, Adam. Methods take turns within each
repetition, so that a busy machine hits all alike; a ratio is the median of ratios within repetitions. The rows "in
MAML's time" of the tables on CIFAR-FS take their lengths from these ratios, as they stand in
`warpgrad.experiments.few_shot.config.COST`; a constant, so that a table is the same runs on every machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import count

import torch

from benchmarks.timing import interleaved
from warpgrad.algorithms.meta_optimiser import MetaOptimiser
from warpgrad.cli.outer import keep_freed_memory
from warpgrad.data.tasks.episodes import FewShotImageFamily, FewShotImages
from warpgrad.experiments.few_shot.config import COST, METHODS, FewShotConfig
from warpgrad.experiments.few_shot.experiment import FewShot
from warpgrad.experiments.few_shot.methods import open_data, recipe
from warpgrad.keys import fold

REFERENCE = "maml"


def main() -> None:
    parser = argparse.ArgumentParser(description="Processor seconds of a meta-step of each few-shot method.")
    parser.add_argument("--repetitions", type=int, default=15, help="How often each method is timed.")
    parser.add_argument("--data", default="cifar-fs", help="A prepared data set, by its name or its folder.")
    parser.add_argument("--methods", nargs="+", default=["warp-maml", "meta-sgd", "t-nets", "cavia"], choices=METHODS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    images = FewShotImages(open_data(given.data))
    methods = list(dict.fromkeys([REFERENCE, *given.methods]))
    for shots in (1, 5):
        configs = {name: FewShot().config("small", method=name, shots=shots, data=given.data) for name in methods}
        ways = {name: meta_steps(config, images) for name, config in configs.items()}
        timings = interleaved(ways, given.repetitions, warm_up=2)
        print(f"{shots}-shot tests, {configs[REFERENCE].train_shape.shots} shots in meta-training")
        print(f"{'method':<16} {'seconds':>8} {'beside MAML':>12} {'declared':>9}")
        for name in methods:
            declared = COST.get(shots, {}).get(name)
            told = "" if declared is None else f"{declared:g}"
            print(
                f"{name:<16} {timings.time(name).median:8.3f} {timings.ratio(name, REFERENCE).median:12.3f} {told:>9}"
            )


def meta_steps(config: FewShotConfig, images: FewShotImages) -> Callable[[], None]:
    """Return a function that takes one meta-step after the other, as a run would."""
    tasks = FewShotImageFamily(images, "train", config.train_shape)
    chosen = recipe(config, images.store.shape)
    update = MetaOptimiser(chosen.method, chosen.optimiser, clip=chosen.clip)

    numbers = count()

    def take() -> None:
        key = fold(config.seed, next(numbers))
        batch = tasks.meta_batch(key, config.meta_batch)
        keys = [fold(key, "task", index) for index in range(len(batch))]
        chosen.algorithm.meta_step(chosen.method, batch, keys, update)
        update.end_meta_step()

    return take


if __name__ == "__main__":
    main()
