"""Writing a data set, class by class, completely or not at all.

It is built in a hidden folder beside its destination, `.NAME.partial`, and renamed at the end. Where the caller
identifies the source of the images by a fingerprint, an interrupted call leaves the folder, and the same call resumes
from the classes that are complete there. The result is the same as that of an uninterrupted call.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL

from warpgrad.data.archives import SourceLostError
from warpgrad.data.store import FILE, IMAGES, Header, Images, ImageStore, open_store
from warpgrad.errors import WarpgradError, require
from warpgrad.io import locked, open_regular
from warpgrad.version import __version__


def check_vacant(destination: Path) -> None:
    """Raise an error if the destination exists, before any work is done for it."""
    if (destination / FILE).is_file():  # the process may have been killed between the last two steps
        for name in (JOURNAL, LOCK):
            (destination / name).unlink(missing_ok=True)
    require(
        not destination.exists() and not destination.is_symlink(),
        f"{destination} already exists: delete it first or choose another destination.",
    )


def partial_of(destination: Path) -> Path:
    """Return the folder in which a data set is built."""
    return destination.parent / f".{destination.name}.partial"


def write(
    destination: Path,
    classes: Iterable[ClassImages],
    *,
    name: str,
    shape: tuple[int, int, int],
    source: str,
    licence: str,
    note: str = "",
    splits: Mapping[str, Sequence[str]] | None = None,
    fingerprint: str | None = None,
) -> ImageStore:
    """Stream `classes` into a new data set at `destination`, one class in memory at a time.

    `fingerprint` identifies everything that the images are made from. With it, a call that was interrupted or lost its
    source can be resumed by repeating it; without it, and where a class is invalid, nothing is left behind, not even
    folders created on the way.
    """
    check_vacant(destination)
    made = [folder for folder in destination.parents if not folder.exists()]
    partial = partial_of(destination)
    chosen = {split: tuple(members) for split, members in (splits or {}).items()}
    facts = [fingerprint, name, shape, source, licence, note, chosen]
    identity = None if fingerprint is None else _identity(facts)
    begun: PartialStore | None = None
    try:
        partial.mkdir(parents=True, exist_ok=True)
        begun = PartialStore(partial, name, shape, identity)
        check_vacant(destination)  # again, now that the lock keeps other processes from finishing it
        for item in classes:
            begun.add(item)
        begun.finish(
            lambda written: Header(
                name=name, shape=shape, splits=chosen, source=source, licence=licence, note=note, **written
            )
        )
        partial.rename(destination)
        for name_under_way in (JOURNAL, LOCK):
            (destination / name_under_way).unlink()
    except BaseException as failure:
        amiss = isinstance(failure, WarpgradError) and not isinstance(failure, SourceLostError)
        kept = fingerprint is not None and not amiss
        if begun is not None and not kept:
            shutil.rmtree(partial, ignore_errors=True)
        for folder in made:
            # A folder that is in use, by us or meanwhile by somebody else, is not empty and stays.
            with suppress(OSError):
                folder.rmdir()
        if isinstance(failure, OSError):
            go_on = ": fix that and repeat the command, which resumes where this one stopped" if kept else ""
            raise WarpgradError(f"{name} could not be written to {destination} ({failure}){go_on}.") from failure
        raise
    finally:
        if begun is not None:
            with suppress(OSError):  # what could not be written has been reported
                begun.close()
    return open_store(destination)


def _identity(facts: Any) -> str:
    """Return the identity of a data set to be written; it includes versions because a decoder may change."""
    text = json.dumps([facts, __version__, PIL.__version__], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


JOURNAL = "classes.jsonl"
LOCK = ".lock"
"""The lock file of the process that writes the data set."""


class ClassImages(NamedTuple):
    """One class on its way into a store."""

    name: str
    """Unique within the data set, e.g. "Greek/character03"."""
    group: str
    """What the class belongs to, e.g. its alphabet; "" where there are no groups."""
    images: Images | Callable[[], Images]
    """The images, or a function that makes them, which is not called for a class that is written already."""


class _Line(NamedTuple):
    """A class in the journal."""

    name: str
    group: str
    images: int
    sha256: str


class PartialStore:
    """The images of an unfinished data set, and the journal of the classes written so far."""

    def __init__(self, folder: Path, title: str, shape: tuple[int, int, int], identity: str | None) -> None:
        self._folder, self._title, self._shape = folder, title, shape
        self._digest = hashlib.sha256()
        self._written: list[_Line] = []
        with ExitStack() as opened:
            lock = locked(folder / LOCK, f"another process is writing {folder}: wait for it, or stop it.")
            opened.callback(lock.release)
            # Opened for appending, so that existing bytes survive, but also read and truncated; not through links.
            self._journal, self._pixels = (
                opened.enter_context(
                    os.fdopen(open_regular(folder / name, os.O_RDWR | os.O_CREAT | os.O_APPEND), "a+b")
                )
                for name in (JOURNAL, IMAGES)
            )
            self._kept = self._checked(identity)
            if not self._kept:
                self._journal.truncate(0)
                self._note(identity)
            self._pixels.truncate(sum(line.images for line in self._kept) * self._image_bytes)
            self._opened = opened.pop_all()

    @property
    def _image_bytes(self) -> int:
        return int(np.prod(self._shape))

    def add(self, item: ClassImages) -> None:
        """Write a class, unless it is written already."""
        for name in (item.name, item.group):
            try:
                name.encode()
            except UnicodeEncodeError as error:  # a file system allows names that are not text
                raise WarpgradError(f"the name of class {name!a} of {self._title} is not UTF-8; rename it.") from error
        place = len(self._written)
        if place < len(self._kept):
            self._written.append(self._kept[place])
            return
        images = np.ascontiguousarray(item.images() if callable(item.images) else item.images)
        if images.dtype != np.uint8 or images.shape[1:] != self._shape or len(images) == 0:
            shape = self._shape
            raise WarpgradError(
                f"class '{item.name}' of {self._title} holds {images.dtype} {images.shape}; "
                f"it must be uint8 [n, {shape[0]}, {shape[1]}, {shape[2]}] with n at least 1."
            )
        self._pixels.write(images.data)
        self._pixels.flush()
        self._digest.update(images.data)
        self._written.append(_Line(item.name, item.group, len(images), hashlib.sha256(images.data).hexdigest()))
        self._note(self._written[-1])

    def finish(self, header: Callable[[dict[str, Any]], Header]) -> None:
        """Write the header, after all images."""
        lines = self._written
        made = header(
            {
                "classes": tuple(line.name for line in lines),
                "groups": tuple(line.group for line in lines),
                "offsets": tuple(accumulate((line.images for line in lines), initial=0)),
                "sha256": self._digest.hexdigest(),
            }
        )
        os.fsync(self._pixels.fileno())
        opened = open_regular(self._folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(opened, "w", encoding="utf-8") as file:
            file.write(made.to_json())
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        self._opened.close()

    def _note(self, value: Any) -> None:
        self._journal.write(_encoded(value))
        self._journal.flush()

    def _checked(self, identity: str | None) -> list[_Line]:
        """Return the journal's classes up to the first without intact bytes; none if it is of another data set."""
        self._journal.seek(0)
        own, *lines = self._journal.read().splitlines(keepends=True) or [b""]
        kept: list[_Line] = []
        if identity is None or own != _encoded(identity):
            return kept
        end = len(own)
        self._pixels.seek(0)
        for text in lines:
            line = _decoded(text)
            data = b"" if line is None else self._pixels.read(line.images * self._image_bytes)
            if line is None or hashlib.sha256(data).hexdigest() != line.sha256:
                break
            self._digest.update(data)
            kept.append(line)
            end += len(text)
        self._journal.truncate(end)
        return kept


def _decoded(text: bytes) -> _Line | None:
    """Decode a line of the journal; return None where it was cut off or damaged."""
    try:
        name, group, images, sha256 = json.loads(text)
    except (ValueError, TypeError):
        return None
    whole = text.endswith(b"\n") and isinstance(images, int) and images > 0
    return _Line(name, group, images, sha256) if whole else None


def _encoded(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"
