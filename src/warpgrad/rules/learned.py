"""Rules with meta-parameters of θ's shape: Meta-SGD, Meta-Curvature, and the masked steps of MT-Nets."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from warpgrad.errors import WarpgradError, require
from warpgrad.rules.base import Rule, descend
from warpgrad.tensors import Tensors


class MetaSGD(Rule):
    """θ' = θ − α ∘ ∇L with α of θ's shape, meta-learned together with θ0; entries may become negative.

    α begins at `lr` everywhere. Its names are θ's own, its optimiser group is `rule`.

    Example:
        >>> meta_sgd = wg.Method(learner, rules.MetaSGD(0.1))
        >>> sorted(meta_sgd.parameters("rule")) == sorted(learner.theta0)
        True
    """

    elementwise = True

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = self._scalar("lr", lr)

    def prepare(self, theta0: Mapping[str, Tensor]) -> None:
        super().prepare(theta0)
        for name, value in theta0.items():
            if name not in self.meta:
                self.meta[name] = torch.full_like(value, self.lr, requires_grad=True)

    def update(
        self,
        gradient: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        theta: Mapping[str, Tensor],
        meta: Mapping[str, Tensor],
    ) -> tuple[Tensors, Tensors]:
        del state
        return {name: value - meta[name] * gradient[name] for name, value in theta.items()}, {}


SIDES = ("out", "in", "filter")


def sides(shape: torch.Size) -> tuple[int, ...]:
    """The sizes of the factors: o of a vector, (o, i) of a matrix, (o, i, h·w) of a convolution's kernel."""
    return tuple(shape) if len(shape) < 3 else (shape[0], shape[1], shape[2:].numel())


class MetaCurvature(Rule):
    """θ' = θ − α · (∇L ×₁ M_o ×₂ M_i ×₃ M_f), each M a square matrix that begins as the identity.

    For a convolution's kernel [o, i, h, w], M_o mixes output channels, M_i input channels and M_f the h·w places of the
    filter: the preconditioner M_o ⊗ M_i ⊗ M_f of the flattened gradient. A matrix has no M_f, a vector only M_o. The
    factors are in the optimiser group `rule`, named `block1.conv.weight/out`, `/in`, `/filter`.

    Warning: a head on n features has an n × n factor.

    Example:
        >>> rule = rules.MetaCurvature(0.1)
        >>> rule.prepare({"conv.weight": torch.zeros(8, 3, 3, 3)})
        >>> sorted(rule.meta)
        ['conv.weight/filter', 'conv.weight/in', 'conv.weight/out']
    """

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = self._scalar("lr", lr)

    def prepare(self, theta0: Mapping[str, Tensor]) -> None:
        super().prepare(theta0)
        for name, value in theta0.items():
            for side, size in zip(SIDES, sides(value.shape), strict=False):
                if f"{name}/{side}" not in self.meta:
                    identity = torch.eye(size, dtype=value.dtype, device=value.device)
                    self.meta[f"{name}/{side}"] = identity.requires_grad_()

    def update(
        self,
        gradient: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        theta: Mapping[str, Tensor],
        meta: Mapping[str, Tensor],
    ) -> tuple[Tensors, Tensors]:
        del state
        new_theta: Tensors = {}
        for name, value in theta.items():
            direction = gradient[name].reshape(sides(value.shape))
            for place in range(direction.ndim):
                factor = meta[f"{name}/{SIDES[place]}"]
                direction = torch.tensordot(factor, direction, dims=([1], [place])).movedim(0, place)
            new_theta[name] = descend(value, direction.reshape(value.shape), self.lr)
        return new_theta, {}


class MaskedSGD(Rule):
    """W' = W − α · m ∘ ∇L, row by row, with m = σ((ζ + u) / temperature).

    ζ, one number per row, is meta-learned (group `rule`, from 0); u is the task's logistic noise. m is the
    Gumbel-softmax relaxation of a Bernoulli variable of probability σ(ζ), to which it tends as the temperature falls.

    Example:
        >>> rule = rules.MaskedSGD(0.1, {"w": "noise"}, temperature=0.5)
        >>> rule.prepare({"w": torch.zeros(3, 2), "noise": torch.zeros(3)})
        >>> {name: tuple(value.shape) for name, value in rule.meta.items()}
        {'noise': (3,)}
    """

    def __init__(self, lr: float, masks: Mapping[str, str], *, temperature: float = 0.5) -> None:
        """
        Args:
            lr: α.
            masks: Task parameter -> the name of the task parameter that holds the noise of its rows. Parameters that
                are not named are adapted in full; the noise itself never is.
            temperature: Of the relaxation.
        """
        super().__init__()
        self.lr = self._scalar("lr", lr)
        require(temperature > 0, f"MaskedSGD(temperature={temperature}): the temperature must be greater than 0.")
        self.masks = dict(masks)
        self.temperature = temperature

    def prepare(self, theta0: Mapping[str, Tensor]) -> None:
        super().prepare(theta0)
        for name, noise in self.masks.items():
            if name not in theta0 or noise not in theta0 or theta0[name].shape[:1] != theta0[noise].shape:
                raise WarpgradError(f"MaskedSGD(masks=...): '{noise}' has not one entry for each row of '{name}'.")
            if noise not in self.meta:
                self.meta[noise] = torch.zeros_like(theta0[noise]).requires_grad_()

    def update(
        self,
        gradient: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        theta: Mapping[str, Tensor],
        meta: Mapping[str, Tensor],
    ) -> tuple[Tensors, Tensors]:
        del state
        rows = {
            noise: torch.sigmoid((meta[noise] + theta[noise].detach()) / self.temperature)
            for noise in self.masks.values()
        }
        new_theta: Tensors = {}
        for name, value in theta.items():
            direction = gradient[name]
            if name in self.masks:
                mask = rows[self.masks[name]]
                direction = mask.reshape(-1, *[1] * (value.ndim - 1)) * direction
            new_theta[name] = value if name in rows else descend(value, direction, self.lr)
        return new_theta, {}
