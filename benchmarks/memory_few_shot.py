"""Peak memory of one few-shot meta-step against K: backpropagation through adaptation, and the warp's gradient.

    python benchmarks/memory_few_shot.py [--steps 1 5 10 20 40] [--filters 32] [--out results/few-shot-memory.json]

| way         | φ                  | θ0                    | memory in K                                  |
|-------------|--------------------|-----------------------|----------------------------------------------|
| `maml`      |                    | MAML, unrolled        | grows                                        |
| `warp-maml` | Algorithm 1, exact | MAML                  | grows, by θ0's gradient alone                |
| `warp-leap` | the same           | Leap                  | flat                                         |
| `warp`      | the same           | fixed                 | flat: the warp gradient's own part           |

Every point is a process of its own: one task of random images (memory does not depend on what they show), the
resident size before the meta-step, and the high-water mark after it. Linux only.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import subprocess
import sys
from pathlib import Path

import torch

from warpgrad.algorithms.base import Algorithm
from warpgrad.algorithms.method import Group, Method
from warpgrad.data.tasks.episodes import EpisodeTask
from warpgrad.experiments.few_shot.config import PRESETS, FewShotConfig
from warpgrad.experiments.few_shot.methods import recipe
from warpgrad.experiments.few_shot.page import MEMORY_FORMAT
from warpgrad.experiments.runner import commit, hardware, versions
from warpgrad.initialisers import Fixed, Leap
from warpgrad.io import write_json
from warpgrad.tensors import Tensors, laid_channels_last

LABELS = {
    "maml": "MAML",
    "warp-maml": "Warp-MAML",
    "warp-leap": "Warp-Leap",
    "warp": "warp, fixed θ0",
}
STEPS = (1, 5, 10, 20, 40)
IMAGE_SIZE = 32
OUT = Path("results/few-shot-memory.json")


def main() -> None:
    parser = argparse.ArgumentParser(description="Peak memory of one few-shot meta-step against K.")
    parser.add_argument("--steps", type=int, nargs="+", default=list(STEPS), help="Every K to measure.")
    parser.add_argument("--filters", type=int, default=PRESETS["small"].filters, help="Channels of each block.")
    parser.add_argument("--image-size", type=int, default=IMAGE_SIZE, help="Height and width of the images.")
    parser.add_argument("--out", type=Path, default=OUT, help="The record.")
    parser.add_argument("--probe", choices=LABELS, help="Measure this way at the first of --steps, in this process.")
    given = parser.parse_args()
    if given.probe is not None:
        print(*measured(given.probe, given.steps[0], given.filters, given.image_size))
        return
    points = []
    for way, label in LABELS.items():
        for steps in given.steps:
            before, peak = probe(way, steps, given.filters, given.image_size)
            points.append({"way": way, "label": label, "steps": steps, "before_bytes": before, "peak_bytes": peak})
            print(f"{label:<15} K = {steps:<3} {(peak - before) / 2**20:8.0f} MiB", flush=True)
    shape = PRESETS["small"].train_shape
    write_json(
        given.out,
        {
            "format": MEMORY_FORMAT,
            "setting": {
                "ways": shape.ways,
                "support": shape.ways * shape.shots,
                "query": shape.ways * shape.query,
                "filters": given.filters,
                "image_size": given.image_size,
            },
            "points": points,
            "command": shlex.join(["python", "benchmarks/memory_few_shot.py", *sys.argv[1:]]),
            "versions": versions(),
            "hardware": hardware(),
            "commit": commit(),
        },
    )


def probe(way: str, steps: int, filters: int, image_size: int) -> tuple[int, int]:
    """(resident bytes before, peak bytes after) one meta-step in a fresh process."""
    # Freed blocks go back to the system at once, so that the peak shows what is held and not what malloc kept.
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
    }
    words = ["--probe", way, "--steps", str(steps), "--filters", str(filters), "--image-size", str(image_size)]
    command = [sys.executable, str(Path(__file__).resolve()), *words]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    before, peak = (int(number) for number in output.split())
    return before, peak


def measured(way: str, steps: int, filters: int, image_size: int) -> tuple[int, int]:
    """The same in this process, which should have done nothing else."""
    torch.set_num_threads(1)
    config = dataclasses.replace(PRESETS["small"], steps=steps, filters=filters)
    method, algorithm = parts(way, config, image_size)
    task = random_episode(config, image_size)
    before = _status("VmRSS")
    algorithm.meta_step(method, [task], [0], _discard)
    return before, _status("VmHWM")


def parts(way: str, config: FewShotConfig, image_size: int) -> tuple[Method, Algorithm]:
    """The few-shot experiment's own method, for the last two with another C(θ0)."""
    name = "maml" if way == "maml" else "warp-maml"
    chosen = recipe(dataclasses.replace(config, method=name), (3, image_size, image_size))
    method = chosen.method
    if way in ("warp-leap", "warp"):
        method = dataclasses.replace(method, initialiser=Leap() if way == "warp-leap" else Fixed())
    return method, chosen.algorithm


def random_episode(config: FewShotConfig, image_size: int) -> EpisodeTask:
    shape = config.train_shape
    torch.manual_seed(0)

    def batch(of_each: int) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randn(shape.ways * of_each, 3, image_size, image_size)
        return laid_channels_last(images), torch.arange(shape.ways).repeat_interleave(of_each)

    return EpisodeTask("random images", batch(shape.shots), batch(shape.query), ())


def _discard(group: Group, gradient: Tensors) -> None:
    """In place of a meta-optimiser: the weights stay as they are."""
    del group, gradient


def _status(entry: str) -> int:
    """Bytes, as the kernel counts them for this program alone."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{entry}:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
