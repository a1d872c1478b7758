"""Whose a running trial is: every process that sweeps holds a lock of its own, which the system frees when it dies.

A trial names its owner. If that owner's lock is free, the owner is gone, killed or not, and whoever takes the lock may
take the trial. A process number would not do: numbers come again.
"""

from __future__ import annotations

import uuid
from collections.abc import Set
from pathlib import Path
from types import TracebackType
from typing import Self

from warpgrad.io import PARTIAL, BusyError, Lock, locked, writing

_PREFIX = ".owner-"


def try_lock(path: Path) -> Lock | None:
    """The lock on a file, held until released; None where another process has it."""
    try:
        return locked(path, f"another process holds {path}.")
    except BusyError:
        return None


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock on this file."""
    if not path.exists():
        return False
    lock = try_lock(path)
    if lock is None:
        return True
    lock.release()
    return False


class Owner:
    """This process as the owner of trials, by a file in `directory` that it keeps locked."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.name = uuid.uuid4().hex
        beside = directory / f"{PARTIAL}{self.name}"
        with writing(directory):
            directory.mkdir(parents=True, exist_ok=True)
            # Locked before it has its name, so that nobody finds it free.
            self._lock = try_lock(beside)
            beside.rename(self.file(self.name))

    def file(self, name: str) -> Path:
        return self.directory / f"{_PREFIX}{name}"

    def tidy(self, needed: Set[str]) -> None:
        """Forget owners that are gone, and this one, where no running trial names them."""
        for file in self.directory.glob(f"{_PREFIX}*"):
            name = file.name.removeprefix(_PREFIX)
            if name not in needed and (name == self.name or not is_locked(file)):
                file.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The file stays where it was not tidied: trials left running are known by it to be of this place, and free.
        if self._lock is not None:
            self._lock.release()
