"""Files that are either complete or absent, and whose content is checked against its checksum.

A file is written under a temporary name, flushed to disk, and renamed. JSON files of a run contain the SHA-256 of
their content (`sealed`), which is checked when they are read. Files are opened without following links, and only
regular files are read: a link, a pipe or a device in a run directory was put there by somebody else.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import signal
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from warpgrad.errors import WarpgradError

PARTIAL = ".partial-"
"""Prefix of files that are being written; one that is not locked belongs to a process that was killed."""
SEAL = "sha256"
"""The entry of a JSON object that holds the SHA-256 of all others."""
CHECKSUMS = "checksums.json"
"""The file in a folder that holds the SHA-256 of all others."""
CONTENT = "_sha256"
"""Suffix of entries of a run's config.json that are no settings: `data_sha256` is the SHA-256 of what `data` names."""
LIFELINE = "WARPGRAD_LIFELINE"
"""Environment variable of a worker: the descriptor of a pipe whose other end its parent holds as long as it lives."""
JSON_BYTES = 1 << 30
"""A larger JSON file is rejected before it is read."""


_CAUTIOUS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY"))


class BusyError(WarpgradError):
    """Another process holds the lock."""


class DamagedError(WarpgradError):
    """A file has changed since it was written."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of the system (full disk, no permission) into one sentence."""
    try:
        yield
    except OSError as error:
        raise WarpgradError(
            f"cannot write {path}: {reason(error)}; fix that and repeat the command; files saved before are intact."
        ) from error


def reason(error: OSError) -> str:
    """Return the system's message for an error, without the number."""
    if error.errno == errno.ELOOP:
        return "it is a link, which is not followed"
    return error.strerror or str(error)


