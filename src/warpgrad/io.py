"""Files that are either whole or not there: written beside their place, then renamed into it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpgrad.errors import WarpgradError

if TYPE_CHECKING:
    from filelock import BaseFileLock

PARTIAL = ".partial-"
"""Prefix of files that were being written; one that is left over belongs to a process that was killed."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says (full disk, no permission) into one sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise WarpgradError(
            f"cannot write {path}: {reason}; mend that and repeat the command: what was saved before is still whole."
        ) from error


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` by `data`; a kill at any moment leaves the old file or the new one."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name of its own, and the permissions that any new file gets.
        temporary = path.parent / f"{PARTIAL}{os.getpid()}-{path.name}"
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_directory(path.parent)


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise WarpgradError(f"{path} is missing: is {path.parent} a run directory?") from error
    except (OSError, ValueError) as error:
        raise WarpgradError(
            f"{path} cannot be read as JSON ({error}); restore it or start over with --fresh."
        ) from error


def remove_partial(directory: Path) -> None:
    """Clear away what a killed process had begun to write."""
    for path in directory.glob(f"{PARTIAL}*"):
        path.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    """Make the rename itself survive a power cut, where the system allows it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class BusyError(WarpgradError):
    """Another process has it."""


def locked(path: Path, refusal: str) -> BaseFileLock:
    """A lock that only this process holds until it is released or the process ends; `refusal` where another does.

    The file at `path` is the lock's alone: some versions of filelock empty it.
    """
    from filelock import FileLock, Timeout  # a dependency of torch; imported here because help texts need no lock

    # Whichever thread took the lock, any may release it.
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise BusyError(refusal) from error
    return lock
