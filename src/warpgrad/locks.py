"""One process at a time, by a lock that ends with the process however it ends."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import BinaryIO

from warpgrad.errors import WarpgradError


class BusyError(WarpgradError):
    """Another process has it."""


def locked(path: Path, refusal: str) -> BinaryIO:
    """A file that only this process holds until it is closed or the process ends; `refusal` where another does."""
    file = path.open("a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise BusyError(refusal) from error
    return file
