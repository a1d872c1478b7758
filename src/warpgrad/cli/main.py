"""The command line. `warpgrad` alone says what there is; every command has --help.

Exit codes: 0 done; 2 bad input and 3 a run that diverged, with one sentence on stderr; 130 and 143 stopped by Ctrl-C
and SIGTERM, work saved.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn, TypeVar

from warpgrad.allocator import keep_freed_memory
from warpgrad.errors import WarpgradError, naming_extras
from warpgrad.version import __version__

T = TypeVar("T")

COMMANDS = {
    "list": ("run", "list_experiments"),
    "run": ("run", "run"),
    "evaluate": ("run", "evaluate"),
    "adapt": ("adapt", "adapt"),
    "report": ("report", "report"),
    "reproduce": ("report", "reproduce"),
    "sweep": ("sweep", "sweep"),
    "data": ("data", "data"),
    "demo": ("report", "demo"),
}
"""Command -> its file in this folder, and its function there; imported when the command is given."""
LAUNCHERS = ("reproduce", "sweep", "demo")
"""Commands that start processes of their own."""
USAGE = """\
warpgrad {version}: Warped Gradient Descent

  warpgrad list                    experiments, methods, presets and tables
  warpgrad run EXPERIMENT          meta-train and evaluate; the same command again goes on
  warpgrad evaluate RUN            test a run again, with other test settings if you like
  warpgrad adapt RUN               adapt a run of text-intents to your own labelled sentences
  warpgrad report RUN...           one self-contained HTML page about some runs
  warpgrad reproduce TABLE         run what is missing of a table of the paper, and build it
  warpgrad sweep EXPERIMENT        search for settings on the validation split; the same command again goes on
  warpgrad data COMMAND            prepare the public data sets, draw alphabets, look at them
  warpgrad demo                    two experiments end to end, in a few minutes

'warpgrad COMMAND --help' tells the options."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point: never a traceback for what the user can mend."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    keep_freed_memory()
    code: int | str | None
    try:
        with naming_extras():
            code = _dispatch(words)
    except WarpgradError as error:
        print(f"warpgrad: {error}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        print("warpgrad: stopped; run the same command to go on.", file=sys.stderr)
        code = 130
    except SystemExit as stop:
        code = stop.code
    if "WORLD_SIZE" in os.environ and isinstance(code, int):  # started by torchrun
        from warpgrad.training.distributed import leave

        leave(code)
    sys.exit(code)


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE.format(version=__version__))
        return 0
    if words[0] == "--version":
        print(__version__)
        return 0
    if words[0] not in COMMANDS:
        raise WarpgradError(f"there is no command '{words[0]}'; 'warpgrad --help' lists them.")
    if words[0] in LAUNCHERS and _is_a_rank():
        if os.environ["RANK"] != "0":  # rank 0 says it for all
            return 2
        raise WarpgradError(f"'warpgrad {words[0]}' starts processes of its own: give the command without torchrun.")
    file, function = COMMANDS[words[0]]
    getattr(import_module(f"warpgrad.cli.{file}"), function)(words[1:])
    return 0


def _is_a_rank() -> bool:
    """Whether torchrun has started this process along with others."""
    if "WORLD_SIZE" not in os.environ:
        return False
    from warpgrad.training import distributed

    return distributed.shared()


def parse(form: Any, words: Sequence[str], program: str, default: T | None = None) -> Any:
    """Options into a dataclass; what is wrong with them becomes one sentence."""
    import tyro

    complaints = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaints):
            if default is None:
                return tyro.cli(form, args=list(words), prog=program)
            return tyro.cli(form, args=list(words), prog=program, default=default)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise WarpgradError(f"{_sentence(complaints.getvalue())}; see '{program} --help'.") from None


def _sentence(box: str) -> str:
    """The first paragraph of a boxed message."""
    lines = [re.sub(r"^[│|]\s?|\s*[│|]$", "", line).strip() for line in box.splitlines()]
    kept: list[str] = []
    for line in lines:
        if line.startswith("╭"):
            continue
        if line.startswith(("─", "╰")):
            break
        kept.append(line)
    text = " ".join(kept).strip().rstrip(".") or "the options cannot be understood"
    near = re.findall(r"--[a-z][a-z0-9-]*", " ".join(lines[len(kept) + 1 :])) if "nrecognized" in text else []
    hint = f" (did you mean {near[0]}?)" if near and near[0] != "--help" else ""
    return text[0].lower() + text[1:] + hint
