"""The paper's experiments, one file each, and the registry that the command line reads."""

from __future__ import annotations

from typing import Any

from warpgrad.errors import WarpgradError
from warpgrad.experiments.base import Config, Execution, Experiment, Group, Row, Table
from warpgrad.experiments.continual.experiment import Continual
from warpgrad.experiments.few_shot.experiment import FewShot
from warpgrad.experiments.maze.experiment import MazeNavigation
from warpgrad.experiments.multi_shot.experiment import MultiShot
from warpgrad.experiments.omniglot.experiment import Omniglot
from warpgrad.experiments.synthetic.experiment import Synthetic

_ALL: tuple[Experiment[Any], ...] = (Synthetic(), Omniglot(), FewShot(), MultiShot(), MazeNavigation(), Continual())
EXPERIMENTS: dict[str, Experiment[Any]] = {experiment.name: experiment for experiment in _ALL}


def find_experiment(name: str) -> Experiment[Any]:
    if name not in EXPERIMENTS:
        raise WarpgradError(f"there is no experiment '{name}'; choose one of {', '.join(EXPERIMENTS)}.")
    return EXPERIMENTS[name]


def find_table(name: str) -> Table:
    tables = {table.name: table for experiment in EXPERIMENTS.values() for table in experiment.tables}
    if name not in tables:
        raise WarpgradError(f"there is no table '{name}'; choose one of {', '.join(tables)}.")
    return tables[name]


__all__ = ["EXPERIMENTS", "Config", "Execution", "Experiment", "Group", "Row", "Table", "find_experiment", "find_table"]
