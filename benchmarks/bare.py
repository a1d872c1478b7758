"""The loops that the library is compared with: plain PyTorch, one task and one step at a time, no checks, no stacks.

They do the arithmetic of the library on the same weights and batches, and are compared with it before any clock starts.
With `kernels`, second derivatives are taken by `warpgrad.model.second_order`; without, by PyTorch alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.workloads import Named, Workload
from warpgrad.keys import fold, generator
from warpgrad.model.second_order import SecondOrderKernels
from warpgrad.tensors import Tensors, laid_channels_last


@dataclass(frozen=True)
class Weights:
    """θ for every task, φ as leaves, and fresh running statistics."""

    starts: list[Tensors]
    theta0: Tensors
    phi: Tensors
    statistics: Tensors

    @classmethod
    def of(cls, work: Workload) -> Weights:
        learner = work.make()
        starts = [{name: value.clone() for name, value in learner.start(key).items()} for key in work.keys]
        theta0 = {name: value.detach().clone() for name, value in learner.theta0.items()}
        phi = {name: value.detach().clone().requires_grad_() for name, value in learner.phi.items()}
        return cls(starts, theta0, phi, {name: value.clone() for name, value in learner.buffers().items()})


@dataclass(frozen=True)
class Bare:
    """One workload written by hand."""

    work: Workload
    kernels: bool = False

    def inner(self, theta: Named, phi: Named, batch: Any, statistics: Named) -> tuple[Tensors, Tensors, Tensor]:
        """Compute θ − α ∇L_task, the gradient and the loss."""
        leaves = {name: value.detach().requires_grad_() for name, value in theta.items()}
        loss = self.work.loss(self._laid(leaves), phi, batch, statistics)
        gradient = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        return self._moved(theta, gradient), gradient, loss.detach()

    def approximate(self, theta: Named, phi: Named, adapt: Any, judge: Any, statistics: Named) -> tuple[Tensors, Any]:
        """Compute Eq. 12: the next θ, and ∇_φ L_meta there."""
        after, _, _ = self.inner(theta, phi, adapt, statistics)
        meta_loss = self.work.loss(self._laid(after), phi, judge, {})
        return after, torch.autograd.grad(meta_loss, list(phi.values()))

    def exact(self, theta: Named, phi: Named, adapt: Any, judge: Any, statistics: Named) -> tuple[Tensors, Any]:
        """Compute Eq. 11: the next θ, and ∇_φ through the step to it."""
        leaves = {name: value.detach().requires_grad_() for name, value in theta.items()}
        laid = self._laid(leaves)
        kernels: AbstractContextManager[Any] = (
            SecondOrderKernels(constant=laid.values()) if self.kernels else nullcontext()
        )
        with kernels:
            loss = self.work.loss(laid, phi, adapt, statistics)
        found = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
        after = self._moved(theta, dict(zip(leaves, found, strict=True)))
        meta_loss = self.work.loss(self._laid(after), phi, judge, {})
        gradient = torch.autograd.grad(meta_loss, list(phi.values()))
        return {name: value.detach() for name, value in after.items()}, gradient

    def trajectories(self, weights: Weights, step: str) -> tuple[list[Tensors], list[Tensor]]:
        """Take K steps on every task by `inner`, `approximate` or `exact`; return the last θ's and the sum of g_φ."""
        work, phi = self.work, weights.phi
        total = [torch.zeros_like(value) for value in phi.values()]
        ends = []
        for task, start in zip(work.tasks, weights.starts, strict=True):
            theta = start
            statistics = {name: value.clone() for name, value in weights.statistics.items()}
            for k in range(work.steps):
                adapt = task.adapt_batch(k)
                if step == "inner":
                    theta, _, _ = self.inner(theta, phi, adapt, statistics)
                else:
                    take = self.exact if step == "exact" else self.approximate
                    theta, gradient = take(theta, phi, adapt, task.meta_batch(k), statistics)
                    for kept, value in zip(total, gradient, strict=True):
                        kept += value
            ends.append(theta)
        return ends, total

    def online(self, weights: Weights) -> None:
        """Run Algorithm 1, exact: one step of SGD on φ along the mean over all points."""
        _, total = self.trajectories(weights, "exact")
        self._descend(weights.phi, [value / self.work.points for value in total])

    def leap(self, weights: Weights, objective: str = "exact") -> None:
        """Run Algorithm 2 with η = 1: adapt, keep every θ, update φ on each in random order, and θ0 by Leap."""
        work, phi = self.work, weights.phi
        pull = {name: torch.zeros_like(value) for name, value in weights.theta0.items()}
        points: list[tuple[int, int, Tensors]] = []
        for place, (task, start) in enumerate(zip(work.tasks, weights.starts, strict=True)):
            theta, before = start, None
            statistics = {name: value.clone() for name, value in weights.statistics.items()}
            for k in range(work.steps):
                points.append((place, k, theta))
                after, gradient, loss = self.inner(theta, phi, task.adapt_batch(k), statistics)
                if before is not None:
                    _add_segment(pull, *before, loss)
                before, theta = (theta, after, gradient, loss), after
            assert before is not None
            with torch.no_grad():
                last = work.loss(self._laid(theta), phi, task.adapt_batch(work.steps), {})
            _add_segment(pull, *before, last)
        order = torch.randperm(len(points), generator=generator(fold(*work.keys), "replay"))
        take = self.exact if objective == "exact" else self.approximate
        for chosen in order.tolist():
            place, k, theta = points[chosen]
            task = work.tasks[place]
            _, found = take(theta, phi, task.adapt_batch(k), task.meta_batch(k), {})
            self._descend(phi, found)
        self._descend(weights.theta0, [value / len(work.tasks) for value in pull.values()])

    def stream(self, weights: Weights) -> None:
        """Run Algorithm 3 with the in-place objective and η = 1: one backward pass for θ and φ."""
        (task,) = self.work.tasks
        theta = {name: value.requires_grad_() for name, value in weights.theta0.items()}
        loss = self.work.loss(theta, weights.phi, task.adapt_batch(0), {})
        found = torch.autograd.grad(loss, [*theta.values(), *weights.phi.values()])
        self._descend({**theta, **weights.phi}, found)

    def _laid(self, theta: Named) -> Named:
        """Return θ in the memory format of the library's learner."""
        if not self.work.channels_last:
            return theta
        return {name: laid_channels_last(value) for name, value in theta.items()}

    def _moved(self, theta: Named, gradient: Named) -> Tensors:
        return {name: value - self.work.rate * gradient[name] for name, value in theta.items()}

    def _descend(self, parameters: Named, gradient: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for value, slope in zip(parameters.values(), gradient, strict=True):
                value -= self.work.rate * slope


def _add_segment(pull: Tensors, theta: Named, new: Named, gradient: Named, loss: Tensor, after: Tensor) -> None:
    """Add one segment of Eq. 17."""
    drop = after - loss
    moved = {name: new[name] - value for name, value in theta.items()}
    length = sum((value.square().sum() for value in moved.values()), drop.square()).sqrt()
    for name, value in moved.items():
        pull[name] -= (value - drop.abs() * gradient[name]) / length
