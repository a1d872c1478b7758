"""`warpgrad sweep EXPERIMENT`: search for settings on the validation split."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpgrad.cli.outer import print_line
from warpgrad.cli.run import print_rows
from warpgrad.errors import WarpgradError, require
from warpgrad.experiments import Config, Declaration, find_experiment
from warpgrad.io import write_json
from warpgrad.sweep.results import (
    Direction,
    Prune,
    Search,
    Sweep,
    SweepPaths,
    best_settings,
    direction_of,
    lines,
    summary,
    without_address,
)
from warpgrad.sweep.space import sentence, sweep_space, validation_config

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

SWEEP = """Search for settings on the validation split; repeat the command to resume.

Example: warpgrad sweep omniglot --preset small --method leap --trials 50 --workers 2"""


def sweep_command(
    settings: Config,
    *,
    declared: Declaration[Any],
    words: tuple[str, ...],
    trials: int = 50,
    sampler: Search = "random",
    space: Path | None = None,
    metric: str | None = None,
    direction: Direction | None = None,
    prune: bool = False,
    prune_by: str | None = None,
    prune_after: int = 5,
    workers: int = 1,
    study: str | None = None,
    storage: str | None = None,
    take_over: bool = False,
    out: Path | None = None,
) -> None:
    """Search for settings of one experiment.

    Args:
        settings: The settings of every trial. Settings given on the command line are fixed.
        declared: The experiment.
        words: The command line.
        trials: The number of trials in all, those of earlier calls included.
        sampler: Random search as in the paper, or Optuna's tree-structured Parzen estimator.
        space: A JSON file of settings to try, over those that the experiment declares.
        metric: The number in summary.json to judge by. Without it, the experiment's own choice.
        direction: Whether more or less of it is better. Without it, it follows from the metric's name.
        prune: Stop trials early that are behind the median of the finished ones.
        prune_by: The number in metrics.jsonl to prune by. Without it, the loss of meta-training.
        prune_after: The number of trials that must be complete before any is pruned.
        workers: The number of processes, of one thread each.
        study: The sweep's name. Without it, one made of the settings.
        storage: The address of a database that several machines reach. Without it, a SQLite file of its own.
        take_over: Also resume running trials of other machines. Only when those have stopped permanently.
        out: Where sweeps go. Without it, runs/EXPERIMENT/sweeps.
    """
    for name, number in {"trials": trials, "workers": workers, "prune_after": prune_after}.items():
        require(number >= 1, f"{name}={number}: it must be at least 1.")
    require(prune or prune_by is None, "--prune-by does nothing without --prune.")
    if prune_by is not None:
        direction_of(prune_by)
    require(
        study is None or re.fullmatch(r"[\w.+=-]*\w[\w.+=-]*", study),
        f"study='{study}' must be a name of letters, digits and . + = - _.",
    )
    fixed = _named(words)
    settings = validation_config(declared, settings, named="split" in fixed)
    experiment = find_experiment(declared.name)
    config = experiment.check(settings)
    wanted = metric or experiment.sweep_metric
    plan = Sweep(
        experiment,
        config,
        sweep_space(experiment, config, fixed, space),
        sampler,
        wanted,
        direction or direction_of(wanted),
        Prune(prune_by, prune_after) if prune else None,
    )
    from warpgrad.experiments.runner import run_name
    from warpgrad.sweep.study import open_study
    from warpgrad.sweep.trials import Workers

    name = study or run_name(experiment, config) + ("" if sampler == "random" else f"-{sampler}")
    places = SweepPaths(out or Path("runs") / experiment.name / "sweeps", name)
    with open_study(plan, places, storage) as found:
        _say(f"{name}: {len(found.trials())} of {trials} trials made, {workers} workers")
        for setting, choice in plan.space.items():
            _say(f"  {setting}: {sentence(choice)}")
        Workers(found, say=_say).run(trials, workers, take_over=take_over)
        made = found.trials()
    _conclude(plan, made, places, shlex.join(["warpgrad", "sweep", declared.name, *without_address(words)]))


def _say(line: str) -> None:
    print_line(line, stream=sys.stderr)


def _conclude(plan: Sweep, trials: Sequence[FrozenTrial], places: SweepPaths, command: str) -> None:
    """Print the best trials, write the sweep's page, and store the best settings in a file."""
    from warpgrad.sweep.page import study_page  # needs matplotlib, which is slow to import

    complete = plan.ranked(trials)
    if not complete:
        errors = (trial.user_attrs["error"] for trial in trials if "error" in trial.user_attrs)
        reason = next(errors, "they are still running")
        raise WarpgradError(f"none of {len(trials)} trials is complete ({reason}); search smaller values.")
    write_json(places.best, best_settings(plan, complete[0]), seal=True)
    study_page(plan, trials, places, command).write(places.page)
    print_rows(*lines(plan, trials), f"{plan.experiment.name}, {plan.config.method}: {summary(trials)}")
    print_line(f"page: {places.page}")
    print_line(f"best settings: warpgrad run {plan.experiment.name} --config {places.best}")


def _named(words: Sequence[str]) -> set[str]:
    """Return the settings that the command line names, in any spelling of its flags."""
    flags = {word.split("=", 1)[0].removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}
    return flags | {flag.removeprefix("no_") for flag in flags}
