"""`meta_train`: the one entry that composes the parts and runs them for many meta-steps.

    wg.meta_train(learner, tasks, algorithm=..., rule=..., ...)                  # in memory
    wg.meta_train(..., run="runs/mine")                                          # with a run directory: repeat to go on

Meta-step i draws everything from keys (seed, i, …), so a run that was stopped anywhere goes on from its last
checkpoint and ends with the same bytes as one that was not.

Under torchrun, the processes share the tasks of every meta-step (`engine/distributed.py`). All hold the same
parameters and optimiser states; rank 0 alone reads and writes the run directory, validates, and calls callbacks.
"""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from warpgrad.algorithms.base import Algorithm
from warpgrad.engine import checkpoint
from warpgrad.engine.distributed import RankLostError, joined, restarted
from warpgrad.engine.early_stopping import EarlyStopping
from warpgrad.engine.interrupts import Interrupted, Interrupts
from warpgrad.engine.progress import MetaProgress
from warpgrad.engine.run_directory import RunDirectory
from warpgrad.engine.state import TrainingState
from warpgrad.errors import NonFiniteError, WarpgradError
from warpgrad.initialisers.base import Initialiser
from warpgrad.initialisers.fixed import Fixed
from warpgrad.keys import fold, isolated_rng
from warpgrad.learner import Learner
from warpgrad.meta_optimiser import MetaOptimiser, OptimiserFactory, ScheduleFactory
from warpgrad.method import Group, Method
from warpgrad.objectives.base import Objective
from warpgrad.ranks import ALONE, Ranks
from warpgrad.rules.base import Rule
from warpgrad.tasks.base import TaskFamily

logger = logging.getLogger(__name__)

Record = dict[str, float]
Callback = Callable[[int, Learner, Record], None]
"""(meta-steps done, learner, record of the last one); called after every meta-step."""

Validation = Callable[[Learner], Mapping[str, float]]


def meta_train(
    learner: Learner,
    tasks: TaskFamily,
    *,
    algorithm: Algorithm,
    rule: Rule,
    objective: Objective | None = None,
    initialiser: Initialiser | None = None,
    weight: float = 1.0,
    optimiser: OptimiserFactory | Mapping[Group, OptimiserFactory],
    clip: float | Mapping[Group, float] | None = None,
    schedule: ScheduleFactory | None = None,
    meta_steps: int,
    seed: int = 0,
    validate: Validation | None = None,
    validate_every: int = 1,
    early_stopping: EarlyStopping | None = None,
    callbacks: Sequence[Callback] = (),
    run: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    fresh: bool = False,
    checkpoint_seconds: float = 30.0,
    tensorboard: bool = False,
    progress: bool = False,
) -> list[Record]:
    """Meta-learn φ, θ0 and the rule's parameters in place; returns one record per meta-step.

    Args:
        learner: What is meta-learned.
        tasks: p(τ).
        algorithm: When gradients become updates: `Online`, `Offline`, `Continual` or `Unrolled`.
        rule: How a task is adapted to.
        objective: L, how φ is judged; None to learn an initialisation alone.
        initialiser: C, how θ0 is learned; `Fixed()` if None.
        weight: λ.
        optimiser: The meta-optimiser, e.g. `partial(torch.optim.Adam, lr=1e-3)`, or one per group.
        clip: Largest norm of meta-gradients, for all groups or per group.
        schedule: Learning-rate schedule of the meta-optimisers, stepped once per meta-step.
        meta_steps: How many meta-steps in all, those of an earlier call in the same run included.
        seed: Keys every draw.
        validate: Scores of the learner on validation tasks, every `validate_every` meta-steps.
        early_stopping: Stop on a validation score, and end with the best parameters.
        callbacks: Called after every meta-step, by rank 0 alone; they must not change the learner.
        run: Run directory; the same call again goes on where the run stopped.
        config: Settings to store and compare; a run goes on only under equal ones.
        fresh: Delete an earlier run in the directory and start over.
        checkpoint_seconds: Time between checkpoints; 0 for one at every meta-step.
        tensorboard: Also write TensorBoard events below the run directory.
        progress: Show progress on stderr.
    """
    if meta_steps < 1:
        raise WarpgradError(f"meta_steps={meta_steps}: meta-training needs at least 1 meta-step.")
    if validate_every < 1:
        raise WarpgradError(f"validate_every={validate_every}: validate after at least 1 meta-step.")
    if early_stopping is not None and validate is None:
        raise WarpgradError("early stopping needs validate=, a function that scores the learner.")
    if run is None and (tensorboard or fresh):
        raise WarpgradError("tensorboard and fresh need a run directory: pass run=.")
    ranks = joined(learner.device)
    directory: RunDirectory | None = None
    try:
        with ranks.agreeing():
            method = Method(learner, rule, objective, initialiser or Fixed(), weight)
            update = MetaOptimiser(method, optimiser, clip=clip, schedule=schedule)
            state = TrainingState(method, algorithm, update, early_stopping)
            if run is not None and ranks.first:
                settings = {"seed": seed, "meta_steps": meta_steps, **(config or {})}
                # torchrun repeats the whole command, which must not delete what it is to go on from.
                directory = RunDirectory(Path(run), settings, fresh=fresh and not restarted(), ranks=ranks)
            algorithm.ranks = ranks
            loop = _Loop(state, tasks, seed, directory, checkpoint_seconds, ranks)
            if tensorboard and directory is not None:
                callbacks = [*callbacks, tensorboard_callback(directory.path / "tensorboard")]
            with isolated_rng(learner.device), learner.modes_kept(), torch.enable_grad():
                return loop.run(meta_steps, validate, validate_every, callbacks, progress)
    finally:
        algorithm.ranks = ALONE
        if directory is not None:
            directory.close()


