"""The kinds of arguments: what a person hands over by mistake is named, with what was meant.

    expect(rule, Rule, "rule", "SGD(0.1)")             # an object of that class, not the class itself
    integer(meta_steps, "meta_steps", at_least=1)

Every message is one sentence: the argument, what it should be, and what it is.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from warpgrad.errors import WarpgradError


def described(value: Any) -> str:
    """A value as a message names it: short ones as they are, others by their kind."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    article = "an" if type(value).__name__[0] in "AEIOUaeiou" else "a"
    return f"{article} {type(value).__name__}"


def expect(value: Any, kind: type[Any], argument: str, example: str, *, hint: str = "") -> None:
    """Refuse a value that is not an object of `kind`; `example` is what a person would write."""
    if isinstance(value, kind):
        return
    if isinstance(value, type) and issubclass(value, kind):
        raise WarpgradError(f"{argument}={value.__name__} is a class: make an object of it, e.g. {argument}={example}.")
    raise WarpgradError(
        f"{argument} must be {_article(kind.__name__)} {kind.__name__}, e.g. {example}, not {described(value)}{hint}."
    )


def integer(value: Any, argument: str, *, at_least: int = 0) -> int:
    """`value`, which must be an integer; a numpy integer is one, True is none."""
    number = _integral(value)
    if number is None:
        raise WarpgradError(f"{argument} must be an integer, not {described(value)}.")
    if number < at_least:
        raise WarpgradError(f"{argument}={number}: it must be at least {at_least}.")
    return number


def real(value: Any, argument: str, *, above: float | None = None, at_least: float | None = None) -> float:
    """`value`, which must be a finite number."""
    if isinstance(value, bool | str):
        raise WarpgradError(f"{argument} must be a number, not {described(value)}.")
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor or an array of several numbers among others
        raise WarpgradError(f"{argument} must be a number, not {described(value)}.") from error
    if not math.isfinite(number):
        raise WarpgradError(f"{argument}={number}: it must be finite.")
    if above is not None and not number > above:
        raise WarpgradError(f"{argument}={number}: it must be greater than {above:g}.")
    if at_least is not None and not number >= at_least:
        raise WarpgradError(f"{argument}={number}: it must be at least {at_least:g}.")
    return number


def flag(value: Any, argument: str) -> bool:
    """`value`, which must be True or False."""
    if not isinstance(value, bool):
        raise WarpgradError(f"{argument} must be True or False, not {described(value)}.")
    return value


def function(value: Any, argument: str, example: str) -> Callable[..., Any]:
    """`value`, which must be callable."""
    if not callable(value):
        raise WarpgradError(f"{argument} must be a function, e.g. {example}, not {described(value)}.")
    found: Callable[..., Any] = value
    return found


def choice(value: Any, argument: str, choices: Sequence[str]) -> None:
    """Refuse a value that is not one of these words."""
    if not isinstance(value, str) or value not in choices:
        raise WarpgradError(f"{argument}={described(value)} is unknown; choose one of {', '.join(choices)}.")


def file_path(value: Any, argument: str, example: str) -> Path:
    """`value` as a path, which must be a string or a path."""
    if not isinstance(value, str | Path):
        raise WarpgradError(f"{argument} must be a path, e.g. {example!r}, not {described(value)}.")
    return Path(value)


def mapping(value: Any, argument: str, example: str) -> Mapping[Any, Any]:
    """`value`, which must be a mapping."""
    if not isinstance(value, Mapping):
        raise WarpgradError(f"{argument} must be a mapping, e.g. {example}, not {described(value)}.")
    return value


def _integral(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # a tensor or an array of several numbers among others
        return None


def _article(word: str) -> str:
    return "an" if word[0] in "AEIOU" else "a"
