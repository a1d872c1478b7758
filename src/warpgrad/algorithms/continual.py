"""Algorithm 3: continual meta-training on a stream of experiences."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from warpgrad.algorithms.backend import BackendName
from warpgrad.algorithms.base import Algorithm, Trace
from warpgrad.algorithms.method import GROUPS, MetaGradient, MetaUpdate, Method, Reduction
from warpgrad.algorithms.ranks import ALONE, Ranks
from warpgrad.errors import integer
from warpgrad.tasks.base import Task
from warpgrad.tensors import Tensors


class Continual(Algorithm):
    """θ steps on every batch of tasks, φ on the gradient accumulated over η batches.

    There is one θ for the whole stream: it is the learner's θ0, moved by C, usually `MultiTask()`. A meta-step is
    one batch. g_φ and the count of batches outlive it, so they are part of the checkpoint; g_φ starts from 0
    after each update of φ (the last line of the printed box resets g_θ instead, a slip).

    Example:
        >>> stream = wg.Continual(tasks=1, batches=30)
        >>> record = stream.meta_step(method, [task], [0], update=ignore)
        >>> stream.state()["counts"].tolist()  # batches and samples since φ was updated
        [1, 1]
    """

    def __init__(
        self,
        *,
        tasks: int,
        batches: int,
        reduction: Reduction = "mean",
        backend: BackendName = "auto",
        chunk: int = 64,
    ) -> None:
        """Set up the algorithm; `batches` is η, and the other arguments are those of `Algorithm`."""
        super().__init__(steps=1, tasks=tasks, reduction=reduction, backend=backend, chunk=chunk)
        self.batches = integer(batches, "batches", at_least=1)
        self._meta = MetaGradient()
        self._since_update = 0

    def meta_step(
        self,
        method: Method,
        tasks: Sequence[Task],
        keys: Sequence[int],
        update: MetaUpdate,
        ranks: Ranks = ALONE,
    ) -> dict[str, float]:
        self.check_points(method)
        # What earlier batches left is the same on all ranks, and must be counted once.
        meta, trace = self._meta if ranks.first else MetaGradient(), Trace()
        mine = ranks.share(len(tasks))
        gradients = method.initialiser.needs_gradient
        for adaptation in self.backend.adaptations(method, tasks[mine], keys[mine], gradients=gradients):
            (segment,) = method.trajectory(adaptation, 1)
            meta.add_sample(segment.sample, adaptation.size)
            meta.add_start(segment.theta0, adaptation)
            if segment.sample is not None:
                trace.add("meta_loss", segment.sample.meta_loss)
            trace.add("task_loss", segment.loss)
        meta.all_reduce(ranks, method, *GROUPS)
        trace.all_reduce(ranks)
        self._meta = meta
        meta.apply(update, "theta0", "prior", scale=method.weight / len(tasks))
        self._since_update += 1
        if self._since_update == self.batches:
            meta.apply(update, "phi", "rule", scale=self.scale(meta.samples))
            self._since_update = 0
        return trace.means()

    def state(self) -> Tensors:
        counts = torch.tensor([self._since_update, self._meta.samples])
        return {"counts": counts, **self._meta.state()}

    def load_state(self, state: Tensors) -> None:
        rest = dict(state)
        self._since_update, samples = (int(count) for count in rest.pop("counts"))
        self._meta.load_state(rest, samples)
