"""The commands that compare runs: `report`, `reproduce` and `demo`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from warpgrad.cli.run import of_experiment, print_rows, run_config
from warpgrad.errors import printable, require
from warpgrad.experiments import Group, find_experiment, find_table
from warpgrad.io import read_object


def report_command(
    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN...")], *, out: Path = Path("report.html")
) -> None:
    """Write one self-contained HTML page about some runs.

    Example: warpgrad report runs/synthetic/* --out page.html

    Args:
        runs: The run directories.
        out: The page.
    """
    require(runs, "name at least one run directory: warpgrad report RUN...")
    # Runs of a user's own program are of no experiment, and have the page that takes any.
    names = {run_config(path)[0].name if of_experiment(path) else None for path in runs}
    if len(names) > 1 or None in names:
        from warpgrad.report import read_run, run_page

        page = run_page([read_run(path) for path in runs])
    else:
        experiment = find_experiment(next(name for name in names if name))
        page = experiment.page(_groups(runs), f"{experiment.name}: {experiment.summary}")
    print(printable(page.write(out)))


def reproduce_command(
    table: Annotated[Positional[str], arg(metavar="TABLE")],
    *,
    preset: str | None = None,
    seeds: int | None = None,
    workers: int = 2,
    out: Path | None = None,
    record: Path | None = None,
    keep: bool = False,
) -> None:
    """Run what is missing of a table of the paper, then build the table and its page.

    Example: warpgrad reproduce synthetic --workers 2

    Args:
        table: The name of the table; `warpgrad list` shows them.
        preset: Another preset than the table's own.
        seeds: The same number of seeds for every row, instead of the table's own.
        workers: The number of processes, of one thread each.
        out: Where the runs and, in a folder of the table's name, the page go. Without it, runs/EXPERIMENT.
        record: Also put the table on record: all that its page needs of every run, in this one file.
        keep: Do not repeat runs that stand in the file of --record under the very same settings.
    """
    from warpgrad.experiments.comparison import search_lines, trials_of
    from warpgrad.experiments.records import read_record, write_record
    from warpgrad.experiments.reproduction import reproduce as reproduce_table

    wanted = find_table(table)
    experiment = find_experiment(wanted.experiment)
    at = preset or wanted.preset
    require(seeds is None or seeds >= 1, f"seeds={seeds}: at least 1 seed must be run.")
    require(record is not None or not keep, "--keep goes with --record FILE: what is kept are the runs in that file.")
    root = out or Path("runs") / experiment.name
    results = reproduce_table(
        experiment, wanted, root, preset=at, seeds=seeds, workers=workers, recording=record is not None,
        record=read_record(record) if keep and record and record.exists() else None,
    )  # fmt: skip
    page = experiment.page(results.groups, wanted.title)
    index = page.write(root / wanted.name / "index.html")
    page.write_figures(root / wanted.name / "figures")
    if record is not None:
        write_record(record, wanted, at, results)
    print_rows(*experiment.lines(results.groups), f"{wanted.title} (preset {at})")
    if wanted.search:
        metric = experiment.sweep_metric
        print_rows(*search_lines(trials_of(results.groups, metric, results.diverged), metric), "What won the search")
    print(f"page: {printable(index)}")


def demo_command(*, seeds: int = 4, workers: int = 2, out: Path = Path("runs/demo")) -> None:
    """Run two experiments end to end, in a few minutes: synthetic surfaces as in the paper, and drawn alphabets.

    Example: warpgrad demo --workers 2

    Args:
        seeds: The number of meta-seeds of the synthetic experiment; the alphabets take half as many.
        workers: The number of processes, of one thread each.
        out: Where the runs and the pages go.
    """
    reproduce_command("synthetic", seeds=seeds, workers=workers, out=out)
    reproduce_command("omniglot-demo", seeds=max(1, seeds // 2), workers=workers, out=out)


def _groups(paths: tuple[Path, ...]) -> list[Group]:
    """Runs that differ in nothing but the seed, together."""
    from warpgrad.report.runs import read_run

    found: dict[str, list[Path]] = {}
    for path in paths:
        config = {name: value for name, value in read_object(path / "config.json").items() if name != "seed"}
        found.setdefault(json.dumps(config, sort_keys=True), []).append(path)
    groups = []
    for members in found.values():
        runs = tuple(read_run(path) for path in members)
        evaluations = tuple(read_object(path / "evaluation.json") for path in members)
        groups.append(Group(f"{runs[0].method}, {runs[0].preset}", runs, evaluations))
    return groups
