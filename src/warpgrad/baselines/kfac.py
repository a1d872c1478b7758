"""KFAC: natural gradient descent with a Kronecker-factored Fisher matrix (Martens and Grosse 2015; for convolutions
Grosse and Martens 2016).

For a layer with inputs a (1 appended for the bias) and gradients g of −log p for its outputs, the layer's block
of the Fisher matrix is taken as A ⊗ G with A = E[a aᵀ] and G = E[g gᵀ]; its step is G⁻¹ ∇ A⁻¹.

It needs activations and gradients inside the network, so it cannot be a pure rule: it is a kind of adaptation that
steps along preconditioned gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from warpgrad.adaptation.base import Adaptation, Inner, Point, Transition
from warpgrad.errors import require
from warpgrad.keys import generator
from warpgrad.model.learner import Learner
from warpgrad.rules import SGD
from warpgrad.tasks.base import Task
from warpgrad.tensors import Tensors, gradients, leaves


@dataclass(frozen=True)
class KFAC:
    """Settings. The task loss must be the mean over examples of −log p(y | model output).

    Example:
        >>> baselines.KFAC(lr=0.1, likelihood="gaussian", damping=0.1).invert_every
        5
    """

    lr: float
    """α, the step size of every parameter."""
    likelihood: Likelihood = "categorical"
    """p: a softmax over the outputs, or a Gaussian of variance 1 around them."""
    fisher: Fisher = "sampled"
    """Over which y the gradients g are taken: one drawn from the model per example, all of them weighted by the
    model's probabilities (a backward pass for each output), or the observed one."""
    damping: float = 0.03
    """λ, divided between A and G so that A ⊗ G gains about λI."""
    decay: float = 0.95
    """How much of the factors is kept at each new estimate; the first ones count as a plain mean."""
    estimate_every: int = 1
    """The number of steps between estimates of the factors."""
    invert_every: int = 5
    """The number of steps between inversions of the factors."""
    clip: float | None = 0.1
    """Largest α² ∇ᵀF⁻¹∇, about twice the KL divergence of a step; longer steps are shortened. None for no bound."""

    def __post_init__(self) -> None:
        require(
            self.damping >= 0 and 0 <= self.decay < 1 and (self.clip is None or self.clip > 0),
            f"KFAC(damping={self.damping}, decay={self.decay}, clip={self.clip}): damping must be at least 0, "
            "decay at least 0 and below 1, and clip greater than 0 or None.",
        )
        require(
            min(self.estimate_every, self.invert_every) >= 1,
            "KFAC: estimate_every and invert_every must be at least 1 step.",
        )


