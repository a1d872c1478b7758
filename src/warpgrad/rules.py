"""Update rules: the step θ' = U(θ; ξ) that adaptation takes (Eqs. 2-5).

A rule is a pure pair (init, update). The same `update` runs in plain adaptation and inside the differentiated
meta-step, so what is meta-learned is what is used. The parameters that a rule meta-learns itself, such as a step size,
are in `meta` and are passed to `update` explicitly. To add a rule, subclass `Rule`: see `docs/extending.md`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from warpgrad.errors import WarpgradError, expect, flag, real, require
from warpgrad.tensors import Tensors, safe_sqrt

__all__ = ["SGD", "Adam", "Clip", "Learned", "MaskedSGD", "MetaCurvature", "MetaSGD", "Rule"]


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
        """Bring the meta-parameters to θ's type and device, keeping their values; called once before meta-training."""
        like = next(iter(theta0.values()))
        for name, value in self.meta.items():
            if (value.dtype, value.device) != (like.dtype, like.device):
                self.meta[name] = value.detach().to(like).requires_grad_()

    def init(self, theta: Mapping[str, Tensor]) -> Tensors:
        """Return the state before the first step, as named tensors; empty for rules without one."""
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
        """Return (θ', state') from ∇L(θ), state and θ; differentiable in the gradient, θ and `meta`."""

    def _scalar(self, name: str, value: float | Learned) -> float:
        """Check a step size; where it is learned, make it a meta-parameter called `name`."""
        start = real(value.value if isinstance(value, Learned) else value, name)
        require(start > 0, f"{type(self).__name__}({name}={start}): the step size must be greater than 0.")
        if isinstance(value, Learned):
            self.meta[name] = torch.tensor(start, requires_grad=True)
        return start


def checked_update(rule: Rule, result: tuple[Tensors, Tensors]) -> tuple[Tensors, Tensors]:
    """Return what `rule.update` returned, which must be the new θ and the new state."""
    if not (isinstance(result, tuple) and len(result) == 2 and all(isinstance(one, Mapping) for one in result)):
        raise WarpgradError(
            f"{type(rule).__name__}.update must return two dictionaries, the new θ and the new state; without a state: "
            "return new_theta, {}."
        )
    return result


def part(state: Mapping[str, Tensor], prefix: str, name: str) -> Tensor:
    """Return the entry of a rule's state that belongs to parameter `name`."""
    return state[f"{prefix}/{name}"]


def descend(theta: Tensor, direction: Tensor, lr: float | Tensor) -> Tensor:
    """Compute θ − α·direction, in one kernel if α is a plain number."""
    if isinstance(lr, Tensor):
        return theta - lr * direction
    return torch.add(theta, direction, alpha=-lr)


