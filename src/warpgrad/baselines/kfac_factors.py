"""KFAC's factors of one batch: A = E[a aᵀ] over what goes into a layer, G = E[g gᵀ] over gradients of −log p for what
comes out of it.

In a convolution every location is a linear layer with the patch as its input: A sums over locations, G is the mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from warpgrad.errors import WarpgradError
from warpgrad.learner import Learner
from warpgrad.tensors import Tensors

Layer = nn.Linear | nn.Conv2d
Likelihood = Literal["categorical", "gaussian"]
Fisher = Literal["sampled", "exact", "empirical"]


@dataclass(frozen=True)
class Seen:
    """What passed through the network in one forward call."""

    arguments: list[tuple[Any, ...]]
    inputs: Tensors
    outputs: Tensors
    final: list[Tensor]


def factored_layers(learner: Learner) -> dict[str, Layer]:
    """The layers of θ that have Kronecker factors."""
    found: dict[str, Layer] = {}
    for name, module in learner.module.named_modules():
        if not isinstance(module, nn.Linear | nn.Conv2d) or parameter_name(name, "weight") not in learner.theta0:
            continue
        if isinstance(module, nn.Conv2d) and (module.groups != 1 or isinstance(module.padding, str)):
            raise WarpgradError(
                f"KFAC cannot precondition '{name}': it takes ungrouped convolutions with padding=<int>."
            )
        found[name] = module
    if not found:
        raise WarpgradError("KFAC found no linear layer or convolution among the task parameters.")
    return found


@contextmanager
def watched(learner: Learner, layers: Mapping[str, Layer]) -> Iterator[Seen]:
    """Keep what goes in and out of the model and of every layer, in the calls inside the block."""
    seen = Seen([], {}, {}, [])

    def watch(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            del module
            if name in seen.inputs:
                raise WarpgradError(f"KFAC cannot precondition '{name}': the model calls it more than once.")
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
    """`A/<layer>` and `G/<layer>` of the batch that was seen, whose task loss is `loss`."""
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
    """Gradients of −log p for the model's output, one row per example; their outer products sum to the Fisher
    matrix of the output."""
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
    """A, with the row and column of the bias at the end."""
    count = len(inputs)
    if isinstance(layer, nn.Conv2d):
        padding = cast("tuple[int, int]", layer.padding)
        inputs = F.unfold(inputs, layer.kernel_size, layer.dilation, padding, layer.stride)
    rows = _rows(layer, inputs)
    if layer.bias is not None:
        rows = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
    return rows.T @ rows / count


def _rows(layer: Layer, values: Tensor) -> Tensor:
    """[examples and locations, channels]."""
    last = values.movedim(1, -1) if isinstance(layer, nn.Conv2d) else values
    return last.reshape(-1, last.shape[-1])
