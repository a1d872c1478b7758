"""Traced adaptation: a computation on a task or a stack of tasks is traced once, and its graph is run from then on.

Small networks spend their time around their kernels: in autograd, in `vmap`, in exchanging parameters. A step is a pure
function of tensors, and the next step is the same function of others. So its operations, backward passes and second
derivatives included, are traced into a flat graph (`make_fx`), those without effect and those that repeat others are
removed, and the graph is called instead. It is the same arithmetic in the same order: a graph whose numbers are
not bit for bit those of what it replaces is not used, so it cannot matter when a run begins to use one.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from warpgrad.adaptation.base import (
    ADAPT_BATCH,
    Adaptation,
    Computation,
    Point,
    Source,
    StepIndex,
    Transition,
    following,
)
from warpgrad.adaptation.graphs import simplify
from warpgrad.adaptation.stacked import BatchedAdaptation
from warpgrad.errors import first_line
from warpgrad.model.forward_pass import changed, random_states
from warpgrad.model.learner import Learner
from warpgrad.rules import Rule
from warpgrad.tasks.base import Task
from warpgrad.tensors import Groups, autocast_in_force, flattened, leaves, refilled, without_autocast

logger = logging.getLogger(__name__)

PATIENCE = 100
"""Batches that computations of one kind see before they are traced: tracing costs as much as some hundred steps."""
VERSIONS = 4
"""Graphs of one kind before tracing is given up: settings that change all the time cannot be traced."""

Names = dict[str, tuple[str, ...]]
"""The names of groups, by role."""
Compute = Callable[[Groups, Sequence[Any]], Groups]
"""A step as a function of its groups and its batches."""


@contextmanager
def traced_at_once() -> Iterator[None]:
    """Trace computations at their first batch inside the block; for measurements, which are short."""
    global PATIENCE
    patience, PATIENCE = PATIENCE, 0
    try:
        yield
    finally:
        PATIENCE = patience


@dataclass
class Kind:
    """Computations of one kind: how many batches they have seen, and their graph where there is one."""

    seen: int = 0
    tried: bool = False
    run: Callable[..., Sequence[Tensor]] | None = None
    outputs: Names = field(default_factory=dict)


class TracedGraphs:
    """The traced graphs of a learner and a rule, by what they depend on besides the values of tensors."""

    def __init__(self) -> None:
        self.kinds: dict[Hashable, Kind] = {}
        """What has been computed since the settings last changed, with its graph where there is one."""
        self._versions: dict[Hashable, int] = {}
        self._made_for: tuple[Any, ...] = ()
        self._module: nn.Module | None = None

    def begin(self, learner: Learner, rule: Rule) -> None:
        """Forget all graphs if a setting that they depend on has changed; called with every set of adaptations."""
        self._module = learner.module
        now = (learner, rule, *graph_settings(learner, rule))
        if now != self._made_for:
            self.kinds.clear()
            self._made_for = now

    def run(self, name: Hashable, compute: Compute, inputs: Groups, batches: Sequence[Any]) -> Groups | None:
        """Run `compute` by its graph and return the result, or None if there is no graph (yet)."""
        flat = [value for group in inputs.values() for value in group.values()] + flattened(batches)
        which = (name, tuple((value.shape, value.stride(), value.dtype) for value in flat))
        kind = self.kinds.get(which)
        if kind is None:
            kind = self.kinds[which] = Kind()
        kind.seen += len(batches)
        if not kind.tried and self._worth_tracing(kind.seen, self._versions.get(which, 0)):
            self._versions[which] = self._versions.get(which, 0) + 1
            kind.tried = True
            self._trace(kind, compute, inputs, batches, flat)
        if kind.run is None:
            return None
        with torch.no_grad(), without_autocast():  # its casts are part of the graph
            found = kind.run(*flat)
        return _grouped(kind.outputs, iter(found))

    def _worth_tracing(self, seen: int, versions: int) -> bool:
        """Return whether computations with so many batches seen, traced so many times before, are worth tracing."""
        return seen >= PATIENCE and versions < VERSIONS

    def _trace(self, kind: Kind, compute: Compute, inputs: Groups, batches: Sequence[Any], flat: list[Tensor]) -> None:
        """Trace `compute`, and keep the function that runs its graph."""
        outputs: Names = {}
        flat = _distinct(flat)

        def pure(*values: Tensor) -> list[Tensor]:
            place = iter(values)
            found = compute(_grouped(_names(inputs), place), refilled(batches, place))
            outputs.update(_names(found))
            return [value for group in found.values() for value in group.values()]

        assert self._module is not None, "begin has been called"
        before, attributes = random_states(), _Attributes(self._module)
        try:
            try:
                with_autograd = make_fx(pure, tracing_mode="fake")(*flat)
            finally:
                kept = attributes.restore()
            with (
                torch.no_grad(),
                without_autocast(),
            ):  # traced again, to replace in-place operations: the result has no side effects
                graph = make_fx(functionalize(with_autograd), tracing_mode="fake")(*flat)
        # The step has just been computed without tracing, so any error only means that the model cannot be traced.
        except Exception as error:
            self._refuse(first_line(error))
            return
        source = changed(before)
        if source is not None:
            self._refuse(f"they draw from {source}, which a graph would freeze")
            return
        if kept is not None:
            self._refuse(f"the model sets its attribute '{kept}' in every pass, which a graph would not")
            return
        if any(torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) for node in graph.graph.nodes):
            self._refuse("they draw from torch's generator, which is seeded for every pass")
            return
        simplify(graph.graph)
        graph.recompile()
        kind.run, kind.outputs = self._runnable(graph, flat, pure(*flat), len(batches)), outputs

    def _refuse(self, reason: str) -> None:
        """Log why steps are evaluated without a graph from here on."""
        logger.info("steps are not traced: %s", reason)

    def _runnable(
        self, graph: GraphModule, flat: list[Tensor], expected: Sequence[Tensor], batches: int
    ) -> Callable[..., Sequence[Tensor]] | None:
        """Return the function that runs a graph: its `forward`, if that gives the expected numbers to the last bit."""
        del batches
        with torch.no_grad(), without_autocast():
            found = graph.forward(*flat)
        if all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True)):
            return graph.forward
        self._refuse("their graph gives different numbers")
        return None


class _Attributes:
    """The attributes of a model's modules, restored after a trace, which would leave tensors without data there."""

    def __init__(self, module: nn.Module) -> None:
        self._before = [
            (own, dict(own), {name: len(value) for name, value in own.items() if isinstance(value, list)})
            for own in map(vars, module.modules())
        ]

    def restore(self) -> str | None:
        """Restore what has changed, and return the name of one such attribute, if any.

        Only what a pass computes is looked at: tensors, numbers, and entries added to lists.
        """
        found = None
        for now, before, lengths in self._before:
            for name, value in list(now.items()):
                if name not in before:
                    del now[name]
                elif _computed(value, before[name]) and name != "training":
                    now[name] = before[name]
                elif name in lengths and len(value) > lengths[name]:
                    del value[lengths[name] :]
                else:
                    continue
                found = name
        return found


