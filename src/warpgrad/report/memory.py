"""Peak memory of one meta-step against K, as `benchmarks/memory_few_shot.py` measured it: a section for a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from warpgrad.errors import WarpgradError
from warpgrad.io import read_json
from warpgrad.report.blocks import Block, Code, Figure, Paragraph, Section
from warpgrad.report.charts import Series, curves
from warpgrad.report.tables import Cell, Column, Table

FORMAT = "few-shot-memory"
_MEBIBYTE = 2**20


def memory_section(path: Path) -> Section:
    """The measurement in `path` as a figure and a table: what one meta-step adds to the memory of its process."""
    record = read_json(path)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise WarpgradError(f"{path} holds no memory measurement; make it with 'python -m benchmarks.memory_few_shot'.")
    found = _by_way(record)
    series = [Series.line(name, list(of_way), list(of_way.values())) for name, of_way in found.items()]
    image = curves(series, x_label="K, adaptation steps", y_label="memory of one meta-step, MiB", size=(6.4, 4.0))
    steps = sorted({k for of_way in found.values() for k in of_way})
    rows: list[list[Cell]] = [
        [name, *(None if k not in of_way else round(of_way[k]) for k in steps)] for name, of_way in found.items()
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


def _by_way(record: dict[str, Any]) -> dict[str, dict[int, float]]:
    """Name of the method -> K -> MiB."""
    found: dict[str, dict[int, float]] = {}
    for point in sorted(record["points"], key=lambda point: int(point["steps"])):
        memory = (point["peak_bytes"] - point["before_bytes"]) / _MEBIBYTE
        found.setdefault(point["label"], {})[int(point["steps"])] = memory
    return found
