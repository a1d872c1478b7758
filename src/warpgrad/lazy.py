"""Packages that import their public names when they are first used: a help text then needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from warpgrad.errors import naming_extras


def exports(
    package: dict[str, Any], modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package, given its `globals()` and module -> the names that it defines.

    A name that was used once is kept in the package, so that the second use costs nothing. Warning: no name may be that
    of a module in the package, which takes its place as soon as that module is imported.
    """
    origin = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in origin:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        with naming_extras():
            package[name] = getattr(import_module(origin[name]), name)
        return package[name]

    def listed() -> list[str]:
        return sorted({*package, *origin})

    return get, listed
