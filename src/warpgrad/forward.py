"""A learner bound to θ: what losses and meta-losses call, and what they can look back to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from warpgrad.errors import WarpgradError
from warpgrad.keys import fold, seed_global
from warpgrad.tensors import Tensors, detached

if TYPE_CHECKING:
    from warpgrad.learner import Learner

SHORTEST = 1e-10
"""A much shorter step is credited in full, length and all: the direction of nothing is not defined."""


class Way(NamedTuple):
    """How a trajectory came to θ: constants that a meta-loss can look back to."""

    origin: Tensors
    """θ before the step that led here; empty where none did."""
    marks: Tensors
    """θ of earlier points, see `Task.marks`: the i-th one's parameters are `i/name`."""


class Forward:
    """A learner bound to θ, φ and buffers: a pure function that is called like the module.

    Buffers pass from call to call within one loss and are read from `buffers` afterwards; the tensors
    that were bound are never written to. With a key, the n-th call always draws the same dropout masks.
    """

    def __init__(
        self,
        learner: Learner,
        theta: Mapping[str, Tensor],
        phi: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        key: int | None,
        training: bool,
        way: Way | None = None,
    ) -> None:
        self.learner = learner
        self._way = way or Way({}, {})
        self.buffers: Tensors = dict(buffers)
        self._theta, self._phi = theta, phi
        self._weights = {**theta, **phi}
        self._key = key
        self._training = training
        self._calls = 0

    def with_constant_warp(self) -> Forward:
        """The same model, through whose outputs no gradient reaches φ other than by way of θ."""
        phi = detached(self._phi)
        return Forward(self.learner, self._theta, phi, self.buffers, self._key, self._training)

    def by_direction(self, weight: float) -> Forward:
        """The same model at θ̃ = sg[θ] + weight · (d̂ − sg[d̂]), with d = θ − θ_before the step that led to θ and
        d̂ = d · sg‖d‖ / ‖d‖: the same numbers, and gradients through the step that know its direction alone.
        """
        if not self._way.origin:
            raise WarpgradError("the meta-loss looks at the step that led to θ, and none did: use Exact().")
        step = {name: value - self._way.origin[name] for name, value in self._theta.items()}
        square = torch.stack([part.square().sum() for part in step.values()]).sum() + SHORTEST**2
        turned = weight * square.detach().sqrt() * square.rsqrt()
        theta = {}
        for name, part in step.items():
            scaled = turned * part
            theta[name] = self._theta[name].detach() + (scaled - scaled.detach())
        return Forward(self.learner, theta, self._phi, self.buffers, self._key, self._training, self._way)

    def at_mark(self, place: int) -> Forward:
        """The same model at the θ of an earlier point, a constant; gradients reach φ."""
        prefix = f"{place}/"
        theta = {name.removeprefix(prefix): value for name, value in self._way.marks.items() if name.startswith(prefix)}
        if not theta:
            raise WarpgradError(
                "the meta-loss refers to the θ of an earlier point, which only Algorithm 1 keeps: use "
                "Online(...), or a meta-loss that looks at one θ."
            )
        return Forward(self.learner, theta, self._phi, self.buffers, self._key, self._training)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        learner = self.learner
        # Normalisation layers write to the buffers they are given, so they are given copies.
        buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        learner._modes.apply(self._training)
        if self._training and self._key is not None:
            seed_global(learner.device, fold(self._key, self._calls))
        self._calls += 1
        tensors = {**self._weights, **buffers}
        with learner._swapper.holding(tensors), learner._kernels(self._theta):
            output = learner.module(*args, **kwargs)
        self.buffers = detached({name: tensors[name] for name in buffers})
        return output
