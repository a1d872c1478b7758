"""Which parameters are θ (adapted on every task) and which are φ (the warp, meta-learned).

App. A names three ways to a warped model. All of them end here, with every parameter of an `nn.Module`
in exactly one of three groups: task, warp, or constant (never changed).
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar

from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.parametrize import is_parametrized

from warpgrad.errors import WarpgradError, require, short_repr
from warpgrad.tensors import Tensors

Predicate = Callable[[str, nn.Module], bool]
"""(full parameter name, module that owns it) -> whether the parameter belongs to the group."""

Selector = str | Iterable[str] | Predicate
"""Patterns such as `"layer*.conv2"` over parameter or module names, or a predicate."""

M = TypeVar("M", bound=nn.Module)

_MARK = "_warpgrad_warp"


def Warp(module: M) -> M:  # noqa: N802 - stands among layers, reads as one
    """Mark `module` as a warp-layer ω, whose parameters all belong to φ, and return the same module.

    The mark is an attribute, not a wrapper, so parameter names, checkpoints and the class stay as they were.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 4), wg.Warp(nn.Linear(4, 4)), nn.Linear(4, 1))
        >>> sorted(wg.Learner(net).phi)
        ['1.bias', '1.weight']
    """
    require(isinstance(module, nn.Module), f"Warp(...) marks an nn.Module, not a {type(module).__name__}.")
    setattr(module, _MARK, True)
    return module


def Adaptable(module: M) -> M:  # noqa: N802 - stands among layers, reads as one
    """Mark `module` as a task layer: its parameters belong to θ even inside a warp, because the nearest mark decides.

    Example:
        >>> net = wg.Warp(nn.Sequential(nn.Linear(2, 2), wg.Adaptable(nn.Linear(2, 1))))
        >>> sorted(wg.Learner(net).theta0)
        ['1.bias', '1.weight']
    """
    setattr(module, _MARK, False)
    return module


def is_warp(module: nn.Module) -> bool:
    """Return whether `module` itself carries the mark."""
    return getattr(module, _MARK, False) is True


def unmark(module: M) -> M:
    """Remove every mark below `module`, so that nothing of this library is left in it."""
    for child in module.modules():
        child.__dict__.pop(_MARK, None)
    return module


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a pattern fits the parameter's name or the name of a module that contains it."""
    return any(fnmatchcase(prefix, pattern) for pattern in patterns for prefix in _prefixes(name)[1:])


_WRAPPERS = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}
"""Wrappers around a user's module: class -> the name of the attribute that holds it."""
_SHARDED = ("FullyShardedDataParallel", "FSDPModule")


def unwrapped(module: Any) -> nn.Module:
    """Return the user's own module inside `torch.compile`, `DataParallel` and the like."""
    while (inside := _WRAPPERS.get(type(module).__name__)) is not None and hasattr(module, inside):
        module = getattr(module, inside)
    for path, child in module.named_modules():
        require(
            all(kind.__name__ not in _SHARDED for kind in type(child).__mro__),
            f"module '{path or type(child).__name__}' is sharded over processes (FSDP), so no process holds all of "
            "its parameters; pass the plain module: meta_train distributes tasks over processes itself.",
        )
    unwrapped_: nn.Module = module
    return unwrapped_


def plain_names(module: nn.Module) -> dict[str, str]:
    """Map every parameter's name to the one without the parts that wrappers and parametrisations add.

    `net._orig_mod.fc.parametrizations.weight.original` is `net.fc.weight.original`, which the pattern `net.fc.weight`
    finds.
    """
    inserted = set()
    for path, child in module.named_modules(remove_duplicate=False):
        inside = _WRAPPERS.get(type(child).__name__)
        if inside is None and is_parametrized(child):
            inside = "parametrizations"
        if inside is not None:
            inserted.add(f"{path}.{inside}" if path else inside)
    names = (name for name, _ in module.named_parameters(remove_duplicate=False))
    return {name: ".".join(_last(path) for path in _prefixes(name)[1:] if path not in inserted) for name in names}


def _last(path: str) -> str:
    return path.rpartition(".")[2]


@dataclass(frozen=True)
class Partition:
    """The names of θ, of φ, and of parameters that never change; each tied parameter under its first name."""

    task: tuple[str, ...]
    warp: tuple[str, ...]
    constant: tuple[str, ...]


