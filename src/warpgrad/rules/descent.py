"""Rules that learn at most a step size: gradient descent with momentum, Adam, and clipping around any rule."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from warpgrad.errors import expect, flag, real, require
from warpgrad.rules.base import Learned, Rule, descend, part, safe_sqrt
from warpgrad.tensors import Tensors


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
        require(isinstance(betas, tuple | list) and len(betas) == 2, "betas of Adam are two numbers: (0.9, 0.999).")
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
