"""Lazy imports, so that a help text needs no torch, and clear errors for imports that need an extra."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from warpgrad.errors import WarpgradError

_EXTRAS = {
    **dict.fromkeys(("PIL", "bokeh", "gymnasium", "jinja2", "matplotlib", "rich", "scipy", "tyro"), "paper"),
    **dict.fromkeys(("optuna", "sqlalchemy"), "sweep"),
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    **dict.fromkeys(("transformers", "tokenizers"), "text"),
}
"""Module -> the extra that installs it."""


def exports(
    package: dict[str, Any], modules: Mapping[str, str], folders: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package that imports its public names on first use.

    It takes the package's `globals()`, module -> the names that it defines, and the sub-packages that are public names
    themselves. A name is kept in the package after its first use, so that the second use costs nothing. Warning: no
    name may equal that of a module in the package, which would replace it as soon as that module is imported.
    """
    origin = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name in folders:
            return import_module(f"{package['__name__']}.{name}")
        if name not in origin:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        with naming_extras():
            package[name] = getattr(import_module(origin[name]), name)
        return package[name]

    def listed() -> list[str]:
        return sorted({*package, *origin, *folders})

    return get, listed


@contextmanager
def naming_extras() -> Iterator[None]:
    """Turn an import that fails in the block because an extra is missing into an error that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in _EXTRAS:
            raise
        raise WarpgradError(f"{module} is not installed: pip install 'warpgrad[{_EXTRAS[module]}]'.") from error
