"""`meta_train`: the one entry that composes the parts and runs them for many meta-steps.

    wg.meta_train(method, tasks, algorithm=..., ...)                             # in memory
    wg.meta_train(learner, tasks, algorithm=..., rule=..., objective=..., ...)   # the method given by its parts
    wg.meta_train(..., run="runs/mine")                                          # with a run directory: repeat to go on

Meta-step i draws everything from keys (seed, i, …), so a run that was stopped anywhere goes on from its last
checkpoint and ends with the same bytes as one that was not.

Under torchrun, the processes share the tasks of every meta-step (`distributed.py`). All hold the same
parameters and optimiser states; rank 0 alone reads and writes the run directory, validates, and calls callbacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from warpgrad.algorithms.base import Algorithm
from warpgrad.algorithms.meta_optimiser import MetaOptimiser, OptimiserFactory, ScheduleFactory
from warpgrad.algorithms.method import Method, ParameterGroup
from warpgrad.errors import WarpgradError, naming_extras, refuse_if
from warpgrad.initialisers.base import Initialiser
from warpgrad.keys import isolated_rng
from warpgrad.model.learner import Learner
from warpgrad.objectives.base import Objective
from warpgrad.rules.base import Rule
from warpgrad.tasks.base import TaskFamily
from warpgrad.training.distributed import current_ranks, restarted
from warpgrad.training.early_stopping import EarlyStopping
from warpgrad.training.loop import Callback, MetaLoop, MetaRecord, Scoring, Validation
from warpgrad.training.run_directory import TIMES, RunDirectory
from warpgrad.training.state import TrainingState


def meta_train(
    method: Method | Learner,
    tasks: TaskFamily,
    *,
    algorithm: Algorithm,
    rule: Rule | None = None,
    objective: Objective | None = None,
    initialiser: Initialiser | None = None,
    weight: float | None = None,
    optimiser: OptimiserFactory | Mapping[ParameterGroup, OptimiserFactory],
    clip: float | Mapping[ParameterGroup, float] | None = None,
    schedule: ScheduleFactory | None = None,
    meta_steps: int,
    seed: int = 0,
    validate: Validation | None = None,
    validate_every: int = 1,
    early_stopping: EarlyStopping | None = None,
    test: Validation | None = None,
    test_every: int = 1,
    callbacks: Sequence[Callback] = (),
    run: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    fresh: bool = False,
    checkpoint_seconds: float = 30.0,
    tensorboard: bool = False,
    progress: bool = False,
) -> list[MetaRecord]:
    """Meta-learn φ, θ0 and the rule's parameters in place; returns one record per meta-step.

    Args:
        method: What is meta-learned, and how: a `Method`, or a learner with the other parts as keywords.
        tasks: p(τ).
        algorithm: When gradients become updates: `Online`, `Offline`, `Continual` or `Unrolled`.
        rule: How a task is adapted to; this and the next three are for a learner, a method has its own.
        objective: L, how φ is judged; None to learn an initialisation alone.
        initialiser: C, how θ0 is learned; `Fixed()` if None.
        weight: λ; 1 if None.
        optimiser: The meta-optimiser, e.g. `partial(torch.optim.Adam, lr=1e-3)`, or one per group.
        clip: Largest norm of meta-gradients, for all groups or per group.
        schedule: Learning-rate schedule of the meta-optimisers, stepped once per meta-step.
        meta_steps: How many meta-steps in all, those of an earlier call in the same run included.
        seed: Keys every draw.
        validate: Scores of the learner on validation tasks, every `validate_every` meta-steps.
        early_stopping: Stop on a validation score, and end with the best parameters.
        test: Scores of the learner on test tasks, every `test_every` meta-steps; they are recorded and choose nothing.
        callbacks: Called after every meta-step, by rank 0 alone; they must not change the learner.
        run: Run directory; the same call again goes on where the run stopped.
        config: Settings to store and compare; a run goes on only under equal ones.
        fresh: Delete an earlier run in the directory and start over.
        checkpoint_seconds: Time between checkpoints; 0 for one at every meta-step.
        tensorboard: Also write TensorBoard events below the run directory.
        progress: Show progress on stderr.

    Example:
        >>> method = wg.Method(learner, wg.SGD(0.1), wg.Exact(), wg.Leap())
        >>> records = wg.meta_train(
        ...     method, family, algorithm=wg.Online(steps=3, tasks=2), optimiser=adam, meta_steps=2)
        >>> len(records)
        2
    """
    refuse_if(meta_steps < 1, f"meta_steps={meta_steps}: meta-training needs at least 1 meta-step.")
    refuse_if(validate_every < 1, f"validate_every={validate_every}: validate after at least 1 meta-step.")
    refuse_if(test_every < 1, f"test_every={test_every}: test after at least 1 meta-step.")
    refuse_if(
        early_stopping is not None and validate is None,
        "early stopping needs validate=, a function that scores the learner.",
    )
    if run is None and (tensorboard or fresh):
        raise WarpgradError("tensorboard and fresh need a run directory: pass run=.")
    learner = method.learner if isinstance(method, Method) else method
    ranks = current_ranks(learner.device)
    directory: RunDirectory | None = None
    try:
        with ranks.share_errors():
            method = Method.of(method, rule, objective, initialiser, weight)
            update = MetaOptimiser(method, optimiser, clip=clip, schedule=schedule)
            state = TrainingState(method, algorithm, update, early_stopping)
            if run is not None and ranks.first:
                settings = {"seed": seed, "meta_steps": meta_steps, **(config or {})}
                # torchrun repeats the whole command, which must not delete what it is to go on from.
                directory = RunDirectory(Path(run), settings, fresh=fresh and not restarted(), ranks=ranks)
            loop = MetaLoop(state, tasks, seed, directory, checkpoint_seconds, ranks)
            if tensorboard and directory is not None:
                callbacks = [*callbacks, tensorboard_callback(directory.path / "tensorboard")]
            with isolated_rng(learner.device), learner.modes_kept(), torch.enable_grad():
                scores = Scoring(validate, validate_every, test, test_every)
                return loop.run(meta_steps, scores, callbacks, progress)
    finally:
        if directory is not None:
            directory.close()


def tensorboard_callback(directory: Path) -> Callback:
    """Writes every number of every record as a TensorBoard scalar."""
    with naming_extras():
        from torch.utils.tensorboard import SummaryWriter
    writer = SummaryWriter(str(directory))

    def callback(step: int, learner: Learner, record: MetaRecord) -> None:
        del learner
        for name, value in record.items():
            if name not in ("step", *TIMES):
                writer.add_scalar(name, value, step)
        writer.flush()

    return callback
