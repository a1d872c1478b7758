"""Faults at the n-th file operation, as SQLite's tests have them: the process is killed, or the system says no.

`install` puts itself between Python and the system in this process. Operations on files below a root are counted, in
memory that forked processes share; before the n-th the process dies by SIGKILL, or that operation fails with an error.

`Below` does the same between the C library and the system, for all code in the process: SQLite, safetensors, torch,
memory maps, and reads too. It needs a C compiler, and a process that was started with it.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import io
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

KINDS = {"kill": None, "ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EMFILE": errno.EMFILE, "full": errno.ENOSPC}
"""`full` is ENOSPC from the n-th operation on, for all that take room, until the process ends."""
PATHS = ("open", "replace", "rename", "unlink", "remove", "mkdir", "rmdir", "truncate", "link", "symlink")
DESCRIPTORS = ("write", "fsync", "ftruncate", "posix_fallocate")
ROOM = ("open", "write", "mkdir", "posix_fallocate", "fsync", "file.write", "file.flush")


class Counter:
    """How many operations there were, in all processes that are forked from this one."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)

    def step(self) -> int:
        self.value += 1
        return self.value

    @property
    def value(self) -> int:
        return struct.unpack("q", self._memory[:8])[0]

    @value.setter
    def value(self, count: int) -> None:
        self._memory[:8] = struct.pack("q", count)


class Faults:
    def __init__(self, root: Path, counter: Counter, place: int, kind: str) -> None:
        self.root, self.counter, self.place, self.kind = f"{root.resolve()}/", counter, place, kind
        self.descriptors: set[int] = set()

    def install(self) -> None:
        for name in PATHS:
            setattr(os, name, self._path(name, getattr(os, name)))
        for name in DESCRIPTORS:
            setattr(os, name, self._descriptor(name, getattr(os, name)))
        builtins.open = io.open = self._opening(io.open)

    def before(self, name: str) -> None:
        count = self.counter.step()
        if count < self.place or (count > self.place and not (self.kind == "full" and name in ROOM)):
            return
        code = KINDS[self.kind]
        if code is None:
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            raise OSError(code, os.strerror(code))

    def _below(self, path: object) -> bool:
        if not isinstance(path, str | os.PathLike):
            return False
        return os.path.abspath(os.fspath(path)).startswith(self.root)  # noqa: PTH100 - links are not followed

    def _path(self, name, function):
        def wrapped(path, *arguments, **options):
            counted = self._below(path)
            if counted:
                self.before(name)
            found = function(path, *arguments, **options)
            if name == "open":
                (self.descriptors.add if counted else self.descriptors.discard)(found)
            return found

        return wrapped

    def _descriptor(self, name, function):
        def wrapped(descriptor, *arguments, **options):
            if descriptor in self.descriptors:
                self.before(name)
            return function(descriptor, *arguments, **options)

        return wrapped

    def _opening(self, function):
        def wrapped(file, mode="r", *arguments, **options):
            if not self._below(file):
                return function(file, mode, *arguments, **options)
            self.before("open")
            found = function(file, mode, *arguments, **options)
            return FaultyFile(found, self) if set(mode) & set("wax+") else found

        return wrapped


class Below:
    """The faults of below.c, in a process that was started by `start_below`."""

    def __init__(self, root: Path, counter: Counter, place: int, kind: str) -> None:
        self._root, self._counter = f"{root.resolve()}/".encode(), counter
        self._fault = (place, KINDS[kind] or 0, kind == "full")

    def install(self) -> None:
        self._count = ctypes.c_long.from_buffer(self._counter._memory)
        ctypes.CDLL(None).fail_at(
            ctypes.c_char_p(self._root), ctypes.c_long(self._fault[0]), *self._fault[1:], ctypes.byref(self._count)
        )
        KEPT.append(self)


KEPT: list[Below] = []
"""What below.c points to."""


def is_below() -> bool:
    """Whether this process was started with below.c in it."""
    return hasattr(ctypes.CDLL(None), "fail_at")


def start_below() -> None:
    """Start this program again with below.c in it, unless it has been."""
    if is_below():
        shutil.rmtree(Path(os.environ.pop("LD_PRELOAD")).parent)  # it is in memory now
        return
    library = Path(tempfile.mkdtemp(prefix="warpgrad-below-")) / "below.so"
    source = Path(__file__).with_name("below.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    os.environ["LD_PRELOAD"] = str(library)
    os.execv(sys.executable, sys.orig_argv)


class FaultyFile:
    """An open file whose writes are counted too."""

    def __init__(self, file, faults: Faults) -> None:
        self._file, self._faults = file, faults

    def __getattr__(self, name: str):
        function = getattr(self._file, name)
        if name not in ("write", "flush", "truncate"):
            return function

        def wrapped(*arguments):
            self._faults.before(f"file.{name}")
            return function(*arguments)

        return wrapped

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self):
        return iter(self._file)
