"""`meta_train`: the entry point that combines the parts and runs them for many meta-steps.

    wg.meta_train(method, tasks, algorithm=..., ...)                             # in memory
    wg.meta_train(learner, tasks, algorithm=..., rule=..., objective=..., ...)   # the method given by its parts
    wg.meta_train(..., run="runs/mine")                                          # with a run directory

Meta-step i derives every random draw from keys (seed, i, …), so a run that was interrupted resumes from its last
checkpoint and ends with the same bytes as one that was not.

Under torchrun, the processes share the tasks of every meta-step (`distributed.py`). All hold the same
parameters and optimiser states; rank 0 alone reads and writes the run directory, validates, and calls callbacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from warpgrad.algorithms.base import Algorithm
from warpgrad.algorithms.meta_optimiser import MetaOptimiser, OptimiserFactory, ScheduleFactory
from warpgrad.algorithms.method import Method, ParameterGroup
from warpgrad.errors import WarpgradError, expect, file_path, flag, function, integer, mapping, real, short_repr
from warpgrad.initialisers import Fixed, Initialiser
from warpgrad.keys import isolated_rng
from warpgrad.model.learner import Learner
from warpgrad.objectives import Objective
from warpgrad.rules import Rule
from warpgrad.tasks.base import Task, TaskFamily
from warpgrad.training.callbacks import Callback, Callbacks, StepFunction
from warpgrad.training.distributed import current_ranks, restarted
from warpgrad.training.early_stopping import EarlyStopping
from warpgrad.training.loggers import TensorBoardLogger
from warpgrad.training.loop import MetaLoop, MetaRecords, Scoring, TrainingState, Validation
from warpgrad.training.parts import training_settings, with_config
from warpgrad.training.run_directory import RunDirectory
from warpgrad.training.saving import load_start
from warpgrad.training.summary import write_summary


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
    callbacks: Sequence[Callback | StepFunction] = (),
    run: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    init_from: str | Path | None = None,
    fresh: bool = False,
    checkpoint_seconds: float = 30.0,
    tensorboard: bool = False,
    progress: bool = False,
) -> MetaRecords:
    """Meta-learn φ, θ0 and the rule's parameters in place, and return one record per meta-step.

    A record has the mean losses of its meta-step, `lr/GROUP` and `gradient_norm/GROUP` of what was updated, `seconds`
    and `cpu_seconds`, and under `validation/` and `test/` what these functions returned.

    Args:
        method: What is meta-learned, and how: a `Method`, or a learner with the other parts as keywords.
        tasks: p(τ).
        algorithm: When gradients become updates: `Online`, `Offline`, `Continual` or `Unrolled`.
        rule: The update rule of adaptation. This and the next three belong to a learner; a method has its own.
        objective: L, how φ is judged; None to learn an initialisation alone.
        initialiser: C, how θ0 is learned; `Fixed()` if None.
        weight: λ; 1 if None.
        optimiser: The meta-optimiser, e.g. `partial(torch.optim.Adam, lr=1e-3)`, or one per group.
        clip: Largest norm of meta-gradients, for all groups or per group.
        schedule: Learning-rate schedule of the meta-optimisers, stepped once per meta-step; `ReduceLROnPlateau` watches
            the meta-loss, or the last task loss where there is none.
        meta_steps: The total number of meta-steps, including those of earlier calls in the same run.
        seed: The seed of every random draw.
        validate: Scores of the learner on validation tasks, every `validate_every` meta-steps.
        early_stopping: Stop on a validation score, and end with the best parameters.
        test: Scores of the learner on test tasks, every `test_every` meta-steps; they are recorded and never used.
        callbacks: `Callback` objects, or functions of (step, learner, record) that are called after every meta-step,
            on rank 0 only. They must not change the learner, and may stop the training by raising `StopTraining`.
        run: Run directory; repeating the call resumes the run. Its config.json holds the settings of the training (the
            parts, the optimisers, the seed), and a run resumes only under equal settings; `meta_steps` may grow.
        config: Further settings to store and compare. `method` and `group` name the run in reports. A config that
            names an `experiment` is complete, and nothing is added to it.
        init_from: Start from what another run, or a file written by `save`, has learned. Settings may differ, and the
            optimisers start fresh.
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
    check_arguments(locals())
    learner = method.learner if isinstance(method, Method) else method
    ranks = current_ranks(learner.device)
    directory: RunDirectory | None = None
    try:
        with ranks.share_errors():
            method = Method.of(method, rule, objective, initialiser, weight)
            check_learns(method, algorithm)
            update = MetaOptimiser(method, optimiser, clip=clip, schedule=schedule)
            state = TrainingState(method, algorithm, update, early_stopping)
            own = config is None or "experiment" not in config
            made_of = training_settings(method, algorithm, update, tasks) if own else {}
            kept = {"seed": seed, "meta_steps": meta_steps, **with_config(made_of, config or {}, init_from)}
            if run is not None:
                if tensorboard:
                    callbacks = [*callbacks, TensorBoardLogger(Path(run) / "tensorboard")]
                if ranks.first:
                    # torchrun repeats the whole command, which must not delete what it is to resume from.
                    directory = RunDirectory(Path(run), kept, fresh=fresh and not restarted(), ranks=ranks)
            if init_from is not None and (directory is None or not directory.saved()) and ranks.first:
                load_start(method, init_from)
            loop = MetaLoop(state, tasks, seed, directory, checkpoint_seconds, ranks)
            with isolated_rng(learner.device), learner.modes_kept(), torch.enable_grad():
                scores = Scoring(validate, validate_every, test, test_every)
                records = loop.run(meta_steps, scores, Callbacks(callbacks), kept, progress)
            if own and directory is not None:
                write_summary(directory.path, kept, method, records)
            return records
    finally:
        if directory is not None:
            directory.close()


