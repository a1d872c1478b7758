"""Files that are either whole or not there, and that are what they were when they were written.

A file is written beside its place, brought to the disk, and renamed into its place. JSON files of a run carry the
SHA-256 of their content (`sealed`), which is compared when they are read. Files are opened without following a link,
and nothing but a regular file is read: a link, a pipe or a device in a run directory was put there by somebody else.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import signal
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from warpgrad.errors import WarpgradError

PARTIAL = ".partial-"
"""Prefix of files that were being written; one that is not locked belongs to a process that was killed."""
SEAL = "sha256"
"""The entry of a JSON object that says what the SHA-256 of all others is."""
CHECKSUMS = "checksums.json"
"""The file of a folder that says what the SHA-256 of all others is."""
READ = ("data_sha256", "encoder_sha256")
"""Entries of a run's config.json that are no settings but checksums of what it reads; earlier versions kept none."""
LIFELINE = "WARPGRAD_LIFELINE"
"""Environment variable of a worker: the descriptor of a pipe whose other end its parent holds as long as it lives."""
JSON_BYTES = 1 << 30
"""A longer JSON file is refused before it is read."""


_CAUTIOUS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY"))


class BusyError(WarpgradError):
    """Another process has it."""


class DamagedError(WarpgradError):
    """A file is not what it was when it was written."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says (full disk, no permission) into one sentence."""
    try:
        yield
    except OSError as error:
        raise WarpgradError(
            f"cannot write {path}: {reason(error)}; fix that and repeat the command: what was saved before is still "
            "whole."
        ) from error


def reason(error: OSError) -> str:
    """What the system says, in its own words without the number."""
    if error.errno == errno.ELOOP:
        return "it is a link, which is not followed"
    return error.strerror or str(error)