class _Loop:
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
        self.records: list[Record] = []
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
        validate: Validation | None,
        validate_every: int,
        callbacks: Sequence[Callback],
        progress: bool,
    ) -> list[Record]:
        state, learner = self.state, self.state.method.learner
        title = self.directory.path.name if self.directory is not None else "meta-training"
        first, interrupts = self.ranks.first, Interrupts()
        with interrupts, MetaProgress(title, meta_steps, state.step, show=progress and first) as bar:
            try:
                self._take_snapshot()
                while state.step < meta_steps and not state.stopped:
                    began = time.monotonic()
                    record: Record = {"step": state.step, **self._meta_step()}
                    if validate is not None and (state.step + 1) % validate_every == 0:
                        scores = self.ranks.from_first(partial(_scores, validate, learner))
                        record.update({f"validation/{name}": value for name, value in scores.items()})
                        self._observe(scores)
                    record["seconds"] = time.monotonic() - began
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

    def _meta_step(self) -> Record:
        state, key = self.state, fold(self.seed, self.state.step)
        batch = self.tasks.meta_batch(key, state.algorithm.tasks)
        if not batch:
            raise WarpgradError("the task family returned an empty meta-batch.")
        keys = [fold(key, "task", index) for index in range(len(batch))]
        with self.ranks.agreeing():
            record = state.algorithm.meta_step(state.method, batch, keys, state.update)
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

    def _end_of_step(self, record: Record) -> None:
        self.state.step += 1
        self.state.seconds += record["seconds"]
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


def _scores(validate: Validation, learner: Learner) -> dict[str, float]:
    return {name: float(value) for name, value in validate(learner).items()}


def tensorboard_callback(directory: Path) -> Callback:
    """Writes every number of every record as a TensorBoard scalar."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise WarpgradError("TensorBoard is not installed: pip install 'warpgrad[tensorboard]'.") from error
    writer = SummaryWriter(str(directory))

    def callback(step: int, learner: Learner, record: Record) -> None:
        del learner
        for name, value in record.items():
            if name not in ("step", "seconds"):
                writer.add_scalar(name, value, step)
        writer.flush()

    return callback
