"""The commands that compare runs: `report`, `reproduce` and `demo`."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from warpgrad.cli.run import of_experiment, print_rows, run_config
from warpgrad.errors import WarpgradError, first_line, printable, require
from warpgrad.experiments import Experiment, Group, find_experiment, find_table
from warpgrad.io import read_object, settings_of
from warpgrad.statistics.formatting import count

if TYPE_CHECKING:
    from warpgrad.report import Page

SHIPPED = "synthetic-long"
"""The entry of the zoo that the demonstration continues."""


def report_command(
    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN...")],
    *,
    out: Path = Path("report.html"),
    watch: bool = False,
    every: float = 5.0,
) -> None:
    """Write one self-contained HTML page about some runs.

    Example: warpgrad report runs/synthetic/* --out page.html

    Args:
        runs: The run directories.
        out: The HTML file to write.
        watch: Update the page while the runs continue, until all are finished or Ctrl-C is pressed.
        every: With --watch, the seconds between updates.
    """
    require(runs, "give at least one run directory: warpgrad report RUN...")
    require(every > 0, f"every={every}: the seconds between updates must be greater than 0.")
    if watch:
        _watch(runs, out, every)
    else:
        print(printable(_page(runs).write(out)))


def _page(runs: tuple[Path, ...]) -> Page:
    from warpgrad.training.run_directory import check_metrics, check_owner

    for path in runs:
        check_owner(path)
        check_metrics(path)
    # Runs of a user's program belong to no experiment and get the generic page.
    names = {run_config(path)[0].name if of_experiment(path) else None for path in runs}
    if len(names) > 1 or None in names:
        from warpgrad.report import read_run, run_page

        return run_page([read_run(path) for path in runs])
    experiment = find_experiment(next(name for name in names if name))
    # In the order in which the experiment lists its methods: all are compared with the first.
    groups = sorted(_groups(runs), key=lambda group: experiment.methods.index(group.runs[0].method))
    return _page_of(experiment, groups, f"{experiment.name}: {experiment.summary}")


def _page_of(experiment: Experiment[Any], groups: Sequence[Group], title: str) -> Page:
    """Build an experiment's page, or raise an error for results that are not as the experiment writes them."""
    try:
        return experiment.page(groups, title)
    except WarpgradError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise WarpgradError(
            f"results of {experiment.name} have unexpected entries ({type(error).__name__}: {first_line(error)}), so "
            "they cannot be shown: 'warpgrad evaluate RUN' writes them anew; if that does not help, please report it."
        ) from error


def _watch(runs: tuple[Path, ...], out: Path, every: float) -> None:
    """Write the page again whenever the runs have changed.

    It shows their curves while they run; once all are finished, it is the same page as without watching.
    """
    from warpgrad.io import is_locked
    from warpgrad.report import read_run, run_page

    seen: object = None
    while True:
        # A run that is being resumed still has the summary from when it was shorter.
        going = [path for path in runs if not (path / "summary.json").exists() or is_locked(path / ".lock")]
        now = [
            (file.stat().st_mtime_ns, file.stat().st_size) if (file := path / name).exists() else None
            for path in runs
            for name in ("metrics.jsonl", "summary.json")
        ]
        if now != seen or not going:
            page = run_page([read_run(path, unfinished=True) for path in runs]) if going else _page(runs)
            page.write(out)
            print(f"{printable(out)}: {_state(len(going), len(runs))}", flush=True)
            seen = now
        if not going:
            return
        time.sleep(every)


def _state(going: int, runs: int) -> str:
    return f"{going} of {count(runs, 'run')} still in progress" if going else f"{count(runs, 'run')} finished"


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
    """Run the missing runs of a table of the paper, then build the table and its page.

    Example: warpgrad reproduce synthetic --workers 2

    Args:
        table: The name of the table; `warpgrad list` shows them.
        preset: The preset. Without it, that of the table.
        seeds: The number of seeds of every row. Without it, those of the table.
        workers: The number of processes, of one thread each.
        out: Where the runs and, in a folder of the table's name, the page go. Without it, runs/EXPERIMENT.
        record: Also write a record of the table to this file: everything that its page needs from every run.
        keep: Do not repeat runs that the file of --record already has with exactly the same settings.
    """
    index, _ = _reproduced(table, preset, seeds, workers, out, record, keep)
    print(f"page: {printable(index)}")


def _reproduced(
    table: str,
    preset: str | None,
    seeds: int | None,
    workers: int,
    out: Path | None,
    record: Path | None = None,
    keep: bool = False,
) -> tuple[Path, Page]:
    """Reproduce a table, and return the path of its page and the page."""
    from warpgrad.experiments.comparison import search_lines, trials_of
    from warpgrad.experiments.records import read_record, write_record
    from warpgrad.experiments.reproduction import reproduce as reproduce_table

    wanted = find_table(table)
    experiment = find_experiment(wanted.experiment)
    at = preset or wanted.preset
    require(seeds is None or seeds >= 1, f"seeds={seeds}: at least 1 seed must be run.")
    require(record is not None or not keep, "--keep needs --record FILE, the file whose runs are kept.")
    root = out or Path("runs") / experiment.name
    results = reproduce_table(
        experiment, wanted, root, preset=at, seeds=seeds, workers=workers, recording=record is not None,
        record=read_record(record) if keep and record and record.exists() else None,
    )  # fmt: skip
    page = _page_of(experiment, results.groups, wanted.title)
    index = page.write(root / wanted.name / "index.html")
    page.write_figures(root / wanted.name / "figures")
    if record is not None:
        write_record(record, wanted, at, results)
    print_rows(*experiment.lines(results.groups), f"{wanted.title} (preset {at})")
    if wanted.search:
        metric = experiment.sweep_metric
        print_rows(*search_lines(trials_of(results.groups, metric, results.diverged), metric), "Best settings found")
    return index, page


def demo_command(*, workers: int = 2, out: Path = Path("runs/demo"), surfaces_only: bool = False) -> None:
    """Meta-train on synthetic surfaces and on drawn alphabets, and show the results on one page, in three minutes.

    Example: warpgrad demo --workers 2

    Args:
        workers: The number of processes, of one thread each.
        out: Where the runs and the page go.
        surfaces_only: Leave out the alphabets, which take most of the time.
    """
    from warpgrad.experiments.reproduction import cells
    from warpgrad.report import Page
    from warpgrad.zoo import restore_run

    surfaces = find_table("synthetic-demo")
    carried_on, _ = cells(find_experiment("synthetic"), surfaces, out, surfaces.preset, None)
    restore_run(SHIPPED, carried_on.directory)
    _, descents = _reproduced(surfaces.name, None, None, workers, out)
    sections = [section for section in descents.sections if section.title not in ("Configuration", "Reproduce")]
    shown = "what a meta-trained warp does to loss surfaces"
    if not surfaces_only:
        _, alphabets = _reproduced("omniglot-demo", None, 1, workers, out)
        of_alphabets = ("Accuracy on held-out alphabets", "Learning curves")
        sections = [*(section for section in alphabets.sections if section.title in of_alphabets), *sections]
        shown = f"adaptation to new drawn alphabets beside Leap and SGD, and {shown}"
    page = Page(
        "WarpGrad in three minutes",
        f"{shown[0].upper()}{shown[1:]}. Everything was meta-trained just now, except for one warp of the surfaces, "
        "which continued from weights that come with the package.",
    ).add(*sections)
    print(f"page: {printable(page.write(out / 'index.html'))}")


def _groups(paths: tuple[Path, ...]) -> list[Group]:
    """Group runs that differ only in the seed."""
    from warpgrad.report.runs import read_run

    found: dict[str, list[Path]] = {}
    for path in paths:
        config = settings_of(read_object(path / "config.json"))
        del config["seed"]
        found.setdefault(json.dumps(config, sort_keys=True), []).append(path)
    groups = []
    for members in found.values():
        runs = tuple(read_run(path) for path in members)
        evaluations = tuple(read_object(path / "evaluation.json") for path in members)
        groups.append(Group(runs[0].method, runs, evaluations))
    if len({group.runs[0].preset for group in groups}) > 1:
        groups = [dataclasses.replace(group, label=f"{group.label}, {group.runs[0].preset}") for group in groups]
    return groups
