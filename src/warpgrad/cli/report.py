"""The commands that compare runs: `report`, `reproduce` and `demo`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import tyro

from warpgrad.cli.main import parse
from warpgrad.cli.run import print_rows, run_config
from warpgrad.errors import WarpgradError
from warpgrad.experiments import Group, find_experiment, find_table
from warpgrad.io import read_json


@dataclass(frozen=True)
class ReportArguments:
    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories."""
    out: Path = Path("report.html")
    """The page."""


def report(words: list[str]) -> None:
    """`warpgrad report RUN... [--out PAGE]`."""
    given: ReportArguments = parse(ReportArguments, words, "warpgrad report")
    if not given.runs:
        raise WarpgradError("name at least one run directory: warpgrad report RUN...")
    names = {declared.name for declared, _ in map(run_config, given.runs)}
    if len(names) > 1:
        from warpgrad.report import load_run, run_page

        page = run_page([load_run(path) for path in given.runs])
    else:
        experiment = find_experiment(names.pop())
        page = experiment.page(_groups(given.runs), f"{experiment.name}: {experiment.summary}")
    print(page.write(given.out))


@dataclass(frozen=True)
class ReproduceArguments:
    table: tyro.conf.Positional[str]
    """The table; `warpgrad list` names them."""
    preset: str | None = None
    """Another preset than the table's own."""
    seeds: int | None = None
    """The same number of seeds for every row, instead of the table's own."""
    workers: int = 2
    """Processes of one thread each."""
    out: Path | None = None
    """Where its runs and, in a folder of the table's name, its page go; runs/EXPERIMENT if not given."""
    record: Path | None = None
    """Also put the table on record: all that its page needs of every run, in this one file."""
    keep: bool = False
    """Runs that stand in the file of --record under the very same settings are not run again."""


def reproduce(words: list[str]) -> None:
    """`warpgrad reproduce TABLE`: run what is missing, then build the table and its page."""
    given: ReproduceArguments = parse(ReproduceArguments, words, "warpgrad reproduce")
    from warpgrad.experiments.comparison import search_lines, trials_of
    from warpgrad.experiments.records import read_record, write_record
    from warpgrad.experiments.reproduction import reproduce as reproduce_table

    table = find_table(given.table)
    experiment = find_experiment(table.experiment)
    preset = given.preset or table.preset
    if given.seeds is not None and given.seeds < 1:
        raise WarpgradError(f"seeds={given.seeds}: at least 1 seed must be run.")
    if given.keep and given.record is None:
        raise WarpgradError("--keep goes with --record FILE: what is kept are the runs in that file.")
    root = given.out or Path("runs") / experiment.name
    results = reproduce_table(
        experiment, table, root,
        preset=preset, seeds=given.seeds, workers=given.workers, recording=given.record is not None,
        record=read_record(given.record) if given.keep and given.record and given.record.exists() else None,
    )  # fmt: skip
    page = experiment.page(results.groups, table.title)
    index = page.write(root / table.name / "index.html")
    page.write_figures(root / table.name / "figures")
    if given.record is not None:
        write_record(given.record, table, preset, results)
    print_rows(*experiment.lines(results.groups), f"{table.title} (preset {preset})")
    if table.search:
        metric = experiment.sweep_metric
        print_rows(*search_lines(trials_of(results.groups, metric, results.diverged), metric), "What won the search")
    print(f"page: {index}")


@dataclass(frozen=True)
class DemoArguments:
    seeds: int = 4
    """Meta-seeds of the synthetic experiment; the alphabets take half as many."""
    workers: int = 2
    """Processes of one thread each."""
    out: Path = Path("runs/demo")
    """Where the runs and the pages go."""


def demo(words: list[str]) -> None:
    """`warpgrad demo`: the synthetic experiment at the paper's settings, and drawn alphabets; tables and pages."""
    given: DemoArguments = parse(DemoArguments, words, "warpgrad demo")
    for table, seeds in (("synthetic", given.seeds), ("omniglot-demo", max(1, given.seeds // 2))):
        reproduce([table, "--seeds", str(seeds), "--workers", str(given.workers), "--out", str(given.out)])


def _groups(paths: tuple[Path, ...]) -> list[Group]:
    """Runs that differ in nothing but the seed, together."""
    from warpgrad.report.runs import load_run

    found: dict[str, list[Path]] = {}
    for path in paths:
        config = {name: value for name, value in read_json(path / "config.json").items() if name != "seed"}
        found.setdefault(json.dumps(config, sort_keys=True), []).append(path)
    groups = []
    for members in found.values():
        runs = tuple(load_run(path) for path in members)
        evaluations = tuple(read_json(path / "evaluation.json") for path in members)
        groups.append(Group(f"{runs[0].method}, {runs[0].preset}", runs, evaluations))
    return groups