def partition(module: nn.Module, task: Selector | None, warp: Selector | None, constant: Selector | None) -> Partition:
    """Sort the parameters of `module` into θ, φ and constants.

    Nothing given: modules marked by `Warp(...)` are φ, the rest θ. One of `task`, `warp` given: the other
    is the rest. Both given: every parameter must be in exactly one. Parameters with
    `requires_grad=False` are constant.
    """
    names = _names(module)
    require(names, f"{type(module).__name__} has no parameters, so there is nothing to adapt.")
    fixed = {name for name, alias in names.items() if not alias.parameter.requires_grad}
    if constant is not None:
        fixed |= _chosen(names, constant, "constant")
    if task is None and warp is None:
        in_warp = {name for name, alias in names.items() if alias.marked} - fixed
        require(
            in_warp,
            "the model has no warp parameters: wrap warp-layers in Warp(...), name them with warp=..., "
            "or pass warp=() for a plain learner without any.",
        )
        in_task = set(names) - in_warp - fixed
    else:
        in_warp = _adaptable(_chosen(names, warp, "warp"), fixed, "warp") if warp is not None else set()
        in_task = _adaptable(_chosen(names, task, "task"), fixed, "task") if task is not None else set()
        if task is None:
            in_task = set(names) - in_warp - fixed
        elif warp is None:
            in_warp = set(names) - in_task - fixed
    for name in names:
        groups = (name in in_task) + (name in in_warp) + (name in fixed)
        require(
            groups != 0, f"parameter '{name}' is in neither task= nor warp=; add it to one, or list it under constant=."
        )
        require(groups <= 1, f"parameter '{name}' is in both task= and warp=; it must be in exactly one.")
    if not in_task:
        raise WarpgradError("every parameter is warp or constant, so no parameter is left to adapt to a task.")
    return Partition(
        task=_first_names(names, in_task, "task"),
        warp=_first_names(names, in_warp, "warp"),
        constant=_first_names(names, fixed, "constant"),
    )


@dataclass(frozen=True)
class _Alias:
    """One name of a parameter; a tied parameter has several, of which `first` is the one functional calls use."""

    parameter: nn.Parameter
    owner: nn.Module
    first: str
    marked: bool
    plain: str
    """The name without the parts that wrappers add."""


def _names(module: nn.Module) -> dict[str, _Alias]:
    first: dict[int, str] = {}
    marks = {
        name: child.__dict__[_MARK]
        for name, child in module.named_modules(remove_duplicate=False)
        if _MARK in child.__dict__
    }
    names: dict[str, _Alias] = {}
    plain = plain_names(module)
    for path, child in module.named_modules(remove_duplicate=False):
        for local, parameter in child.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{path}.{local}" if path else local
            require(
                not isinstance(parameter, UninitializedParameter),
                f"parameter '{name}' has no shape yet: run one batch through the lazy module first.",
            )
            origin = first.setdefault(id(parameter), name)
            inside = next((marks[prefix] for prefix in reversed(_prefixes(path)) if prefix in marks), False)
            names[name] = _Alias(parameter, child, origin, inside, plain[name])
    return names


def _prefixes(path: str) -> list[str]:
    pieces = path.split(".") if path else []
    return ["", *(".".join(pieces[: i + 1]) for i in range(len(pieces)))]


def _chosen(names: dict[str, _Alias], selector: Selector, group: str) -> set[str]:
    if callable(selector):
        if isinstance(selector, type | nn.Module):
            raise WarpgradError(
                f"{group}= takes a predicate of (name, module), not {short_repr(selector)}: name the module, or write "
                f"lambda name, module: isinstance(module, nn.Linear)."
            )
        found = {name for name, alias in names.items() if selector(name, alias.owner)}
        require(
            found,
            f"the predicate {group}= is true for none of the model's {len(names)} parameters; it is called with "
            f"(name, owner module), e.g. ({next(iter(names))!r}, the module that holds it).",
        )
        return found
    patterns = [selector] if isinstance(selector, str) else _patterns(selector, group)
    for pattern in patterns:
        if not any(_fits(name, alias, [pattern]) for name, alias in names.items()):
            modules = {prefix for alias in names.values() for prefix in _prefixes(alias.plain)} - {""}
            near = difflib.get_close_matches(pattern, sorted(modules), n=3, cutoff=0.3)
            hint = f"; did you mean {' or '.join(repr(name) for name in near)}?" if near else "."
            raise WarpgradError(f"{group}={pattern!r} matches no parameter of the model{hint}")
    return {name for name, alias in names.items() if _fits(name, alias, patterns)}


