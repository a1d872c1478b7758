"""summary.json of a run that a user's program made with `meta_train`, for `warpgrad report` to read."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warpgrad.algorithms.method import Method
from warpgrad.io import read_object, write_json
from warpgrad.training.loggers import numbers
from warpgrad.training.loop import MetaRecords
from warpgrad.training.resources import hardware, versions
from warpgrad.training.run_directory import OWNER, identity
from warpgrad.version import commit

GROUP = "own runs"
"""The group that runs belong to, and are compared within, unless their config names another `group`."""


def write_summary(path: Path, settings: Mapping[str, Any], method: Method, records: MetaRecords) -> None:
    """Write the summary. Its metrics are the scores of the final parameters, or the last losses without any scores."""
    summary = {
        "experiment": settings.get("group", GROUP),
        "method": settings.get("method", method_name(settings)),
        "preset": settings.get("preset"),
        "seed": settings["seed"],
        "steps": len(records),
        "stopped": records.stopped,
        "metrics": final_metrics(records),
        "wall_seconds": _total(records, "seconds", "validation_seconds", "test_seconds"),
        "processor_seconds": _total(records, "cpu_seconds"),
        "parameters": {group: _count(method, group) for group in ("phi", "rule", "theta0", "prior")},
        "versions": versions(),
        "commit": commit(),
        "hardware": hardware(),
        "command": shlex.join(["python", *sys.argv]),
        OWNER: identity(read_object(path / "config.json")),
    }
    write_json(path / "summary.json", summary, seal=True)


def method_name(settings: Mapping[str, Any]) -> str:
    """Name a method after its parts, where the user has given no name."""
    parts = [settings.get(name) for name in ("algorithm", "objective", "initialiser", "rule")]
    return " + ".join(str(part) for part in parts if part not in (None, "Fixed"))


def final_metrics(records: MetaRecords) -> dict[str, float]:
    """Return the newest value of every score up to the record whose parameters were chosen.

    Of records without any score, return the losses of the last one.
    """
    scores: dict[str, float] = {}
    for record in records if records.chosen is None else records[: records.chosen + 1]:
        scores.update({name: value for name, value in record.items() if name.startswith(("validation/", "test/"))})
    if scores or not records:
        return scores
    return {name: value for name, value in numbers(records[-1]).items() if "/" not in name}


def _total(records: MetaRecords, *names: str) -> float:
    return float(sum(record.get(name, 0.0) for record in records for name in names))


def _count(method: Method, group: Any) -> int:
    return sum(value.numel() for value in method.parameters(group).values())
