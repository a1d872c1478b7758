"""The page of the few-shot experiment: accuracies beside the published ones, curves, memory of a meta-step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from warpgrad.errors import WarpgradError
from warpgrad.experiments.base import Group
from warpgrad.experiments.comparison import difference, distinct, settings_of
from warpgrad.experiments.comparison_page import Measure, comparison_page
from warpgrad.experiments.few_shot.results import at_equal_time
from warpgrad.io import read_json
from warpgrad.report import Block, Code, Column, Figure, Page, Paragraph, Section, Series, Table, curves
from warpgrad.report.tables import Cell

MEMORY = Path("results/few-shot-memory.json")
"""Written by benchmarks/memory_few_shot.py; its section is on the page where it is there."""
MEMORY_FORMAT = "few-shot-memory"
_MEBIBYTE = 2**20


def build_page(groups: Sequence[Group], title: str) -> Page:
    return comparison_page(
        distinct(groups),
        title,
        f"Few-shot experiment (§4.1, App. H) on {settings_of(groups)}",
        held_out="held-out episodes",
        measures=[Measure("accuracy", "Accuracy after adaptation", compared=True)],
        plain=[
            (Column("before it", "%"), _before),
            (Column("meta-steps"), _meta_steps),
            (Column("their processor time", "min"), _minutes),
        ],
        caption="The same held-out episodes for every row and every meta-seed.",
        notes=list(dict.fromkeys(note for group in groups for item in group.evaluations for note in item["notes"])),
        published="published {:g}",
        sections=[*_equal_time(groups), *([memory_section(MEMORY)] if MEMORY.is_file() else [])],
        training="`validation/` and `test/` scores are means over held-out episodes after K steps. The weights with "
        "the best validation accuracy are the ones tested; test scores on the way choose nothing.",
    )


def _before(group: Group) -> str:
    """Mean accuracy before the first step."""
    return f"{sum(item['curve'][0] for item in group.evaluations) / len(group.evaluations):.1f}"


def _meta_steps(group: Group) -> str:
    """How many were done, which early stopping may change from seed to seed."""
    done = [run.summary["steps"] for run in group.runs]
    return f"{min(done)}" if min(done) == max(done) else f"{min(done)} to {max(done)}"


def _minutes(group: Group) -> str:
    """Processor time of meta-training, mean over meta-seeds."""
    return f"{sum(run.summary['processor_seconds'] for run in group.runs) / len(group.runs) / 60:.1f}"


def _equal_time(groups: Sequence[Group]) -> list[Section]:
    """The first row's method against each other in the rows that had the same processor time; nothing without such."""
    equal = at_equal_time(groups)
    found = [difference(equal[0], other) for other in equal[1:]]
    sentences = [Paragraph(each.sentence(unit="points of accuracy")) for each in found if each is not None]
    if not sentences:
        return []
    about = (
        "As many meta-steps as take the processor time of MAML's row, fixed beforehand by the cost of a meta-step of "
        "each method (benchmarks/few_shot_cost.py). Validations are not counted; all rows have as many."
    )
    return [Section("At equal processor time", [Paragraph(about), *sentences])]


def memory_section(path: Path) -> Section:
    """The measurement in `path` as a figure and a table: what one meta-step adds to the memory of its process."""
    record = read_json(path)
    if not isinstance(record, dict) or record.get("format") != MEMORY_FORMAT:
        raise WarpgradError(f"{path} holds no memory measurement; make it with benchmarks/memory_few_shot.py.")
    found = _memory_by_method(record)
    series = [Series.line(name, list(own), list(own.values())) for name, own in found.items()]
    image = curves(series, x_label="K, adaptation steps", y_label="memory of one meta-step, MiB", size=(6.4, 4.0))
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
        Figure(image, "Peak memory of one meta-step against the number of adaptation steps.", caption),
        Table(columns, rows),
        Code(record["command"], "Measured by"),
    ]
    return Section("Memory against adaptation steps", blocks)


def _memory_by_method(record: dict[str, Any]) -> dict[str, dict[int, float]]:
    """Name of the method -> K -> MiB."""
    found: dict[str, dict[int, float]] = {}
    for point in sorted(record["points"], key=lambda point: int(point["steps"])):
        memory = (point["peak_bytes"] - point["before_bytes"]) / _MEBIBYTE
        found.setdefault(point["label"], {})[int(point["steps"])] = memory
    return found
