"""The geometry of warped gradient descent (Eqs. 6-10), made explicit.

Training never needs anything here: backpropagation through warp-layers does it all. These functions show what
it does. An explicit warp Ω maps flat task parameters θ in P to γ = Ω(θ) in W; a step along −Δθ in P is, to first
order, a step along −G⁻¹∇L(γ) in W with G⁻¹ = [DΩ][DΩ]ᵀ. For a model with warp-layers, whose Ω is not at hand in
general, `warp_jacobians` reads the factors D_x ω of Eq. 6 from a forward pass.

What bites: Jacobians are dense. Use float64 and few parameters, layers and examples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import grad, jacrev, vmap
from torch.nn.functional import linear, pad

from warpgrad.adaptation import Adaptation, check_steps
from warpgrad.errors import NonFiniteError, WarpgradError
from warpgrad.keys import isolated_rng
from warpgrad.learner import Learner
from warpgrad.rules.base import Rule
from warpgrad.tasks.base import Task
from warpgrad.tensors import Tensors, shapes

Omega = Callable[[Tensor], Tensor]
"""γ = Ω(θ): one flat vector to another, in operations that `torch.func` can map and differentiate."""

NativeLoss = Callable[[Tensor], Tensor]
"""L(γ): the loss on the flat parameters of the model without warp-layers, a scalar."""


def jacobian(omega: Omega, theta: Tensor) -> Tensor:
    """DΩ(θ), [size of γ, size of θ]; differentiable in θ and in whatever Ω is made of."""
    return cast(Tensor, jacrev(omega)(theta))


def metric_inverse(omega: Omega, theta: Tensor) -> Tensor:
    """G⁻¹ = [DΩ][DΩ]ᵀ at γ = Ω(θ) (Eq. 8): what the warp preconditions gradients with in W."""
    derivative = jacobian(omega, theta)
    return derivative @ derivative.mT


def condition_number(metric: Tensor) -> Tensor:
    """Largest over smallest eigenvalue of a symmetric [..., d, d], for G and G⁻¹ alike; ∞ where it is degenerate."""
    spectrum = _spectrum(metric)
    smallest, largest = spectrum[..., 0], spectrum[..., -1]
    return torch.where(smallest > 0, largest / torch.where(smallest > 0, smallest, 1.0), torch.inf)


def is_positive_definite(metric: Tensor, *, tolerance: float | None = None) -> Tensor:
    """Whether [..., d, d] is symmetric with all eigenvalues above `tolerance` times the largest magnitude.

    By default the tolerance is 10·d·ε of the dtype, what rounding in the product [DΩ][DΩ]ᵀ can leave of a zero.
    """
    if tolerance is None:
        tolerance = 10 * metric.shape[-1] * torch.finfo(metric.dtype).eps
    spectrum = _spectrum(metric)
    size = spectrum.abs().amax(-1)
    symmetric = (metric - metric.mT).abs().amax((-2, -1)) <= tolerance * size
    return symmetric & (spectrum[..., 0] > tolerance * size)


def _spectrum(metric: Tensor) -> Tensor:
    if not torch.isfinite(metric).all():
        raise NonFiniteError("the metric holds NaN or infinite entries: Ω or θ has left the finite numbers.")
    return cast(Tensor, torch.linalg.eigvalsh(metric))


@dataclass(frozen=True)
class PushForward:
    """γ = Ω(θ), the gradient Δθ = ∇(L ∘ Ω)(θ) in P (Eq. 7) and its image Δγ = DΩ Δθ = G⁻¹ ∇L(γ) in W (Eq. 8)."""

    gamma: Tensor
    delta_theta: Tensor
    delta_gamma: Tensor


def pushed_forward(loss: NativeLoss, omega: Omega, theta: Tensor) -> PushForward:
    """Δθ by backpropagation through Ω, as adaptation does it, and Δγ by pushing it forward with DΩ."""
    delta_theta: Tensor = grad(lambda place: loss(omega(place)))(theta)
    return PushForward(omega(theta), delta_theta, jacobian(omega, theta) @ delta_theta)


def ideal_step(loss: NativeLoss, omega: Omega, theta: Tensor, alpha: float) -> Tensor:
    """γ − α G⁻¹ ∇L(γ) at γ = Ω(θ), the argument of L in Eq. 10. For a given γ, find θ with `invert`."""
    pushed = pushed_forward(loss, omega, theta)
    return pushed.gamma - alpha * pushed.delta_gamma


def taylor_error(loss: NativeLoss, omega: Omega, theta: Tensor, alpha: float) -> Tensor:
    """(L ∘ Ω)(θ − αΔθ) − L(γ − αΔγ): what Eq. 9 says falls as α²; 0 where Ω is affine."""
    pushed = pushed_forward(loss, omega, theta)
    return loss(omega(theta - alpha * pushed.delta_theta)) - loss(pushed.gamma - alpha * pushed.delta_gamma)


@dataclass(frozen=True)
class Inverse:
    """Solutions of Ω(θ) = γ, one per row, and ‖Ω(θ) − γ‖; rows that are not converged hold the best that was found."""

    theta: Tensor
    residual: Tensor
    converged: Tensor


@torch.no_grad()
def invert(
    omega: Omega, gamma: Tensor, start: Tensor, *, steps: int = 100, path_steps: int = 400, tolerance: float = 1e2
) -> Inverse:
    """Solve Ω(θ) = γ for many γ at once, all [n, d]: damped Newton, then path following for the rows it misses.

    Newton, of at most `steps`, stalls where Ω folds (DΩ singular) between start and solution. Those rows follow the
    zeros of s(Ω(θ) − γ) + (1 − s)(θ − start) from s = 0 to 1, around turning points, for at most `path_steps`
    (0: not at all). For Ω(θ) = θ + g(θ) with bounded g, such as a residual tanh network, that path leads to a
    solution but for exceptional starts; give such an Ω the target as the start. A row is converged where
    ‖Ω(θ) − γ‖ ≤ tolerance·ε·(1 + ‖γ‖), with ε that of the dtype.

    What bites: where Ω folds there are several solutions, of which this is one; and an Ω that is not onto has
    none for some γ: look at `converged`.
    """
    if gamma.ndim != 2 or gamma.shape != start.shape:
        raise WarpgradError(f"invert(...) needs γ and start of one shape [n, d], not {shapes((gamma, start))}.")
    bound = tolerance * torch.finfo(gamma.dtype).eps * (1 + gamma.norm(dim=1))

    def gap(theta: Tensor, target: Tensor) -> Tensor:
        return omega(theta) - target

    theta, residual = _newton(gap, start, (gamma,), steps, bound)
    left = torch.nonzero(~(residual <= bound)).squeeze(1)
    if path_steps and len(left):
        end = _followed(omega, gamma[left], start[left], path_steps, bound[left])
        retried, distance = _newton(gap, end, (gamma[left],), steps, bound[left])
        better = ~(residual[left] <= distance)
        theta[left[better]], residual[left[better]] = retried[better], distance[better]
    return Inverse(theta, residual, residual <= bound)


def _newton(
    gap: Callable[..., Tensor], begin: Tensor, constants: tuple[Tensor, ...], steps: int, bound: Tensor
) -> tuple[Tensor, Tensor]:
    """Newton on gap(unknown, *constants) = 0 for every row, halving a step until the gap's norm falls.

    The pseudo-inverse gives the shortest step where unknowns outnumber equations, and a finite one where the
    Jacobian is singular. A row that no step improves stays where it is.
    """
    unknown = begin.clone()
    active = torch.ones_like(bound, dtype=torch.bool)
    for _ in range(steps):
        value = vmap(gap)(unknown, *constants)
        size = value.norm(dim=1)
        active = active & (size > bound)
        if not active.any():
            break
        slopes = _finite(vmap(jacrev(gap))(unknown, *constants))
        direction = (torch.linalg.pinv(slopes) @ value.unsqueeze(-1)).squeeze(-1)
        length = torch.ones_like(bound)
        for _ in range(30):
            trial = unknown - length.unsqueeze(1) * direction
            better = vmap(gap)(trial, *constants).norm(dim=1) <= (1 - 1e-4 * length) * size
            if (better | ~active).all():
                break
            length = torch.where(better, length, length / 2)
        active = active & better
        unknown = torch.where(active.unsqueeze(1), trial, unknown)
    return unknown, vmap(gap)(unknown, *constants).norm(dim=1)


def _followed(omega: Omega, gamma: Tensor, start: Tensor, steps: int, bound: Tensor) -> Tensor:
    """Where the path of `invert` meets s = 1, or how far it came: steps along the tangent, pulled back by Newton."""

    def homotopy(place: Tensor, target: Tensor, origin: Tensor) -> Tensor:
        theta, s = place[:-1], place[-1]
        return s * (omega(theta) - target) + (1 - s) * (theta - origin)

    def tangent(place: Tensor) -> Tensor:
        return cast(Tensor, torch.linalg.svd(_finite(vmap(jacrev(homotopy))(place, gamma, start)))[2][:, -1])

    place = pad(start, (0, 1))
    heading = pad(torch.zeros_like(start), (0, 1), value=1.0)
    length = torch.full_like(bound, 0.1)
    arrived = torch.zeros_like(bound, dtype=torch.bool)
    for _ in range(steps):
        direction = tangent(place)
        direction = direction * torch.where((direction * heading).sum(1) < 0, -1.0, 1.0).unsqueeze(1)
        ahead, missed = _newton(homotopy, place + length.unsqueeze(1) * direction, (gamma, start), 4, bound)
        # A sharp turn or a long jump means that another branch was hit: take it shorter.
        straight = (tangent(ahead) * direction).sum(1).abs() > 0.9
        kept = (missed <= bound) & straight & ((ahead - place).norm(dim=1) < 2 * length) & ~arrived
        ends = kept & (ahead[:, -1] >= 1)
        part = torch.where(ends, (1 - place[:, -1]) / (ahead[:, -1] - place[:, -1]), 1.0).unsqueeze(1)
        place = torch.where(kept.unsqueeze(1), place + part * (ahead - place), place)
        heading = torch.where(kept.unsqueeze(1), direction, heading)
        length = torch.where(kept, 1.5 * length, length / 2)
        arrived = arrived | ends
        if arrived.all():
            break
    return place[:, :-1]


def _finite(slopes: Tensor) -> Tensor:
    """Zero Jacobians where Ω has none: such a row stalls and is counted, instead of stopping all the others."""
    return torch.where(torch.isfinite(slopes).all(-1).all(-1)[:, None, None], slopes, 0.0)


def flattened(tensors: Mapping[str, Tensor]) -> Tensor:
    """θ as the flat vector that an explicit Ω takes, in the order of its names."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors.values()])


