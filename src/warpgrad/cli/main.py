"""The command line: `warpgrad` alone lists the commands; every command and sub-command has --help.

`--debug` with any command shows where an error comes from. Exit codes are listed in `outer.py`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from inspect import signature
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, get_type_hints

from warpgrad.cli.outer import handled_signals, open_streams, outcome
from warpgrad.errors import WarpgradError
from warpgrad.experiments import DECLARATIONS
from warpgrad.version import __version__

if TYPE_CHECKING:
    from tyro.extras import SubcommandApp

LAUNCHERS = ("reproduce", "sweep", "demo")
"""Commands that start worker processes."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; every error becomes one sentence and an exit code, with `--debug` also a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    open_streams()
    with handled_signals():
        code = outcome(dispatch, [word for word in words if word != "--debug"], "--debug" in words)
    if (distributed := sys.modules.get("warpgrad.training.distributed")) is not None and "WORLD_SIZE" in os.environ:
        distributed.leave(code)  # started by torchrun
    sys.exit(code)


def dispatch(words: Sequence[str]) -> None:
    """Carry out one command line; raise a `WarpgradError` if anything is wrong with it."""
    if words and words[0] == "--version":
        print(__version__)
        return
    if words and words[0] in LAUNCHERS and _is_a_rank():
        if os.environ.get("RANK") != "0":  # rank 0 reports it for all
            raise SystemExit(2)
        raise WarpgradError(f"'warpgrad {words[0]}' starts its own processes: run the command without torchrun.")
    parse(words)()


def _is_a_rank() -> bool:
    """Return whether torchrun has started this process along with others."""
    if "WORLD_SIZE" not in os.environ:
        return False
    from warpgrad.training import distributed

    return distributed.shared()


def parse(words: Sequence[str]) -> partial[None]:
    """Return the function that a command line asks for, bound to its arguments; any mistake becomes one sentence."""
    complaints = io.StringIO()
    app = application(_commands(words))
    try:
        with contextlib.redirect_stderr(complaints):
            parsed: partial[None] = app.cli(
                prog="warpgrad",
                description=f"Warped Gradient Descent, version {__version__}; --debug shows where an error is.",
                args=["--help"] if list(words) in ([], ["help"]) else list(words),
            )
            return parsed
    except SystemExit as stop:
        if stop.code in (0, None) or (isinstance(stop.code, int) and stop.code > 128):  # done, or a signal
            raise
        raise WarpgradError(_sentence(complaints.getvalue(), words)) from None


def _commands(words: Sequence[str]) -> dict[str, Any]:
    """Return command -> the function behind it, or (help text, function or sub-commands).

    The words are needed because a preset, a file or a run determines the defaults of the options.
    """
    from warpgrad.cli import adapt, data, own_run, report, run, sweep, verify
    from warpgrad.data.prepared import CLINC, OMNIGLOT

    runs, sweeps = {}, {}
    for name, declared in DECLARATIONS.items():
        given = tuple(words[2:]) if words[1:2] == [name] else ()
        settings = run.initial_settings(declared, given)
        runs[name] = _about(declared.summary, f"run {name}"), _command(run.run_command, settings, declared=declared)
        searching = _command(sweep.sweep_command, settings, declared=declared, words=given)
        sweeps[name] = _about(declared.summary, f"sweep {name} --trials 50"), searching
    prepare = {
        name: (
            _about(about, f"data prepare {name}"),
            _command(
                data.prepare_omniglot_command if name.startswith(OMNIGLOT) else data.prepare_public_command, name=name
            ),
        )
        for name, about in data.PUBLIC.items()
    }
    own = {
        "folder": _command(data.prepare_folder_command),
        CLINC: _command(data.prepare_clinc_command),
        "text": _command(data.prepare_text_command),
    }
    named = words[:1] == ["evaluate"] and len(words) > 1 and not words[1].startswith("-")
    users = named and not run.of_experiment(Path(words[1]))
    tested, kept = run.run_config(Path(words[1])) if named and not users else (None, None)
    return {
        "list": _command(run.list_command),
        "run": (run.RUN, runs),
        "evaluate": _command(own_run.evaluate_own_command)
        if users
        else _command(run.evaluate_command, kept, declared=tested),
        "adapt": _command(adapt.adapt_command),
        "report": _command(report.report_command),
        "reproduce": _command(report.reproduce_command),
        "sweep": (sweep.SWEEP, sweeps),
        "data": (
            data.DATA,
            {
                "prepare": (data.PREPARE, {**prepare, **own}),
                "draw": _command(data.draw_command),
                "montage": _command(data.montage_command),
            },
        ),
        "verify": _command(verify.verify_command),
        "demo": _command(report.demo_command),
    }


def application(commands: Mapping[str, Any]) -> SubcommandApp:
    from tyro.extras import SubcommandApp

    app = SubcommandApp()
    for name, command in commands.items():
        about, target = command if isinstance(command, tuple) else (None, command)
        inner: Any = application(target) if isinstance(target, dict) else target
        app.command(name=name, help=about)(inner)
    return app


def _about(summary: str, example: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}.\n\nExample: warpgrad {example}"


def _command(function: Callable[..., None], settings: Any = None, **bound: Any) -> Callable[..., partial[None]]:
    """Wrap a function for tyro: every parameter is an option, and the call is deferred until all options are valid.

    The parameter `settings` becomes one option per setting, with the given settings as defaults. Parameters that
    are `bound` are not options.
    """
    from tyro.conf import OmitArgPrefixes

    @wraps(function)
    def deferred(*arguments: Any, **options: Any) -> partial[None]:
        return partial(function, *arguments, **options, **bound)

    del deferred.__dict__["__wrapped__"]  # otherwise tyro would inspect the wrapped function
    hints = get_type_hints(function, include_extras=True)
    own = signature(function)
    parameters = {name: parameter for name, parameter in own.parameters.items() if name not in bound}
    if settings is None and "settings" in parameters:
        bound["settings"] = parameters.pop("settings").default
    elif settings is not None:
        hints["settings"] = OmitArgPrefixes[type(settings)]  # type: ignore[misc]
        parameters["settings"] = parameters["settings"].replace(default=settings)
    typed = [parameter.replace(annotation=hints[name]) for name, parameter in parameters.items()]
    deferred.__signature__ = own.replace(parameters=typed)  # type: ignore[attr-defined]
    deferred.__annotations__ = {name: hints[name] for name in parameters}
    return deferred


def _sentence(box: str, words: Sequence[str]) -> str:
    """Turn a boxed message into one sentence: its first paragraph, and the alternatives that the others suggest."""
    lines = box.splitlines()
    if not box.startswith("╭"):  # if stdout is not UTF-8, there is a title and rules of hyphens
        lines = lines[2:]
    inside = " ".join(line.strip("│| ") for line in lines if line[:1] not in ("╭", "╰"))
    text, *others = (" ".join(part.split()) for part in re.split("[─-]{10,}", inside))
    text = text.rstrip(" .") or "the options cannot be parsed"
    offered = re.match(r"Available subcommands: (.*)|Perhaps you meant: (--[a-z0-9-]+)", others[0] if others else "")
    if offered and offered[1]:
        return f"{text[0].lower()}{text[1:]}; choose one of {offered[1]}."
    hint = f" (did you mean {offered[2]}?)" if offered else ""
    command = " ".join(["warpgrad", *takewhile(lambda word: not word.startswith("-"), words)])
    return f"{text[0].lower()}{text[1:]}{hint}; see '{command} --help'."
