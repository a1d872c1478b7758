"""Algorithm 1: online meta-training."""

from __future__ import annotations

from collections.abc import Sequence

from warpgrad.algorithms.backend import BackendName
from warpgrad.algorithms.base import Algorithm, Trace
from warpgrad.algorithms.method import GROUPS, MetaGradient, MetaUpdate, Method, Reduction
from warpgrad.algorithms.ranks import ALONE, Ranks
from warpgrad.errors import flag
from warpgrad.tasks.base import Task


class Online(Algorithm):
    """Accumulate g_φ and g_θ0 while tasks adapt, then update both once. Constant memory, linear time in K.

    Example:
        >>> wg.Online(steps=3, tasks=2).meta_step(method, [task, task], [0, 1], update=ignore).keys()
        dict_keys(['meta_loss', 'task_loss_first', 'task_loss_last'])
    """

    def __init__(
        self,
        *,
        steps: int,
        tasks: int,
        include_last: bool = False,
        reduction: Reduction = "mean",
        backend: BackendName = "auto",
        chunk: int = 64,
    ) -> None:
        """
        Args:
            include_last: Add θ_K to the points θ_0 … θ_{K−1} that judge the warp.
        """
        super().__init__(steps=steps, tasks=tasks, reduction=reduction, backend=backend, chunk=chunk)
        self.include_last = flag(include_last, "include_last")

    def meta_step(
        self,
        method: Method,
        tasks: Sequence[Task],
        keys: Sequence[int],
        update: MetaUpdate,
        ranks: Ranks = ALONE,
    ) -> dict[str, float]:
        meta, trace = MetaGradient(), Trace()
        mine = ranks.share(len(tasks))
        gradients = method.initialiser.needs_gradient
        for adaptation in self.backend.adaptations(method, tasks[mine], keys[mine], gradients=gradients):
            trajectory = method.trajectory(adaptation, self.steps_of(adaptation.task))
            start = None if method.objective is None else method.objective.at_start(adaptation, trajectory.start)
            if start is not None:
                meta.add_sample(start, adaptation.size)
                trace.add("meta_loss_start", start.meta_loss)
            for segment in trajectory:
                meta.add_sample(segment.sample, adaptation.size)
                meta.add_start(segment.theta0, adaptation)
                trace.add_segment(segment)
                del segment  # its gradients would hold memory that the next step needs
            if self.include_last and method.objective is not None:
                meta.add_sample(adaptation.compute(method.objective, trajectory.point), adaptation.size)
        meta.all_reduce(ranks, method, *GROUPS)
        trace.all_reduce(ranks)
        meta.apply(update, "phi", "rule", scale=self.scale(meta.samples))
        meta.apply(update, "theta0", "prior", scale=method.weight / len(tasks))
        return trace.means()
