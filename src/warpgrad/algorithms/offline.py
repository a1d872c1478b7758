"""Algorithm 2: offline meta-training with a replay buffer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from warpgrad.adaptation.base import Adaptation, Point
from warpgrad.adaptation.stacked import BatchedAdaptation
from warpgrad.adaptation.trajectory import ThetaGradient, Trajectory
from warpgrad.algorithms.backend import BackendName
from warpgrad.algorithms.base import Algorithm, Trace
from warpgrad.algorithms.method import GROUPS, MetaGradient, MetaUpdate, Method, Reduction
from warpgrad.algorithms.ranks import ALONE, Ranks
from warpgrad.algorithms.replay import ReplayBudget, ReplayBuffer, ReplayEntry, Shares
from warpgrad.errors import expect, flag, integer, real, require
from warpgrad.keys import fold, generator
from warpgrad.tasks.base import Task
from warpgrad.tensors import Tensors, select


class Offline(Algorithm):
    """Collect all points of all trajectories, then update φ on η of them at a time, in random order.

    With η = 1, K = 100 and 20 tasks, φ is updated 2000 times per meta-step. A remainder smaller than η makes a
    separate update, scaled by its own count; so η = all points is Algorithm 1.

    With `share` below 1, each meta-step replays a random part of its points and stores no others: where replay is most
    of the cost, many short meta-steps can learn more in the same time than few full ones.

    Several ranks evaluate equal shares of the η points (`Shares` in `replay.py`). With η = 1 they take turns.

    Example:
        >>> updates = []
        >>> record = wg.Offline(steps=3, tasks=2, samples=2).meta_step(
        ...     method, [task, task], [0, 1], update=lambda group, gradient: updates.append(group))
        >>> updates.count("phi")  # 2 tasks × 3 steps, two points at a time
        3
    """

    def __init__(
        self,
        *,
        steps: int,
        tasks: int,
        samples: int | None = 1,
        share: float = 1.0,
        interleave: bool = False,
        include_last: bool = False,
        budget: ReplayBudget | None = None,
        reduction: Reduction = "mean",
        backend: BackendName = "auto",
        chunk: int = 64,
    ) -> None:
        """
        Args:
            samples: η, the number of points per update of φ; None for all of them.
            share: The share of the points that is replayed in each meta-step, drawn at random; the paper replays all.
            interleave: Update θ0 along with φ, on the segments of the same η points, as in the paper's listing;
                otherwise once per meta-step with the mean over tasks.
            include_last: Add θ_K to the points θ_0 … θ_{K−1}.
            budget: How many bytes the replay buffer may use, and where.
        """
        super().__init__(steps=steps, tasks=tasks, reduction=reduction, backend=backend, chunk=chunk)
        if samples is not None:
            integer(samples, "samples", at_least=1)
        share = real(share, "share")
        require(0 < share <= 1, f"share={share}: the share of points to replay must be greater than 0 and at most 1.")
        require(
            not flag(interleave, "interleave") or share == 1,
            "interleave=True takes the gradient of θ0 from all points: leave share= at 1, or update θ0 once per "
            "meta-step with interleave=False.",
        )
        self.samples, self.share, self.interleave = samples, share, interleave
        self.include_last = flag(include_last, "include_last")
        if budget is not None:
            expect(budget, ReplayBudget, "budget", "ReplayBudget(memory=2**30)")
        self.budget = budget or ReplayBudget()

    def meta_step(
        self,
        method: Method,
        tasks: Sequence[Task],
        keys: Sequence[int],
        update: MetaUpdate,
        ranks: Ranks = ALONE,
    ) -> dict[str, float]:
        self.check_points(method)
        meta, trace = MetaGradient(), Trace()
        mine = ranks.share(len(tasks))
        order = self._order(method, tasks, fold(*keys))
        shares = Shares(order, self.samples or len(order) or 1, len(tasks), ranks)
        points = sum(mine.start <= task < mine.stop for task, _ in order)
        buffer = ReplayBuffer(points + shares.incoming, self.budget, method.learner.device)
        try:
            first, gradients = mine.start, method.initialiser.needs_gradient
            for adaptation in self.backend.adaptations(method, tasks[mine], keys[mine], gradients=gradients):
                self._collect(method, adaptation, first, buffer, shares, meta, trace)
                first += adaptation.size
            shares.exchange(buffer)
            for chosen in shares.updates:
                self._replay(method, shares.entries(chosen, buffer), tasks, keys, meta, trace)
                meta.all_reduce(ranks, method, *(GROUPS if self.interleave else GROUPS[:2]))
                meta.apply(update, "phi", "rule", scale=self.scale(meta.samples))
                if self.interleave:
                    meta.apply(update, "theta0", "prior", scale=method.weight / len(tasks))
        finally:
            buffer.close()
        meta.all_reduce(ranks, method, "theta0", "prior")
        trace.all_reduce(ranks)
        meta.apply(update, "theta0", "prior", scale=method.weight / len(tasks))
        return trace.means()

    def idleness(self, ranks: int) -> str | None:
        if self.samples != 1:
            return super().idleness(ranks)
        return "with η = 1 the updates of φ follow one another: ranks share the adaptation phase, then take turns"

    def _points(self, method: Method, task: Task) -> int:
        """Return the number of points that a task's trajectory has."""
        if method.objective is None:
            return self.steps_of(task) if self.interleave and method.initialiser.learns else 0
        return self.steps_of(task) + self.include_last

    def _order(self, method: Method, tasks: Sequence[Task], key: int) -> list[tuple[int, int]]:
        """Return the (task, step) pairs to replay, drawn without replacement in an order that all ranks share."""
        pairs = [(place, k) for place, task in enumerate(tasks) for k in range(self._points(method, task))]
        shuffled = torch.randperm(len(pairs), generator=generator(key, "replay"))
        count = max(1, round(self.share * len(pairs)))
        return [pairs[place] for place in shuffled[:count].tolist()]

    def _collect(
        self,
        method: Method,
        adaptation: Adaptation,
        first: int,
        buffer: ReplayBuffer,
        shares: Shares,
        meta: MetaGradient,
        trace: Trace,
    ) -> None:
        """Adapt, and store the points that are replayed."""
        interleave = self.interleave and method.initialiser.learns
        trajectory = Trajectory(adaptation, self.steps_of(adaptation.task), initialiser=method.initialiser)
        for segment in trajectory:
            trace.add_segment(segment)
            if interleave:
                kept = segment.theta0 or _no_contribution(method, trajectory)
                _store(buffer, shares, first, adaptation, segment.point, kept)
            else:
                meta.add_start(segment.theta0, adaptation)
                if method.objective is not None:
                    _store(buffer, shares, first, adaptation, segment.point, None)
            del segment  # its gradients would hold memory that the next step needs
        if self.include_last and method.objective is not None:
            _store(buffer, shares, first, adaptation, trajectory.point, None)

    def _replay(
        self,
        method: Method,
        entries: list[ReplayEntry],
        tasks: Sequence[Task],
        keys: Sequence[int],
        meta: MetaGradient,
        trace: Trace,
    ) -> None:
        """Compute g_φ over η points, and with `interleave` their segments' part of g_θ0."""
        own_tasks = [tasks[entry.task] for entry in entries]
        own_keys = [keys[entry.task] for entry in entries]
        if method.objective is not None:
            begin = 0
            for adaptation in self.backend.adaptations(method, own_tasks, own_keys, gradients=False):
                points = [entry.point for entry in entries[begin : begin + adaptation.size]]
                begin += adaptation.size
                stacked = adaptation.stack(points) if isinstance(adaptation, BatchedAdaptation) else points[0]
                sample = adaptation.compute(method.objective, stacked)
                meta.add_sample(sample, adaptation.size)
                trace.add("meta_loss", sample.meta_loss)
        if self.interleave:
            for entry, task, key in zip(entries, own_tasks, own_keys, strict=True):
                segment = _unpacked(entry.increment)
                meta.add_start(segment, Adaptation(method.learner, method.rule, task, key))


