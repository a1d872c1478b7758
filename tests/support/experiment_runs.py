"""Finished runs of an experiment at a tiny size, and groups of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warpgrad.experiments import records
from warpgrad.experiments.base import Execution, Experiment, Group, Results, RunTable
from warpgrad.experiments.runner import execute
from warpgrad.report.runs import read_run


class Runs(dict[str, Path]):
    """Method -> its run, meta-trained and evaluated when first asked for."""

    def __init__(self, experiment: Experiment[Any], tiny: Callable[..., Any], root: Path) -> None:
        super().__init__()
        self.experiment, self.tiny, self.root = experiment, tiny, root

    def __missing__(self, method: str) -> Path:
        execute(self.experiment, self.tiny(method=method), Execution(self.root / method, progress=False))
        self[method] = self.root / method
        return self[method]


def on_record(table: RunTable, groups: list[Group], path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    """The groups as they come back from a record; the source need not be committed for it."""
    monkeypatch.setattr(records, "check_commit", lambda *_: None)
    records.write_record(path, table, "small", Results(list(groups)))
    return records.read_record(path).groups()


def evaluation_of(run: Path):
    return json.loads((run / "evaluation.json").read_text())


def group_of(label: str, paths: list[Path], paper: float | None = None) -> Group:
    found = tuple(read_run(path) for path in paths)
    return Group(label, found, tuple(evaluation_of(path) for path in paths), paper)
