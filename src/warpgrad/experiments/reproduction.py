"""`reproduce`: run a declared table in N worker processes, and resume it where it stopped.

Every cell is an ordinary run directory, made by the ordinary command, so each can be inspected, resumed and repeated
on its own. Finished cells are not run again, nor, if a record is given, those that it contains.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpgrad.data.prepared import DRAWN
from warpgrad.errors import NonFiniteError, WarpgradError, require
from warpgrad.experiments import workers as working
from warpgrad.experiments.base import Config, Diverged, Experiment, Group, Results, Row, RunTable
from warpgrad.experiments.records import Record, Recorded, check_commit
from warpgrad.experiments.runner import concluded, python_command, run_name, stored_settings
from warpgrad.experiments.workers import Worker, print_progress, stop_all
from warpgrad.io import is_locked, read_bytes, read_object
from warpgrad.report.runs import read_run
from warpgrad.training.interrupts import Interrupted, Interrupts, leave_after
from warpgrad.training.progress import LINE_SECONDS
from warpgrad.training.run_directory import LOCK, check_metrics
from warpgrad.version import commit


@dataclass(frozen=True)
class Failure:
    """A run that failed: its exit code and the last line of its output."""

    code: int
    words: str


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """One run of a table."""

    row: Row
    config: Config
    directory: Path


def cells(experiment: Experiment[Any], table: RunTable, root: Path, preset: str, seeds: int | None) -> list[PlannedRun]:
    """Return all runs of a table, seed by seed, so that an interrupted table is complete for its first seeds.

    Runs are named by their settings, so that tables that have a run in common share its directory.
    """
    rows = table.rows_at(preset)
    counts = {row.label: table.seeds_of(row, preset) if seeds is None else seeds for row in rows}
    found = []
    for seed in range(max(counts.values())):
        for row in rows:
            if seed < counts[row.label]:
                config = experiment.config(preset, **{**row.settings_at(preset), "seed": seed})
                found.append(PlannedRun(row, config, root / run_name(experiment, config)))
    return found


def finished(experiment: Experiment[Any], cell: PlannedRun) -> bool:
    """Return whether the run exists, is complete, and has exactly these settings."""
    return concluded(experiment, cell.config, cell.directory, threads=1) is not None


def run_cells(
    experiment: Experiment[Any], todo: list[PlannedRun], workers: int, say: Callable[[str], None]
) -> dict[PlannedRun, Failure]:
    """Run cells in `workers` processes of one thread each, and return those that failed."""
    require(workers >= 1, f"workers={workers}: at least 1 process must work.")
    waiting = list(todo)
    active: dict[Worker, tuple[PlannedRun, float]] = {}
    failed: dict[PlannedRun, Failure] = {}
    spoke = time.monotonic()
    try:
        with Interrupts() as interrupts:
            # Signals are held back while workers are started or counted, and handled in between.
            interrupts.hold()
            while waiting or active:
                # A run left over from an earlier table may still be ending: wait until its directory is unlocked.
                free = [cell for cell in waiting if not is_locked(cell.directory / LOCK)]
                for cell in free[: workers - len(active)]:
                    waiting.remove(cell)
                    worker = Worker(python_command(experiment, cell.config, cell.directory))
                    active[worker] = (cell, time.monotonic())
                for worker in [worker for worker in active if worker.code is not None]:
                    cell, began = active.pop(worker)
                    words, code = worker.last_words, worker.code or 0
                    place = f"[{len(todo) - len(waiting) - len(active)}/{len(todo)}] {cell.directory.name}"
                    if code == 0:
                        say(f"{place}: done in {time.monotonic() - began:.0f} s")
                    elif is_locked(cell.directory / LOCK):
                        waiting.append(cell)
                    else:
                        failed[cell] = Failure(code, words)
                        say(f"{place}: FAILED: {words}")
                if time.monotonic() - spoke >= LINE_SECONDS:
                    spoke = time.monotonic()
                    for cell, began in active.values():
                        say(f"  {cell.directory.name}: {_so_far(cell)}, {spoke - began:.0f} s")
                interrupts.release()
                time.sleep(working.POLL_SECONDS)
                interrupts.hold()
    except Interrupted as error:
        leave_after(error)
    finally:
        stop_all(list(active))
    return failed


def _so_far(cell: PlannedRun) -> str:
    """Describe how far a run is, by the number of lines in its metrics."""
    metrics, wanted = cell.directory / "metrics.jsonl", getattr(cell.config, "meta_steps", 0)
    done = read_bytes(metrics).count(b"\n") if metrics.exists() else 0
    if not done:
        return "begins"
    return f"meta-step {done} of {wanted}" if done < wanted else "is being tested"


def reproduce(
    experiment: Experiment[Any],
    table: RunTable,
    root: Path,
    *,
    preset: str,
    seeds: int | None,
    workers: int,
    recording: bool = False,
    record: Record | None = None,
) -> Results:
    """Run what is missing of a table, and return its rows with their runs.

    With `recording`, runs that may not be recorded are refused before the first one starts. Runs that `record` has with
    exactly the same settings are not missing. In a search, a row with a diverged run is a trial that diverged; in other
    tables, a run that diverges is a failure.
    """

    every = cells(experiment, table, root, preset, seeds)
    done = [cell for cell in every if finished(experiment, cell)]
    recorded: dict[PlannedRun, Recorded] = {}
    diverged: dict[PlannedRun, Diverged] = {}
    for cell in every:
        if record is None or cell in done:
            continue
        wanted = asked_for(experiment, preset, cell)
        if found := record.find(wanted):
            recorded[cell] = found
        elif trial := record.find_diverged(wanted):
            diverged[cell] = trial
    todo = [cell for cell in every if cell not in done and cell not in recorded and cell not in diverged]
    if recording:
        check_real(experiment, preset, [cell for cell in every if cell in done or cell in todo])
        if todo:
            check_commit(commit(), "a run that would start now")
    known = "" if record is None else f", {len(recorded) + len(diverged)} taken from the record"
    print_progress(f"{table.name}: {len(every)} runs, {len(done)} of them finished{known}, {workers} workers")
    failed = run_cells(experiment, todo, workers, print_progress)
    if table.search:
        for cell in [cell for cell, failure in failed.items() if failure.code == NonFiniteError.exit_code]:
            words = failed.pop(cell).words
            diverged[cell] = Diverged(cell.row.label, stored_settings(experiment, cell.config), words)
    if failed:
        names = "; ".join(f"{cell.directory.name}: {failure.words}" for cell, failure in list(failed.items())[:3])
        raise WarpgradError(f"{len(failed)} of {len(every)} runs failed ({names}); fix that and repeat the command.")
    results = Results([], list(diverged.values()))
    for row in table.rows_at(preset):
        own = [cell for cell in every if cell.row is row]
        if not any(cell in diverged for cell in own):
            runs, evaluations = zip(*(recorded.get(cell) or _loaded(cell) for cell in own), strict=True)
            results.groups.append(Group(row.label, runs, evaluations, row.paper))
    return results


def asked_for(experiment: Experiment[Any], preset: str, cell: PlannedRun) -> dict[str, Any]:
    """Return the settings of a run as its table declares them, with `data` None if the table leaves it open."""
    wanted = stored_settings(experiment, cell.config)
    if "data" in wanted and declared_data(experiment, preset, cell) is None:
        wanted["data"] = None
    return wanted


def declared_data(experiment: Experiment[Any], preset: str, cell: PlannedRun) -> str | None:
    """Return the data that a table names for a run, or None if the best available data are used."""
    declared: str | None = cell.row.settings_at(preset).get("data", getattr(experiment.presets[preset], "data", None))
    return declared


def check_real(experiment: Experiment[Any], preset: str, todo: list[PlannedRun]) -> None:
    """Refuse to record runs that would use drawn data only because the real data are not available here."""
    for cell in todo:
        require(
            getattr(cell.config, "data", None) != DRAWN or declared_data(experiment, preset, cell) is not None,
            f"'{cell.row.label}' would run on drawn alphabets because there is no prepared Omniglot here: make it "
            "with 'warpgrad data prepare omniglot', or leave out --record.",
        )


def _loaded(cell: PlannedRun) -> Recorded:
    check_metrics(cell.directory)
    return read_run(cell.directory), read_object(cell.directory / "evaluation.json")