class KFACAdaptation(Adaptation):
    """One task under adaptation, with every linear layer's and convolution's gradient preconditioned.

    Other parameters (batch-norm) keep their gradient. The factors are part of the point's state, so a trajectory can be
    resumed anywhere. The inverses are recomputed in the first step and then every `invert_every`.

    Example:
        >>> settings = baselines.KFAC(lr=0.1, likelihood="gaussian")
        >>> kfac = baselines.KFACAdaptation(learner, task, key=0, settings=settings)
        >>> kfac.step(kfac.start()).after.k
        1
    """

    def __init__(self, learner: Learner, task: Task, key: int, settings: KFAC) -> None:
        super().__init__(learner, SGD(settings.lr), task, key)
        self.settings = settings
        self.layers = factored_layers(learner)

    def step(self, point: Point) -> Transition:
        k = cast(int, point.k)
        theta = leaves(point.theta)
        estimates = k % self.settings.estimate_every == 0
        with watched(self.learner, self.layers) as seen:
            loss, buffers = self.task_loss(theta, point.buffers, k)
        self.check_finite(loss, "the task loss", k)
        state = dict(point.state)
        if estimates:
            self._estimate(point, seen, loss, state)
        (gradient,) = gradients(loss, theta, what="the task loss", allow_unused=self.learner.allow_unused)
        if k % self.settings.invert_every == 0:
            for name in self.layers:
                state.update(self._inverses(name, state[f"kfac/A/{name}"], state[f"kfac/G/{name}"]))
        with torch.no_grad():
            direction = self._preconditioned(gradient, state)
            new_theta, _ = self.update(direction, {}, point.theta)
        return self.transition(point, Inner(loss, gradient, theta, buffers), new_theta, state)

    def factors(self, point: Point, seen: Seen, loss: Tensor) -> Tensors:
        """Compute `A/<layer>` and `G/<layer>` of the batch seen at a point, whose task loss is `loss`."""
        draw = generator(self.key, cast(int, point.k), "fisher")
        return batch_factors(self.layers, seen, loss, self.settings.likelihood, self.settings.fisher, draw)

    def _estimate(self, point: Point, seen: Seen, loss: Tensor, state: Tensors) -> None:
        """Move the factors towards those of this batch."""
        settings, k = self.settings, cast(int, point.k)
        found = self.factors(point, seen, loss)
        estimates_before = k // settings.estimate_every
        kept = min(settings.decay, 1.0 - 1.0 / (estimates_before + 1))
        for name, factor in found.items():
            state_name = f"kfac/{name}"
            state[state_name] = torch.lerp(factor, state[state_name], kept) if state_name in state else factor

    def _inverses(self, name: str, inputs: Tensor, outputs: Tensor) -> Tensors:
        """Compute (A + π√λ I)⁻¹ and (G + √λ/π I)⁻¹, where π² is the ratio of their mean eigenvalues."""
        sizes = [float(factor.diagonal().mean()) for factor in (inputs, outputs)]
        balance = math.sqrt(sizes[0] / sizes[1]) if min(sizes) > 0 else 1.0
        root = math.sqrt(self.settings.damping)
        return {
            f"kfac/inverse-A/{name}": _inverse(name, inputs, root * balance),
            f"kfac/inverse-G/{name}": _inverse(name, outputs, root / balance),
        }

    def _preconditioned(self, gradient: Tensors, state: Mapping[str, Tensor]) -> Tensors:
        direction = dict(gradient)
        for name, layer in self.layers.items():
            weight, bias = parameter_name(name, "weight"), parameter_name(name, "bias")
            matrix = gradient[weight].flatten(1)
            if layer.bias is not None:
                matrix = torch.cat([matrix, gradient[bias][:, None]], dim=1)
            moved = state[f"kfac/inverse-G/{name}"] @ matrix @ state[f"kfac/inverse-A/{name}"]
            if layer.bias is not None:
                direction[bias] = moved[:, -1]
                moved = moved[:, :-1]
            direction[weight] = moved.reshape(gradient[weight].shape)
        if self.settings.clip is None:
            return direction
        size = self.settings.lr**2 * sum(float((direction[name] * value).sum()) for name, value in gradient.items())
        scale = min(1.0, math.sqrt(self.settings.clip / size)) if size > 0 else 1.0
        return {name: value * scale for name, value in direction.items()}


def _inverse(name: str, factor: Tensor, damping: float) -> Tensor:
    damped = factor + damping * torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    triangle, failed = torch.linalg.cholesky_ex(damped)
    require(not failed, f"a factor of layer '{name}' cannot be inverted: raise KFAC's damping.")
    return torch.cholesky_inverse(triangle)


Layer = nn.Linear | nn.Conv2d
Likelihood = Literal["categorical", "gaussian"]
Fisher = Literal["sampled", "exact", "empirical"]


@dataclass(frozen=True)
class Seen:
    """The activations recorded in one forward call."""

    arguments: list[tuple[Any, ...]]
    inputs: Tensors
    outputs: Tensors
    final: list[Tensor]


def factored_layers(learner: Learner) -> dict[str, Layer]:
    """Return the layers of θ that have Kronecker factors."""
    found: dict[str, Layer] = {}
    for name, module in learner.module.named_modules():
        if not isinstance(module, nn.Linear | nn.Conv2d) or parameter_name(name, "weight") not in learner.theta0:
            continue
        require(
            not isinstance(module, nn.Conv2d) or (module.groups == 1 and (not isinstance(module.padding, str))),
            f"KFAC cannot precondition '{name}': it takes ungrouped convolutions with padding=<int>.",
        )
        found[name] = module
    require(found, "KFAC found no linear layer or convolution among the task parameters.")
    return found


