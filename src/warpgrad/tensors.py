"""Named tensors: θ, φ, gradients, buffers and rule states are all `dict[str, Tensor]`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from warpgrad.errors import WarpgradError

Tensors = dict[str, Tensor]
Groups = dict[str, Tensors]
"""Named tensors by role: all inputs or all outputs of a computation."""


def detached(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return the same values detached from any graph; memory is shared, nothing is copied."""
    # Tensors that are already detached are left alone: a step has dozens of them.
    return {name: tensor.detach() if tensor.requires_grad else tensor for name, tensor in tensors.items()}


def leaves(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return the same values as new leaves that require gradients."""
    return {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}


def select(tensors: Mapping[str, Tensor], names: Iterable[str]) -> Tensors:
    return {name: tensors[name] for name in names}


def autocast_in_force() -> tuple[str, torch.dtype] | None:
    """Return the device and the dtype of the active autocast, or None if it is off."""
    if not torch._C._is_any_autocast_enabled():
        return None
    known = [name for name in ("cuda", "cpu", "mps", "xpu") if torch.amp.is_autocast_available(name)]
    device = next((name for name in known if torch.is_autocast_enabled(name)), None)
    return None if device is None else (device, torch.get_autocast_dtype(device))


def without_autocast() -> AbstractContextManager[Any]:
    """Disable autocast in the block, for backward passes and updates, which follow the dtypes of the forward pass."""
    cast = autocast_in_force()
    return nullcontext() if cast is None else torch.autocast(cast[0], enabled=False)


def gradients(
    loss: Tensor,
    *groups: Mapping[str, Tensor],
    what: str,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> list[Tensors]:
    """Return the gradients of a loss, or of the sum of a stack of them, for every named tensor of every group.

    They come from one backward pass. A tensor that the loss does not depend on raises an error that names it, because
    otherwise a parameter would silently never learn; with `allow_unused` its gradient is zero.
    """
    flat = [tensor for group in groups for tensor in group.values()]
    if not flat:
        return [{} for _ in groups]
    if not loss.requires_grad:
        names = ", ".join(name for group in groups for name in group)
        raise WarpgradError(
            f"{what} depends on none of {names}: compute it from the model's output without detaching it."
        )
    found = iter(_differentiated(loss.sum() if loss.ndim else loss, flat, what, create_graph=create_graph))
    return [
        {
            name: _unused(name, group[name], what, allow_unused) if gradient is None else gradient
            for name, gradient in zip(group, found, strict=False)  # the next group goes on where this one ends
        }
        for group in groups
    ]


def _unused(name: str, tensor: Tensor, what: str, allowed: bool) -> Tensor:
    if not allowed:
        raise WarpgradError(
            f"parameter '{name}' gets no gradient from {what}: the model's forward does not use it; "
            "remove it, list it under constant=, or pass allow_unused=True to Learner."
        )
    return torch.zeros_like(tensor)


def _differentiated(loss: Tensor, flat: list[Tensor], what: str, *, create_graph: bool) -> Sequence[Tensor | None]:
    """Return the gradients, None if the loss does not depend on a tensor (which torch's annotation omits)."""
    try:
        with without_autocast():
            return torch.autograd.grad(loss, flat, create_graph=create_graph, allow_unused=True)
    except RuntimeError as error:
        missing = _missing_derivative(str(error), what)
        if missing is None:
            raise
        raise missing from error


_NO_DERIVATIVE = re.compile(r"derivative for (?:aten::)?'?_?(\w+?)(?:_backward)?'? is not implemented")
_COMPILED = "does not currently support double backward"


def _missing_derivative(message: str, what: str) -> WarpgradError | None:
    """Name the operation that PyTorch cannot differentiate twice, and say what to do about it."""
    found = _NO_DERIVATIVE.search(message)
    if found is None and _COMPILED not in message:
        return None
    operation = f"the operation {found[1]}" if found is not None else "a function compiled by torch.compile"
    remedy = "rewrite it with other operations" if found is not None else "leave it uncompiled"
    return WarpgradError(
        f"PyTorch has no second derivative of {operation}, which {what} needs: use Approximate() as objective and an "
        f"initialiser other than MAML, which need no second derivatives, or {remedy}."
    )


def discrepancy(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest ‖found − expected‖ / ‖expected‖ between two computations of the same tensors.

    Tensors that are 0 up to rounding, such as the gradient of a bias before batch-norm, are measured relative to the
    norm of all.
    """
    sizes = [float(value.double().norm()) for value in expected]
    least = 1e-3 * math.hypot(*sizes)
    gaps = [float((ours.double() - theirs.double()).norm()) for ours, theirs in zip(found, expected, strict=True)]
    return max((gap / max(size, least) if gap else 0.0 for gap, size in zip(gaps, sizes, strict=True)), default=0.0)


class Accumulator:
    """A running sum of named gradients with the number of samples in it, in constant memory."""

    def __init__(self) -> None:
        self.total: Tensors = {}
        self.count = 0

    def add(self, gradient: Mapping[str, Tensor], count: int = 1) -> None:
        values, kept = detached(gradient), self.total
        more = [name for name in values if name in kept]
        if more:
            torch._foreach_add_([kept[name] for name in more], [values[name] for name in more])
        for name in values:
            if name not in kept:
                # The first value is copied: later ones are added in place and must not modify a caller's tensor.
                # The copy is also dense, whatever the gradient was a view of, so norms over it are summed in one
                # order.
                kept[name] = values[name].clone()
        self.count += count

    def scaled(self, factor: float) -> Tensors:
        """Return the sum times `factor`; if that is 1, the sum itself, so call `clear` before adding more."""
        return self.total if factor == 1.0 else {name: value * factor for name, value in self.total.items()}

    def clear(self) -> None:
        self.total, self.count = {}, 0


def stack_trees(trees: Sequence[Any]) -> Any:
    """Stack trees of tuples, lists and dicts of equal structure leaf by leaf, for `torch.vmap`; leaves are tensors."""
    first = trees[0]
    if isinstance(first, Tensor):
        return torch.stack(list(trees))
    if isinstance(first, Mapping):
        return {name: stack_trees([tree[name] for tree in trees]) for name in first}
    if isinstance(first, tuple | list):
        columns = [stack_trees(column) for column in zip(*trees, strict=True)]
        if isinstance(first, tuple) and hasattr(first, "_fields"):
            return type(first)(*columns)
        return type(first)(columns)
    raise WarpgradError(f"a batch holds a {type(first).__name__}, which cannot be stacked; use tensors only.")


def flattened(tree: Any) -> list[Tensor]:
    """Return the tensors of such a tree, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, Mapping) else tree
    return [tensor for part in parts for tensor in flattened(part)]


def refilled(tree: Any, values: Iterator[Tensor]) -> Any:
    """Return a tree with the structure of `tree` and other tensors, the inverse of `flattened`."""
    if isinstance(tree, Tensor):
        return next(values)
    if isinstance(tree, Mapping):
        return {name: refilled(value, values) for name, value in tree.items()}
    filled = [refilled(value, values) for value in tree]
    return type(tree)(*filled) if hasattr(tree, "_fields") else type(tree)(filled)


def shapes(tree: Any) -> str:
    """Return the shapes in a batch as text, for error messages."""
    if isinstance(tree, Tensor):
        return str(tuple(tree.shape))
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{name}: {shapes(value)}" for name, value in tree.items()) + "}"
    if isinstance(tree, tuple | list):
        return "(" + ", ".join(shapes(value) for value in tree) + ")"
    return type(tree).__name__


def laid_channels_last(value: Tensor) -> Tensor:
    """Return the same values, in channels-last layout if there are four dimensions; differentiable, copied if needed.

    A single channel fits both layouts, and `contiguous` would keep the strides of the other, which convolutions use.
    Its strides are always set, because a traced graph may meet other ones than it was traced with.
    """
    if value.ndim == 4 and value.shape[1] == 1 and value.is_contiguous():
        return value.reshape(value.shape[0], *value.shape[2:], 1).permute(0, 3, 1, 2)
    if value.ndim != 4 or value.stride(1) == 1:
        return value
    return value.contiguous(memory_format=torch.channels_last)


def safe_sqrt(value: Tensor) -> Tensor:
    """Return √value with derivative 0 at 0, where the true one is infinite and would turn 0·∞ into NaN."""
    positive = value > 0
    return torch.where(positive, torch.where(positive, value, 1.0).sqrt(), 0.0)
