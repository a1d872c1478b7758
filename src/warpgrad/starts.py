"""Where task parameters begin on every task."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

from torch import nn

from warpgrad.errors import WarpgradError
from warpgrad.partition import matches
from warpgrad.tensors import Tensors

Start = Literal["learned", "fixed", "zero", "fresh"]
"""Where a task parameter begins on every task.

`learned`: at its part of θ0, which the initialiser meta-learns. `fixed`: at the module's value, which
nothing ever changes. `zero`: at 0. `fresh`: redrawn for every task by its module's `reset_parameters()`.
Only learned parameters count in distances between θ's and receive meta-gradients.
"""


def start_policies(names: tuple[str, ...], start: Mapping[str, Start]) -> dict[str, Start]:
    """The policy of every task parameter; later patterns overrule earlier ones, and none means learned."""
    policies: dict[str, Start] = dict.fromkeys(names, "learned")
    for pattern, policy in start.items():
        if policy not in ("learned", "fixed", "zero", "fresh"):
            raise WarpgradError(
                f"start policy {policy!r} of '{pattern}' is unknown; choose learned, fixed, zero or fresh."
            )
        found = [name for name in names if matches(name, [pattern])]
        if not found:
            raise WarpgradError(f"start pattern '{pattern}' matches no task parameter of the model.")
        policies.update(dict.fromkeys(found, policy))
    return policies


class Fresh:
    """Redraws some parameters of a module, on a copy of it."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.names: list[str] = []
        self._copy: Any = None

    def drawn(self) -> Tensors:
        """New values, from torch's global generator as it is."""
        own = getattr(self.owner, self.names[0])
        kept = None if self._copy is None else getattr(self._copy, self.names[0])
        if kept is None or (kept.device, kept.dtype) != (own.device, own.dtype):  # first, or the module has moved
            self._copy = copy.deepcopy(self.owner)
        self._copy.reset_parameters()
        return {name: getattr(self._copy, name).detach().clone() for name in self.names}


def owners_of(module: nn.Module, names: list[str]) -> dict[str, Fresh]:
    """The modules that redraw the fresh parameters, by path."""
    owners: dict[str, Fresh] = {}
    for name in names:
        path, _, local = name.rpartition(".")
        owner = module.get_submodule(path)
        if not callable(getattr(owner, "reset_parameters", None)):
            raise WarpgradError(
                f"parameter '{name}' starts fresh on every task, but its module {type(owner).__name__} "
                "has no reset_parameters() to draw it; add one or choose another start policy."
            )
        owners.setdefault(path, Fresh(owner)).names.append(local)
    return owners