@contextmanager
def watched(learner: Learner, layers: Mapping[str, Layer]) -> Iterator[Seen]:
    """Record the inputs and outputs of the model and of every layer in the calls inside the block."""
    seen = Seen([], {}, {}, [])

    def watch(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            del module
            require(name not in seen.inputs, f"KFAC cannot precondition '{name}': the model calls it more than once.")
            seen.inputs[name] = inputs[0].detach()
            seen.outputs[name] = output

        return hook

    def whole(module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        del module
        seen.arguments.append(arguments)
        seen.final.append(output)

    handles = [layer.register_forward_hook(watch(name)) for name, layer in layers.items()]
    handles.append(learner.module.register_forward_hook(whole))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def batch_factors(
    layers: Mapping[str, Layer],
    seen: Seen,
    loss: Tensor,
    likelihood: Likelihood,
    fisher: Fisher,
    draw: torch.Generator,
) -> Tensors:
    """Compute `A/<layer>` and `G/<layer>` of the batch that was seen, whose task loss is `loss`."""
    output = seen.final[-1]
    factors = {f"A/{name}": _input_factor(layer, seen.inputs[name]) for name, layer in layers.items()}
    for direction in _output_gradients(output, loss, likelihood, fisher, draw):
        found = torch.autograd.grad(output, list(seen.outputs.values()), direction, retain_graph=True)
        for name, gradient in zip(seen.outputs, found, strict=True):
            rows = _rows(layers[name], gradient)
            own = rows.T @ rows / len(rows)
            place = f"G/{name}"
            factors[place] = factors[place] + own if place in factors else own
    return factors


def parameter_name(layer: str, local: str) -> str:
    return f"{layer}.{local}" if layer else local


def _output_gradients(
    output: Tensor, loss: Tensor, likelihood: Likelihood, fisher: Fisher, draw: torch.Generator
) -> Iterator[Tensor]:
    """Yield gradients of −log p for the model's output, one row per example.

    Their outer products sum to the Fisher matrix of the output.
    """
    if fisher == "empirical":
        (observed,) = torch.autograd.grad(loss, output, retain_graph=True)
        yield observed * len(output)
        return
    flat = output.detach()
    if likelihood == "gaussian":
        if fisher == "sampled":
            yield torch.randn(flat.shape, generator=draw, dtype=flat.dtype).to(flat.device)
            return
        for place in range(flat.shape[1]):
            yield F.one_hot(torch.tensor(place), flat.shape[1]).to(flat).expand_as(flat)
        return
    chances = flat.softmax(dim=1)
    if fisher == "sampled":
        drawn = torch.multinomial(chances.cpu(), 1, generator=draw)[:, 0].to(flat.device)
        yield chances - F.one_hot(drawn, flat.shape[1])
        return
    for place in range(flat.shape[1]):
        unit = F.one_hot(torch.tensor(place), flat.shape[1]).to(flat)
        yield chances[:, place : place + 1].sqrt() * (chances - unit)


def _input_factor(layer: Layer, inputs: Tensor) -> Tensor:
    """Compute A, with the row and column of the bias at the end."""
    count = len(inputs)
    if isinstance(layer, nn.Conv2d):
        padding = cast("tuple[int, int]", layer.padding)
        inputs = F.unfold(inputs, layer.kernel_size, layer.dilation, padding, layer.stride)
    rows = _rows(layer, inputs)
    if layer.bias is not None:
        rows = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
    return rows.T @ rows / count


def _rows(layer: Layer, values: Tensor) -> Tensor:
    """Reshape values to [examples and locations, channels]."""
    last = values.movedim(1, -1) if isinstance(layer, nn.Conv2d) else values
    return last.reshape(-1, last.shape[-1])