def open_regular(path: Path, flags: int = os.O_RDONLY, *, follow: bool = False) -> int:
    """Open a regular file, not a pipe or device, and return its descriptor; links are only followed with `follow`."""
    # Without O_NONBLOCK, opening a pipe waits for its other end.
    flags |= _CAUTIOUS
    descriptor = os.open(path, flags & ~getattr(os, "O_NOFOLLOW", 0) if follow else flags, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_bytes(path: Path, limit: int | None = None, *, follow: bool = False) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; use `follow` for files that the user names."""
    with open(open_regular(path, follow=follow), "rb") as file:
        if limit is not None and os.fstat(file.fileno()).st_size > limit:
            raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
        return file.read()


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the content of `path` by `data` atomically: a kill at any moment leaves the old file or the new one."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _refuse_special(path)
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


def _refuse_special(path: Path) -> None:
    """Raise where `path` is a device, a pipe or a socket, or a link to one.

    Renaming a file onto /dev/null or /dev/stdout, a link to what a process has open, replaces it for everybody.
    """
    modes = []
    with suppress(FileNotFoundError):
        modes = [path.lstat().st_mode]
    if modes and stat.S_ISLNK(modes[0]):
        with suppress(OSError):  # a link to nothing, or to itself
            modes.append(path.stat().st_mode)
    opened = len(modes) > 1 and path.readlink().parts[:2] == ("/", "proc")
    if opened or not all(stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode) for mode in modes):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`, however little the system accepts at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _begun(path: Path) -> tuple[Path, int]:
    """Create a new file beside `path`, locked by this process for as long as it is open."""
    while True:
        # The name is random, so that nobody can have placed a link there.
        temporary = path.parent / f"{PARTIAL}{secrets.token_hex(8)}-{path.name}"
        descriptor = open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with suppress(OSError):  # on a file system without locks, only the cleanup is lost
                _lock(descriptor, wait=True)
            if os.fstat(descriptor).st_nlink:
                return temporary, descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # removed by another process between the two calls


def remove_partial(directory: Path, name: str | None = None) -> None:
    """Remove files that killed processes left half-written in `directory`, or only those meant to become `name`.

    What cannot be removed, such as a file of somebody else or a folder in the making, is no reason to stop.
    """
    for path in directory.iterdir():
        if not path.name.startswith(PARTIAL) or not (name is None or path.name.endswith(f"-{name}")):
            continue
        with suppress(OSError):  # already removed, being written, or not ours
            descriptor = open_regular(path)
            try:
                _lock(descriptor)
                path.unlink()
            finally:
                os.close(descriptor)


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that is renamed to `folder` after the block, and removed if the block fails.

    Another process that wants to build the same folder is refused; what a killed one left is removed.
    """
    begun = folder.parent / f"{PARTIAL}{folder.name}"
    begun.mkdir(parents=True, exist_ok=True)
    lock = _locked_folder(begun, f"another process is writing {folder}; wait for it, or give another folder.")
    try:
        if folder.exists():  # made by another process, perhaps from this very folder
            with suppress(OSError):
                begun.rmdir()
            raise BusyError(f"{folder} already exists: give another folder.")
        try:
            for left in begun.iterdir():
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
            yield begun
            for path in begun.rglob("*"):
                if path.is_file():
                    _sync(path)
            begun.rename(folder)
            _sync_directory(folder.parent)
        except BaseException:
            shutil.rmtree(begun, ignore_errors=True)
            raise
    finally:
        lock.release()


def _sync(path: Path) -> None:
    """Make sure that a file that another library has written is on disk."""
    descriptor = open_regular(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the SHA-256 of its content added."""
    return {**value, SEAL: digest(value)}


def unsealed(value: Any, path: Path, remedy: str = "restore it or start over with --fresh", seal: str = SEAL) -> Any:
    """Return the content of a sealed object after checking its checksum; older files have none and are accepted."""
    if not isinstance(value, dict):
        return value
    content = {name: part for name, part in value.items() if name != seal}
    # If the name of the seal itself is damaged, its value is still the checksum of everything else.
    renamed = seal not in value and any(
        isinstance(part, str)
        and len(part) == 64
        and part == digest({other: kept for other, kept in value.items() if other != name})
        for name, part in value.items()
    )
    if renamed or (seal in value and digest(content) != value[seal]):
        raise DamagedError(
            f"{path} is damaged: its content does not match its checksum; {remedy} (or, if you have "
            f"edited it, delete its entry '{seal}')."
        )
    return content


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value, independent of its formatting."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_json(path: Path, value: Any, *, seal: bool = False) -> None:
    """Write a JSON value; with `seal`, an object with the checksum of its content."""
    kept = json.loads(json.dumps(value))  # as it will be read: keys are strings, tuples are lists
    write_bytes(path, _set(sealed(kept) if seal else kept))


def _set(value: Any) -> bytes:
    """Return a JSON value as the bytes of a file."""
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def check_every_byte(path: Path) -> bool:
    """Return whether a JSON file that `write_json` wrote has a seal; raise an error if any byte of it has changed.

    That includes bytes that change no value, such as the case of a letter in an escape.
    """
    read_json(path)
    data = read_bytes(path, JSON_BYTES)
    value = json.loads(data)
    if not isinstance(value, dict) or SEAL not in value:
        return False
    if data != _set(value):
        raise DamagedError(f"{path} is damaged: its bytes are not as they were written; restore it or write it again.")
    return True


def write_checksums(folder: Path) -> None:
    """Write the SHA-256 of every file in a folder to `checksums.json`, for a folder that others will read."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    found = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    write_json(folder / CHECKSUMS, {"files": found}, seal=True)


def check_files(folder: Path) -> list[str]:
    """Check the files of a folder against its checksums and return their names; empty if it has no checksums."""
    if not (folder / CHECKSUMS).exists():
        return []
    check_every_byte(folder / CHECKSUMS)
    files = read_object(folder / CHECKSUMS).get("files")
    if not isinstance(files, dict) or not all(isinstance(part, str) for part in files.values()):
        raise DamagedError(f"{folder / CHECKSUMS} lists no files; restore it or make the folder again.")
    for name, expected in files.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise DamagedError(
                f"{folder / CHECKSUMS} lists '{name}', which is outside the folder; make the folder again."
            )
        try:
            found = hashlib.sha256(read_bytes(folder / name, follow=True)).hexdigest()
        except OSError as error:
            raise DamagedError(f"{folder / name} cannot be read: {reason(error)}; make the folder again.") from error
        if found != expected:
            raise DamagedError(f"{folder / name} is damaged: it does not match its checksum; make the folder again.")
    return sorted(files)


def read_json(path: Path) -> Any:
    """Read a JSON value; a sealed one is checked and returned without its seal."""
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
    """Return the settings in a run's config.json: all but its format and the checksums of what it reads."""
    read = contents_of(config)
    return {name: value for name, value in config.items() if name != "format" and name not in read}


def contents_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checksums in a run's config.json of what its settings name; earlier versions stored none."""
    return {
        name: value for name, value in config.items() if name.endswith(CONTENT) and name.removesuffix(CONTENT) in config
    }


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
    """Lock an open file for as long as it is open; raise BlockingIOError if another process holds the lock."""
    from filelock import lock_descriptor  # unlike FileLock, it also locks folders, and files before they are renamed

    if not lock_descriptor(descriptor, blocking=wait):
        raise BlockingIOError


class Lock:
    """A lock that only this process holds, until it is released or the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def is_at(self, path: Path) -> bool:
        """Return whether the locked file is still the one at `path`: not moved, removed or replaced."""
        assert self._descriptor is not None, "the lock is held"
        try:
            return os.path.samestat(os.fstat(self._descriptor), path.lstat())
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def locked(path: Path, refusal: str) -> Lock:
    """Lock the file at `path`, which serves only as a lock; raise an error with `refusal` if it is already held."""
    return _held(open_regular(path, os.O_RDWR | os.O_CREAT), refusal)


def _locked_folder(path: Path, refusal: str) -> Lock:
    """Lock a folder as `locked` locks a file; the lock goes with it when it is renamed."""
    if sys.platform == "win32":  # which cannot open folders
        return Lock(os.open(os.devnull, os.O_RDONLY))
    return _held(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC), refusal)


def _held(descriptor: int, refusal: str) -> Lock:
    """Lock an open file or folder, or close it and raise an error with `refusal` if it is already held."""
    try:
        _lock(descriptor)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise BusyError(refusal) from error
        raise
    return Lock(descriptor)


def try_lock(path: Path) -> Lock | None:
    """Lock a file until the lock is released, or return None if another process holds it."""
    try:
        return locked(path, f"another process holds {path}.")
    except BusyError:
        return None


def is_locked(path: Path) -> bool:
    """Return whether any process holds the lock on this file."""
    if not path.exists():
        return False
    lock = try_lock(path)
    if lock is None:
        return True
    lock.release()
    return False


HANG_UP: int | None = getattr(signal, "SIGHUP", None)
"""The signal sent when a terminal is closed, which Windows does not have."""
SIGNALS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, *(() if HANG_UP is None else (HANG_UP,)))
"""The signals that ask a program to stop."""
