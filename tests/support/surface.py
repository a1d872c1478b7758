"""The public surface: the names in `__all__` of `warpgrad` and of the folders of its core, with their signatures.

python -m tests.support.surface        # writes tests/public/surface.txt anew; look at the difference, commit it
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CORE = (
    "rules", "model", "layers", "tasks", "adaptation", "objectives", "initialisers", "algorithms", "training",
    "analysis", "baselines", "zoo",
)  # fmt: skip
"""The folders whose `__all__` is public, in the order of the map; between the last two are the paper's experiments."""
SNAPSHOT = Path(__file__).parents[1] / "public" / "surface.txt"


def public_names() -> Iterator[tuple[str, str, Any]]:
    """(package, name, object) of everything public; what two packages export comes once for each."""
    for package in ("warpgrad", *(f"warpgrad.{folder}" for folder in CORE)):
        module = importlib.import_module(package)
        for name in sorted(module.__all__):
            if not name.startswith("__"):
                yield package, name, getattr(module, name)


def described() -> dict[str, Any]:
    """Public classes and functions, each once, under the first name they are exported by."""
    found: dict[int, tuple[str, Any]] = {}
    for package, name, value in public_names():
        if getattr(value, "__module__", "").startswith("warpgrad."):  # neither a type alias nor a constant
            found.setdefault(id(value), (f"{package}.{name}", value))
    return dict(found.values())


def snapshot() -> str:
    """One line for every name, and below a class one for each of its public methods and properties."""
    lines: list[str] = []
    seen: dict[int, str] = {}
    for package, name, value in public_names():
        path = f"{package}.{name}"
        if id(value) in seen and (inspect.isclass(value) or inspect.isfunction(value)):
            lines.append(f"{path} is {seen[id(value)]}")
            continue
        seen[id(value)] = path
        if inspect.isclass(value):
            bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
            lines.append(f"class {path}({bases}){_signature(value)}")
            lines += [f"    {line}" for line in _members(value)]
        elif inspect.isfunction(value):
            lines.append(f"def {path}{_signature(value)}")
        else:
            lines.append(f"{path}: {type(value).__name__}")
    return "\n".join(lines) + "\n"


def _members(owner: type) -> Iterator[str]:
    fields = [field.name for field in dataclasses.fields(owner)] if dataclasses.is_dataclass(owner) else []
    for name, value in sorted(vars(owner).items()):
        if name.startswith("_") or name in fields or isinstance(value, enum.Enum):
            continue
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        if isinstance(value, property):
            yield f"{name}: property"
        elif inspect.isfunction(value):
            yield f"{name}{_signature(value)}"


def _signature(value: Any) -> str:
    try:
        text = str(inspect.signature(value))
    except ValueError:  # an exception's own
        return ""
    return re.sub(r"( object)? at 0x[0-9a-f]+", "", text).replace("'", "")


if __name__ == "__main__":
    SNAPSHOT.write_text(snapshot())
