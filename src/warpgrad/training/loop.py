"""The loop of `meta_train`: meta-steps, validations, checkpoints, and the state that they share."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from warpgrad.algorithms.base import Algorithm
from warpgrad.algorithms.meta_optimiser import MetaOptimiser
from warpgrad.algorithms.method import Method, Weights, load_weights, weights
from warpgrad.algorithms.ranks import Ranks
from warpgrad.errors import NonFiniteError, WarpgradError, integer, mapping, real, short_repr, understood
from warpgrad.keys import fold
from warpgrad.model.learner import Learner
from warpgrad.tasks.base import TaskFamily, checked_tasks
from warpgrad.training import checkpoint
from warpgrad.training.callbacks import Callbacks, MetaRecord, Training
from warpgrad.training.distributed import RankLostError
from warpgrad.training.early_stopping import EarlyStopping
from warpgrad.training.interrupts import Interrupted, Interrupts, leave_after
from warpgrad.training.parts import method_parts
from warpgrad.training.progress import MetaProgress
from warpgrad.training.run_directory import RunDirectory
from warpgrad.version import __version__

logger = logging.getLogger(__name__)

Validation = Callable[[Learner], Mapping[str, float]]


class MetaRecords(list[MetaRecord]):
    """One record per meta-step, and why training stopped.

    Example:
        >>> records = wg.meta_train(
        ...     method, family, algorithm=wg.Online(steps=2, tasks=1), optimiser=adam, meta_steps=2)
        >>> len(records), records.stopped
        (2, None)
    """

    stopped: str | None = None
    """The reason that early stopping or a callback gave; None where all meta-steps were taken."""
    chosen: int | None = None
    """The index of the record with the best parameters, where early stopping went back to them."""


@dataclass(frozen=True)
class Scoring:
    """The functions that score the learner between meta-steps, and how often. Only validation affects training."""

    validate: Validation | None
    validate_every: int
    test: Validation | None
    test_every: int


class TrainingState:
    """The state that meta-training carries between meta-steps: weights, states of the optimisers, schedules and
    algorithm, and counters."""

    def __init__(
        self, method: Method, algorithm: Algorithm, update: MetaOptimiser, early_stopping: EarlyStopping | None
    ) -> None:
        self.method, self.algorithm, self.update = method, algorithm, update
        self.watch = None if early_stopping is None else early_stopping.watch()
        self.halted: str | None = None
        """Why a callback has ended this training; repeating the call resumes it, and calls the callback again."""
        self.planned: int | None = 0
        """The requested number of meta-steps; None in checkpoints of earlier versions, which do not store it."""
        self.step = 0
        """Meta-steps done."""
        self.seconds = 0.0
        """Wall time spent in them, including that of earlier processes."""
        self.offset = 0
        """The number of bytes of metrics.jsonl that belong to them."""
        self.digest: str | None = None
        """The checksum of these bytes, `RunDirectory.digest`."""
        self._best: Weights | None = None
        self._made_of = {"version": __version__, "parts": method_parts(method)}

    @property
    def stopped(self) -> str | None:
        """Why the run has stopped before its last meta-step; None if it has not."""
        if self.watch is not None and self.watch.stop:
            return self.watch.reason
        return self.halted

    def plan(self, meta_steps: int) -> None:
        """Set the number of meta-steps. A run that early stopping ended continues if more are requested than then."""
        if self.step == 0:
            self.algorithm.plan(meta_steps)
        if self.watch is not None and self.watch.stop:
            if self.planned is None or meta_steps <= self.planned:
                return
            self.watch.renew()
        self.planned = meta_steps

    def keep_best(self) -> None:
        self._best = checkpoint.cloned(weights(self.method))

    def restore_best(self) -> bool:
        """Load the parameters with the best validation score, and return whether there were any."""
        if self._best is None:
            return False
        load_weights(self.method, self._best)
        return True

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "seconds": self.seconds,
            "offset": self.offset,
            "digest": self.digest,
            "weights": weights(self.method),
            "best": self._best,
            "update": self.update.state(),
            "algorithm": self.algorithm.state(),
            "backend": self.algorithm.backend.state(),
            "early_stopping": None if self.watch is None else self.watch.state(),
            "planned": self.planned,
            **self._made_of,
        }

    def load(self, state: Mapping[str, Any], source: Path) -> None:
        """Resume from a checkpoint; raise for one of another model before anything is changed."""
        with understood(source):
            self._load(state, source)

    def _load(self, state: Mapping[str, Any], source: Path) -> None:
        load_weights(self.method, state["weights"], source)
        self.step, self.seconds = integer(state["step"], "step"), real(state["seconds"], "seconds")
        self.offset, self.digest = integer(state["offset"], "offset"), state.get("digest")
        self.update.load_state(state["update"])
        self.algorithm.load_state(state["algorithm"])
        # Checkpoints of earlier versions do not store the backend, because nothing was compiled then.
        self.algorithm.backend.load_state(state.get("backend") or {"form": "traced", "settings": None})
        # The best parameters were chosen by one metric: under another one, or none, there is no best yet.
        watched = state["early_stopping"]
        same = self.watch is not None and watched is not None and self.watch.load_state(watched)
        self._best = state["best"] if same else None
        self.planned = state.get("planned")


class MetaLoop:
    """Takes meta-steps, with a snapshot after each, which is saved when an interrupt or a NaN ends the run."""

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
        self.records = MetaRecords()
        self._snapshot: dict[str, Any] | None = None
        self._saved_at = time.monotonic()
        self._saved_step = -1
        self._begun = False
        if directory is not None:
            if found := directory.newest(state.method.learner.device):
                path, saved = found
                state.load(saved, path)
                self._saved_step = state.step
            self.records = MetaRecords(directory.begin_metrics(state.offset, state.digest))
        if ranks.size > 1:
            self._share_state()

    def run(
        self,
        meta_steps: int,
        scores: Scoring,
        callbacks: Callbacks,
        settings: Mapping[str, Any],
        progress: bool,
    ) -> MetaRecords:
        state, directory = self.state, self.directory
        title = directory.path.name if directory is not None else "meta-training"
        first, interrupts = self.ranks.first, Interrupts()
        path = None if directory is None else directory.path
        training = Training(state.method, meta_steps, state.step, path, settings, records=self.records)
        state.plan(meta_steps)
        bar = MetaProgress(title, meta_steps, state.step) if progress and first else None
        with interrupts, bar or nullcontext():
            try:
                self._take_snapshot()
                self._halt(callbacks, lambda: callbacks.start(training))
                while state.step < meta_steps and state.stopped is None:
                    record: MetaRecord = {"step": state.step, **self._timed_meta_step()}
                    found: dict[str, float] | None = None
                    if scores.validate is not None and (state.step + 1) % scores.validate_every == 0:
                        self._observe(found := self._score("validation", scores.validate, record))
                    if scores.test is not None and (state.step + 1) % scores.test_every == 0:
                        self._score("test", scores.test, record)
                    interrupts.hold()
                    self._end_of_step(record)
                    self._halt(callbacks, partial(callbacks.step, state.step, state.method.learner, record, found))
                    if bar is not None:
                        bar.update(state.step, record)
                    interrupts.release()
                interrupts.hold()
                self._save_snapshot()
                if state.restore_best():
                    self.records.chosen = self._best_place()
                self.records.stopped = training.stopped = state.stopped
                if state.stopped is not None and first:
                    logger.info(
                        "%s: stopped after %d of %d meta-steps: %s", title, state.step, meta_steps, state.stopped
                    )
                # All ranks wait here until rank 0 has written, and fail with it if it could not.
                self.ranks.total(())
            except (Interrupted, KeyboardInterrupt, NonFiniteError, RankLostError) as error:
                interrupts.hold()
                self._save_snapshot()
                training.stopped = str(error) or "interrupted"
                if isinstance(error, RankLostError):
                    raise
                if isinstance(error, NonFiniteError):
                    raise NonFiniteError(f"meta-step {state.step}: {error}") from error
                leave_after(error)
            except Exception as error:
                training.stopped = str(error) or type(error).__name__
                raise
            finally:
                training.step = state.step
                if first:
                    callbacks.end(training)
        return self.records

    def _halt(self, callbacks: Callbacks, tell: Callable[[], str | None]) -> None:
        """Run rank 0's callbacks; all ranks stop if one of them asks for it."""
        if callbacks.any:
            self.state.halted = self.ranks.from_first(tell) or self.state.halted

    def _timed_meta_step(self) -> MetaRecord:
        """Take a meta-step and time it: wall time, and the processor time of all ranks. Scores are timed separately."""
        began, worked = time.monotonic(), time.process_time()
        record = self._meta_step()
        record["seconds"] = time.monotonic() - began
        (record["cpu_seconds"],) = self.ranks.total([time.process_time() - worked])
        return record

    def _score(self, role: str, measure: Validation, record: MetaRecord) -> dict[str, float]:
        """Let rank 0 score the learner, and add the scores to the record under the name of their role."""
        began, learner = time.monotonic(), self.state.method.learner
        found = self.ranks.from_first(lambda: _numbers(role, measure(learner)))
        record.update({f"{role}/{name}": value for name, value in found.items()})
        record[f"{role}_seconds"] = time.monotonic() - began
        return found

    def _meta_step(self) -> MetaRecord:
        state, key = self.state, fold(self.seed, self.state.step)
        batch = checked_tasks(self.tasks.meta_batch(key, state.algorithm.tasks), first=not self._begun)
        self._begun = True
        keys = [fold(key, "task", index) for index in range(len(batch))]
        with self.ranks.share_errors():
            record = state.algorithm.meta_step(state.method, batch, keys, state.update, self.ranks)
        record.update(state.update.numbers())
        state.update.end_meta_step(record)
        return record

    def _share_state(self) -> None:
        """Send rank 0's state to every rank: other machines need not see its files, nor draw the same weights."""
        note = self.state.algorithm.idleness(self.ranks.size)
        if self.ranks.first and note is not None:
            logger.warning("%s", note)
        begin = {"state": self.state.state(), "records": json.dumps(self.records)}
        data = self.ranks.broadcast(checkpoint.packed(begin))
        shared = checkpoint.unpacked(data, self.state.method.learner.device)
        if not self.ranks.first:
            self.state.load(shared["state"], Path("of rank 0"))
            self.records = MetaRecords(json.loads(shared["records"]))

    def _observe(self, scores: Mapping[str, float]) -> None:
        watch = self.state.watch
        if watch is not None and watch.observe(scores):
            self.state.keep_best()

    def _best_place(self) -> int | None:
        watch = self.state.watch
        assert watch is not None, "only early stopping has a best"
        name = f"validation/{watch.settings.metric}"
        return next((place for place, record in enumerate(self.records) if record.get(name) == watch.best), None)

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
            self.state.offset, self.state.digest = self.directory.offset, self.directory.digest
            self._snapshot = checkpoint.cloned(self.state.state())

    def _save_snapshot(self) -> None:
        if self.directory is not None and self._snapshot is not None and self._snapshot["step"] != self._saved_step:
            self.directory.save(self._snapshot["step"], self._snapshot)
            self._saved_step = self._snapshot["step"]
        self._saved_at = time.monotonic()


def _numbers(role: str, scores: Any) -> dict[str, float]:
    """Turn the scores that a user's function returned into plain numbers by name."""
    argument = "validate" if role == "validation" else role
    named = mapping(scores, f"what {argument}= returns", '{"loss": 0.5}')
    found: dict[str, float] = {}
    for name, value in named.items():
        try:
            found[str(name)] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise WarpgradError(
                f"what {argument}= returns must be numbers by name, but {name!r} is {short_repr(value)}."
            ) from error
    return found
