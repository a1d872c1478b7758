"""Results on record: one JSON file with all that the comparisons of a table need, without its run directories.

An entry is one run: its label, configuration, summary (metrics, steps, time, versions, commit, hardware, command), its
learning curve, and what its experiment names under `recorded`. So a table can be built anew where but some of its runs
are at hand: the others stand as they are on record, each with the commit and the machine it was made on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from warpgrad.engine.files import write_bytes
from warpgrad.errors import WarpgradError
from warpgrad.experiments.base import Group
from warpgrad.report.runs import Run

Recorded = tuple[Run, dict[str, Any]]
"""A run as it is on record, and its evaluation."""
_PARTS = {"label": str, "config": dict, "summary": dict, "metrics": list}


def write_record(path: Path, groups: Sequence[Group], recorded: Sequence[str]) -> None:
    """Put groups on record; `recorded` are the parts of an evaluation that are kept beside its metrics."""
    rows = []
    for group in groups:
        for run, evaluation in zip(group.runs, group.evaluations, strict=True):
            kept = {name: _shortened(evaluation[name]) for name in recorded}
            # The learning curve: every validation, and the last meta-step.
            validated = [line for line in run.metrics[:-1] if any(name.startswith("validation/") for name in line)]
            curve = [*validated, *run.metrics[-1:]]
            row = {"label": group.label, "config": run.config, "summary": run.summary, "metrics": curve}
            rows.append({**row, "evaluation": kept} if kept else row)
    # One line for each run: of thousands of numbers nobody reads one to a line.
    lines = ",\n".join(json.dumps(row, sort_keys=True) for row in rows)
    write_bytes(path, f"[\n{lines}\n]\n".encode())


def _shortened(value: Any) -> Any:
    """A JSON value with its numbers in seven digits, as many as single precision holds: records stay for good."""
    if isinstance(value, dict):
        return {name: _shortened(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_shortened(part) for part in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def read_record(path: Path) -> list[dict[str, Any]]:
    """The entries of a record; none where there is no such file yet."""
    if not path.exists():
        return []
    try:
        entries: list[dict[str, Any]] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise WarpgradError(f"{path} cannot be read as a record ({error}); restore it or name another.") from error
    whole = isinstance(entries, list) and all(
        isinstance(entry, dict) and all(isinstance(entry.get(name), kind) for name, kind in _PARTS.items())
        for entry in entries
    )
    if not whole:
        raise WarpgradError(f"{path} is not a record of `warpgrad reproduce`; restore it or name another.")
    return entries


def find_recorded(
    entries: Sequence[dict[str, Any]], wanted: dict[str, Any], directory: Path, recorded: Sequence[str]
) -> Recorded | None:
    """The run under these very settings, as if it had been read from its directory; None where none is on record."""
    for entry in entries:
        config = {name: value for name, value in entry["config"].items() if name != "format"}
        kept = entry.get("evaluation", {})
        if config == wanted and all(name in kept for name in recorded):
            run = Run(directory, entry["config"], entry["summary"], entry["metrics"])
            return run, {"metrics": entry["summary"].get("metrics", {}), **kept}
    return None
