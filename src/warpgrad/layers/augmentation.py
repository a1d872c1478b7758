"""Two of App. A's three ways to build a warped model: augmentation and information compression.

Both insert new layers after chosen modules of an existing model without touching its forward: module `m` is replaced by
a chain of `m` and the new layer. The third way, naming existing parts of a model as warps, is
`Learner(model, warp=...)`.

Warning: names gain a level (`conv1.weight` becomes `conv1.task.weight`), a chosen module must return one
tensor, and a forward that reaches into a chosen module (`self.conv1.weight`) no longer finds what it
looks for.
"""

from __future__ import annotations

import copy
import difflib
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeVar

from torch import nn

from warpgrad.errors import WarpgradError, require
from warpgrad.layers.identity import identity_
from warpgrad.layers.warps import convolutional_warp, feed_forward_warp
from warpgrad.model.partition import Adaptable, Selector, Warp, is_warp, unmark

M = TypeVar("M", bound=nn.Module)

MakeLayer = Callable[[str, nn.Module], nn.Module]
"""(name of the module before it, that module) -> the new layer."""

_WIDTHS = ("out_channels", "out_features", "num_features", "num_channels", "embedding_dim")
_NO_TENSOR = (
    nn.RNNBase,
    nn.MultiheadAttention,
    nn.ModuleList,
    nn.ModuleDict,
    nn.ParameterList,
    nn.ParameterDict,
)


def interleave(module: M, make_warp: MakeLayer, *, after: Selector | None = None, identity: bool = False) -> M:
    """Return a copy of `module` with warp-layers added, while everything it had stays θ (model augmentation).

        interleave(convnet, conv_warp(3))                                         # an nn.Sequential of blocks
        interleave(resnet, conv_warp(1), after="layer*.conv1")
        interleave(model, linear_warp, after=lambda name, m: isinstance(m, nn.Linear), identity=True)

    Args:
        module: The model; it is not changed.
        make_warp: Makes the warp that follows a module. It is marked as warp, unless parts of it are marked
            already (a warp with a task embedding in it).
        after: The modules that a warp follows: a pattern over module names, several, or a predicate of (name,
            module). A pattern that fits a module is not tried on the modules inside it. By default every
            child with parameters of an `nn.Sequential`, except the last.
        identity: Start the warps as the identity map instead of at their own initialisation, so that the
            result computes what `module` does.

    Example:
        >>> warped = wg.interleave(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)), wg.linear_warp)
        >>> sorted(wg.Learner(warped).phi)
        ['0.warp.bias', '0.warp.weight']
    """
    model = copy.deepcopy(module)
    for slot in _selected(model, after):
        warp = _made(model, slot, make_warp, "make_warp")
        if not any(is_warp(part) for part in warp.modules()):
            Warp(warp)
        slot.replace("task", "warp", identity_(warp) if identity else warp)
    return model


def compress(module: M, make_task: MakeLayer, *, after: Selector | None = None) -> M:
    """Return a copy of `module` in which everything it had is φ and new, weak layers are θ (information compression).

        compress(convnet, sized(Scale))                                  # a scale and a shift per channel
        compress(mlp, lambda name, m: nn.Linear(8, 8), after="hidden")

    Args:
        module: The model; it is not changed. Marks that it carries are dropped.
        make_task: Makes the task layer that follows a module. Parts of it that are marked as warp stay so.
        after: The modules that a task layer follows, as in `interleave`.

    Example:
        >>> weak = wg.compress(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)), wg.sized(layers.Scale))
        >>> sorted(wg.Learner(weak).theta0)
        ['0.task.scale', '0.task.shift']
    """
    model = unmark(copy.deepcopy(module))
    for slot in _selected(model, after):
        slot.replace("warp", "task", Adaptable(_made(model, slot, make_task, "make_task")))
    return Warp(model)


def sized(make: Callable[[int], nn.Module]) -> MakeLayer:
    """Return a `MakeLayer` that calls `make` with the output width of the module before the layer, e.g. `sized(Scale)`.

    Example:
        >>> wg.sized(layers.Scale)("conv1", nn.Conv2d(3, 16, 3)).scale.shape
        torch.Size([16])
    """
    return lambda name, module: make(output_width(name, module))


def linear_warp(name: str, module: nn.Module) -> nn.Module:
    """Return a linear warp-layer of the same width as the output of `module`.

    Example:
        >>> wg.linear_warp("fc", nn.Linear(2, 4)).weight.shape
        torch.Size([4, 4])
    """
    return feed_forward_warp(output_width(name, module))


