"""The interface between experiments and the command line: settings, presets, training, evaluation, a page."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Protocol, TypeVar, get_args, get_type_hints

from warpgrad.errors import WarpgradError, require
from warpgrad.experiments.search_space import Spaces

if TYPE_CHECKING:  # settings are read without Jinja2
    from warpgrad.report.page import Page
    from warpgrad.report.runs import Run


@dataclass(frozen=True)
class Config:
    """Settings that every experiment has; an experiment adds its own."""

    preset: str = "paper"
    """The preset that the settings are taken from; every other option changes one of them."""
    method: str = ""
    """The method to run; `warpgrad list` names them."""
    seed: int = 0
    """The seed of every random draw: initial weights, splits, tasks, batches."""
    device: str = "cpu"
    """The device to compute on: cpu, cuda or mps."""


C = TypeVar("C", bound=Config)
Lines = tuple[list[str], list[list[str]]]
"""A table for the terminal: its header and its rows."""


@dataclass(frozen=True)
class Bound:
    """The values that a setting may take. It is part of the field's annotation, and `Experiment.check` enforces it.

    Numbers must also be finite. `None`, where the field allows it, is always within bounds.
    """

    words: str
    """What the error message says about a setting that is out of bounds."""
    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    below: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most and self.above < value < self.below


PositiveInt = Annotated[int, Bound("it must be at least 1", least=1)]
NonNegativeInt = Annotated[int, Bound("it must be at least 0", least=0)]
PositiveFloat = Annotated[float, Bound("it must be finite and greater than 0", above=0)]
NonNegativeFloat = Annotated[float, Bound("it must be finite and at least 0", least=0)]


def require_bounds(config: Config) -> None:
    """Raise an error that names the first setting outside the bounds of its field."""
    for name, hint in get_type_hints(type(config), include_extras=True).items():
        value = getattr(config, name)
        # `float | None` holds the annotated type one level down.
        for part in (hint, *get_args(hint)):
            for bound in getattr(part, "__metadata__", ()):
                if isinstance(bound, Bound) and value is not None and value not in bound:
                    raise WarpgradError(f"{name}={value}: {bound.words}.")


def require_users(config: Config, preset: Config, users_of: Mapping[str, Sequence[str]]) -> None:
    """Refuse changes to settings that the method does not use; `users_of` maps a setting to the methods that do."""
    for name, users in users_of.items():
        require(
            getattr(config, name) == getattr(preset, name) or config.method in users,
            f"{config.method} does not use {name}, a setting of {', '.join(users)}.",
        )


@dataclass(frozen=True)
class Execution:
    """How a run is executed; nothing here changes its numbers."""

    directory: Path
    fresh: bool = False
    tensorboard: bool = False
    progress: bool = True


@dataclass(frozen=True)
class Row:
    """One row of a table: a label, the settings that differ from the preset, and the paper's figure."""

    label: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    paper: float | None = None
    seeds: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Seeds at a preset, where they are not the table's."""
    at: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Further settings at a preset, such as those that smaller sizes require."""
    presets: tuple[str, ...] = ()
    """The presets that include the row, where in others it would repeat another row; empty means all."""

    def settings_at(self, preset: str) -> dict[str, Any]:
        return {**self.settings, **self.at.get(preset, {})}


@dataclass(frozen=True)
class RunTable:
    """A declared set of runs: rows × seeds, at one preset. `warpgrad reproduce NAME` runs and builds it."""

    name: str
    title: str
    experiment: str
    rows: tuple[Row, ...]
    seeds: int
    preset: str = "paper"
    search: bool = False
    """The rows are trials of settings, judged by the experiment's `sweep_metric`; one that diverges is a result."""

    def seeds_of(self, row: Row, preset: str) -> int:
        return row.seeds.get(preset, self.seeds)

    def rows_at(self, preset: str) -> list[Row]:
        return [row for row in self.rows if not row.presets or preset in row.presets]


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed: one row of a table."""

    label: str
    runs: tuple[Run, ...]
    evaluations: tuple[dict[str, Any], ...]
    paper: float | None = None


@dataclass(frozen=True)
class Diverged:
    """A trial of a search in which a loss, a gradient or a parameter became infinite or NaN."""

    label: str
    config: Mapping[str, Any]
    """As in config.json."""
    words: str
    """Which value became infinite or NaN, and where."""


@dataclass(frozen=True)
class Results:
    """The outcome of the runs of a table."""

    groups: list[Group]
    diverged: list[Diverged] = dataclasses.field(default_factory=list)


@dataclass(frozen=True)
class Declaration(Generic[C]):
    """What is known about an experiment before anything is run: enough for lists, help texts and settings.

    It is defined in the experiment's `config.py`, which does not import torch.
    """

    name: str
    section: str
    """Where the paper describes it."""
    summary: str
    methods: tuple[str, ...]
    presets: Mapping[str, C]
    tables: tuple[RunTable, ...] = ()
    spaces: Spaces = dataclasses.field(default_factory=dict)
    """Method -> setting -> what `warpgrad sweep` chooses it from."""
    sweep_metric: str = "accuracy"
    """The metric by which a sweep judges trials, unless another one is given."""
    searched: Mapping[str, Mapping[str, Mapping[str, Any]]] = dataclasses.field(default_factory=dict)
    """Preset -> method -> its settings that won a search on validation tasks."""

    def preset(self, name: str, method: str | None = None) -> C:
        """Return the settings of a preset for the given method, by default for the preset's own."""
        require(name in self.presets, f"{self.name} has no preset '{name}'; choose one of {', '.join(self.presets)}.")
        preset = self.presets[name]
        method = preset.method if method is None else method
        return dataclasses.replace(preset, method=method, **self.searched.get(name, {}).get(method, {}))


