"""A data set under way: the images of its classes one after another, and a journal of what is whole.

The journal's first line says what the images are made of; a line follows for every class whose bytes are written, with
their checksum. Opened again, a data set of the same make goes on after the last class whose bytes match its line.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from warpgrad.data.header import FILE, Header
from warpgrad.data.store import IMAGES, Images
from warpgrad.errors import WarpgradError
from warpgrad.locks import locked

JOURNAL = "classes.jsonl"


class ClassImages(NamedTuple):
    """One class on its way into a store."""

    name: str
    """Unique within the data set, e.g. "Greek/character03"."""
    group: str
    """What the class belongs to, e.g. its alphabet; "" where there are no groups."""
    images: Images | Callable[[], Images]
    """Or what makes them, which is not called for a class that is written already."""


class _Line(NamedTuple):
    """A class in the journal."""

    name: str
    group: str
    images: int
    sha256: str


class PartialStore:
    """The images of a data set under way, and the journal of the classes that are among them."""

    def __init__(self, folder: Path, title: str, shape: tuple[int, int, int], identity: str | None) -> None:
        self._folder, self._title, self._shape = folder, title, shape
        self._journal = locked(folder / JOURNAL, f"another process is writing {folder}: wait for it, or stop it.")
        # Opened for appending, so that what is there survives, but to be read and cut as well.
        self._pixels = (folder / IMAGES).open("a+b")
        self._digest = hashlib.sha256()
        self._written: list[_Line] = []
        self._kept = self._checked(identity)
        if not self._kept:
            self._journal.truncate(0)
            self._note(identity)
        self._pixels.truncate(sum(line.images for line in self._kept) * self._image_bytes)

    @property
    def _image_bytes(self) -> int:
        return int(np.prod(self._shape))

    def add(self, item: ClassImages) -> None:
        """Write a class, unless it is there."""
        place = len(self._written)
        if place < len(self._kept):
            self._written.append(self._kept[place])
            return
        images = np.ascontiguousarray(item.images() if callable(item.images) else item.images)
        if images.dtype != np.uint8 or images.shape[1:] != self._shape or len(images) == 0:
            shape = self._shape
            raise WarpgradError(
                f"class '{item.name}' of {self._title} holds {images.dtype} {images.shape}; "
                f"needed is uint8 [n, {shape[0]}, {shape[1]}, {shape[2]}] with n at least 1."
            )
        self._pixels.write(images.data)
        self._pixels.flush()
        self._digest.update(images.data)
        self._written.append(_Line(item.name, item.group, len(images), hashlib.sha256(images.data).hexdigest()))
        self._note(self._written[-1])

    def finish(self, header: Callable[[dict[str, Any]], Header]) -> None:
        """Write the header, last of all."""
        lines = self._written
        offsets = [0]
        for line in lines:
            offsets.append(offsets[-1] + line.images)
        made = header(
            {
                "classes": tuple(line.name for line in lines),
                "groups": tuple(line.group for line in lines),
                "offsets": tuple(offsets),
                "sha256": self._digest.hexdigest(),
            }
        )
        os.fsync(self._pixels.fileno())
        with (self._folder / FILE).open("w", encoding="utf-8") as file:
            file.write(made.to_json())
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        self._pixels.close()
        self._journal.close()

    def _note(self, value: Any) -> None:
        self._journal.write(_encoded(value))
        self._journal.flush()

    def _checked(self, identity: str | None) -> list[_Line]:
        """The classes of the journal, up to the first whose bytes are not there; none where it is of something else."""
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
    """A line of the journal; None where it was cut off or damaged."""
    try:
        name, group, images, sha256 = json.loads(text)
    except (ValueError, TypeError):
        return None
    whole = text.endswith(b"\n") and isinstance(images, int) and images > 0
    return _Line(name, group, images, sha256) if whole else None


def _encoded(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"
