"""Where numbers come from: the settings of runs, and everything needed to reproduce them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from warpgrad.report.blocks import Block, Code, Collapsible, KeyValues, Note, Paragraph, dotted, shown
from warpgrad.report.metric_curves import by_method, is_number
from warpgrad.report.runs import Run
from warpgrad.report.tables import Cell, Column, Sized, Table
from warpgrad.statistics.formatting import count, duration

UNKNOWN = "not recorded"

_HASH = re.compile("[0-9a-f]{7,64}")


def configuration(runs: Sequence[Run]) -> list[Block]:
    """Show the settings that all runs share once, and those that differ for each run."""
    configs = [{name: shown(value) for name, value in dotted(run.config).items()} for run in runs]
    names = list(dict.fromkeys(name for config in configs for name in config))
    shared = {name: configs[0].get(name) for name in names if len({config.get(name) for config in configs}) == 1}
    varied = [name for name in names if name not in shared]
    whose = "shared by all runs" if len(runs) > 1 else "of the run"
    blocks: list[Block] = [Collapsible(f"{count(len(shared), 'setting')} {whose}", [KeyValues(shared)])]
    if varied:
        table = Table(
            [Column("Run", words=True), *varied],
            [[run.name, *map(config.get, varied)] for run, config in zip(runs, configs, strict=True)],
            "Settings that are not the same in all runs.",
        )
        differ = count(len(varied), "setting that differs", "settings that differ")
        blocks.append(Collapsible(differ, [table]))
    return blocks


def repetition(runs: Sequence[Run]) -> list[Block]:
    """Show the command, seed, preset, commit, versions, hardware and wall time of every run."""
    places: dict[str, tuple[str, dict[str, Any]]] = {}
    rows: list[list[Cell]] = []
    changed = 0
    for run in runs:
        place = {"versions": run.summary.get("versions", UNKNOWN), "hardware": run.summary.get("hardware", UNKNOWN)}
        letter, _ = places.setdefault(shown(place), (f"E{len(places) + 1}", place))
        commit = str(run.summary.get("commit") or UNKNOWN)
        changed += commit != UNKNOWN and _HASH.fullmatch(commit) is None
        rows.append(
            [
                run.method,
                str(run.seed),
                run.preset,
                meta_step_range([run]),
                time_of([run]),
                f"`{_short(commit)}`",
                letter,
                f"`{run.path.name}`",
            ]
        )
    blocks: list[Block] = [
        Paragraph("Check out the commit, install the versions of the environment, and run the command."),
        Table(
            [
                "Method",
                "Seed",
                "Preset",
                "Steps",
                "Wall time",
                "Commit",
                "Environment",
                Column("Run", words=True),
            ],
            rows,
            "Where each number comes from.",
        ),
    ]
    if changed:
        blocks.append(Note(f"{count(changed, 'run')} made from source that differs from the commit.", "warning"))
    blocks += [
        Code("\n".join(_command(run) for run in own), f"{method}, {count(len(own), 'command')}")
        for method, own in by_method(runs).items()
    ]
    blocks += [Collapsible(f"Environment {letter}", [KeyValues(place)]) for letter, place in places.values()]
    return blocks


def _short(commit: str) -> str:
    """Shorten the hash but keep the mark that may follow it, which says that the source was changed."""
    return re.sub(r"^([0-9a-f]{12})[0-9a-f]*", r"\1", commit)


def _command(run: Run) -> str:
    command = run.summary.get("command")
    if not command:
        return f"# {run.name}: the command was not recorded"
    return shlex.join(command) if isinstance(command, list) else str(command)


def meta_step_range(runs: Sequence[Run]) -> str:
    """Return the number of meta-steps of the runs, or its range."""
    steps = sorted({run.summary["steps"] for run in runs if is_number(run.summary.get("steps"))})
    if not steps:
        return UNKNOWN
    return str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"


def time_of(runs: Sequence[Run]) -> Cell:
    """Return the mean wall time of the runs."""
    seconds = [run.summary["wall_seconds"] for run in runs if is_number(run.summary.get("wall_seconds"))]
    mean = sum(seconds) / len(seconds) if seconds else None
    return UNKNOWN if mean is None else Sized(duration(mean), mean)