def _computed(value: Any, before: Any) -> bool:
    """Return whether a value is another tensor or number than before."""
    if isinstance(value, Tensor):
        return value is not before
    return isinstance(value, int | float) and value != before


def graph_settings(learner: Learner, rule: Rule) -> tuple[Hashable, ...]:
    """Return everything that a graph depends on besides its tensors."""
    return tuple(plain_settings(learner.module)), tuple(plain_settings(rule)), autocast_in_force()


def plain_settings(owner: Any) -> Iterator[Hashable]:
    """Yield the plain values among an object's attributes, and those of the modules and rules within it.

    They are baked into a graph: if one changes between meta-steps, the computation has to be traced again.
    """
    for one in owner.modules() if isinstance(owner, nn.Module) else [owner]:
        for name, value in vars(one).items():
            if isinstance(value, Rule):
                yield from plain_settings(value)
            elif name != "training" and _plain(value):
                yield name, value


def _plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_plain(entry) for entry in value)
    return isinstance(value, int | float | str)


def _distinct(values: Sequence[Tensor]) -> list[Tensor]:
    """Return the values as distinct tensors, because one given twice would become a single input of the graph."""
    seen: set[int] = set()
    found = []
    for value in values:
        found.append(value.clone() if id(value) in seen else value)
        seen.add(id(value))
    return found


def _names(groups: Groups) -> Names:
    return {role: tuple(group) for role, group in groups.items()}


def _grouped(names: Names, values: Iterator[Tensor]) -> Groups:
    return {role: {name: next(values) for name in own} for role, own in names.items()}


T = TypeVar("T")
BatchPlace = tuple[Source, int]

MOST_BATCHES = 12
"""Computations that look at more batches are not traced: graphs grow with every step, and so does tracing."""