def _patterns(selector: Any, group: str) -> list[str]:
    if not isinstance(selector, Iterable) or isinstance(selector, nn.Module | dict):
        wanted = f"{group}= takes a pattern such as 'layer*.conv2', several, or a predicate of (name, module)"
        raise WarpgradError(f"{wanted}, not {short_repr(selector)}.")
    patterns = list(selector)
    for pattern in patterns:
        require(
            isinstance(pattern, str), f"{group}= lists {short_repr(pattern)}: patterns must be strings, e.g. 'layer1'."
        )
    return patterns


def _fits(name: str, alias: _Alias, patterns: list[str]) -> bool:
    return matches(name, patterns) or matches(alias.plain, patterns)


def _adaptable(chosen: set[str], fixed: set[str], group: str) -> set[str]:
    """Return the chosen names without the constants; raise if nothing is left of a choice."""
    require(
        not chosen or chosen - fixed,
        f"all parameters that {group}= names are constant (requires_grad=False, or listed under constant=), so "
        f"nothing would learn them; call requires_grad_(True) on them first, or leave {group}= out.",
    )
    return chosen - fixed


def _first_names(names: dict[str, _Alias], group: set[str], what: str) -> tuple[str, ...]:
    """Return one name per tied parameter; refuse a parameter whose names fall into different groups."""
    kept: list[str] = []
    for name, alias in names.items():
        require(
            name not in group or alias.first in group,
            f"parameter '{name}' is tied to '{alias.first}', but only the first is {what}; "
            "put both names into the same group or untie them.",
        )
        if name in group and name == alias.first:
            kept.append(name)
    return tuple(kept)


StartPolicy = Literal["learned", "fixed", "zero", "fresh"]
"""The value at which a task parameter starts on every task.

`learned`: at its part of θ0, which the initialiser meta-learns. `fixed`: at the module's value, which
nothing ever changes. `zero`: at 0. `fresh`: redrawn for every task by its module's `reset_parameters()`.
Only learned parameters count in distances between θ's and receive meta-gradients.
"""


def start_policies(
    names: tuple[str, ...], start: Mapping[str, StartPolicy], plain: Mapping[str, str]
) -> dict[str, StartPolicy]:
    """Return the policy of every task parameter; later patterns override earlier ones, and the default is learned."""
    policies: dict[str, StartPolicy] = dict.fromkeys(names, "learned")
    for pattern, policy in start.items():
        require(
            policy in ("learned", "fixed", "zero", "fresh"),
            f"start policy {policy!r} of '{pattern}' is unknown; choose learned, fixed, zero or fresh.",
        )
        found = [name for name in names if matches(name, [pattern]) or matches(plain[name], [pattern])]
        require(found, f"start pattern '{pattern}' matches no task parameter of the model.")
        policies.update(dict.fromkeys(found, policy))
    return policies


class Fresh:
    """Redraws some parameters of a module, on a copy of it."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.names: list[str] = []
        self._copy: Any = None

    def drawn(self) -> Tensors:
        """Draw new values with torch's global generator."""
        own = getattr(self.owner, self.names[0])
        kept = None if self._copy is None else getattr(self._copy, self.names[0])
        if kept is None or (kept.device, kept.dtype) != (own.device, own.dtype):  # first call, or moved since
            self._copy = copy.deepcopy(self.owner)
        self._copy.reset_parameters()
        return {name: getattr(self._copy, name).detach().clone() for name in self.names}


def owners_of(module: nn.Module, names: list[str]) -> dict[str, Fresh]:
    """Return the modules that redraw the fresh parameters, by path."""
    owners: dict[str, Fresh] = {}
    for name in names:
        path, _, local = name.rpartition(".")
        owner = module.get_submodule(path)
        require(
            callable(getattr(owner, "reset_parameters", None)),
            f"parameter '{name}' starts fresh on every task, but its module {type(owner).__name__} "
            "has no reset_parameters() to draw it; add one or choose another start policy.",
        )
        owners.setdefault(path, Fresh(owner)).names.append(local)
    return owners