_PARTIAL = "partial(torch.optim.Adam, lr=1e-3)"
_SCHEDULE = "partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=1000)"


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Check every argument of `meta_train` by name, and raise for the first that has the wrong type."""
    for name, check in _CHECKS.items():
        if name in arguments and not (name in _OPTIONAL and arguments[name] is None):
            check(arguments[name])
    if arguments["run"] is None and (arguments["tensorboard"] or arguments["fresh"]):
        raise WarpgradError("tensorboard and fresh need a run directory: pass run=.")
    if arguments["early_stopping"] is not None and arguments["validate"] is None:
        raise WarpgradError("early stopping needs validate=, a function that scores the learner.")


def check_learns(method: Method, algorithm: Algorithm) -> None:
    """Raise if something that is there to be learned could never change."""
    if algorithm.learns_by_itself or method.objective is not None:
        return
    if method.learner.phi:
        names = ", ".join(list(method.learner.phi)[:3])
        raise WarpgradError(
            f"the model has {len(method.learner.phi)} warp parameters ({names}, …), but nothing learns them: pass "
            "objective=Exact() or Approximate(), or list them under constant= of the Learner."
        )
    if isinstance(method.initialiser, Fixed):
        raise WarpgradError(
            "nothing is learned: pass objective= for the warp parameters, or initialiser= (Leap(), MAML(), ...) for θ0."
        )


def _method(value: Any) -> None:
    if isinstance(value, Method):
        return
    hint = "; make a learner of it: Learner(model, warp=...)" if isinstance(value, nn.Module) else ""
    expect(value, Learner, "method", "Learner(model, warp=...)", hint=hint)


def _tasks(value: Any) -> None:
    hint = ""
    if isinstance(value, list | tuple):
        hint = "; make a family of it: TaskList(tasks)"
    elif isinstance(value, Task):
        hint = "; a family of one task is TaskList([task])"
    elif callable(value) and not isinstance(value, type):
        hint = "; make a family of a function of a seed: FunctionFamily(function)"
    expect(value, TaskFamily, "tasks", "FunctionFamily(lambda seed: SupervisedTask(...))", hint=hint)


def _rule(value: Any) -> None:
    kind = value if isinstance(value, type) else type(value)
    hint = "; the rule adapts θ, the meta-optimiser is optimiser=" if issubclass(kind, Optimizer) else ""
    expect(value, Rule, "rule", "SGD(0.1)", hint=hint)


def _optimiser(value: Any) -> None:
    for group, one in value.items() if isinstance(value, Mapping) else [(None, value)]:
        name = "optimiser" if group is None else f"optimiser[{group!r}]"
        if isinstance(one, Optimizer):
            raise WarpgradError(
                f"{name} is already {short_repr(one)}: pass a function that makes one, e.g. {_PARTIAL}, because φ and "
                "θ0 have one each."
            )
        function(one, name, _PARTIAL)


def _schedule(value: Any) -> None:
    if isinstance(value, LRScheduler):
        raise WarpgradError(
            f"schedule is already {short_repr(value)}: pass a function that makes one, e.g. {_SCHEDULE}."
        )
    function(value, "schedule", _SCHEDULE)


def _clip(value: Any) -> None:
    for group, bound in value.items() if isinstance(value, Mapping) else [(None, value)]:
        if bound is not None:
            real(bound, "clip" if group is None else f"clip[{group!r}]", above=0)


def _callbacks(value: Any) -> None:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise WarpgradError(f"callbacks must be a list of callbacks, not {short_repr(value)}: write callbacks=[...].")
    for place, one in enumerate(value):
        if not isinstance(one, Callback):
            function(one, f"callbacks[{place}]", "a Callback, or a function of (step, learner, record)")


def _config(value: Any) -> None:
    for name, entry in mapping(value, "config", '{"width": 40}').items():
        try:
            json.dumps({name: entry}, allow_nan=False)  # NaN does not equal itself, so no run could resume under it
        except (TypeError, ValueError) as error:
            raise WarpgradError(
                f"config[{name!r}] is {short_repr(entry)}, which cannot be written to config.json: use finite "
                "numbers, strings, and lists and mappings of them."
            ) from error


_CHECKS: dict[str, Callable[[Any], object]] = {
    "method": _method,
    "tasks": _tasks,
    "algorithm": lambda value: expect(value, Algorithm, "algorithm", "Online(steps=5, tasks=4)"),
    "rule": _rule,
    "objective": lambda value: expect(value, Objective, "objective", "Exact()"),
    "initialiser": lambda value: expect(value, Initialiser, "initialiser", "Leap()"),
    "weight": lambda value: real(value, "weight", at_least=0),
    "optimiser": _optimiser,
    "clip": _clip,
    "schedule": _schedule,
    "meta_steps": lambda value: integer(value, "meta_steps", at_least=1),
    "seed": lambda value: integer(value, "seed"),
    "validate": lambda value: function(value, "validate", "lambda learner: score(learner, tasks, ...)"),
    "validate_every": lambda value: integer(value, "validate_every", at_least=1),
    "early_stopping": lambda value: expect(value, EarlyStopping, "early_stopping", "EarlyStopping('loss', patience=5)"),
    "test": lambda value: function(value, "test", "lambda learner: score(learner, tasks, ...)"),
    "test_every": lambda value: integer(value, "test_every", at_least=1),
    "callbacks": _callbacks,
    "run": lambda value: file_path(value, "run", "runs/mine"),
    "init_from": lambda value: file_path(value, "init_from", "runs/mine"),
    "config": _config,
    "fresh": lambda value: flag(value, "fresh"),
    "checkpoint_seconds": lambda value: real(value, "checkpoint_seconds", at_least=0),
    "tensorboard": lambda value: flag(value, "tensorboard"),
    "progress": lambda value: flag(value, "progress"),
}
_OPTIONAL = {
    "rule",
    "weight",
    "objective",
    "initialiser",
    "clip",
    "schedule",
    "validate",
    "early_stopping",
    "test",
    "run",
    "init_from",
    "config",
}