def conv_warp(kernel_size: int = 3, **options: Any) -> MakeLayer:
    """Return a `MakeLayer` for warp convolutions as wide as the output of the module before; see `convolutional_warp`.

    Example:
        >>> wg.conv_warp(3)("conv1", nn.Conv2d(1, 8, 3)).weight.shape
        torch.Size([8, 8, 3, 3])
    """
    return sized(partial(convolutional_warp, kernel_size=kernel_size, **options))


def output_width(name: str, module: nn.Module) -> int:
    """Return the number of channels or features of the output of `module`, read from its last layer that has one."""
    for part in reversed(list(module.modules())):
        for attribute in _WIDTHS:
            width = getattr(part, attribute, None)
            if isinstance(width, int):
                return width
    raise WarpgradError(
        f"the width of '{name}' ({type(module).__name__}) is unknown: it holds no layer with out_channels, "
        "out_features or num_features; make the layer yourself: lambda name, module: nn.Linear(200, 200)."
    )


class Chain(nn.Sequential):
    """An `nn.Sequential` whose first module may take any arguments."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        first, *rest = self
        output = first(*args, **kwargs)
        for layer in rest:
            output = layer(output)
        return output


@dataclass(frozen=True)
class _Slot:
    """One place in a model; a module that is used in two places has two slots."""

    name: str
    parent: nn.Module
    key: str

    @property
    def module(self) -> nn.Module:
        return self.parent.get_submodule(self.key)

    def replace(self, existing: str, added: str, layer: nn.Module) -> None:
        layers = OrderedDict([(existing, self.module), (added, layer)])
        # Use torch's class where possible, so that a saved model does not need this library.
        chain = nn.Sequential(layers) if _takes_one_input(self.module) else Chain(layers)
        chain.training = self.module.training
        setattr(self.parent, self.key, chain)


def _slots(model: nn.Module) -> Iterator[_Slot]:
    # Visit each parent once: a shared block is changed once, a layer used in two places is changed in both.
    for path, parent in model.named_modules():
        for key, child in parent._modules.items():
            if child is not None:
                yield _Slot(f"{path}.{key}" if path else key, parent, key)


def _selected(model: nn.Module, after: Selector | None) -> list[_Slot]:
    slots = list(_slots(model))
    if after is None:
        require(
            isinstance(model, nn.Sequential),
            f"it is not clear where new layers belong in a {type(model).__name__}: list the modules that "
            "they follow with after=...",
        )
        children = [slot for slot in slots if slot.parent is model]
        chosen = [slot for slot in children if next(slot.module.parameters(), None) is not None][:-1]
    elif callable(after):
        chosen = [slot for slot in slots if after(slot.name, slot.module)]
    else:
        patterns = [after] if isinstance(after, str) else list(after)
        names = {name for pattern in patterns for name in _outermost(slots, pattern)}
        chosen = [slot for slot in slots if slot.name in names]
    require(chosen, f"no module of the {type(model).__name__} was selected, so no layer would be added.")
    for slot in chosen:
        require(
            not isinstance(slot.module, _NO_TENSOR),
            f"no layer can follow '{slot.name}': a {type(slot.module).__name__} does not return one "
            "tensor; select a module inside or around it.",
        )
    return chosen


def _outermost(slots: list[_Slot], pattern: str) -> set[str]:
    """Return the names of the modules that match a pattern, except those inside another module that matches."""
    found = {slot.name for slot in slots if fnmatchcase(slot.name, pattern)}
    if not found:
        near = difflib.get_close_matches(pattern, [slot.name for slot in slots], n=3, cutoff=0.3)
        hint = f"; did you mean {' or '.join(repr(name) for name in near)}?" if near else "."
        raise WarpgradError(f"after={pattern!r} matches no module of the model{hint}")
    return {name for name in found if not any(name.startswith(f"{other}.") for other in found)}


def _made(model: nn.Module, slot: _Slot, make: MakeLayer, what: str) -> nn.Module:
    """Return a new layer with the device, dtype and training mode of the module before it."""
    layer: Any = make(slot.name, slot.module)
    if not isinstance(layer, nn.Module):
        raise WarpgradError(f"{what} must return an nn.Module for '{slot.name}', not {type(layer).__name__}.")
    near = next(slot.module.parameters(), None)
    near = next(model.parameters(), None) if near is None else near
    if near is not None:
        layer.to(near.device, near.dtype)
    return layer.train(slot.module.training)


def _takes_one_input(module: nn.Module) -> bool:
    parameters = list(inspect.signature(module.forward).parameters.values())
    return len(parameters) == 1 and parameters[0].kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
