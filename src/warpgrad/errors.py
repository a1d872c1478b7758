"""What goes wrong in a way the user can mend: one sentence that names the thing and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

_EXTRAS = {
    **dict.fromkeys(("PIL", "gymnasium", "jinja2", "matplotlib", "rich", "tyro"), "paper"),
    **dict.fromkeys(("optuna", "sqlalchemy"), "sweep"),
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    **dict.fromkeys(("transformers", "tokenizers"), "text"),
}
"""Module -> the extra that installs it."""


class WarpgradError(ValueError):
    """Bad input: a model, task, setting, file or device that cannot be used as given.

    The message is one sentence for a person. The command line prints it alone and ends with `exit_code`.

    Example:
        >>> wg.SGD(lr=-1.0)
        Traceback (most recent call last):
        warpgrad.errors.WarpgradError: SGD(lr=-1.0): the step size must be greater than 0.
    """

    exit_code: ClassVar[int] = 2


class NonFiniteError(WarpgradError):
    """A loss, gradient or parameter became NaN or infinite; the message names it, the task and the step.

    It has an exit code of its own: a search tries settings under which training diverges, and has to tell that, which
    is a result, from a full disk or missing data, which is none.

    Example:
        >>> issubclass(wg.NonFiniteError, wg.WarpgradError)
        True
    """

    exit_code: ClassVar[int] = 3


def printable(text: object) -> str:
    """One line for a terminal or a page, whatever names came from files: all that is no printable character, such as
    newlines, escapes of a terminal or letters that turn the direction of writing, is shown as its escape."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in str(text))


def printable_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(printable(line) for line in text.split("\n"))


def check_name(name: str, what: str) -> str:
    """A name that becomes part of a path: one that leads elsewhere, or cannot be shown, is refused."""
    if name in ("", ".", "..") or "/" in name or "\\" in name or not name.isprintable() or len(name.encode()) > 200:
        raise WarpgradError(
            f"{what} '{printable(name)[:80]}' cannot be the name of a folder: take letters, digits and . + = - _ alone."
        )
    return name


def require(condition: object, sentence: str) -> None:
    """Raise a `WarpgradError` with the sentence unless the condition holds."""
    if not condition:
        raise WarpgradError(sentence)


@contextmanager
def naming_extras() -> Iterator[None]:
    """Where something that the block imports is missing because an extra is not installed, say how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in _EXTRAS:
            raise
        raise WarpgradError(f"{module} is not installed: pip install 'warpgrad[{_EXTRAS[module]}]'.") from error