def open_regular(path: Path, flags: int = os.O_RDONLY, *, follow: bool = False) -> int:
    """A descriptor of a regular file, no pipe or device; unless links are followed, one that `path` names itself."""
    # Without O_NONBLOCK, opening a pipe waits for its other end.
    flags |= _CAUTIOUS
    descriptor = os.open(path, flags & ~getattr(os, "O_NOFOLLOW", 0) if follow else flags, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_bytes(path: Path, limit: int | None = None, *, follow: bool = False) -> bytes:
    """The content of a regular file of at most `limit` bytes; `follow` for files that the user names."""
    with open(open_regular(path, follow=follow), "rb") as file:
        if limit is not None and os.fstat(file.fileno()).st_size > limit:
            raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
        return file.read()


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` by `data`; a kill at any moment leaves the old file or the new one."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_partial(path.parent, path.name)
        temporary, descriptor = _begun(path)
        try:
            try:
                write_all(descriptor, data)
                os.fsync(descriptor)
                temporary.replace(path)
            finally:
                # Closing frees the lock that marks the file as being written.
                os.close(descriptor)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        _sync_directory(path.parent)


def write_all(descriptor: int, data: bytes) -> None:
    """All of `data`, however little the system takes at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _begun(path: Path) -> tuple[Path, int]:
    """A new file beside `path`, locked by this process for as long as it is open."""
    while True:
        # The name is random, so that nobody can have put a link there.
        temporary = path.parent / f"{PARTIAL}{secrets.token_hex(8)}-{path.name}"
        descriptor = open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with suppress(OSError):  # a file system without locks: only cleaning up is lost
                _lock(descriptor, wait=True)
            if os.fstat(descriptor).st_nlink:
                return temporary, descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # cleared away by another process between the two calls


def remove_partial(directory: Path, name: str | None = None) -> None:
    """Remove what killed processes had begun to write in `directory`, or only what was to become its file `name`."""
    for path in directory.iterdir():
        if not path.name.startswith(PARTIAL) or not (name is None or path.name.endswith(f"-{name}")):
            continue
        with suppress(FileNotFoundError, BlockingIOError):  # gone meanwhile, or being written
            descriptor = open_regular(path)
            try:
                _lock(descriptor)
                path.unlink()
            finally:
                os.close(descriptor)


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with the SHA-256 of its content."""
    return {**value, SEAL: digest(value)}


def unsealed(value: Any, path: Path, remedy: str = "restore it or start over with --fresh", seal: str = SEAL) -> Any:
    """What was sealed, compared with its checksum; older files have none and are taken as they are."""
    if not isinstance(value, dict):
        return value
    content = {name: part for name, part in value.items() if name != seal}
    # Where the seal's own name is damaged, it is still the checksum of all else.
    renamed = seal not in value and any(
        isinstance(part, str)
        and len(part) == 64
        and part == digest({other: kept for other, kept in value.items() if other != name})
        for name, part in value.items()
    )
    if renamed or (seal in value and digest(content) != value[seal]):
        raise DamagedError(
            f"{path} is damaged: its content does not have the checksum that stands in it; {remedy} (or, if you have "
            f"edited it, delete its entry '{seal}')."
        )
    return content


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, however it is set."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_json(path: Path, value: Any, *, seal: bool = False) -> None:
    """Write a JSON value; with `seal`, an object with the checksum of its content."""
    kept = json.loads(json.dumps(value))  # what will be read: names are texts, tuples are lists
    write_bytes(path, _set(sealed(kept) if seal else kept))


def _set(value: Any) -> bytes:
    """A JSON value as it stands in a file."""
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def check_every_byte(path: Path) -> bool:
    """Whether a JSON file that `write_json` wrote has a seal; refuses one of which any byte has changed, also where
    that changes no value, such as the case of a letter in an escape."""
    read_json(path)
    data = read_bytes(path, JSON_BYTES)
    value = json.loads(data)
    if not isinstance(value, dict) or SEAL not in value:
        return False
    if data != _set(value):
        raise DamagedError(f"{path} is damaged: it is not set as it was written; restore it or write it again.")
    return True


def write_checksums(folder: Path) -> None:
    """Keep the SHA-256 of every file in a folder that others will read."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    found = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    write_json(folder / CHECKSUMS, {"files": found}, seal=True)


def check_files(folder: Path) -> list[str]:
    """The files of a folder that were compared with its checksums; none where it has no checksums."""
    if not (folder / CHECKSUMS).exists():
        return []
    check_every_byte(folder / CHECKSUMS)
    files = read_object(folder / CHECKSUMS).get("files")
    if not isinstance(files, dict) or not all(isinstance(part, str) for part in files.values()):
        raise DamagedError(f"{folder / CHECKSUMS} names no files; restore it or make the folder again.")
    for name, expected in files.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise DamagedError(f"{folder / CHECKSUMS} names '{name}', which is elsewhere; make the folder again.")
        try:
            found = hashlib.sha256(read_bytes(folder / name, follow=True)).hexdigest()
        except OSError as error:
            raise DamagedError(f"{folder / name} cannot be read: {reason(error)}; make the folder again.") from error
        if found != expected:
            raise DamagedError(f"{folder / name} is damaged: it does not have its checksum; make the folder again.")
    return sorted(files)


def read_json(path: Path) -> Any:
    """A JSON value; one that was sealed is checked, and comes back without its seal."""
    try:
        value = json.loads(read_bytes(path, JSON_BYTES))
    except FileNotFoundError as error:
        raise WarpgradError(f"{path} is missing: is {path.parent} a run directory?") from error
    except OSError as error:
        raise WarpgradError(f"{path} cannot be read: {reason(error)}; fix that and repeat the command.") from error
    except (ValueError, RecursionError) as error:
        raise WarpgradError(
            f"{path} cannot be read as JSON ({error}); restore it or start over with --fresh."
        ) from error
    return unsealed(value, path)


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run's config.json are settings: all but its format and the checksums of what it reads."""
    return {name: value for name, value in config.items() if name not in ("format", *READ)}


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object, with the same checks."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise WarpgradError(
            f"{path} holds a {type(value).__name__} instead of an object of named values; restore it or start over "
            "with --fresh."
        )
    return value


def _sync_directory(directory: Path) -> None:
    """Make the rename itself survive a power cut, where the system allows it."""
    if sys.platform == "win32":
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, wait: bool = False) -> None:
    """Lock an open file for as long as it is open; BlockingIOError where another process has it."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError from error
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


class Lock:
    """A lock that only this process holds, until it is released or the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def locked(path: Path, refusal: str) -> Lock:
    """The lock on the file at `path`, which is the lock's alone; `refusal` where another process has it."""
    descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
    try:
        _lock(descriptor)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise BusyError(refusal) from error
        raise
    return Lock(descriptor)


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


HANG_UP: int | None = getattr(signal, "SIGHUP", None)
"""The signal of a closed terminal, which Windows does not have."""
SIGNALS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, *(() if HANG_UP is None else (HANG_UP,)))
"""What asks a program to stop."""
