"""Meta-training by backpropagation through adaptation (Eq. 1): the family of MAML."""

from __future__ import annotations

from collections.abc import Sequence

from warpgrad.adaptation.trajectory import ThetaGradient
from warpgrad.algorithms.base import Algorithm, Trace
from warpgrad.algorithms.method import MetaGradient, MetaUpdate, Method
from warpgrad.algorithms.ranks import ALONE, Ranks
from warpgrad.errors import require
from warpgrad.initialisers import Fixed
from warpgrad.objectives import UnrolledObjective
from warpgrad.tasks.base import Task


class Unrolled(Algorithm):
    """One gradient for θ0, φ and the rule's parameters together, through all K steps of every task.

    MAML is a learner without warp; Meta-SGD and Meta-Curvature are rules; T-Nets are linear warp-layers;
    ANIL is a body in φ; CAVIA is a context in θ that starts at zero. Memory grows with K.

    Example:
        >>> maml = wg.Method(learner, wg.SGD(0.1))
        >>> sorted(wg.Unrolled(steps=3, tasks=1).meta_step(maml, [task], [0], update=ignore))
        ['meta_loss']
    """

    learns_by_itself = True

    def meta_step(
        self,
        method: Method,
        tasks: Sequence[Task],
        keys: Sequence[int],
        update: MetaUpdate,
        ranks: Ranks = ALONE,
    ) -> dict[str, float]:
        require(
            method.objective is None and type(method.initialiser) is Fixed,
            "Unrolled learns θ0, φ and the rule through one objective of its own; leave objective= and "
            "initialiser= out.",
        )
        meta, trace = MetaGradient(), Trace()
        mine = ranks.share(len(tasks))
        for adaptation in self.backend.adaptations(method, tasks[mine], keys[mine]):
            start = adaptation.start()
            step = adaptation.compute(UnrolledObjective(self.steps_of(adaptation.task)), start)
            meta.add_sample(step, adaptation.size)
            meta.add_start(ThetaGradient(step.theta0, {}), adaptation)
            trace.add("meta_loss", step.meta_loss)
        meta.all_reduce(ranks, method, "phi", "rule", "theta0")
        trace.all_reduce(ranks)
        meta.apply(update, "phi", "rule", scale=self.scale(meta.samples))
        meta.apply(update, "theta0", scale=method.weight / len(tasks))
        return trace.means()
