"""The trials themselves: ordinary runs in N processes of one thread, each in a separate directory.

| what happens to a trial                             | what it becomes                                                |
|-----------------------------------------------------|----------------------------------------------------------------|
| its run ends                                        | complete, with the metric on the validation split              |
| NaN, infinity, a matrix that cannot be inverted     | failed: it counts, and is not repeated                         |
| behind the median of the others, with pruning on    | pruned: its run is saved, stopped and kept                     |
| anything else goes wrong (disk, data, out of memory)| the sweep stops; the same command resumes the trial            |
| the sweep is stopped or killed                      | resumed by the same command, from its last checkpoint          |

If only the sweep is killed, its runs save and end too. A new sweep waits for those that are still ending instead of
starting them twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.trial import Trial, TrialState

from warpgrad.errors import NonFiniteError, WarpgradError, require
from warpgrad.experiments import workers as working
from warpgrad.experiments.base import Config
from warpgrad.experiments.runner import python_command
from warpgrad.experiments.workers import Worker, stop_all
from warpgrad.io import is_locked, read_bytes, read_object
from warpgrad.sweep.results import Direction, direction_of, trial_name
from warpgrad.sweep.study import SweepStudy
from warpgrad.training.interrupts import Interrupted, Interrupts, leave_after
from warpgrad.training.run_directory import LOCK, parsed_lines

Command = Callable[[Any, Any, Path], list[str]]

TENTHS = 10
"""A run is judged after every tenth of its meta-steps except the first, which is mostly chance, and the last."""
LOOK_SECONDS = 1.0
LOSSES = ("task_loss_last", "meta_loss", "task_loss")
"""Losses that methods record during meta-training; without validation, the first one present is used."""


class TrialReports:
    """The reports of one trial, made once each from its metrics.jsonl: (meta-steps, mean over the last tenth).

    A report depends on what the run wrote and not on when the file was read, so that a run too fast to be stopped is
    judged like any other. The sign of a report is flipped if the study's metric is better in the other direction.
    """

    def __init__(
        self, file: Path, meta_steps: int, metric: str, direction: Direction, *, by: str | None, reported: set[int]
    ) -> None:
        """Prepare the reports; `metric` and `direction` are the study's, `reported` the steps reported before."""
        self.file = file
        self._names = (f"validation/{metric}", *LOSSES) if by is None else (by,)
        self.window = max(1, meta_steps // TENTHS)
        self._due = [step for step in range(2 * self.window, meta_steps, self.window) if step not in reported]
        self._direction: Direction = direction
        self._looked = -math.inf

    def reports(self, *, now: bool = True) -> Iterator[tuple[int, float]]:
        """Yield the reports that have become due; unless `now`, check at most once in LOOK_SECONDS.

        Each check reads the whole file, because a run that is resumed truncates it first.
        """
        early = not now and time.monotonic() - self._looked < LOOK_SECONDS
        if early or not self._due or not self.file.exists():
            return
        self._looked = time.monotonic()
        # What follows the last newline is still being written.
        lines = read_bytes(self.file).splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        while self._due and self._due[0] <= len(lines):
            step = self._due.pop(0)
            records = parsed_lines(b"".join(lines[:step]), self.file)
            known = dict.fromkeys(name for record in records for name in record)
            by = next((name for name in self._names if name in known), None)
            require(
                by is not None or self._due,
                f"{self.file} has no '{self._names[0]}' to prune by (it has {', '.join(known)}); "
                "choose another with --prune-by, or leave out --prune.",
            )
            values = [record[by] for record in records[-self.window :] if by in record]
            if by is None or not values:
                continue  # validations may be further apart than reports
            mean = math.fsum(values) / len(values)
            yield step, mean if direction_of(by) == self._direction else -mean


@dataclass
class Active:
    """A trial that this process runs."""

    trial: Trial
    config: Config
    directory: Path
    watch: TrialReports | None
    worker: Worker | None = None
    """None while a run that outlived its sweep still occupies the directory."""

    @property
    def taken(self) -> bool:
        """Whether another process is running in the directory."""
        return is_locked(self.directory / LOCK)


class Workers:
    """Runs `workers` trials at a time, until there are `total`."""

    def __init__(self, study: SweepStudy, *, say: Callable[[str], None], command: Command = python_command) -> None:
        self.study, self.say, self.command = study, say, command

    def run(self, total: int, workers: int, *, take_over: bool = False) -> None:
        active: list[Active] = []
        ask = True
        try:
            with Interrupts() as interrupts:
                # Signals are held back while the study is written, and handled in between.
                interrupts.hold()
                while True:
                    # Asking queries a shared database, so it happens once for every worker that becomes free.
                    while ask and len(active) < workers:
                        trial = self.study.next_trial(total, take_over=take_over)
                        ask = trial is not None
                        if trial is not None:
                            active.append(self._begun(trial))
                    if not active:
                        return
                    left = [one for one in active if not self._ended(one)]
                    ask, active = ask or len(left) < len(active), left
                    interrupts.release()
                    time.sleep(working.POLL_SECONDS)
                    interrupts.hold()
        except Interrupted as error:
            leave_after(error)
        finally:
            stop_all([one.worker for one in active if one.worker is not None])

    def _begun(self, trial: Trial) -> Active:
        sweep, directory = self.study.sweep, self.study.places.trial(trial.number)
        config = sweep.trial_config(self.study.chosen(trial))
        watch = None
        if sweep.prune is not None:
            steps = getattr(config, "meta_steps", 0)
            file, reported = directory / "metrics.jsonl", set(_reports(trial))
            watch = TrialReports(file, steps, sweep.metric, sweep.direction, by=sweep.prune.by, reported=reported)
        return Active(trial, config, directory, watch)

    def _ended(self, one: Active) -> bool:
        """Advance a trial, and return whether it has ended."""
        if one.worker is None:
            if not one.taken:
                one.worker = Worker(self.command(self.study.sweep.experiment, one.config, one.directory))
            return False
        code = one.worker.code
        if one.watch is not None and self._behind(one.trial, one.watch, last=code is not None):
            one.worker.stop()
            self._end(one, TrialState.PRUNED, f"pruned after {max(_reports(one.trial))} meta-steps")
            return True
        if code is None:
            return False
        last = one.worker.last_words
        if code == 0:
            self._complete(one)
        elif code == NonFiniteError.exit_code:
            self._end(one, TrialState.FAIL, f"failed: {last}", error=last)
        elif one.taken:
            one.worker = None
            return False
        else:
            raise WarpgradError(f"{one.directory}: {last.rstrip('.')}; fix that and repeat the command.")
        return True

    def _behind(self, trial: Trial, watch: TrialReports, *, last: bool) -> bool:
        for step, value in watch.reports(now=last):
            trial.report(value, step)
            if trial.should_prune():
                return True
        return False

    def _complete(self, one: Active) -> None:
        summary = read_object(one.directory / "summary.json")
        metric = self.study.sweep.metric
        require(
            metric in summary["metrics"],
            f"{summary['experiment']} does not measure '{metric}'; choose another --study, and as --metric one of "
            f"{', '.join(summary['metrics'])}.",
        )
        value = float(summary["metrics"][metric])
        if math.isfinite(value):
            seconds = summary["wall_seconds"]
            self._end(one, TrialState.COMPLETE, f"{metric} {value:.4g}", value, seconds=seconds)
        else:
            error = f"{metric} is {value}"
            self._end(one, TrialState.FAIL, f"failed: {error}", error=error)

    def _end(self, one: Active, state: TrialState, words: str, value: float | None = None, **notes: Any) -> None:
        self.study.end(one.trial, state, value, **notes)
        self.say(f"{trial_name(one.trial.number)}: {words}")


def _reports(trial: Trial) -> dict[int, float]:
    return trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