class SGD(Rule):
    """θ' = θ − α v with v = ∇L + wθ, or with momentum μ: m' = μm + v and v = m' (Nesterov: v + μm').

    The conventions are those of `torch.optim.SGD`. Inside an objective the incoming m is a constant; the
    part of m' that this step's gradient contributes is differentiated.

    Example:
        >>> rule = wg.SGD(0.1, momentum=0.9, nesterov=True)
        >>> sorted(rule.init({"w": torch.zeros(2)}))
        ['momentum/w']
    """

    elementwise = True

    def __init__(
        self,
        lr: float | Learned,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__()
        self.lr = self._scalar("lr", lr)
        momentum = real(momentum, "momentum")
        require(0 <= momentum < 1, f"SGD(momentum={momentum}): momentum must be at least 0 and below 1.")
        require(not flag(nesterov, "nesterov") or momentum > 0, "SGD(nesterov=True) needs momentum > 0.")
        self.weight_decay = real(weight_decay, "weight_decay", at_least=0)
        self.momentum, self.nesterov = momentum, nesterov

    def init(self, theta: Mapping[str, Tensor]) -> Tensors:
        if self.momentum == 0:
            return {}
        return {f"momentum/{name}": torch.zeros_like(value) for name, value in theta.items()}

    def update(
        self,
        gradient: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        theta: Mapping[str, Tensor],
        meta: Mapping[str, Tensor],
    ) -> tuple[Tensors, Tensors]:
        lr: float | Tensor = meta.get("lr", self.lr)
        if not (self.weight_decay or self.momentum):
            return {name: descend(value, gradient[name], lr) for name, value in theta.items()}, {}
        new_theta: Tensors = {}
        new_state: Tensors = {}
        for name, value in theta.items():
            direction = gradient[name]
            if self.weight_decay:
                direction = torch.add(direction, value, alpha=self.weight_decay)
            if self.momentum:
                buffer = torch.add(direction, part(state, "momentum", name), alpha=self.momentum)
                new_state[f"momentum/{name}"] = buffer
                direction = torch.add(direction, buffer, alpha=self.momentum) if self.nesterov else buffer
            new_theta[name] = descend(value, direction, lr)
        return new_theta, new_state


class Adam(Rule):
    """m' = β1 m + (1−β1) g, v' = β2 v + (1−β2) g², θ' = θ − α m̂ / (√v̂ + ε), as in `torch.optim.Adam`.

    Warning: a tiny ε makes the exact objective's second-order term enormous where gradients are near 0
    (the step is almost a sign function there). ε = 1e-8 is the usual value for plain adaptation; raise it when
    you meta-learn through it.

    Example:
        >>> rule = wg.Adam(0.01, eps=1e-3)
        >>> sorted(rule.init({"w": torch.zeros(2)}))
        ['mean/w', 'square/w', 'step']
    """

    def __init__(
        self,
        lr: float | Learned = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__()
        self.lr = self._scalar("lr", lr)
        require(isinstance(betas, tuple | list) and len(betas) == 2, "Adam(betas=...) needs two numbers: (0.9, 0.999).")
        first, second = (real(beta, "betas") for beta in betas)
        require(0 <= first < 1 and 0 <= second < 1, f"Adam(betas={betas}): both must be at least 0 and below 1.")
        self.betas = (first, second)
        self.eps = real(eps, "eps", above=0)
        self.weight_decay = real(weight_decay, "weight_decay", at_least=0)

    def init(self, theta: Mapping[str, Tensor]) -> Tensors:
        first = next(iter(theta.values()))
        state: Tensors = {"step": torch.zeros((), dtype=first.dtype, device=first.device)}
        for name, value in theta.items():
            state[f"mean/{name}"] = torch.zeros_like(value)
            state[f"square/{name}"] = torch.zeros_like(value)
        return state

    def update(
        self,
        gradient: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        theta: Mapping[str, Tensor],
        meta: Mapping[str, Tensor],
    ) -> tuple[Tensors, Tensors]:
        lr: float | Tensor = meta.get("lr", self.lr)
        beta1, beta2 = self.betas
        step = state["step"] + 1
        new_state: Tensors = {"step": step}
        new_theta: Tensors = {}
        for name, value in theta.items():
            slope = gradient[name]
            if self.weight_decay:
                slope = torch.add(slope, value, alpha=self.weight_decay)
            mean = beta1 * part(state, "mean", name) + (1 - beta1) * slope
            square = beta2 * part(state, "square", name) + (1 - beta2) * slope * slope
            new_state[f"mean/{name}"], new_state[f"square/{name}"] = mean, square
            spread = safe_sqrt(square / (1 - beta2**step))
            new_theta[name] = descend(value, mean / (1 - beta1**step) / (spread + self.eps), lr)
        return new_theta, new_state


class Clip(Rule):
    """`Clip(SGD(0.1), norm=1.0)`: the rule sees a gradient scaled down to a norm, or cut to ±value per entry.

    The norm is that of all task parameters together. Clipping is part of the rule, so the exact
    objective differentiates through it.

    Example:
        >>> theta, slope = {"w": torch.zeros(1)}, {"w": torch.tensor([5.0])}
        >>> wg.Clip(wg.SGD(1.0), norm=2.0).update(slope, {}, theta, {})[0]
        {'w': tensor([-2.])}
    """

    def __init__(self, rule: Rule, *, norm: float | None = None, value: float | None = None) -> None:
        super().__init__()
        expect(rule, Rule, "rule", "SGD(0.1)")
        require((norm is None) != (value is None), "Clip(...) takes exactly one of norm= and value=.")
        real(norm if norm is not None else value, "the bound of Clip", above=0)
        self.rule, self.norm, self.value = rule, norm, value
        self.meta = rule.meta

    def prepare(self, theta0: Mapping[str, Tensor]) -> None:
        self.rule.prepare(theta0)
        self.meta = self.rule.meta

    def init(self, theta: Mapping[str, Tensor]) -> Tensors:
        return self.rule.init(theta)

    def update(
        self,
        gradient: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        theta: Mapping[str, Tensor],
        meta: Mapping[str, Tensor],
    ) -> tuple[Tensors, Tensors]:
        return self.rule.update(self._clipped(gradient), state, theta, meta)

    def _clipped(self, gradient: Mapping[str, Tensor]) -> Tensors:
        if self.norm is None:
            return {name: value.clamp(-self.value, self.value) for name, value in gradient.items()}  # type: ignore[operator]
        total = safe_sqrt(torch.stack([value.square().sum() for value in gradient.values()]).sum())
        factor = torch.where(total > self.norm, self.norm / torch.where(total > 0, total, 1.0), 1.0)
        return {name: value * factor for name, value in gradient.items()}


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
    """Return the sizes of the factors: o of a vector, (o, i) of a matrix, (o, i, h·w) of a convolution's kernel."""
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
            require(
                name in theta0 and noise in theta0 and (theta0[name].shape[:1] == theta0[noise].shape),
                f"MaskedSGD(masks=...): '{noise}' must have one entry for each row of '{name}'.",
            )
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
