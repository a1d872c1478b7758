"""Algorithm 1: online meta-training."""

from __future__ import annotations

from collections.abc import Sequence

from warpgrad.algorithms.backend import Engine
from warpgrad.algorithms.base import Algorithm, Trace
from warpgrad.algorithms.method import GROUPS, MetaGradient, MetaUpdate, Method, Reduction
from warpgrad.algorithms.ranks import ALONE, Ranks
from warpgrad.errors import WarpgradError
from warpgrad.objectives.start import judged_start
from warpgrad.tasks.base import Task


class Online(Algorithm):
    """Accumulate g_φ and g_θ0 while tasks adapt, then update both once. Constant memory, linear time in K."""

    def __init__(
        self,
        *,
        steps: int,
        tasks: int,
        include_last: bool = False,
        judge_start: float = 0.0,
        reduction: Reduction = "mean",
        engine: Engine = "auto",
        chunk: int = 64,
    ) -> None:
        """
        Args:
            include_last: Add θ_K to the points θ_0 … θ_{K−1} that judge the warp.
            judge_start: Weight of one more point, θ_0 before any step, on its task's `start_batch`; 0 for none.
        """
        super().__init__(steps=steps, tasks=tasks, reduction=reduction, engine=engine, chunk=chunk)
        if not 0 <= judge_start < float("inf"):
            raise WarpgradError(f"judge_start={judge_start}: a weight must be finite and at least 0.")
        self.include_last = include_last
        self.judge_start = judge_start

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
        for adaptation in self.engine.adaptations(method, tasks[mine], keys[mine]):
            trajectory = method.trajectory(adaptation, self.steps_of(adaptation.task))
            if self.judge_start and method.objective is not None:
                start = judged_start(adaptation, trajectory.start, self.judge_start)
                meta.add_sample(start, adaptation.size)
                trace.add("meta_loss_start", start.meta_loss)
            for segment in trajectory:
                meta.add_sample(segment.sample, adaptation.size)
                meta.add_start(segment.theta0, adaptation)
                trace.add_segment(segment)
                del segment  # gradients that outlived their step would keep the next one from their memory
            if self.include_last and method.objective is not None:
                meta.add_sample(adaptation.compute(method.objective, trajectory.point), adaptation.size)
        meta.add_up(ranks, method, *GROUPS)
        trace.add_up(ranks)
        meta.apply(update, "phi", "rule", scale=self.scale(meta.samples))
        meta.apply(update, "theta0", "prior", scale=method.weight / len(tasks))
        return trace.means()