class Presentation(Protocol):
    """How the results of an experiment are presented: the interface of its `page.py`."""

    def build_page(self, groups: Sequence[Group], title: str) -> Page:
        """Build the report of the given runs."""

    def result_lines(self, groups: Sequence[Group]) -> Lines:
        """Return the results as a table for the terminal."""


class Experiment(Declaration[C], ABC):
    """One section of the paper: its declaration, and how it is trained, evaluated and shown."""

    declaration: ClassVar[Declaration[Any]]
    presentation: Presentation | None = None
    """None compares the accuracies of the methods."""

    def __init__(self) -> None:
        super().__init__(**vars(self.declaration))

    def config(self, preset: str, **changes: Any) -> C:
        """Return a preset's settings with the given changes, checked."""
        return self.check(dataclasses.replace(self.preset(preset, changes.get("method")), **changes))

    def check(self, config: C) -> C:
        """Return the settings if they can be run; raise for an unknown method or a value outside its field's bounds."""
        require(
            config.method in self.methods,
            f"{self.name} has no method '{config.method}'; choose one of {', '.join(self.methods)}.",
        )
        require_bounds(config)
        return config

    def reads(self, config: C) -> dict[str, str | None]:
        """Return the SHA-256 of what each setting names that a run reads, or None where there is nothing yet.

        config.json stores them, so that a run is never resumed with other content under the same name. Those of this
        class are of the prepared data set that `data` names, if the experiment has this setting.
        """
        from warpgrad.data.prepared import content_hash

        data = getattr(config, "data", None)
        return {"data": content_hash(data)} if data else {}

    @abstractmethod
    def train(self, config: C, execution: Execution) -> int:
        """Meta-train into the run directory, or resume the run there, and return the number of meta-steps done."""

    @abstractmethod
    def evaluate(self, config: C, directory: Path) -> dict[str, Any]:
        """Test the run in `directory` on held-out tasks.

        Returns JSON values: `metrics` (name -> number), the results per task, and everything else that `page` and
        `lines` need, because they are also built from records, without a run directory. Those of this class need
        `accuracy` (held-out task -> per cent after adaptation), `tested_at` (steps of adaptation) and `curve` (mean
        accuracy at each of these).
        """

    def page(self, groups: Sequence[Group], title: str) -> Page:
        """Build the report of some runs; without a `presentation`, it compares the methods side by side."""
        if self.presentation is not None:
            return self.presentation.build_page(groups, title)
        from warpgrad.experiments.comparison import distinct
        from warpgrad.experiments.comparison_page import Measure, comparison_page

        return comparison_page(
            distinct(groups),
            title,
            f"Experiment {self.name} ({self.section})",
            held_out="held-out tasks",
            measures=[Measure("accuracy", "Accuracy after adaptation", compared=True)],
            caption="The same held-out tasks for every row of a meta-seed.",
            notes=(),
        )

    def lines(self, groups: Sequence[Group]) -> Lines:
        """Return the results as a table for the terminal; without a `presentation`, it lists accuracies."""
        if self.presentation is not None:
            return self.presentation.result_lines(groups)
        from warpgrad.experiments.comparison import result_lines

        return result_lines(groups, about=self.name)