class _Traced(Adaptation):
    """Runs computations by their graphs, and evaluates them plainly wherever they have none."""

    graphs: TracedGraphs
    gradients = True
    """Whether transitions need their gradients; without, those that a graph returns are empty."""

    def step(self, point: Point) -> Transition:
        found = self.run_traced(_INNER_STEP, point)
        return super().step(point) if found is None else found

    def compute(self, computation: Computation[T], point: Point) -> T:
        found = self.run_traced(computation, point)
        return super().compute(computation, point) if found is None else found

    def run_traced(self, computation: Computation[T], point: Point) -> T | None:
        if len(computation.reads) > MOST_BATCHES:
            return None
        learner = self.learner
        inputs = {**point.groups(), "phi": learner.phi, "rule": self.rule.meta, "constants": learner.constants}
        places: list[BatchPlace] = list(computation.reads)
        batches = [self._batch(source, following(point.k, later)) for source, later in places]

        def compute(groups: Groups, given: Sequence[Any]) -> Groups:
            tracing = self.tracing(dict(zip(places, given, strict=True)))
            found = tracing.groups(computation, groups)
            return found if self.gradients or "gradient" not in found else {**found, "gradient": {}}

        name = (
            type(computation),
            tuple(plain_settings(computation)),
            computation.reads,
            self.gradients,
            type(self.task),
            self.task.stack_key,
        )
        groups = self.graphs.run(name, compute, inputs, batches)
        if groups is None or not all(math.isfinite(loss.sum()) for loss in groups["losses"].values()):
            return None  # plain evaluation finds a number that is not finite again, and reports where
        return computation.result(groups, point)

    @abstractmethod
    def tracing(self, batches: Mapping[BatchPlace, Any]) -> _Tracing:
        """Return the same adaptation at step 0, with the tensors of its batches given."""


class TracedTask(_Traced):
    """Like `Adaptation`: one task, with the graphs of all tasks of its `stack_key`."""

    def __init__(self, learner: Learner, rule: Rule, task: Task, key: int, graphs: TracedGraphs) -> None:
        super().__init__(learner, rule, task, key)
        self.graphs = graphs

    def tracing(self, batches: Mapping[BatchPlace, Any]) -> _Tracing:
        return _Tracing(self.learner, self.rule, self.task, self.key).given(batches)


class TracedAdaptation(_Traced, BatchedAdaptation):
    """Like `BatchedAdaptation`: a stack of tasks."""

    def __init__(
        self,
        learner: Learner,
        rule: Rule,
        tasks: Sequence[Task],
        keys: Sequence[int],
        graphs: TracedGraphs,
        *,
        gradients: bool = True,
    ) -> None:
        """Set up the tasks; without `gradients`, transitions have an empty gradient wherever a graph ran."""
        super().__init__(learner, rule, tasks, keys)
        self.graphs, self.gradients = graphs, gradients

    def tracing(self, batches: Mapping[BatchPlace, Any]) -> _Tracing:
        return _TracingStack(self.learner, self.rule, self.tasks, self.keys).given(batches)


class _InnerStep(Computation[Transition]):
    """A single adaptation step."""

    reads = ((ADAPT_BATCH, 0),)

    def step(self, adaptation: Adaptation, point: Point) -> Transition:
        return adaptation.step(point)

    def groups(self, result: Transition) -> Groups:
        return {"losses": {"task": result.loss}, "gradient": result.gradient, **result.after.groups()}

    def result(self, groups: Groups, point: Point) -> Transition:
        after = Point.of(following(point.k), groups)
        return Transition(point, groups["losses"]["task"], groups["gradient"], after)


_INNER_STEP = _InnerStep()


class _Tracing(Adaptation):
    """A task with all its tensors given, at step 0; their values are checked when the graph is run."""

    def given(self, batches: Mapping[BatchPlace, Any]) -> Self:
        """Return this adaptation, which reads these batches and draws none."""
        self._given = batches
        return self

    def groups(self, computation: Computation[Any], given: Groups) -> Groups:
        """Evaluate the computation as a function of named tensors."""
        own, self.rule.meta = self.rule.meta, leaves(given["rule"])
        try:
            with self.learner.substituted(leaves(given["phi"]), given["constants"]):
                return computation.groups(computation.step(self, Point.of(0, given)))
        finally:
            self.rule.meta = own

    def check_finite(self, loss: Tensor, what: str, k: StepIndex) -> None:
        del loss, what, k

    def _batch(self, source: Source, k: StepIndex) -> Any:
        assert isinstance(k, int)
        return self._given[source, k]


class _TracingStack(_Tracing, BatchedAdaptation):
    """A stack of tasks."""
