"""Callbacks: what a user's own code hears of a training, and how it may end one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warpgrad.algorithms.method import Method
from warpgrad.errors import WarpgradError
from warpgrad.model.learner import Learner

MetaRecord = dict[str, float]
"""What a meta-step leaves: its number, mean losses, step sizes, norms, times, and scores of a validation after it."""


class StopTraining(Exception):  # noqa: N818 - not an error: like StopIteration, it ends something
    """Raised by a callback: no further meta-step is taken, and what was learned is kept.

    The sentence that it holds says why; it stands in the run's summary. The same call again goes on, and asks the
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
    """A training as callbacks see it when it starts and when it ends.

    Example:
        >>> class Saying(wg.Callback):
        ...     def on_end(self, training): print(training.step, training.settings["rule.lr"])
        >>> records = wg.meta_train(method, family, algorithm=wg.Online(steps=2, tasks=1), optimiser=adam,
        ...                         meta_steps=2, callbacks=[Saying()])
        2 0.1
    """

    method: Method
    meta_steps: int
    """How many meta-steps are asked for."""
    step: int
    """How many are done, those of an earlier call in the same run included."""
    run: Path | None
    """The run directory."""
    settings: Mapping[str, Any]
    """What the training is made of, by name, as in config.json."""
    stopped: str | None = None
    """At the end, why it ended before its last meta-step: early stopping, a callback, a signal, an error."""
    records: Sequence[MetaRecord] = field(default_factory=list)
    """One record per meta-step done."""


class Callback:
    """Hears of a training, by rank 0 alone. Every method does nothing until it is overridden.

    Any of them may raise `StopTraining("why")`. None may change the learner. A plain function is taken as `on_step`.

    Example:
        >>> class Printing(wg.Callback):
        ...     def on_step(self, step, learner, record): print("meta-step", step)
        >>> records = wg.meta_train(method, family, algorithm=wg.Online(steps=2, tasks=1), optimiser=adam,
        ...                         meta_steps=2, callbacks=[Printing()])
        meta-step 1
        meta-step 2
    """

    def on_start(self, training: Training) -> None:
        """Before the first meta-step of this call."""

    def on_step(self, step: int, learner: Learner, record: MetaRecord) -> None:
        """After a meta-step, with the number that are done and the record of the last one."""

    def on_validate(self, step: int, learner: Learner, scores: Mapping[str, float]) -> None:
        """After a meta-step that validation followed, before `on_step`."""

    def on_end(self, training: Training) -> None:
        """When training is over, whatever ended it: the place to close files."""


StepFunction = Callable[[int, Learner, MetaRecord], None]
"""(meta-steps done, learner, record of the last one)."""


class _Function(Callback):
    """A plain function as a callback."""

    def __init__(self, function: StepFunction) -> None:
        self._function = function

    def on_step(self, step: int, learner: Learner, record: MetaRecord) -> None:
        self._function(step, learner, record)


class Callbacks:
    """All callbacks of a training: each hears everything, also after one of them has stopped it."""

    def __init__(self, given: Sequence[Callback | StepFunction]) -> None:
        for one in given:
            if isinstance(one, type) or not (isinstance(one, Callback) or callable(one)):
                name = one.__name__ if isinstance(one, type) else f"a {type(one).__name__}"
                raise WarpgradError(
                    f"callbacks holds {name}, which is neither a Callback(...) object nor a function of (step, "
                    "learner, record)."
                )
        self._all = [one if isinstance(one, Callback) else _Function(one) for one in given]
        self._started: list[Callback] = []
        self.any = bool(self._all)

    def start(self, training: Training) -> str | None:
        """The reason of the first that stops the training; None where all let it go on. So for the next two."""

        def begin(one: Callback) -> None:
            self._started.append(one)
            one.on_start(training)

        return self._tell(begin)

    def step(self, step: int, learner: Learner, record: MetaRecord, scores: Mapping[str, float] | None) -> str | None:
        reason = None if scores is None else self._tell(lambda one: one.on_validate(step, learner, scores))
        later = self._tell(lambda one: one.on_step(step, learner, record))
        return reason or later

    def end(self, training: Training) -> None:
        """Only what has started is ended; there is nothing left to stop."""
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
                reasons.append(str(stop) or f"{type(one).__name__} stopped it")
        return reasons[0] if reasons else None
