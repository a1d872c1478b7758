"""The trials themselves: ordinary runs in N processes of one thread, each in a directory of its own.

| what happens to a trial                             | what it becomes                                                |
|-----------------------------------------------------|----------------------------------------------------------------|
| its run ends                                        | complete, with the metric on the validation split              |
| NaN, infinity, a matrix that cannot be inverted     | failed: it counts, and is not repeated                         |
| behind the median of the others, with pruning on    | pruned: its run is saved, stopped and kept                     |
| anything else goes wrong (disk, data, out of memory)| the sweep stops; the same command takes the trial up again     |
| the sweep is stopped or killed                      | taken up again by the same command, from its last checkpoint   |

A kill of the sweep alone ends its runs too, saved. Those that are still ending are waited for, not started twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.trial import Trial

from warpgrad.errors import NonFiniteError, WarpgradError
from warpgrad.experiments.base import Config
from warpgrad.experiments.runner import python_command
from warpgrad.experiments.workers import Worker, stop_all
from warpgrad.io import is_locked, read_object
from warpgrad.sweep.pruning import Prune, Watch
from warpgrad.sweep.results import Places, trial_name
from warpgrad.sweep.study import Record
from warpgrad.training.interrupts import Interrupted, Interrupts, leave_after
from warpgrad.training.run_directory import LOCK

Command = Callable[[Any, Any, Path], list[str]]


@dataclass
class Active:
    """A trial that this process sees to."""

    trial: Trial
    config: Config
    directory: Path
    watch: Watch | None
    worker: Worker | None = None
    """None while a run that outlived its sweep still has the directory."""

    @property
    def taken(self) -> bool:
        """Whether another process is running in the directory."""
        return is_locked(self.directory / LOCK)

    def stop(self) -> None:
        """Ask the run to save and stop, and wait until it has."""
        if self.worker is not None:
            self.worker.stop()


class Workers:
    """`workers` trials at a time, until there are `total`."""

    def __init__(
        self,
        record: Record,
        places: Places,
        *,
        say: Callable[[str], None],
        prune: Prune | None = None,
        command: Command = python_command,
    ) -> None:
        self.record, self.places, self.say = record, places, say
        self.prune, self.command = prune, command

    def run(self, total: int, workers: int, *, take_over: bool = False) -> None:
        active: list[Active] = []
        ask = True
        try:
            with Interrupts() as interrupts:
                # Signals wait while the record is written; they are heard in between.
                interrupts.hold()
                while True:
                    # Asking is a query to a database that others use: once for every place that becomes free.
                    while ask and len(active) < workers:
                        trial = self.record.next_trial(total, take_over=take_over)
                        ask = trial is not None
                        if trial is not None:
                            active.append(self._begun(trial))
                    if not active:
                        return
                    left = [one for one in active if not self._ended(one)]
                    ask, active = ask or len(left) < len(active), left
                    interrupts.release()
                    time.sleep(0.1)
                    interrupts.hold()
        except Interrupted as error:
            leave_after(error)
        finally:
            stop_all([one.worker for one in active if one.worker is not None])

    def _begun(self, trial: Trial) -> Active:
        reported = set(_reports(trial))
        config = self.record.sweep.trial_config(self.record.chosen(trial))
        directory = self.places.trial(trial.number)
        watch = None
        if self.prune is not None:
            steps = getattr(config, "meta_steps", 0)
            sweep = self.record.sweep
            file = directory / "metrics.jsonl"
            watch = Watch(self.prune, file, steps, sweep.metric, sweep.direction, reported)
        return Active(trial, config, directory, watch)

    def _ended(self, one: Active) -> bool:
        """See to a trial; whether that is done."""
        if one.worker is None:
            if not one.taken:
                one.worker = Worker(self.command(self.record.sweep.experiment, one.config, one.directory))
            return False
        code = one.worker.code
        if one.watch is not None and self._behind(one.trial, one.watch, last=code is not None):
            one.stop()
            self.record.prune(one.trial)
            self._tell(one, f"pruned after {max(_reports(one.trial))} meta-steps")
            return True
        if code is None:
            return False
        last = one.worker.last_words
        if code == 0:
            self._complete(one)
        elif code == NonFiniteError.exit_code:
            self._fail(one, last)
        elif one.taken:
            one.worker = None
            return False
        else:
            raise WarpgradError(f"{one.directory}: {last.rstrip('.')}; mend that and repeat the command.")
        return True

    def _behind(self, trial: Trial, watch: Watch, *, last: bool) -> bool:
        for step, value in watch.reports() if last or watch.is_time() else ():
            trial.report(value, step)
            if trial.should_prune():
                return True
        return False

    def _complete(self, one: Active) -> None:
        summary = read_object(one.directory / "summary.json")
        metric = self.record.sweep.metric
        if metric not in summary["metrics"]:
            raise WarpgradError(
                f"{summary['experiment']} measures no '{metric}'; name another --metric and --study, "
                f"of {', '.join(summary['metrics'])}."
            )
        value = float(summary["metrics"][metric])
        if not math.isfinite(value):
            self._fail(one, f"{metric} is {value}")
            return
        self.record.complete(one.trial, value, summary["wall_seconds"])
        self._tell(one, f"{metric} {value:.4g}")

    def _fail(self, one: Active, words: str) -> None:
        self.record.fail(one.trial, words)
        self._tell(one, f"failed: {words}")

    def _tell(self, one: Active, words: str) -> None:
        self.say(f"{trial_name(one.trial.number)}: {words}")


def _reports(trial: Trial) -> dict[int, float]:
    frozen = trial.study.get_trials(deepcopy=False)[trial.number]
    return frozen.intermediate_values
