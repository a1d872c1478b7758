"""Algorithms decide when g_φ and g_θ0 become meta-updates. They do not read or write files, nor print anything."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from warpgrad.adaptation.base import check_steps
from warpgrad.adaptation.trajectory import Segment
from warpgrad.algorithms.backend import Backend, BackendName
from warpgrad.algorithms.method import MetaUpdate, Method, Reduction
from warpgrad.algorithms.ranks import ALONE, Ranks
from warpgrad.errors import choice, integer, require
from warpgrad.tasks.base import Task
from warpgrad.tensors import Tensors

LOSS_NAMES = ("meta_loss", "meta_loss_start", "task_loss", "task_loss_first", "task_loss_last")
"""The losses that a trace can hold; fixed, because a rank without any task has to send as many numbers."""


class Trace:
    """Mean losses of one meta-step, for the log."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, values: Tensor) -> None:
        """Add the losses of some tasks; `name` is one of `LOSS_NAMES`."""
        self._sums[name] = self._sums.get(name, 0.0) + float(values.sum())
        self._counts[name] = self._counts.get(name, 0) + values.numel()

    def add_segment(self, segment: Segment) -> None:
        """Add the losses of one step of a trajectory."""
        if segment.sample is not None:
            self.add("meta_loss", segment.sample.meta_loss)
        if segment.point.k == 0:
            self.add("task_loss_first", segment.loss)
        if segment.last:
            self.add("task_loss_last", segment.loss)

    def all_reduce(self, ranks: Ranks) -> None:
        """Sum over all ranks."""
        if ranks.size == 1:
            return
        numbers = ranks.total(
            [number for name in LOSS_NAMES for number in (self._sums.get(name, 0.0), self._counts.get(name, 0))]
        )
        for place, name in enumerate(LOSS_NAMES):
            if numbers[2 * place + 1]:
                self._sums[name], self._counts[name] = numbers[2 * place], int(numbers[2 * place + 1])

    def means(self) -> dict[str, float]:
        return {name: value / self._counts[name] for name, value in self._sums.items()}


class Algorithm(ABC):
    """One meta-step: adapt to a meta-batch of tasks, accumulate gradients, update the meta-parameters.

    Example:
        >>> issubclass(wg.Online, wg.Algorithm), wg.Online(steps=5, tasks=4).steps
        (True, 5)
    """

    learns_by_itself = False
    """Whether the algorithm learns φ and θ0 by its own objective, so that none has to be given."""

    def __init__(
        self,
        *,
        steps: int,
        tasks: int,
        reduction: Reduction = "mean",
        backend: BackendName = "auto",
        chunk: int = 64,
    ) -> None:
        """
        Args:
            steps: K, adaptation steps per task; a task that sets `steps` overrides it.
            tasks: Tasks per meta-step.
            reduction: Whether g_φ is the mean or the sum over the (task, step) samples of one update.
            backend: How tasks are evaluated: `loop` takes one at a time (the reference), `batched` stacks them,
                `traced` also traces the steps of a stack, `compiled` also compiles them, and `auto` is `traced` where
                that is known to win and was checked once, or `compiled` in a long run of `meta_train`, otherwise
                `loop`.
            chunk: At most this many tasks or points are stacked at once; bounds memory.
        """
        self.steps = check_steps(steps)
        self.tasks = integer(tasks, "tasks", at_least=1)
        choice(reduction, "reduction", ("mean", "sum"))
        self.reduction = reduction
        self.backend = Backend(backend, integer(chunk, "chunk", at_least=1))

    @abstractmethod
    def meta_step(
        self,
        method: Method,
        tasks: Sequence[Task],
        keys: Sequence[int],
        update: MetaUpdate,
        ranks: Ranks = ALONE,
    ) -> dict[str, float]:
        """Adapt to `tasks`, update the meta-parameters, and return mean losses; `keys` has one entry per task.

        `ranks` are the processes that share the meta-step, of which this is one. Every rank is given all tasks, adapts
        to those of `ranks.share(len(tasks))`, and sums gradients over ranks before it updates.
        """

    def plan(self, meta_steps: int) -> None:
        """Prepare for a run of this many meta-steps, before its first one."""
        self.backend.plan(meta_steps * self.steps)

    def idleness(self, ranks: int) -> str | None:
        """Return a sentence that says why some of this many ranks would be idle; None if none would."""
        if self.tasks >= ranks:
            return None
        return f"a meta-step has {self.tasks} task(s) for {ranks} ranks: {ranks - self.tasks} of them will wait"

    def state(self) -> Tensors:
        """Return the state that is carried from one meta-step to the next; empty for most algorithms."""
        return {}

    def load_state(self, state: Tensors) -> None:
        """Resume from a state that `state()` returned."""
        del state

    def steps_of(self, task: Task) -> int:
        """Return K_τ, the number of adaptation steps of this task."""
        return self.steps if task.steps is None else check_steps(task.steps)

    def check_points(self, method: Method) -> None:
        """Raise if the objective needs whole trajectories but the algorithm gives it single points."""
        require(
            method.objective is None or not method.objective.needs_trajectory,
            f"{type(method.objective).__name__} looks back along trajectories, which only Algorithm 1 keeps: use "
            f"Online(...) in place of {type(self).__name__}(...).",
        )

    def scale(self, samples: int) -> float:
        """Return the factor by which g_φ, a sum over samples, is multiplied."""
        return 1.0 / max(samples, 1) if self.reduction == "mean" else 1.0
