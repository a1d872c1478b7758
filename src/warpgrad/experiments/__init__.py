"""The paper's experiments, one folder each, and the registry that the command line reads.

Declarations (settings, presets, tables) are read without torch; the code that runs an experiment is imported on demand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from warpgrad.errors import WarpgradError, require
from warpgrad.experiments.base import Config, Declaration, Execution, Experiment, Group, Row, RunTable
from warpgrad.experiments.settings_file import fitted_settings
from warpgrad.io import settings_of

if TYPE_CHECKING:  # settings are read without torch
    from warpgrad.algorithms.method import Method

T = TypeVar("T")

_FOLDERS: Mapping[str, str] = MappingProxyType(
    {
        "synthetic": "synthetic",
        "omniglot": "omniglot",
        "few-shot": "few_shot",
        "multi-shot": "multi_shot",
        "maze": "maze",
        "continual": "continual",
        "text-intents": "text_intents",
    }
)
"""Experiment -> its folder. To add one, make the folder and name it here."""


class _Registry(Mapping[str, T]):
    """Map experiments to an attribute of one module in their folders, which is imported on first access."""

    def __init__(self, role: str, attribute: str) -> None:
        self._role, self._attribute = role, attribute

    def __getitem__(self, name: str) -> T:
        found: T = getattr(import_module(f"{__name__}.{_FOLDERS[name]}.{self._role}"), self._attribute)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(_FOLDERS)

    def __len__(self) -> int:
        return len(_FOLDERS)

    def __contains__(self, name: object) -> bool:
        return name in _FOLDERS


DECLARATIONS: Mapping[str, Declaration[Any]] = _Registry("config", "DECLARATION")
EXPERIMENTS: Mapping[str, Experiment[Any]] = _Registry("experiment", "EXPERIMENT")


def find_declaration(name: str) -> Declaration[Any]:
    """Return the declaration of an experiment, without importing torch."""
    return _find(name, DECLARATIONS)


def find_experiment(name: str) -> Experiment[Any]:
    """Return an experiment that is ready to run."""
    return _find(name, EXPERIMENTS)


def find_table(name: str) -> RunTable:
    """Return the table of this name, from the paper or our own, whichever experiment declares it."""
    tables = {table.name: table for declared in DECLARATIONS.values() for table in declared.tables}
    return _find(name, tables, "table")


def find_builder(name: str) -> Callable[[Any], Method]:
    """Return the function that builds an experiment's method from its settings alone, to load weights into."""
    find_declaration(name)
    found = import_module(f"{__name__}.{_FOLDERS[name]}.methods")
    require(hasattr(found, "build"), f"the networks of {name} cannot be built from its settings alone.")
    build: Callable[[Any], Method] = found.build
    return build


def stored_config(kept: Mapping[str, Any], path: Path) -> tuple[Declaration[Any], Any]:
    """Return the experiment that stored settings belong to, and the settings; `path` is the file that holds them."""
    experiment = find_declaration(kept["experiment"])
    preset = next(iter(experiment.presets.values()))
    known = {item.name for item in dataclasses.fields(preset)}
    given = {name: value for name, value in settings_of(kept).items() if name not in ("experiment", "threads")}
    unknown = sorted(set(given) ^ known)
    if unknown:
        raise WarpgradError(
            f"{path} does not match this version of {experiment.name} (setting '{unknown[0]}'); "
            "use the version that wrote it, or run it again with --fresh."
        )
    return experiment, dataclasses.replace(preset, **fitted_settings(given, experiment, path))


def _find(name: str, known: Mapping[str, T], what: str = "experiment") -> T:
    require(name in known, f"there is no {what} '{name}'; choose one of {', '.join(known)}.")
    return known[name]


__all__ = [
    "DECLARATIONS",
    "EXPERIMENTS",
    "Config",
    "Declaration",
    "Execution",
    "Experiment",
    "Group",
    "Row",
    "RunTable",
    "find_builder",
    "find_declaration",
    "find_experiment",
    "find_table",
    "stored_config",
]
