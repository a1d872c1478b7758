"""The stacked engine with its computations played back from programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from warpgrad.adaptation import Adaptation, Computation, Point, Source, Step, Transition, following
from warpgrad.batched import BatchedAdaptation
from warpgrad.learner import Learner
from warpgrad.recording import Programs, settings
from warpgrad.rules.base import Rule
from warpgrad.tasks.base import Task
from warpgrad.tensors import Groups, leaves

T = TypeVar("T")
Place = tuple[Source, int]

MOST_BATCHES = 12
"""Computations that look at more batches are not recorded: programs grow with every step, and so does recording."""


class RecordedAdaptation(BatchedAdaptation):
    """As `BatchedAdaptation`, which it falls back to wherever a computation has no program."""

    def __init__(
        self, learner: Learner, rule: Rule, tasks: Sequence[Task], keys: Sequence[int], programs: Programs
    ) -> None:
        super().__init__(learner, rule, tasks, keys)
        self._programs = programs

    def step(self, point: Point) -> Transition:
        found = self._played(_INNER_STEP, point)
        return super().step(point) if found is None else found

    def compute(self, computation: Computation[T], point: Point) -> T:
        found = self._played(computation, point)
        return super().compute(computation, point) if found is None else found

    def _played(self, computation: Computation[T], point: Point) -> T | None:
        if len(computation.reads) > MOST_BATCHES:
            return None
        learner = self.learner
        inputs = {**point.groups(), "phi": learner.phi, "rule": self.rule.meta, "constants": learner.constants}
        places: list[Place] = list(computation.reads)
        batches = [self._batches(source, following(point.k, later)) for source, later in places]

        def compute(groups: Groups, given: Sequence[Any]) -> Groups:
            recording = _Recording(self, dict(zip(places, given, strict=True)))
            return recording.groups(computation, groups)

        name = (type(computation), tuple(settings(computation)), type(self.task), self.task.stack_key)
        groups = self._programs.run(name, compute, inputs, batches)
        if groups is None or not all(torch.isfinite(loss).all() for loss in groups["losses"].values()):
            return None  # where a number is not finite, plain evaluation finds it again and tells where
        return computation.result(groups, point)


class _InnerStep(Computation[Transition]):
    """One adaptation step alone."""

    reads = (("adapt_batch", 0),)

    def step(self, adaptation: Adaptation, point: Point) -> Transition:
        return adaptation.step(point)

    def groups(self, result: Transition) -> Groups:
        return {"losses": {"task": result.loss}, "gradient": result.gradient, **result.after.groups()}

    def result(self, groups: Groups, point: Point) -> Transition:
        after = Point.of(following(point.k), groups)
        return Transition(point, groups["losses"]["task"], groups["gradient"], after)


_INNER_STEP = _InnerStep()


class _Recording(BatchedAdaptation):
    """Tasks with all their tensors given, at step 0, and without looks at values: those are for who plays it back."""

    def __init__(self, own: RecordedAdaptation, batches: Mapping[Place, Any]) -> None:
        super().__init__(own.learner, own.rule, own.tasks, own.keys)
        self._given = batches

    def groups(self, computation: Computation[Any], given: Groups) -> Groups:
        """The computation as a function of named tensors."""
        own, self.rule.meta = self.rule.meta, leaves(given["rule"])
        try:
            with self.learner.substituted(leaves(given["phi"]), given["constants"]):
                return computation.groups(computation.step(self, Point.of(0, given)))
        finally:
            self.rule.meta = own

    def check_finite(self, loss: Tensor, what: str, k: Step) -> None:
        del loss, what, k

    def _batches(self, source: Source, k: Step) -> Any:
        assert isinstance(k, int)
        return self._given[source, k]
