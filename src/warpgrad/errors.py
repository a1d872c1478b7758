"""What goes wrong in a way the user can mend: one sentence that names the thing and the remedy."""

from __future__ import annotations


class WarpgradError(ValueError):
    """Bad input: a model, task, setting, file or device that cannot be used as given.

    The message is one sentence for a person. The command line prints it alone and exits with code 2.
    """


class NonFiniteError(WarpgradError):
    """A loss, gradient or parameter became NaN or infinite; the message names it, the task and the step."""
