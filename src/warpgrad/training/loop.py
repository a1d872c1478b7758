"""The loop of `meta_train`: meta-steps, validations, checkpoints, and what is left behind when it stops."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpgrad.algorithms.ranks import Ranks
from warpgrad.errors import NonFiniteError, WarpgradError
from warpgrad.keys import fold
from warpgrad.model.learner import Learner
from warpgrad.tasks.base import TaskFamily
from warpgrad.training import checkpoint
from warpgrad.training.distributed import RankLostError
from warpgrad.training.interrupts import Interrupted, Interrupts
from warpgrad.training.progress import MetaProgress
from warpgrad.training.run_directory import RunDirectory
from warpgrad.training.state import TrainingState

logger = logging.getLogger(__name__)

MetaRecord = dict[str, float]
"""What a meta-step leaves: its number, mean losses, times, and the scores of a validation after it."""
Callback = Callable[[int, Learner, MetaRecord], None]
"""(meta-steps done, learner, record of the last one); called after every meta-step."""

Validation = Callable[[Learner], Mapping[str, float]]


@dataclass(frozen=True)
class Scoring:
    """What is measured of the learner between meta-steps, and how often. Only validation ever chooses anything."""

    validate: Validation | None
    validate_every: int
    test: Validation | None
    test_every: int


class MetaLoop:
    """Meta-steps, with a snapshot after each: what an interrupt or a NaN leaves behind."""

    def __init__(
        self,
        state: TrainingState,
        tasks: TaskFamily,
        seed: int,
        directory: RunDirectory | None,
        every: float,
        ranks: Ranks,
    ) -> None:
        self.state, self.tasks, self.seed, self.ranks = state, tasks, seed, ranks
        self.directory, self.every = directory, every
        self.records: list[MetaRecord] = []
        self._snapshot: dict[str, Any] | None = None
        self._saved_at = time.monotonic()
        self._saved_step = -1
        if directory is not None:
            saved = directory.saved()
            if saved:
                state.load(checkpoint.load(saved[-1], state.method.learner.device), saved[-1])
                self._saved_step = state.step
            self.records = directory.begin_metrics(state.offset)
        if ranks.size > 1:
            self._share_state()

    def run(
        self,
        meta_steps: int,
        scores: Scoring,
        callbacks: Sequence[Callback],
        progress: bool,
    ) -> list[MetaRecord]:
        state, learner = self.state, self.state.method.learner
        title = self.directory.path.name if self.directory is not None else "meta-training"
        first, interrupts = self.ranks.first, Interrupts()
        with interrupts, MetaProgress(title, meta_steps, state.step, show=progress and first) as bar:
            try:
                self._take_snapshot()
                while state.step < meta_steps and not state.stopped:
                    record: MetaRecord = {"step": state.step, **self._timed_meta_step()}
                    if scores.validate is not None and (state.step + 1) % scores.validate_every == 0:
                        self._observe(self._score("validation", scores.validate, record))
                    if scores.test is not None and (state.step + 1) % scores.test_every == 0:
                        self._score("test", scores.test, record)
                    interrupts.hold()
                    self._end_of_step(record)
                    for callback in callbacks if first else ():
                        callback(state.step, learner, record)
                    bar.update(state.step, record)
                    interrupts.release()
                interrupts.hold()
                self._save_snapshot()
                state.restore_best()
                # Whether rank 0 could write is known to all before any goes on.
                self.ranks.total(())
            except (Interrupted, KeyboardInterrupt, NonFiniteError, RankLostError) as error:
                interrupts.hold()
                self._save_snapshot()
                if isinstance(error, RankLostError):
                    raise
                if isinstance(error, NonFiniteError):
                    raise NonFiniteError(f"meta-step {state.step}: {error}") from error
                if isinstance(error, Interrupted) and error.number == signal.SIGTERM:
                    raise SystemExit(128 + signal.SIGTERM) from error
                raise KeyboardInterrupt from error
        return self.records

    def _timed_meta_step(self) -> MetaRecord:
        """A meta-step, with its wall time and the processor time of all ranks; scores after it are timed apart."""
        began, worked = time.monotonic(), time.process_time()
        record = self._meta_step()
        record["seconds"] = time.monotonic() - began
        (record["cpu_seconds"],) = self.ranks.total([time.process_time() - worked])
        return record

    def _score(self, role: str, measure: Validation, record: MetaRecord) -> dict[str, float]:
        """Scores by rank 0, into the record under the name of their role."""
        began, learner = time.monotonic(), self.state.method.learner
        found = self.ranks.from_first(lambda: {name: float(value) for name, value in measure(learner).items()})
        record.update({f"{role}/{name}": value for name, value in found.items()})
        record[f"{role}_seconds"] = time.monotonic() - began
        return found

    def _meta_step(self) -> MetaRecord:
        state, key = self.state, fold(self.seed, self.state.step)
        batch = self.tasks.meta_batch(key, state.algorithm.tasks)
        if not batch:
            raise WarpgradError("the task family returned an empty meta-batch.")
        keys = [fold(key, "task", index) for index in range(len(batch))]
        with self.ranks.share_errors():
            record = state.algorithm.meta_step(state.method, batch, keys, state.update, self.ranks)
        state.update.end_meta_step()
        return record

    def _share_state(self) -> None:
        """Every rank begins where rank 0 does: other machines need not see its files, nor draw the same weights."""
        note = self.state.algorithm.idleness(self.ranks.size)
        if self.ranks.first and note is not None:
            logger.warning("%s", note)
        begin = {"state": self.state.state(), "records": json.dumps(self.records)}
        data = self.ranks.broadcast(checkpoint.packed(begin))
        shared = checkpoint.unpacked(data, self.state.method.learner.device)
        if not self.ranks.first:
            self.state.load(shared["state"], Path("of rank 0"))
            self.records = json.loads(shared["records"])

    def _observe(self, scores: Mapping[str, float]) -> None:
        stopping = self.state.early_stopping
        if stopping is not None and stopping.observe(scores):
            self.state.keep_best()

    def _end_of_step(self, record: MetaRecord) -> None:
        self.state.step += 1
        self.state.seconds += record["seconds"] + record.get("validation_seconds", 0.0)
        self.records.append(record)
        if self.directory is not None:
            self.directory.append(record)
        self._take_snapshot()
        if time.monotonic() - self._saved_at >= self.every:
            self._save_snapshot()

    def _take_snapshot(self) -> None:
        if self.directory is not None:
            self.state.offset = self.directory.offset
            self._snapshot = checkpoint.cloned(self.state.state())

    def _save_snapshot(self) -> None:
        if self.directory is not None and self._snapshot is not None and self._snapshot["step"] != self._saved_step:
            self.directory.save(self._snapshot["step"], self._snapshot)
            self._saved_step = self._snapshot["step"]
        self._saved_at = time.monotonic()