def unflattened(vector: Tensor, like: Mapping[str, Tensor]) -> Tensors:
    """The inverse of `flattened`, with the names and shapes of `like`; differentiable."""
    sizes = [tensor.numel() for tensor in like.values()]
    if vector.shape != (sum(sizes),):
        raise WarpgradError(f"a flat vector of {sum(sizes)} numbers is needed, not shape {tuple(vector.shape)}.")
    parts = zip(like.items(), torch.split(vector, sizes), strict=True)
    return {name: part.reshape(tensor.shape) for (name, tensor), part in parts}


def linear_omega(learner: Learner) -> Omega:
    """Ω of a model whose warp-layers are linear, x ↦ T x + t, each directly after a linear task layer.

    γ has θ's names in θ's order: W ↦ T W and b ↦ T b + t for a warped layer, everything else as it is. The model
    at θ equals the same model without warp-layers at γ. DΩ is constant and, with parameters sorted by column of W,
    block-diagonal with a block T per column. Ω reads φ when it is called and is differentiable in it.
    """
    warps = _linear_warps(learner)

    def omega(theta: Tensor) -> Tensor:
        gamma = unflattened(theta, learner.theta0)
        for path, warp in warps.items():
            weight, bias = f"{path}.weight", f"{path}.bias"
            gamma[weight] = warp.weight @ gamma[weight]
            if bias in gamma:
                gamma[bias] = linear(gamma[bias], warp.weight, warp.bias)
        return flattened(gamma)

    return omega


