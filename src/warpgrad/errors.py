"""Errors that the user can fix: one sentence that names the problem and the remedy.

The checks that raise them are here too:

    require(lr > 0, f"lr={lr}: the step size must be greater than 0.")
    expect(rule, Rule, "rule", "SGD(0.1)")             # an object of that class, not the class itself
    integer(meta_steps, "meta_steps", at_least=1)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar


class WarpgradError(ValueError):
    """Bad input: a model, task, setting, file or device that cannot be used as given.

    The message is one sentence for the user. The command line prints it alone and ends with `exit_code`.

    Example:
        >>> wg.SGD(lr=-1.0)
        Traceback (most recent call last):
        warpgrad.errors.WarpgradError: SGD(lr=-1.0): the step size must be greater than 0.
    """

    exit_code: ClassVar[int] = 2


class NonFiniteError(WarpgradError):
    """A loss, gradient or parameter became NaN or infinite; the message names it, the task and the step.

    It has a separate exit code: a search tries settings with which training diverges, and has to distinguish that,
    which is a result, from a full disk or missing data, which is not.

    Example:
        >>> issubclass(wg.NonFiniteError, wg.WarpgradError)
        True
    """

    exit_code: ClassVar[int] = 3


def printable(text: object) -> str:
    """Return text as one line that is safe to show on a terminal or a page, even if it contains names from files.

    Unprintable characters, such as newlines, terminal escapes or marks that change the writing direction, are escaped.
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in str(text))


def printable_lines(text: str) -> str:
    """Apply `printable` to each line of a text."""
    return "\n".join(printable(line) for line in text.split("\n"))


def check_name(name: str, what: str) -> str:
    """Return a name that becomes part of a path; raise an error if it leads elsewhere or cannot be displayed."""
    if name in ("", ".", "..") or "/" in name or "\\" in name or not name.isprintable() or len(name.encode()) > 200:
        raise WarpgradError(
            f"{what} '{printable(name)[:80]}' cannot be used as a folder name: use only letters, digits and . + = - _."
        )
    return name


def require(condition: object, sentence: str) -> None:
    """Raise a `WarpgradError` with the sentence unless the condition holds."""
    if not condition:
        raise WarpgradError(sentence)


def short_repr(value: Any) -> str:
    """Return a value for use in a message: simple values by their repr, others by their type."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    article = "an" if type(value).__name__[0] in "AEIOUaeiou" else "a"
    return f"{article} {type(value).__name__}"


def expect(value: Any, kind: type[Any], argument: str, example: str, *, hint: str = "") -> None:
    """Check that a value is an instance of `kind`; `example` is what a user would write."""
    if isinstance(value, kind):
        return
    if isinstance(value, type) and issubclass(value, kind):
        raise WarpgradError(f"{argument}={value.__name__} is a class: pass an instance, e.g. {argument}={example}.")
    raise WarpgradError(
        f"{argument} must be {_article(kind.__name__)} {kind.__name__}, e.g. {example}, not {short_repr(value)}{hint}."
    )


def integer(value: Any, argument: str, *, at_least: int = 0) -> int:
    """Return `value`, which must be an integer; a numpy integer is one, True is not."""
    number = _integral(value)
    if number is None:
        raise WarpgradError(f"{argument} must be an integer, not {short_repr(value)}.")
    if number < at_least:
        raise WarpgradError(f"{argument}={number}: it must be at least {at_least}.")
    return number


def real(value: Any, argument: str, *, above: float | None = None, at_least: float | None = None) -> float:
    """Return `value` as a float; it must be a finite number."""
    if isinstance(value, bool | str):
        raise WarpgradError(f"{argument} must be a number, not {short_repr(value)}.")
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor or an array of several numbers among others
        raise WarpgradError(f"{argument} must be a number, not {short_repr(value)}.") from error
    if not math.isfinite(number):
        raise WarpgradError(f"{argument}={number}: it must be finite.")
    if above is not None and not number > above:
        raise WarpgradError(f"{argument}={number}: it must be greater than {above:g}.")
    if at_least is not None and not number >= at_least:
        raise WarpgradError(f"{argument}={number}: it must be at least {at_least:g}.")
    return number


def flag(value: Any, argument: str) -> bool:
    """Return `value`, which must be True or False."""
    if not isinstance(value, bool):
        raise WarpgradError(f"{argument} must be True or False, not {short_repr(value)}.")
    return value


def function(value: Any, argument: str, example: str) -> Callable[..., Any]:
    """Return `value`, which must be callable."""
    if not callable(value):
        raise WarpgradError(f"{argument} must be a function, e.g. {example}, not {short_repr(value)}.")
    found: Callable[..., Any] = value
    return found


def choice(value: Any, argument: str, choices: Sequence[str]) -> None:
    """Check that a value is one of these strings."""
    if not isinstance(value, str) or value not in choices:
        raise WarpgradError(f"{argument}={short_repr(value)} is unknown; choose one of {', '.join(choices)}.")


def file_path(value: Any, argument: str, example: str) -> Path:
    """Return `value`, which must be a string or a path, as a path."""
    if not isinstance(value, str | Path):
        raise WarpgradError(f"{argument} must be a path, e.g. {example!r}, not {short_repr(value)}.")
    return Path(value)


def mapping(value: Any, argument: str, example: str) -> Mapping[Any, Any]:
    """Return `value`, which must be a mapping."""
    if not isinstance(value, Mapping):
        raise WarpgradError(f"{argument} must be a mapping, e.g. {example}, not {short_repr(value)}.")
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


@contextmanager
def understood(source: Path | None) -> Iterator[None]:
    """Turn any error in the content of a checkpoint into one sentence: even an intact file can contain anything."""
    try:
        yield
    except WarpgradError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RuntimeError, OverflowError) as error:
        where = f"checkpoint {source}" if source is not None else "the checkpoint"
        raise WarpgradError(
            f"{where} does not have the contents that this version expects ({type(error).__name__}: "
            f"{first_line(error)}); restore it, or start over with --fresh."
        ) from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type's name if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
