"""The search space of a sweep: what the experiment declares, changed by a file, minus what the command line fixes."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from warpgrad.errors import WarpgradError, require
from warpgrad.experiments.base import Config, Declaration, Experiment
from warpgrad.experiments.search_space import Choices, FloatRange, IntRange, Space
from warpgrad.experiments.settings_file import check_known, fitted, members, read_named, setting_kinds

Described = dict[str, dict[str, Any]]

_NOT_SWEPT = ("preset", "method", "seed", "device", "split")
"""Settings that define what is compared, and on what."""


def sweep_space(
    experiment: Experiment[Any], config: Config, fixed: Set[str], path: Path | None = None
) -> dict[str, Space]:
    """Return setting -> what to choose it from, without the `fixed` settings, which the command line names.

    The experiment must accept every end of a range and every choice in combination with the fixed settings.
    """
    space = {name: choice for name, choice in experiment.spaces.get(config.method, {}).items() if name not in fixed}
    if path is not None:
        given = read_space(path, experiment)
        both = sorted(set(given) & fixed)
        if both:
            raise WarpgradError(f"'{both[0]}' is both in {path} and fixed on the command line; leave one out.")
        space |= given
    require(
        space,
        f"there is nothing to search for {experiment.name}, method '{config.method}': "
        "give --space FILE.json with the settings to try.",
    )
    for name, choice in space.items():
        for value in choice.extremes:
            try:
                experiment.check(_changed(config, {name: value}))
            except WarpgradError as error:
                raise WarpgradError(f"the search space of '{name}' is out of bounds: {error}") from error
    return space


def read_space(path: Path, experiment: Declaration[Any]) -> dict[str, Space]:
    """Read a search space from a JSON file.

    {"inner_lr": {"low": 0.01, "high": 1.0, "log": true}, "warp": {"choices": ["conv3x3", "linear"]}}
    """
    kinds = setting_kinds(experiment)
    space: dict[str, Space] = {}
    for name, described in read_named(path).items():
        check_known(name, kinds, experiment, path)
        require(name not in _NOT_SWEPT, f"{path} would sweep '{name}', which must be the same for all trials.")
        try:
            space[name] = _parsed(described, kinds[name])
        except WarpgradError as error:
            raise WarpgradError(f"{path}, '{name}': {error}") from None
    return space


def _parsed(described: Any, kind: Any) -> Space:
    keys = set(described) if isinstance(described, dict) else set()
    if keys == {"choices"} and isinstance(described["choices"], list):
        return Choices(tuple(fitted(value, kind) for value in described["choices"]))
    require(
        {"low", "high"} <= keys <= {"low", "high", "log"},
        'give {"low": …, "high": …, "log": true or false} or {"choices": […]}.',
    )
    log = described.get("log", False)
    require(isinstance(log, bool), f"log is {log!r}; it is true or false.")
    numbers = [member for member in members(kind) if member in (int, float)]
    require(numbers, "it is not a number, so it cannot have a range; give choices.")
    low, high = (fitted(described[end], numbers[0]) for end in ("low", "high"))
    return IntRange(low, high, log) if numbers[0] is int else FloatRange(low, high, log)


def space_to_json(space: Mapping[str, Space]) -> Described:
    """Return the space as it would be written in a file."""
    return {
        name: {key: list(value) if isinstance(value, tuple) else value for key, value in vars(choice).items()}
        for name, choice in space.items()
    }


def sentence(choice: Space) -> str:
    """Describe in words what a setting is chosen from."""
    if isinstance(choice, Choices):
        return "one of " + ", ".join(str(value) for value in choice.choices)
    whole = "integers " if isinstance(choice, IntRange) else ""
    return f"{whole}{choice.low:g} to {choice.high:g}{', logarithmic' if choice.log else ''}"


def _changed(config: Config, changes: Mapping[str, Any]) -> Config:
    return dataclasses.replace(config, **changes)


def validation_config(experiment: Declaration[Any], config: Config, *, named: bool = False) -> Config:
    """Return settings for trials on the validation split: settings chosen on the test split prove nothing there.

    `named` says that the user asked for the split of `config`.
    """
    splits = typing.get_args(setting_kinds(experiment).get("split"))
    require(
        "validation" in splits,
        f"{experiment.name} has no validation split, so a sweep would choose its settings on the test tasks.",
    )
    if not named:
        return _changed(config, {"split": "validation"})
    require(
        getattr(config, "split", None) != "test",
        "a sweep chooses settings, so it cannot use the test split; leave --split out.",
    )
    return config
