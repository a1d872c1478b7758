"""Callbacks: user code that runs during training, and may end it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warpgrad.algorithms.method import Method
from warpgrad.errors import WarpgradError
from warpgrad.model.learner import Learner

MetaRecord = dict[str, float]
"""The record of a meta-step: its number, mean losses, step sizes, gradient norms, times, and validation scores."""


class StopTraining(Exception):  # noqa: N818 - not an error: like StopIteration, it ends something
    """Raised by a callback to end training; what was learned is kept.

    Its message says why, and is stored in the run's summary. Repeating the call resumes the training, and calls the
    callbacks again.

    Example:
        >>> def enough(step, learner, record):
        ...     if record["meta_loss"] < 100.0:
        ...         raise wg.StopTraining("the meta-loss is small enough")
        >>> len(wg.meta_train(method, family, algorithm=wg.Online(steps=2, tasks=1), optimiser=adam,
        ...                   meta_steps=50, callbacks=[enough]))
        1
    """


@dataclass
class Training:
    """The view of a training that callbacks get when it starts and when it ends.

    Example:
        >>> class Saying(wg.Callback):
        ...     def on_end(self, training): print(training.step, training.settings["rule.lr"])
        >>> records = wg.meta_train(method, family, algorithm=wg.Online(steps=2, tasks=1), optimiser=adam,
        ...                         meta_steps=2, callbacks=[Saying()])
        2 0.1
    """

    method: Method
    meta_steps: int
    """The requested number of meta-steps."""
    step: int
    """The number of meta-steps done, including those of earlier calls in the same run."""
    run: Path | None
    """The run directory."""
    settings: Mapping[str, Any]
    """The settings of the training by name, as in config.json."""
    stopped: str | None = None
    """At the end, why it ended before its last meta-step: early stopping, a callback, a signal or an error."""
    records: Sequence[MetaRecord] = field(default_factory=list)
    """The records of the meta-steps done, one each."""


class Callback:
    """Base class of callbacks, which run on rank 0 only. Every method does nothing until it is overridden.

    Any of them may raise `StopTraining("why")`. None may change the learner. A plain function is used as `on_step`.

    Example:
        >>> class Printing(wg.Callback):
        ...     def on_step(self, step, learner, record): print("meta-step", step)
        >>> records = wg.meta_train(method, family, algorithm=wg.Online(steps=2, tasks=1), optimiser=adam,
        ...                         meta_steps=2, callbacks=[Printing()])
        meta-step 1
        meta-step 2
    """

    def on_start(self, training: Training) -> None:
        """Run before the first meta-step of this call."""

    def on_step(self, step: int, learner: Learner, record: MetaRecord) -> None:
        """Run after a meta-step, given the number of meta-steps done and the record of the last one."""

    def on_validate(self, step: int, learner: Learner, scores: Mapping[str, float]) -> None:
        """Run after a validation, before `on_step`."""

    def on_end(self, training: Training) -> None:
        """Run when training is over, whatever ended it; files are best closed here."""


StepFunction = Callable[[int, Learner, MetaRecord], None]
"""A function of (meta-steps done, learner, record of the last one)."""


class _Function(Callback):
    """A plain function as a callback."""

    def __init__(self, function: StepFunction) -> None:
        self._function = function

    def on_step(self, step: int, learner: Learner, record: MetaRecord) -> None:
        self._function(step, learner, record)


class Callbacks:
    """All callbacks of a training. Each is called every time, even after one of them has stopped it."""

    def __init__(self, given: Sequence[Callback | StepFunction]) -> None:
        for one in given:
            if isinstance(one, type) or not (isinstance(one, Callback) or callable(one)):
                name = one.__name__ if isinstance(one, type) else f"a {type(one).__name__}"
                raise WarpgradError(
                    f"callbacks contains {name}, which is neither a Callback(...) object nor a function of (step, "
                    "learner, record)."
                )
        self._all = [one if isinstance(one, Callback) else _Function(one) for one in given]
        self._started: list[Callback] = []
        self.any = bool(self._all)

    def start(self, training: Training) -> str | None:
        """Call `on_start` of all callbacks; return the reason of the first that stops the training, or None."""

        def begin(one: Callback) -> None:
            self._started.append(one)
            one.on_start(training)

        return self._tell(begin)

    def step(self, step: int, learner: Learner, record: MetaRecord, scores: Mapping[str, float] | None) -> str | None:
        reason = None if scores is None else self._tell(lambda one: one.on_validate(step, learner, scores))
        later = self._tell(lambda one: one.on_step(step, learner, record))
        return reason or later

    def end(self, training: Training) -> None:
        """Call `on_end` of the callbacks that have started; `StopTraining` has no effect here."""
        for one in self._started:
            try:
                one.on_end(training)
            except StopTraining:
                continue

    def _tell(self, hook: Callable[[Callback], None]) -> str | None:
        reasons = []
        for one in self._all:
            try:
                hook(one)
            except StopTraining as stop:
                reasons.append(str(stop) or f"callback {type(one).__name__}")
        return reasons[0] if reasons else None
