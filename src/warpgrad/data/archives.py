"""Reading public data sets as they are published: zip archives, or the folders they unpack to.

Nothing is ever unpacked to disk: members are read straight out of the archive, by name, after every name has been
checked. Archives are not trusted: absolute names, paths with "..", links and encryption are rejected, and so are more
files or bytes than a data set of its kind can have.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NoReturn, Protocol

from warpgrad.errors import WarpgradError, require

VARIABLE = "WARPGRAD_DATA"
"""The environment variable that names the folder with the raw data sets."""


class SourceLostError(WarpgradError):
    """A file that was listed can no longer be read, whatever its content."""


@dataclass(frozen=True)
class Limits:
    """The most that an archive may declare; reading never yields more than is declared."""

    files: int = 2_000_000
    file_bytes: int = 64 << 20
    total_bytes: int = 32 << 30


class FileTree(Protocol):
    """Files below one root, whether packed or not."""

    path: Path
    names: tuple[str, ...]
    """Every file, as a relative path with forward slashes, sorted."""

    def read(self, name: str) -> bytes: ...

    def fingerprint(self) -> str:
        """Return a fingerprint of all files, without reading them; it differs if something has changed."""


class FolderTree:
    """An unpacked archive: the names start with the name of the folder, as they do in the archive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found: list[str] = []
        seen: set[str] = set()
        for folder, _, files in os.walk(path, onerror=_unreadable, followlinks=True):
            real = os.path.realpath(folder)
            require(real not in seen, f"{folder} is a link to a folder that is read anyway: remove it.")
            seen.add(real)
            inside = PurePosixPath(path.name, *Path(folder).relative_to(path).parts)
            found += [str(inside / file) for file in files]
        self.names = tuple(sorted(found))

    def read(self, name: str) -> bytes:
        try:
            path = self.path.parent / name
            status = path.stat()  # follows the user's links; reading a pipe would block
            require(stat.S_ISREG(status.st_mode), f"{path} is not a regular file: remove it.")
            limit = Limits().file_bytes
            require(status.st_size <= limit, f"{path} has {status.st_size} bytes, more than the limit of {limit}.")
            return path.read_bytes()
        except OSError as failure:
            raise SourceLostError(f"{self.path.parent / name} cannot be read: {failure}.") from failure

    def fingerprint(self) -> str:
        return files_fingerprint({name: self.path.parent / name for name in self.names})


def _unreadable(failure: OSError) -> NoReturn:
    """Refuse a folder that cannot be listed: without it, its classes would be missing silently."""
    raise SourceLostError(
        f"the folder {failure.filename} cannot be read: {failure.strerror}; fix that, or remove it."
    ) from failure


