"""Update rules: the step θ' = U(θ; ξ) that adaptation takes (Eqs. 2-5).

A rule is a pure pair (init, update). The very same `update` runs in plain adaptation and inside the
differentiated meta-step, so what is meta-learned is what is used. What a rule itself meta-learns (a step
size, say) is in `meta` and is passed to `update` explicitly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from warpgrad.errors import real, require
from warpgrad.tensors import Tensors


@dataclass(frozen=True)
class Learned:
    """A scalar that is meta-learned, by its start value: `SGD(lr=Learned(0.1))`.

    Example:
        >>> wg.SGD(lr=wg.Learned(0.1)).meta
        {'lr': tensor(0.1000, requires_grad=True)}
    """

    value: float


class Rule(ABC):
    """One update rule. Subclasses hold settings only; all that changes is in the state or in `meta`.

    Example:
        >>> theta, slope = {"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}
        >>> wg.SGD(0.1).update(slope, {}, theta, {})[0]
        {'w': tensor([0.8000])}
    """

    elementwise = False
    """Whether `update` treats every entry of θ by itself, so that stacked tasks can be updated as they are. A rule that
    takes a norm over θ, or that has a state without θ's shape, must leave this False."""

    def __init__(self) -> None:
        self.meta: Tensors = {}
        """ρ: the rule's own meta-parameters; leaves that a meta-optimiser may update in place."""

    def prepare(self, theta0: Mapping[str, Tensor]) -> None:
        """Called once before meta-training: bring the meta-parameters to θ's type and device, values kept."""
        like = next(iter(theta0.values()))
        for name, value in self.meta.items():
            if (value.dtype, value.device) != (like.dtype, like.device):
                self.meta[name] = value.detach().to(like).requires_grad_()

    def init(self, theta: Mapping[str, Tensor]) -> Tensors:
        """The state before the first step, as named tensors; empty for rules without one."""
        del theta
        return {}

    @abstractmethod
    def update(
        self,
        gradient: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        theta: Mapping[str, Tensor],
        meta: Mapping[str, Tensor],
    ) -> tuple[Tensors, Tensors]:
        """(θ', state') from ∇L(θ), state and θ; differentiable in the gradient, θ and `meta`."""

    def _scalar(self, name: str, value: float | Learned) -> float:
        """Check a step size; where it is learned, make it a meta-parameter called `name`."""
        start = real(value.value if isinstance(value, Learned) else value, name)
        require(start > 0, f"{type(self).__name__}({name}={start}): the step size must be greater than 0.")
        if isinstance(value, Learned):
            self.meta[name] = torch.tensor(start, requires_grad=True)
        return start


def part(state: Mapping[str, Tensor], prefix: str, name: str) -> Tensor:
    """The entry of a rule's state that belongs to parameter `name`."""
    return state[f"{prefix}/{name}"]


def descend(theta: Tensor, direction: Tensor, lr: float | Tensor) -> Tensor:
    """θ − α·direction, in one kernel where α is a plain number."""
    if isinstance(lr, Tensor):
        return theta - lr * direction
    return torch.add(theta, direction, alpha=-lr)


def safe_sqrt(value: Tensor) -> Tensor:
    """√value with derivative 0 at 0, where the true one is infinite and would turn 0·∞ into NaN."""
    positive = value > 0
    return torch.where(positive, torch.where(positive, value, 1.0).sqrt(), 0.0)