def _no_contribution(method: Method, trajectory: Trajectory) -> ThetaGradient:
    """Return zeros in the shape of a contribution to g_θ0, because all entries of a replay buffer have one layout."""
    learned = select(trajectory.start.theta, method.learner.learned)
    zeros = {name: torch.zeros_like(value) for name, value in learned.items()}
    return method.initialiser.pull_back(zeros, trajectory.noise)


def _store(
    buffer: ReplayBuffer,
    shares: Shares,
    first: int,
    adaptation: Adaptation,
    point: Point,
    segment: ThetaGradient | None,
) -> None:
    columns = [adaptation.split(part) for part in (point.theta, point.buffers, point.state, _packed(segment))]
    assert isinstance(point.k, int), "trajectories are collected in step"
    for task, (theta, buffers, state, increment) in enumerate(zip(*columns, strict=True), start=first):
        own = Point(point.k, theta, buffers, state)
        if (task, point.k) in shares:
            shares.collected((task, point.k), len(buffer))
            buffer.append(task, own, increment)
        else:
            buffer.lay_out(own, increment)  # this rank may receive points even if it stores none itself


def _packed(segment: ThetaGradient | None) -> Tensors:
    if segment is None:
        return {}
    prior = {f"prior/{name}": value for name, value in segment.prior.items()}
    return {**{f"theta0/{name}": value for name, value in segment.theta0.items()}, **prior}


def _unpacked(increment: Tensors) -> ThetaGradient:
    groups: dict[str, Tensors] = {"theta0": {}, "prior": {}}
    for path, value in increment.items():
        group, _, name = path.partition("/")
        groups[group][name] = value
    return ThetaGradient(groups["theta0"], groups["prior"])
