"""The meta-optimiser: any `torch.optim` class, one instance per group of meta-parameters."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from warpgrad.algorithms.method import GROUPS, Method, ParameterGroup
from warpgrad.errors import NonFiniteError, WarpgradError, expect, function, real, require
from warpgrad.tensors import Tensors

OptimiserFactory = Callable[[Iterable[Tensor]], Optimizer]
"""Makes an optimiser of parameters, e.g. `partial(torch.optim.Adam, lr=1e-3)`."""

ScheduleFactory = Callable[[Optimizer], LRScheduler]
"""E.g. `partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=1000)`; stepped once per meta-step."""


K = TypeVar("K", Optimizer, LRScheduler)


class MetaOptimiser:
    """Applies meta-gradients to φ, θ0, the rule's parameters and a prior, each with a separate optimiser.

    φ and θ0 are updated at different times (up to thousands of φ updates per θ0 update), so each group has its own
    instance, and its own state. A gradient that is not finite stops the run before anything is changed.

    Example:
        >>> update = wg.MetaOptimiser(method, {"phi": adam, "theta0": adam}, clip=1.0)
        >>> sorted(update.optimisers)
        ['phi', 'theta0']
    """

    def __init__(
        self,
        method: Method,
        optimiser: OptimiserFactory | Mapping[ParameterGroup, OptimiserFactory],
        *,
        clip: float | Mapping[ParameterGroup, float] | None = None,
        schedule: ScheduleFactory | None = None,
    ) -> None:
        """
        Args:
            optimiser: One factory for all groups, or one per group; groups that are left out do not learn.
            clip: Largest norm of a group's meta-gradient, for all groups or per group.
            schedule: A learning-rate schedule for every optimiser.
        """
        expect(method, Method, "method", "Method(learner, SGD(0.1), Exact())")
        factories = optimiser if isinstance(optimiser, Mapping) else dict.fromkeys(GROUPS, optimiser)
        unknown = [group for group in factories if group not in GROUPS]
        if unknown:
            raise WarpgradError(f"optimiser group {unknown[0]!r} is unknown; groups are {', '.join(GROUPS)}.")
        self.parameters: dict[ParameterGroup, Tensors] = {group: method.parameters(group) for group in GROUPS}
        self.clip = clip if isinstance(clip, Mapping) else dict.fromkeys(GROUPS, clip)
        for group, bound in self.clip.items():
            require(group in GROUPS, f"clip group {group!r} is unknown; groups are {', '.join(GROUPS)}.")
            if bound is not None:
                real(bound, "clip", above=0)
        self.optimisers: dict[ParameterGroup, Optimizer] = {
            group: _made(factories[group], list(parameters.values()), "optimiser", Optimizer)
            for group, parameters in self.parameters.items()
            if parameters and group in factories
        }
        self.schedules: list[LRScheduler] = []
        if schedule is not None:
            self.schedules = [_made(schedule, item, "schedule", LRScheduler) for item in self.optimisers.values()]
        self._norms: dict[ParameterGroup, list[float]] = {}

    def __call__(self, group: ParameterGroup, gradient: Tensors) -> None:
        """Take one step on a group of meta-parameters."""
        optimiser = self.optimisers.get(group)
        if optimiser is None:
            return
        parameters = self.parameters[group]
        self._norms.setdefault(group, []).append(check_finite(group, gradient))
        for name, value in gradient.items():
            parameters[name].grad = value
        bound = self.clip.get(group)
        if bound is not None:
            torch.nn.utils.clip_grad_norm_(list(parameters.values()), bound)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    def numbers(self) -> dict[str, float]:
        """Return each group's step size and the mean norm of its gradients before clipping, for a record."""
        found: dict[str, float] = {}
        for group, norms in self._norms.items():
            found[f"lr/{group}"] = float(self.optimisers[group].param_groups[0]["lr"])
            found[f"gradient_norm/{group}"] = math.fsum(norms) / len(norms)
        self._norms.clear()
        return found

    def end_meta_step(self, record: Mapping[str, float] | None = None) -> None:
        """Step the schedules; one that waits for a plateau is given the meta-loss of the record, or its task loss."""
        with warnings.catch_warnings():
            # The optimiser of a group that was not updated in this meta-step is behind its schedule, which is intended.
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step\\(\\)` before", UserWarning)
            for schedule in self.schedules:
                if isinstance(schedule, ReduceLROnPlateau):
                    schedule.step(_watched(record or {}))
                else:
                    schedule.step()

    def state(self) -> dict[str, Any]:
        """Return the states of optimisers and schedules, for a checkpoint."""
        return {
            "optimisers": {group: item.state_dict() for group, item in self.optimisers.items()},
            "schedules": [item.state_dict() for item in self.schedules],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        for group, item in self.optimisers.items():
            item.load_state_dict(state["optimisers"][group])
        for schedule, own in zip(self.schedules, state["schedules"], strict=True):
            schedule.load_state_dict(own)


_EXAMPLES = {
    "optimiser": "partial(torch.optim.Adam, lr=1e-3)",
    "schedule": "partial(torch.optim.lr_scheduler.StepLR, step_size=100)",
}


def _made(factory: Callable[[Any], K], given: Any, argument: str, kind: type[K]) -> K:
    """Call a user's factory on parameters or on an optimiser."""
    example = _EXAMPLES[argument]
    try:
        made = function(factory, argument, example)(given)
    except (TypeError, ValueError) as error:
        raise WarpgradError(f"{argument}= failed ({error}): pass a function such as {example}.") from error
    expect(made, kind, f"what {argument}= makes", example)
    checked: K = made
    return checked


def _watched(record: Mapping[str, float]) -> float:
    for name in ("meta_loss", "task_loss_last", "task_loss"):
        if name in record:
            return record[name]
    raise WarpgradError("ReduceLROnPlateau needs a loss to watch, but this meta-step recorded none.")


def check_finite(group: str, gradient: Mapping[str, Tensor]) -> float:
    """Return the norm of a meta-gradient; raise, naming the parameter, at the first gradient that is not finite."""
    norm = float(torch.nn.utils.get_total_norm(list(gradient.values())))
    if math.isfinite(norm):
        return norm
    # A norm may also overflow where all entries are finite.
    for name, value in gradient.items():
        if not torch.isfinite(value).all():
            raise NonFiniteError(
                f"the meta-gradient of {group} parameter '{name}' is not finite: lower the meta step size, or clip "
                "meta-gradients or inner gradients."
            )
    return norm
