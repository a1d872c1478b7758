"""The same pieces of work through the library, and the check that both do the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.bare import Bare, Weights
from benchmarks.workloads import Workload
from warpgrad.algorithms import Algorithm, Continual, Offline, Online
from warpgrad.algorithms.meta_optimiser import MetaOptimiser
from warpgrad.algorithms.method import Method, ParameterGroup
from warpgrad.errors import WarpgradError
from warpgrad.initialisers import Fixed, Initialiser, Leap, MultiTask
from warpgrad.objectives import Approximate, Exact, InPlace, Objective
from warpgrad.rules import SGD
from warpgrad.tensors import Tensors

NOISE = 1e-9
"""‖ours − theirs‖ / ‖theirs‖ that two ways to the same numbers may leave in double precision. In single precision sums
in another order can put a unit on the other side of its ReLU, and the gradient jumps."""
CHECKED_STEPS = 2
"""Numbers are compared after a few steps: differences grow with every one."""


@dataclass(frozen=True)
class Piece:
    """One piece of work, to be repeated: a method, an algorithm, and the workload's tasks."""

    work: Workload
    method: Method
    algorithm: Algorithm

    def gradients(self) -> dict[ParameterGroup, Tensors]:
        """Return the meta-gradients of one meta-step that changes nothing."""
        found: dict[ParameterGroup, Tensors] = {}

        def keep(group: ParameterGroup, gradient: Tensors) -> None:
            found[group] = gradient

        self.algorithm.meta_step(self.method, self.work.tasks, self.work.keys, keep)
        return found

    def meta_step(self) -> None:
        """Take a whole meta-step, including the updates of φ and θ0 by SGD."""
        update = MetaOptimiser(self.method, partial(torch.optim.SGD, lr=self.work.rate))
        self.algorithm.meta_step(self.method, self.work.tasks, self.work.keys, update)


def along(work: Workload, objective: Objective | None) -> Piece:
    """Return a piece that takes K steps on every task, with g_φ at each if there is an objective."""
    method = Method(work.learner(twice=isinstance(objective, Exact)), SGD(work.rate), objective)
    return Piece(work, method, Online(steps=work.steps, tasks=len(work.tasks), reduction="sum"))


def whole(work: Workload, objective: Objective | None = None) -> Piece:
    """Return the meta-step of the experiment that the workload is taken from."""
    size: dict[str, Any] = {"steps": work.steps, "tasks": len(work.tasks)}
    parts: Mapping[str, tuple[Objective, Initialiser, Algorithm]] = {
        "leap": (Exact(), Leap(), Offline(**size, samples=1)),
        "online": (Exact(), Fixed(), Online(**size)),
        "stream": (InPlace(), MultiTask(), Continual(tasks=len(work.tasks), batches=1)),
    }
    own, initialiser, algorithm = parts[work.meta_step]
    judge = objective or own
    learner = work.learner(twice=isinstance(judge, Exact))
    return Piece(work, Method(learner, SGD(work.rate), judge, initialiser), algorithm)


def bare_meta_step(bare: Bare, weights: Weights) -> None:
    {"leap": bare.leap, "online": bare.online, "stream": bare.stream}[bare.work.meta_step](weights)


def check(make: Callable[[], Workload]) -> float:
    """Return the largest difference between the bare loops and the library; raise if it is more than noise."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        work = make()
        return _check(replace(work, steps=min(work.steps, CHECKED_STEPS)))
    finally:
        torch.set_default_dtype(before)


def _check(few: Workload) -> float:
    gaps: dict[str, float] = {}
    for kernels in (False, True):
        bare = Bare(few, kernels)
        for name, objective in (("approximate", Approximate()), ("exact", Exact())):
            weights = Weights.of(few)
            ours = along(few, objective).gradients()["phi"]
            _, found = bare.trajectories(weights, name)
            gaps[name] = difference(ours, dict(zip(weights.phi, found, strict=True)))
        weights, piece = Weights.of(few), whole(few)
        bare_meta_step(bare, weights)
        piece.meta_step()
        learner = piece.method.learner
        theirs = {**{name: weights.theta0[name] for name in learner.learned}, **weights.phi}
        gaps["meta-step"] = difference({**learner.learned_theta0, **learner.phi}, theirs)
    worst = max(gaps, key=gaps.__getitem__)
    if not gaps[worst] <= NOISE:
        raise WarpgradError(
            f"bench: the bare loop and the library differ by {gaps[worst]:.1e} in the {worst} of {few.name}, more "
            f"than {NOISE:g}: their times cannot be compared."
        )
    return gaps[worst]


def difference(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """Compute ‖ours − theirs‖ / ‖theirs‖ over all tensors."""
    gap = sum(float((ours[name].detach() - value.detach()).square().sum()) for name, value in theirs.items())
    size = sum(float(value.detach().square().sum()) for value in theirs.values())
    return float((gap / size) ** 0.5)
