"""Settings in a JSON file, each checked against its type in the experiment's config."""

from __future__ import annotations

import json
import textwrap
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from warpgrad.errors import WarpgradError, require
from warpgrad.experiments.base import Config, Declaration
from warpgrad.io import JSON_BYTES, DamagedError, read_bytes, settings_of, unsealed

LARGEST = 10**300
"""Integers of this magnitude or more are not converted to floating point."""
_KINDS: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    types.NoneType: "null",
}


def read_settings(path: Path, experiment: Declaration[Any]) -> dict[str, Any]:
    """Read settings by name from a file, which may be the config.json of a run of the same experiment."""
    values = settings_of(read_named(path))
    of = values.pop("experiment", experiment.name)
    require(of == experiment.name, f"{path} contains settings of {of}, not of {experiment.name}.")
    return fitted_settings(values, experiment, path)


def fitted_settings(values: Mapping[str, Any], experiment: Declaration[Any], path: Path) -> dict[str, Any]:
    """Convert settings to the types of the config; errors about unknown or ill-typed settings name the file."""
    kinds, found = setting_kinds(experiment), {}
    for name, value in values.items():
        check_known(name, kinds, experiment, path)
        try:
            found[name] = fitted(value, kinds[name])
        except WarpgradError as error:
            raise WarpgradError(f"{path}, '{name}': {error}") from None
    return found


def read_named(path: Path) -> dict[str, Any]:
    """Read a JSON object, and verify its checksum if it has one."""
    require(path.is_file(), f"{path} is not a file; give a JSON file.")
    try:
        values = unsealed(json.loads(read_bytes(path, JSON_BYTES, follow=True)), path, "write it again")
    except DamagedError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise WarpgradError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(values, dict):
        raise WarpgradError(f"{path} must contain a JSON object of named values, not a {type(values).__name__}.")
    return values


def setting_kinds(experiment: Declaration[Any]) -> dict[str, Any]:
    """Return a mapping from each setting to its type."""
    preset: Config = next(iter(experiment.presets.values()))
    return typing.get_type_hints(type(preset))


def check_known(name: str, kinds: dict[str, Any], experiment: Declaration[Any], path: Path) -> None:
    require(
        name in kinds,
        f"{path} sets '{name}', which {experiment.name} does not have; "
        f"'warpgrad run {experiment.name} --help' lists its settings.",
    )


def fitted(value: Any, kind: Any) -> Any:
    """Convert a value to the type of its setting: a list to a tuple, an integer to a float where one is expected."""
    for member in members(kind):
        if typing.get_origin(member) is Literal:
            if any(type(value) is type(choice) and value == choice for choice in typing.get_args(member)):
                return value
        elif typing.get_origin(member) is tuple:
            if isinstance(value, list):
                return tuple(fitted(item, typing.get_args(member)[0]) for item in value)
        elif member is float and (type(value) is float or (type(value) is int and abs(value) < LARGEST)):
            return float(value)
        elif type(value) is member:
            return value
    raise WarpgradError(f"it is {textwrap.shorten(json.dumps(value), 80)}, but must be {_described(kind)}.")


def members(kind: Any) -> tuple[Any, ...]:
    """Return the types that a setting may have: the members of a union, or the type itself."""
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


def _described(kind: Any) -> str:
    words = []
    for member in members(kind):
        if typing.get_origin(member) is Literal:
            words.append("one of " + ", ".join(str(choice) for choice in typing.get_args(member)))
        elif typing.get_origin(member) is tuple:
            words.append(f"a list, each item {_described(typing.get_args(member)[0])}")
        else:
            words.append(_KINDS.get(member, getattr(member, "__name__", str(member))))
    return " or ".join(words)
