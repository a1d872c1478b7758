"""The arguments of `meta_train`, each checked for its kind before anything is computed, and what a family hands out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from warpgrad.algorithms.base import Algorithm
from warpgrad.algorithms.method import Method
from warpgrad.errors import WarpgradError, expect, file_path, flag, function, integer, mapping, real, short_repr
from warpgrad.initialisers.base import Initialiser
from warpgrad.initialisers.points import Fixed
from warpgrad.model.learner import Learner
from warpgrad.objectives.base import Objective
from warpgrad.rules.base import Rule
from warpgrad.tasks.base import Task, TaskFamily, check_repeats
from warpgrad.training.callbacks import Callback
from warpgrad.training.early_stopping import EarlyStopping

_PARTIAL = "partial(torch.optim.Adam, lr=1e-3)"
_SCHEDULE = "partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=1000)"


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Every argument of `meta_train`, by name; refuses the first that is not of its kind."""
    for name, check in _CHECKS.items():
        if name in arguments and not (name in _OPTIONAL and arguments[name] is None):
            check(arguments[name])
    if arguments["run"] is None and (arguments["tensorboard"] or arguments["fresh"]):
        raise WarpgradError("tensorboard and fresh need a run directory: pass run=.")
    if arguments["early_stopping"] is not None and arguments["validate"] is None:
        raise WarpgradError("early stopping needs validate=, a function that scores the learner.")


def check_learns(method: Method, algorithm: Algorithm) -> None:
    """Refuse meta-training in which something that is there to be learned never changes."""
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


def checked_tasks(batch: Sequence[Task], *, first: bool) -> Sequence[Task]:
    """The tasks of a meta-step; the first time, whether they repeat themselves."""
    if not isinstance(batch, Sequence) or not batch:
        raise WarpgradError("the task family returned an empty meta-batch.")
    for place, task in enumerate(batch):
        if not isinstance(task, Task):
            raise WarpgradError(
                f"the task family returned {short_repr(task)} as task {place} of a meta-batch: sample(seed) must "
                "return a Task."
            )
    if first:
        check_repeats(batch[0])
    return batch


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
                f"{name} is {short_repr(one)} already: pass what makes one, e.g. {_PARTIAL}, because φ and θ0 have one "
                "each."
            )
        function(one, name, _PARTIAL)


def _schedule(value: Any) -> None:
    if isinstance(value, LRScheduler):
        raise WarpgradError(
            f"schedule is {short_repr(value)} already: pass what makes one of an optimiser, e.g. {_SCHEDULE}."
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
            json.dumps({name: entry}, allow_nan=False)  # NaN is not itself: no run could go on under it
        except (TypeError, ValueError) as error:
            raise WarpgradError(
                f"config[{name!r}] is {short_repr(entry)}, which cannot be written to config.json: give finite "
                "numbers, texts, lists and mappings of them."
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