class ZipTree:
    """An open zip archive whose members have all been checked."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, limits: Limits) -> None:
        self.path = path
        self._archive = archive
        self._members = _checked_members(path, archive.infolist(), limits)
        self.names = tuple(sorted(self._members))

    def read(self, name: str) -> bytes:
        try:
            return self._archive.read(self._members[name])
        # NotImplementedError: a compression or feature that this Python lacks.
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as failure:
            raise WarpgradError(
                f"the archive {self.path} is damaged at '{name}' ({failure}): download it again."
            ) from failure

    def fingerprint(self) -> str:
        members = ((name, self._members[name]) for name in self.names)
        return _digest((name, member.file_size, member.CRC) for name, member in members)


def files_fingerprint(files: Mapping[str, Path]) -> str:
    """Return a fingerprint of files from their names, sizes and modification times; a broken link counts as empty."""

    def facts(path: Path) -> tuple[int, int]:
        try:
            status = path.stat()
        except OSError:
            return 0, 0  # if it is needed, reading it reports the error
        return status.st_size, status.st_mtime_ns

    return _digest((name, *facts(path)) for name, path in sorted(files.items()))


def _digest(facts: Iterable[tuple[str, int, int]]) -> str:
    digest = hashlib.sha256()
    for fact in facts:
        digest.update(f"{fact}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


@contextmanager
def open_tree(path: Path, limits: Limits | None = None) -> Iterator[FileTree]:
    """Open the files of a folder or of a zip archive."""
    if path.is_dir():
        yield FolderTree(path)
        return
    try:
        require(path.is_file() or not path.exists(), f"{path} is neither a folder nor a regular file.")
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError) as failure:
        raise WarpgradError(
            f"{path} is not a complete zip archive ({failure}): download it again, it may be truncated."
        ) from failure
    with archive:
        yield ZipTree(path, archive, limits or Limits())


def find_archives(names: Sequence[str], *, subfolder: str, folder: Path | str | None = None, origin: str) -> list[Path]:
    """Find each of the archives `names`: `<name>.zip` or the unpacked folder `<name>`.

    They are searched for in `folder`, or in the folder that WARPGRAD_DATA names; directly in it or in its `subfolder`.
    `origin` says where to get them, and becomes part of the error message when they are missing.
    """
    wanted = " and ".join(f"{name}.zip" for name in names)
    remedy = f"get {wanted} from {origin}, put them into one folder, and pass that folder or set {VARIABLE} to it"
    if folder is None:
        if not (named := os.environ.get(VARIABLE)):
            raise WarpgradError(f"no data folder was given and {VARIABLE} is not set: {remedy}.")
        folder = named
    root = Path(folder).expanduser()
    require(root.is_dir(), f"the data folder {root} does not exist: {remedy}.")
    # Later places take precedence: the subfolder over its parent, an archive over a folder.
    places = [
        (name, place / end) for name in names for place in (root, root / subfolder) for end in (name, f"{name}.zip")
    ]
    found = {name: path for name, path in places if path.exists()}
    if missing := [f"{name}.zip" for name in names if name not in found]:
        raise WarpgradError(f"{' and '.join(missing)} not found in {root} or its folder {subfolder}: {remedy}.")
    return [found[name] for name in names]


def find_tree(
    name: str, *, marks: Sequence[str], subfolder: str, source: Path | str | None = None, origin: str
) -> Path:
    """Find one data set, by `source` or by name.

    It is `source` itself if that is a file or a folder that holds one of `marks`; otherwise it is the archive or
    folder `name`, searched for as in `find_archives`.
    """
    if source is not None:
        path = Path(source).expanduser()
        if path.is_file() or any((path / mark).exists() for mark in marks):
            # A tree's names start with the name of its folder, which "." does not contain.
            return path.resolve() if path.is_dir() else path
    return find_archives([name], subfolder=subfolder, folder=source, origin=origin)[0]


def _checked_members(path: Path, members: Sequence[zipfile.ZipInfo], limits: Limits) -> dict[str, zipfile.ZipInfo]:
    def check(condition: bool, why: str) -> None:
        require(condition, f"the archive {path} is refused: {why}; get it from its original source.")

    check(len(members) <= limits.files, f"it holds {len(members)} files, more than the limit of {limits.files}")
    total = 0
    checked: dict[str, zipfile.ZipInfo] = {}
    for member in members:
        name, problem = member.filename, _problem(member, limits)
        check(problem is None, f"member {name!r} {problem}")
        total += member.file_size
        check(
            total <= limits.total_bytes,
            f"it unpacks to more than the limit of {limits.total_bytes} bytes",
        )
        if not member.is_dir():
            check(name not in checked, f"member {name!r} appears twice")
            checked[name] = member
    return checked


def _problem(member: zipfile.ZipInfo, limits: Limits) -> str | None:
    # The name as stored: ZipInfo.filename has already been cut at a null byte.
    name = member.orig_filename
    # The upper half of external_attr is the Unix mode, or 0 where the archiver stored none.
    kind, size = stat.S_IFMT(member.external_attr >> 16), member.file_size
    problems = {
        "has a name that is not a plain relative path": "\\" in name or "\0" in name or ":" in name.split("/")[0],
        "points out of the archive": name.startswith("/") or ".." in name.split("/"),
        "is a link or a device": kind not in (0, stat.S_IFREG, stat.S_IFDIR),
        "is encrypted": bool(member.flag_bits & 0x1),
        f"unpacks to {size} bytes, more than the limit of {limits.file_bytes}": size > limits.file_bytes,
    }
    return next((problem for problem, found in problems.items() if found), None)
