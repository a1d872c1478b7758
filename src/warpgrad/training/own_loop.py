"""`meta_gradient`: the gradients of one meta-step, for a training loop or trainer that the user writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from warpgrad.algorithms.base import Algorithm
from warpgrad.algorithms.meta_optimiser import check_finite
from warpgrad.algorithms.method import Method, ParameterGroup
from warpgrad.errors import WarpgradError, expect, integer, short_repr
from warpgrad.keys import fold, isolated_rng
from warpgrad.tasks.base import Task, TaskFamily, checked_tasks
from warpgrad.tensors import Tensors
from warpgrad.training.meta_train import check_learns


@dataclass(frozen=True)
class MetaGradients:
    """The gradients of one meta-step by group (`phi`, `rule`, `theta0`, `prior`), and its mean losses.

    Example:
        >>> found = wg.meta_gradient(method, [task], 0, algorithm=wg.Online(steps=3, tasks=1))
        >>> sorted(found.groups), sorted(found.groups["phi"])
        (['phi', 'theta0'], ['2.bias', '2.weight'])
    """

    method: Method
    groups: dict[ParameterGroup, Tensors]
    losses: dict[str, float]

    def assign(self) -> None:
        """Add each gradient to the `.grad` of its parameter, as `backward()` does, so that any optimiser can step."""
        for group, gradient in self.groups.items():
            parameters = self.method.parameters(group)
            for name, value in gradient.items():
                kept = parameters[name].grad
                parameters[name].grad = value.clone() if kept is None else kept + value


def meta_gradient(
    method: Method, tasks: Sequence[Task] | TaskFamily, key: int, *, algorithm: Algorithm
) -> MetaGradients:
    """Compute g_φ and g_θ0 of one meta-step as `meta_train` does, without an update.

    Meta-step i of `meta_train(..., seed=s)` has the key `warpgrad.keys.fold(s, i)`. Under torchrun every process
    computes the gradient of the tasks that it is given; the caller's loop has to add them up.

    Args:
        method: What is meta-learned, and how.
        tasks: The tasks of the meta-step, or the family that they are drawn from.
        key: The key that every random draw is derived from.
        algorithm: `Online`, `Unrolled`, `Continual`, or `Offline(samples=None)`: one that updates each group at most
            once in a meta-step.

    Example:
        >>> adam = torch.optim.Adam(method.parameters("phi").values(), lr=1e-3)
        >>> found = wg.meta_gradient(method, family, 0, algorithm=wg.Online(steps=3, tasks=2))
        >>> found.assign()
        >>> adam.step()
    """
    expect(method, Method, "method", "Method(learner, SGD(0.1), Exact())")
    expect(algorithm, Algorithm, "algorithm", "Online(steps=5, tasks=4)")
    integer(key, "key")
    check_learns(method, algorithm)
    if not isinstance(tasks, TaskFamily | list | tuple) or tasks in ([], ()):
        raise WarpgradError(
            f"meta_gradient(...) needs a family, or a list of at least one task, not {short_repr(tasks)}."
        )
    batch = tasks.meta_batch(key, algorithm.tasks) if isinstance(tasks, TaskFamily) else list(tasks)
    checked_tasks(batch, first=True)
    found: dict[ParameterGroup, Tensors] = {}

    def collect(group: ParameterGroup, gradient: Tensors) -> None:
        if group in found:
            raise WarpgradError(
                f"{type(algorithm).__name__} updates {group} several times in a meta-step, so there is no one "
                "gradient; use Online(...) or Offline(samples=None, ...)."
            )
        check_finite(group, gradient)
        found[group] = {name: value.clone() for name, value in gradient.items()}

    learner = method.learner
    keys = [fold(key, "task", index) for index in range(len(batch))]
    with isolated_rng(learner.device), learner.modes_kept(), torch.enable_grad():
        losses = algorithm.meta_step(method, batch, keys, collect)
    return MetaGradients(method, found, losses)