def _linear_warps(learner: Learner) -> dict[str, nn.Linear]:
    """The name of every warped task layer with the warp-layer behind it."""
    module = learner.module
    warps: dict[str, nn.Linear] = {}
    left = set(learner.phi)
    for path, container in module.named_modules():
        if type(container).forward is not nn.Sequential.forward:
            continue
        children = [(f"{path}.{name}" if path else name, child) for name, child in container.named_children()]
        for (task_name, task), (warp_name, warp) in pairwise(children):
            theta = {f"{task_name}.{name}" for name, _ in task.named_parameters()}
            phi = {f"{warp_name}.{name}" for name, _ in warp.named_parameters()}
            both = type(task) is nn.Linear and type(warp) is nn.Linear
            if both and theta <= set(learner.theta0) and phi <= left and len(phi) <= len(theta):
                warps[task_name] = cast(nn.Linear, warp)
                left -= phi
    if left:
        raise WarpgradError(
            f"Ω has no explicit linear form because of '{min(left)}': every warp-layer must be an nn.Linear directly "
            "after an nn.Linear of θ in an nn.Sequential, with a bias only where that layer has one to take it up."
        )
    if len(list(module.named_parameters(remove_duplicate=False))) > len(list(module.parameters())):
        raise WarpgradError("Ω has no explicit linear form for a model with tied parameters; untie them.")
    return warps


