"""The factors D_x ω of Eq. 6, read from a forward pass through any model with warp-layers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from warpgrad.adaptation.base import Adaptation
from warpgrad.adaptation.trajectory import Trajectory
from warpgrad.errors import WarpgradError, require
from warpgrad.keys import isolated_rng
from warpgrad.model.learner import Learner
from warpgrad.rules import Rule
from warpgrad.tasks.base import Task
from warpgrad.tensors import Tensors


def warp_layers(learner: Learner) -> dict[str, nn.Module]:
    """Return the warp-layers ω by name: the outermost modules with their own forward and no parameters but φ's.

    Example:
        >>> list(analysis.warp_layers(learner))
        ['2']
    """
    left = {id(value): name for name, value in learner.phi.items()}
    phi = set(left)
    layers: dict[str, nn.Module] = {}
    for path, module in learner.module.named_modules():
        held = {id(parameter) for parameter in module.parameters()}
        inside = any(path.startswith(f"{layer}.") for layer in layers)
        if held and held <= phi and not inside and type(module).forward is not nn.Module.forward:
            layers[path] = module
            left = {key: name for key, name in left.items() if key not in held}
    if left:
        raise WarpgradError(
            f"warp parameter '{min(left.values())}' is not in a module of only warp parameters, so there is no "
            "warp-layer to differentiate; move it into a module of its own."
        )
    return layers


def warp_jacobians(
    learner: Learner,
    theta: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    args: tuple[Any, ...],
    *,
    layers: Collection[str] | None = None,
    key: int = 0,
    training: bool = True,
) -> Tensors:
    """Compute D_x ω of every warp-layer (or of those in `layers`) for each example of a call: [batch, out, in].

    x is a layer's first argument, with the batch first; a one-dimensional x is a single example. Of several
    calls, those without gradient are left out and the others stand one after the other in the batch. Where
    examples meet inside a layer, as in batch-norm, each Jacobian is that of an example's own output.

    Example:
        >>> found = analysis.warp_jacobians(learner, learner.theta0, learner.buffers(), (x,))
        >>> tuple(found["2"].shape)
        (8, 4, 4)
    """
    with isolated_rng(learner.device), torch.enable_grad(), _recorded(learner, layers) as found:
        learner.bind(theta, buffers, key=key, training=training)(*args)
    return found


def warp_jacobians_along(
    learner: Learner,
    rule: Rule,
    task: Task,
    steps: int,
    *,
    every: int = 1,
    key: int = 0,
    layers: Collection[str] | None = None,
) -> Iterator[tuple[int, Tensors]]:
    """Yield (k, `warp_jacobians` at θ_k on the batch of step k) for k = 0, every, 2·every, … of a task's K steps.

    Example:
        >>> [k for k, _ in analysis.warp_jacobians_along(learner, wg.SGD(0.1), task, steps=4, every=2)]
        [0, 2]
    """
    require(every >= 1, f"every={every}: it must be at least 1 step.")
    trajectory = Trajectory(Adaptation(learner, rule, task, key), steps)
    for k in range(steps):
        # Entered again for every step, so that the caller's random state is untouched between steps.
        with isolated_rng(learner.device), _recorded(learner, () if k % every else layers) as found:
            next(trajectory)
        if k % every == 0:
            yield k, found


class _Probe:
    """Two hooks around a warp-layer that differentiate its output by its input in the graph of the same call,
    hence with its φ, statistics and masks, and leave the model's values and gradients as they are."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.jacobians: list[Tensor] = []
        self._inputs: list[Tensor] = []

    def enter(self, _: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        x = arguments[0] if arguments else None
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise WarpgradError(f"warp-layer '{self.name}' needs a floating-point tensor as its first argument.")
        x = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
        self._inputs.append(x)
        # A layer that works in place then writes into the copy, not into the input that is differentiated.
        return x.clone(), *arguments[1:]

    def leave(self, _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        x, y = self._inputs.pop(), output[0] if isinstance(output, tuple) else output
        if not torch.is_grad_enabled():
            return
        batch = 1 if x.ndim == 1 else len(x)
        if not isinstance(y, Tensor) or (x.ndim > 1 and (y.ndim < 2 or len(y) != batch)):
            raise WarpgradError(f"warp-layer '{self.name}' must return a tensor with the batch of its input first.")
        self.jacobians.append(_per_example(y.reshape(batch, -1), x))


def _per_example(rows: Tensor, x: Tensor) -> Tensor:
    """Compute ∂ rows[i] / ∂ x[i] for every i, from the graph between them."""
    batch, size = rows.shape
    basis, place = torch.eye(size).to(rows).unsqueeze(1), torch.eye(batch).to(rows).unsqueeze(2)

    def pulled_back(cotangents: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(rows, x, cotangents, retain_graph=True, is_grads_batched=True)
        return found.reshape(len(cotangents), batch, -1)

    # Only where a layer mixes examples does the output of one depend on the input of another; then each needs a
    # separate backward pass. Unequal weights keep the outputs from cancelling in this test.
    if not pulled_back(place[:1] * torch.linspace(1, 2, size).to(rows))[0, 1:].any():
        return pulled_back(basis.expand(size, batch, size)).transpose(0, 1)
    return torch.stack([pulled_back(basis * place[example])[:, example] for example in range(batch)])


@contextmanager
def _recorded(learner: Learner, names: Collection[str] | None) -> Iterator[Tensors]:
    """Record warp-layers inside the block; afterwards the Jacobians are available and the hooks removed."""
    layers = warp_layers(learner)
    probes = [_Probe(name) for name in (layers if names is None else names)]
    found: Tensors = {}
    with ExitStack() as stack:
        for probe in probes:
            require(probe.name in layers, f"'{probe.name}' is not a warp-layer; the model has {', '.join(layers)}.")
            stack.callback(layers[probe.name].register_forward_pre_hook(probe.enter).remove)
            stack.callback(layers[probe.name].register_forward_hook(probe.leave).remove)
        yield found
    for probe in probes:
        require(probe.jacobians, f"warp-layer '{probe.name}' was not called with gradients enabled.")
        found[probe.name] = torch.cat(probe.jacobians)
