"""Peak memory of one few-shot meta-step against K: backpropagation through adaptation, and the warp's gradient.

    python -m benchmarks.memory_few_shot [--steps 1 5 10 20 40] [--filters 32] [--out results/few-shot-memory.json]
        [--page runs/few-shot-memory.html]

| way         | φ                  | θ0                    | memory in K                                  |
|-------------|--------------------|-----------------------|----------------------------------------------|
| `maml`      |                    | MAML, unrolled        | grows                                        |
| `warp-maml` | Algorithm 1, exact | MAML                  | grows, by θ0's gradient alone                |
| `warp-leap` | the same           | Leap                  | flat                                         |
| `warp`      | the same           | fixed                 | flat: the warp gradient's own part           |

Every point is a separate process: one task of random images (memory does not depend on what they show), the
resident size before the meta-step, and the high-water mark after it. Linux only.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.fresh_process import peak_memory
from warpgrad.algorithms.base import Algorithm
from warpgrad.algorithms.method import Method, ParameterGroup
from warpgrad.data.tasks.episodes import FewShotTask
from warpgrad.errors import WarpgradError
from warpgrad.experiments.few_shot.config import PRESETS, FewShotConfig
from warpgrad.experiments.few_shot.methods import recipe
from warpgrad.initialisers import Fixed, Leap
from warpgrad.io import read_json, write_json
from warpgrad.report import Block, Chart, Code, Column, Page, Paragraph, Section, Series, Table
from warpgrad.report.tables import Cell
from warpgrad.tensors import Tensors, laid_channels_last
from warpgrad.training.resources import hardware, versions
from warpgrad.version import commit

LABELS = {
    "maml": "MAML",
    "warp-maml": "Warp-MAML",
    "warp-leap": "Warp-Leap",
    "warp": "warp, fixed θ0",
}
STEPS = (1, 5, 10, 20, 40)
IMAGE_SIZE = 32
OUT = Path("results/few-shot-memory.json")
MEMORY_FORMAT = "few-shot-memory"
_MEBIBYTE = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description="Peak memory of one few-shot meta-step against K.")
    parser.add_argument("--steps", type=int, nargs="+", default=list(STEPS), help="Every K to measure.")
    parser.add_argument("--filters", type=int, default=PRESETS["small"].filters, help="Channels of each block.")
    parser.add_argument("--image-size", type=int, default=IMAGE_SIZE, help="Height and width of the images.")
    parser.add_argument("--out", type=Path, default=OUT, help="The record.")
    parser.add_argument("--page", type=Path, help="Also draw the record on a page.")
    given = parser.parse_args()
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
            "command": shlex.join(["python", "-m", "benchmarks.memory_few_shot", *sys.argv[1:]]),
            "versions": versions(),
            "hardware": hardware(),
            "commit": commit(),
        },
    )
    if given.page is not None:
        write_page(given.out, given.page)


def write_page(record: Path, page: Path) -> None:
    """Write a page that shows the record as a figure and a table."""
    Page("Memory of a few-shot meta-step").add(memory_section(record)).write(page)


def probe(way: str, steps: int, filters: int, image_size: int) -> tuple[int, int]:
    """Return (resident bytes before, peak bytes after) one meta-step in a fresh process."""
    peak, before = peak_memory(meta_step, way, steps, filters, image_size)
    return before, peak


def meta_step(way: str, steps: int, filters: int, image_size: int) -> int:
    """Take a meta-step in this process, and return the resident bytes before it."""
    torch.set_num_threads(1)
    config = dataclasses.replace(PRESETS["small"], steps=steps, filters=filters)
    method, algorithm = parts(way, config, image_size)
    task = random_episode(config, image_size)
    before = resident_bytes()
    algorithm.meta_step(method, [task], [0], _discard)
    return before


def parts(way: str, config: FewShotConfig, image_size: int) -> tuple[Method, Algorithm]:
    """Return the few-shot experiment's own method; for the last two ways with another C(θ0)."""
    name = "maml" if way == "maml" else "warp-maml"
    chosen = recipe(dataclasses.replace(config, method=name), (3, image_size, image_size))
    method = chosen.method
    if way in ("warp-leap", "warp"):
        method = dataclasses.replace(method, initialiser=Leap() if way == "warp-leap" else Fixed())
    return method, chosen.algorithm


def random_episode(config: FewShotConfig, image_size: int) -> FewShotTask:
    shape = config.train_shape
    torch.manual_seed(0)

    def batch(of_each: int) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randn(shape.ways * of_each, 3, image_size, image_size)
        return laid_channels_last(images), torch.arange(shape.ways).repeat_interleave(of_each)

    return FewShotTask("random images", batch(shape.shots), batch(shape.query), ())


def _discard(group: ParameterGroup, gradient: Tensors) -> None:
    """Discard the gradient in place of a meta-optimiser, so that the weights stay as they are."""
    del group, gradient


def resident_bytes() -> int:
    """Return the memory that this program holds now, as the kernel counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def memory_section(path: Path) -> Section:
    """Show the measurement in `path` as a figure and a table: the memory that one meta-step adds to its process."""
    record = read_json(path)
    if not isinstance(record, dict) or record.get("format") != MEMORY_FORMAT:
        raise WarpgradError(f"{path} holds no memory measurement; make it with python -m benchmarks.memory_few_shot.")
    found = _memory_by_method(record)
    series = [Series.line(name, list(own), list(own.values())) for name, own in found.items()]
    steps = sorted({k for own in found.values() for k in own})
    rows: list[list[Cell]] = [
        [name, *(None if k not in own else round(own[k]) for k in steps)] for name, own in found.items()
    ]
    columns: list[Column | str] = ["Method", *(Column(f"K = {k}", "MiB") for k in steps)]
    setting = record["setting"]
    words = (
        "The warp's gradient needs one step at a time, so its memory does not depend on K: with a fixed θ0, and with "
        "Leap, which looks at one segment at a time. Where θ0 is learned by MAML, its gradient goes through all K "
        "steps, with a warp or without, and memory grows with them."
    )
    caption = (
        f"{setting['ways']}-way, {setting['support']} support and {setting['query']} query images of "
        f"{setting['image_size']}×{setting['image_size']}, {setting['filters']} filters, one task; peak resident "
        "memory above that before the meta-step, each point in a process of its own."
    )
    blocks: list[Block] = [
        Paragraph(words),
        Chart(
            series,
            x_label="K, adaptation steps",
            y_label="memory of one meta-step, MiB",
            alt="Peak memory of one meta-step against the number of adaptation steps.",
            caption=caption,
        ),
        Table(columns, rows),
        Code(record["command"], "Measured by"),
    ]
    return Section("Memory against adaptation steps", blocks)


def _memory_by_method(record: dict[str, Any]) -> dict[str, dict[int, float]]:
    """Return name of the method -> K -> MiB."""
    found: dict[str, dict[int, float]] = {}
    for point in sorted(record["points"], key=lambda point: int(point["steps"])):
        memory = (point["peak_bytes"] - point["before_bytes"]) / _MEBIBYTE
        found.setdefault(point["label"], {})[int(point["steps"])] = memory
    return found


if __name__ == "__main__":
    main()