def warp_layers(learner: Learner) -> dict[str, nn.Module]:
    """The warp-layers ω by name: the outermost modules with a forward of their own and no parameters but φ's."""
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
            f"warp parameter '{min(left.values())}' is in no module with warp parameters alone, so there is no "
            "warp-layer to differentiate; put it into a module of its own."
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
    """D_x ω of every warp-layer (or of those in `layers`) for each example in one forward call: [batch, out, in].

    x is a layer's first argument, with the batch first; a one-dimensional x is a single example. Of several
    calls, those without gradient are left out and the others stand one after the other in the batch. Where
    examples meet inside a layer, as in batch-norm, each Jacobian is that of an example's own output.
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
    """(k, `warp_jacobians` at θ_k on the batch of step k) for k = 0, every, 2·every, … of the K steps of a task."""
    check_steps(steps)
    if every < 1:
        raise WarpgradError(f"every={every}: look at the warp after at least 1 step.")
    adaptation = Adaptation(learner, rule, task, key)
    point = adaptation.start()
    for k in range(steps):
        # Entered anew for every step, so that the caller's random state is its own between them.
        with isolated_rng(learner.device), _recorded(learner, () if k % every else layers) as found:
            point = adaptation.step(point).after
        if k % every == 0:
            yield k, found


class _Probe:
    """Two hooks around a warp-layer that differentiate its output by its input in the graph of the very call,
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
        # A layer that works in place then writes into the copy, not into what is differentiated by.
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
    """∂ rows[i] / ∂ x[i] for every i, from the graph between them."""
    batch, size = rows.shape
    basis, place = torch.eye(size).to(rows).unsqueeze(1), torch.eye(batch).to(rows).unsqueeze(2)

    def pulled_back(cotangents: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(rows, x, cotangents, retain_graph=True, is_grads_batched=True)
        return found.reshape(len(cotangents), batch, -1)

    # Only where a layer mixes examples does the output of one depend on the input of another; then each needs a
    # backward pass of its own. Unequal weights keep the outputs from cancelling in this test.
    if not pulled_back(place[:1] * torch.linspace(1, 2, size).to(rows))[0, 1:].any():
        return pulled_back(basis.expand(size, batch, size)).transpose(0, 1)
    return torch.stack([pulled_back(basis * place[example])[:, example] for example in range(batch)])


@contextmanager
def _recorded(learner: Learner, names: Collection[str] | None) -> Iterator[Tensors]:
    """Watch warp-layers during the block, after which the Jacobians are there and the hooks gone, however it ends."""
    layers = warp_layers(learner)
    probes = [_Probe(name) for name in (layers if names is None else names)]
    found: Tensors = {}
    with ExitStack() as stack:
        for probe in probes:
            if probe.name not in layers:
                raise WarpgradError(f"'{probe.name}' is no warp-layer of the model; it has {', '.join(layers)}.")
            stack.callback(layers[probe.name].register_forward_pre_hook(probe.enter).remove)
            stack.callback(layers[probe.name].register_forward_hook(probe.leave).remove)
        yield found
    for probe in probes:
        if not probe.jacobians:
            raise WarpgradError(f"warp-layer '{probe.name}' was not called with gradients: nothing to differentiate.")
        found[probe.name] = torch.cat(probe.jacobians)
