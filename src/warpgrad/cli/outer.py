"""The outer layer of every command: errors become one sentence and an exit code, and signals are handled cleanly.

Exit codes: 0 done; 2 an error that you can fix; 3 a run that diverged; 130, 143 and 129 stopped by Ctrl-C, SIGTERM or
a closed terminal, with the work saved.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import re
import signal
import socket
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from warpgrad.errors import WarpgradError, printable
from warpgrad.io import HANG_UP, LIFELINE, SIGNALS
from warpgrad.lazy import naming_extras

STOPPED = "stopped; run the same command to resume."
GRACE_SECONDS = 30.0
"""How long a rank that has lost its launcher may take to save and end."""
_NO_MEMORY = ("not enough memory", "out of memory", "failed to map segment", "Cannot allocate memory")
"""How torch and the loader of shared libraries report that memory has run out."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _NEVER = -1, -3, 2**31 - 1
"""Parameters of glibc's mallopt."""


def outcome(dispatch: Callable[[list[str]], None], words: list[str], debug: bool) -> int:
    """Carry out a command line and return its exit code."""
    try:
        _check_directory()
        keep_freed_memory()
        follow_parent()
        for word in words:
            if not word.isprintable() and any(ord(letter) < 32 or 126 < ord(letter) < 160 for letter in word):
                raise WarpgradError("an option contains control characters; remove them.")
        with naming_extras():
            dispatch(words)
        code = 0
        if sys.stdout is not None:
            sys.stdout.flush()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 2 if stop.code else 0
        if code > 128:
            _say(STOPPED)
    except BaseException as error:
        if debug:
            traceback.print_exc()
        return _said(error)
    return code


def _check_directory() -> None:
    """Refuse to work in a directory that was deleted, where torch ends the process without a word of its own."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise WarpgradError("the current directory is gone; change to another and repeat the command.") from None


def _said(error: BaseException) -> int:
    """Print what went wrong in one sentence and return the exit code."""
    number = getattr(error, "number", signal.SIGINT) if type(error).__name__ == "Interrupted" else signal.SIGINT
    detail = next((line for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, WarpgradError):
        _say(str(error))
        return error.exit_code
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Interrupted":
        _say(STOPPED)
        return 128 + number
    if isinstance(error, BrokenPipeError) and error.filename is None:
        return 128 + signal.SIGPIPE  # the reader has closed the pipe
    if isinstance(error, MemoryError) or any(words in detail for words in _NO_MEMORY):
        _say("there is not enough memory; choose smaller sizes or free some memory, and repeat the command.")
    elif isinstance(error, RecursionError):
        _say("an input is nested too deeply to be read; repeat the command with --debug to see where.")
    elif isinstance(error, OSError):
        place = f" ({error.filename})" if error.filename is not None else ""
        _say(f"the operating system refused: {error.strerror or detail}{place}; fix that and repeat the command.")
    elif _while_importing_torch(error):
        _say(
            f"torch cannot be imported ({type(error).__name__}: {detail}); check its installation and the TORCH_... "
            "environment variables."
        )
    else:
        _say(
            f"this should not have happened ({type(error).__name__}: {detail}); saved files are intact; repeat the "
            "command with --debug to see where, and please report it."
        )
    return 2


def _while_importing_torch(error: BaseException) -> bool:
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(frame.f_globals.get("__name__") == "torch" and frame.f_code.co_name == "<module>" for frame in frames)


def print_line(line: str, stream: TextIO | None = None) -> None:
    """Print a line for the user, with unprintable characters in names from files escaped."""
    print(printable(line), file=stream, flush=stream is not None)


def _say(sentence: str) -> None:
    """Print a sentence to the terminal, if it is still there."""
    # The URL of a database may end up in a message; its password must not be shown.
    shown = re.sub(r"(\w:/{1,2}[^/\s:@]*):[^/\s@]+@", r"\1:…@", printable(sentence))
    with contextlib.suppress(OSError, ValueError):
        print(f"warpgrad: {shown}", file=sys.stderr, flush=True)


def open_streams() -> None:
    """Make sure that output goes somewhere, with characters that the terminal cannot encode escaped."""
    # A closed descriptor would be reused by the next file that is opened, and messages would be written into it.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - as long as the process lives
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def handled_signals() -> Iterator[None]:
    """End the command cleanly on a signal; further signals are ignored once it is ending."""
    ending = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        if ending:
            return
        ending = True
        # An exception in the middle of an import may be swallowed, and an import leaves no half-written file.
        while frame is not None:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                # Straight to the descriptor, because stderr is captured while options are parsed.
                with contextlib.suppress(OSError):
                    os.write(2, f"warpgrad: {STOPPED}\n".encode())
                os._exit(128 + number)
            frame = frame.f_back
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if number != HANG_UP or signal.getsignal(number) is not signal.SIG_IGN:  # respect nohup
                previous[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        ending = True
        # Output still buffered may have no reader left, and the interpreter would print its own message about it.
        with contextlib.suppress(OSError, ValueError):
            try:
                sys.stdout.flush()
            except (OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        for each, handler in previous.items():
            signal.signal(each, handler)


def _is_pipe(descriptor: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except (OSError, OverflowError):  # a stale variable: the environment outlived the pipe
        return False


def store_is_gone() -> bool:
    """Return whether torchrun, which serves the store that its processes meet in, has ended and refuses connections."""
    try:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), timeout=10).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError, KeyError):
        pass
    return False


def follow_parent() -> None:
    """Stop and save when the process that started this one as its worker has ended for any reason."""
    descriptor = os.environ.pop(LIFELINE, "")
    alone = os.getppid()
    # The standard streams may be pipes too, but no parent passes its lifeline as one of them.
    if descriptor.isdigit() and int(descriptor) > 2 and _is_pipe(int(descriptor)):

        def wait() -> None:
            with contextlib.suppress(OSError):
                os.read(int(descriptor), 1)  # nothing is ever written: it returns when the other end is closed
            os.kill(os.getpid(), signal.SIGTERM)

    elif "TORCHELASTIC_RUN_ID" in os.environ:
        gone = store_is_gone()

        def wait() -> None:
            # If the launcher ended before this point, the parent never changes any more; but its store is gone.
            while os.getppid() == alone and not gone:
                time.sleep(1)
            os.kill(os.getpid(), signal.SIGTERM)
            # A main thread that waits for the others inside torch does not hear it, and nobody will come.
            time.sleep(GRACE_SECONDS)
            os._exit(128 + signal.SIGTERM)

    else:
        return
    threading.Thread(target=wait, daemon=True).start()


def keep_freed_memory() -> bool:
    """Ask the C library to reuse freed blocks, so that the process keeps its peak memory; return whether it can.

    Large activations are allocated and freed thousands of times a minute. By default glibc returns blocks of some
    hundred kilobytes to the kernel, which clears and maps every page again at the next allocation. For small
    convolutional networks that took a quarter of an inner step.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _NEVER)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
