"""`warpgrad sweep EXPERIMENT`: search for settings on the validation split.

warpgrad sweep omniglot --preset small --method leap --trials 50 --workers 2
warpgrad sweep omniglot --preset small --method leap --trials 80 --workers 2       goes on to 80
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import tyro

from warpgrad.cli.main import parse
from warpgrad.cli.run import given_word, named_experiment, print_rows
from warpgrad.errors import WarpgradError
from warpgrad.experiments import Config, Experiment, find_experiment
from warpgrad.io import write_json
from warpgrad.sweep.results import (
    Direction,
    Outcome,
    Places,
    Search,
    Sweep,
    best_settings,
    direction_of,
    lines,
    ranked,
    summary,
)
from warpgrad.sweep.space import sentence, sweep_space, validation_config

C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class SweepOptions:
    """How to search, and where the trials go."""

    trials: int = 50
    """How many in all, those of earlier calls included."""
    sampler: Search = "random"
    """Random search as in the paper, or the tree-structured Parzen estimator."""
    space: Path | None = None
    """JSON file of settings to try, over those the experiment declares."""
    metric: str | None = None
    """The number in summary.json to judge by; the experiment's own choice if not given."""
    direction: Direction | None = None
    """Whether more or less of it is better; told from its name if not given."""
    prune: bool = False
    """Stop trials early that are behind the median of the finished ones."""
    prune_by: str | None = None
    """The number in metrics.jsonl to prune by; the loss of meta-training if not given."""
    prune_after: int = 5
    """Trials that must be complete before any is pruned."""
    workers: int = 1
    """Processes of one thread each."""
    study: str | None = None
    """The sweep's name; made of the settings if not given."""
    storage: str | None = None
    """Address of a database that several machines reach; a SQLite file of its own if not given."""
    take_over: bool = False
    """Also take up running trials of other machines. Only when those have stopped for good."""
    out: Path | None = None
    """Where sweeps go; runs/EXPERIMENT/sweeps if not given."""


@dataclass(frozen=True)
class SweepArguments(Generic[C]):
    config: tyro.conf.OmitArgPrefixes[C]
    options: tyro.conf.OmitArgPrefixes[SweepOptions] = field(default_factory=SweepOptions)


def sweep(words: list[str]) -> None:
    """`warpgrad sweep EXPERIMENT [--trials N] [options]`: options of the experiment fix its settings."""
    declared, rest = named_experiment(words, "sweep")
    preset = given_word(rest, "--preset") or next(iter(declared.presets))
    base = validation_config(declared, declared.preset(preset))
    program = f"warpgrad sweep {declared.name}"
    given: Any = parse(SweepArguments[type(base)], rest, program, SweepArguments(base))  # type: ignore[misc]
    options: SweepOptions = given.options
    _check(options, given.config)
    experiment = find_experiment(declared.name)
    config = experiment.check(given.config)
    space = sweep_space(experiment, config, _named(rest), options.space)
    metric = options.metric or experiment.sweep_metric
    plan = Sweep(experiment, config, space, options.sampler, metric, options.direction or direction_of(metric))
    name = options.study or _default_name(experiment, config, options.sampler)
    places = Places(options.out or Path("runs") / experiment.name / "sweeps", name)
    outcomes = _searched(plan, options, places)
    _conclude(plan, outcomes, places, shlex.join(["warpgrad", "sweep", *_without_storage(words)]))


def _searched(plan: Sweep, options: SweepOptions, places: Places) -> list[Outcome]:
    """Run what is missing; returns all trials there are."""
    from warpgrad.sweep.ownership import Owner
    from warpgrad.sweep.pruning import Prune
    from warpgrad.sweep.study import Record, opened
    from warpgrad.sweep.trials import Workers

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    prune = Prune(options.prune_by, options.prune_after) if options.prune else None
    with opened(options.storage or places.database) as storage, Owner(places.directory) as owner:
        record = Record(plan, places.study, storage, owner, options.prune_after)
        before = record.outcomes()
        say(f"{places.study}: {len(before)} of {options.trials} trials made, {options.workers} workers")
        for setting, choice in plan.space.items():
            say(f"  {setting}: {sentence(choice)}")
        workers = Workers(record, places, say=say, prune=prune)
        workers.run(options.trials, options.workers, take_over=options.take_over)
        owner.tidy(record.owners())
        return record.outcomes()


def _conclude(plan: Sweep, outcomes: list[Outcome], places: Places, command: str) -> None:
    """The best trials on the terminal, on a page, and the best one in a file."""
    from warpgrad.sweep.page import build_page  # needs matplotlib, which is slow to import

    complete = ranked(outcomes, plan.direction)
    if not complete:
        reason = next((outcome.error for outcome in outcomes if outcome.error), "they are still running")
        raise WarpgradError(f"none of {len(outcomes)} trials is complete ({reason}); search smaller values.")
    write_json(places.best, best_settings(plan, complete[0]))
    build_page(plan, outcomes, places, command).write(places.page)
    print_rows(*lines(plan, outcomes), f"{plan.experiment.name}, {plan.config.method}: {summary(outcomes)}")
    print(f"page: {places.page}")
    print(f"best settings: warpgrad run {plan.experiment.name} --config {places.best}")


def _check(options: SweepOptions, config: Any) -> None:
    for name in ("trials", "workers", "prune_after"):
        if getattr(options, name) < 1:
            raise WarpgradError(f"{name}={getattr(options, name)}: it must be at least 1.")
    if options.prune_by is not None and not options.prune:
        raise WarpgradError("--prune-by does nothing without --prune.")
    if options.prune_by is not None:
        direction_of(options.prune_by)
    if options.study is not None and not re.fullmatch(r"[\w.+=-]*\w[\w.+=-]*", options.study):
        raise WarpgradError(f"study='{options.study}' must be a name of letters, digits and . + = - _.")
    if config.split == "test":
        raise WarpgradError("a sweep chooses settings, so it cannot look at the test split; leave --split out.")


def _default_name(experiment: Experiment[Any], config: Config, sampler: str) -> str:
    from warpgrad.experiments import runner

    return runner.run_name(experiment, config) + ("" if sampler == "random" else f"-{sampler}")


def _named(words: list[str]) -> set[str]:
    """The settings that the command line names, however it writes them."""
    flags = {word.split("=", 1)[0].removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}
    return flags | {flag.removeprefix("no_") for flag in flags}


def _without_storage(words: list[str]) -> list[str]:
    """The command for the page; a database's address may hold a password."""
    kept = [re.sub(r"^--storage=.*", "--storage=ADDRESS", word, flags=re.DOTALL) for word in words]
    return ["ADDRESS" if place and kept[place - 1] == "--storage" else word for place, word in enumerate(kept)]
