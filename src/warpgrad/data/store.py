"""One format for every image-class data set: a folder with a JSON header and the raw bytes of all images.

    <data set>/header.json   what is in it: `Header`
    <data set>/images.bin    uint8 [images, channels, height, width], class after class, nothing else

Images are read through a read-only memory map, so opening costs nothing and a data set larger than memory works.
A data set exists whole or not at all: it is built in a hidden sibling folder and renamed at the end.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from warpgrad.data.header import FILE, Header, damaged, read_header
from warpgrad.errors import WarpgradError

Images = npt.NDArray[np.uint8]
"""uint8 [n, channels, height, width]."""

_IMAGES = "images.bin"


class ClassImages(NamedTuple):
    """One class on its way into a store."""

    name: str
    """Unique within the data set, e.g. "Greek/character03"."""
    group: str
    """What the class belongs to, e.g. its alphabet; "" where there are no groups."""
    images: Images


class ImageStore:
    """A data set on disk. `images(i)` copies one class out of the memory map; what else is known is in `header`."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.header = header
        self._pixels: Images = np.memmap(
            path / _IMAGES, dtype=np.uint8, mode="r", shape=(header.offsets[-1], *header.shape)
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.header.shape

    @property
    def classes(self) -> tuple[str, ...]:
        return self.header.classes

    @property
    def groups(self) -> tuple[str, ...]:
        return self.header.groups

    def __len__(self) -> int:
        """The number of classes."""
        return len(self.header.classes)

    def count(self, class_index: int) -> int:
        """The number of images of one class."""
        begin, end = self._span(class_index)
        return end - begin

    def images(self, class_index: int, chosen: Sequence[int] | None = None) -> Tensor:
        """uint8 [n, channels, height, width]: all images of one class, or the `chosen` ones in that order.

        The tensor is a copy, so writing to it harms nobody; with `chosen`, only those images are read.
        """
        begin, end = self._span(class_index)
        pixels = self._pixels[begin:end]
        if chosen is not None:
            if absent := [index for index in chosen if not 0 <= index < end - begin]:
                raise WarpgradError(
                    f"class '{self.classes[class_index]}' of {self.header.name} has {end - begin} images; "
                    f"there is no image {absent[0]}."
                )
            pixels = pixels[np.asarray(chosen, dtype=np.int64)]
        return torch.from_numpy(np.array(pixels))

    def members(self) -> dict[str, tuple[int, ...]]:
        """Group name -> the indices of its classes, both in sorted order of their names."""
        order = sorted(range(len(self)), key=lambda index: (self.groups[index], self.classes[index]))
        found: dict[str, list[int]] = {}
        for index in order:
            found.setdefault(self.groups[index], []).append(index)
        return {group: tuple(indices) for group, indices in found.items()}

    def split(self, name: str) -> tuple[int, ...]:
        """The indices of the classes of a published split."""
        if name not in self.header.splits:
            known = ", ".join(sorted(self.header.splits)) or "none"
            raise WarpgradError(f"{self.header.name} has no split '{name}'; its splits are: {known}.")
        place = {class_name: index for index, class_name in enumerate(self.classes)}
        return tuple(place[class_name] for class_name in self.header.splits[name])

    def verify(self) -> None:
        """Read every byte and compare with the checksum in the header."""
        with (self.path / _IMAGES).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.header.sha256:
            raise damaged(self.path, f"the checksum of {_IMAGES} is not the one in its {FILE}")

    def _span(self, class_index: int) -> tuple[int, int]:
        if not 0 <= class_index < len(self):
            raise WarpgradError(
                f"{self.header.name} has classes 0 to {len(self) - 1}; there is no class {class_index}."
            )
        return self.header.offsets[class_index], self.header.offsets[class_index + 1]


def open_store(path: Path | str, *, verify: bool = False) -> ImageStore:
    """Open a data set; header and sizes are always checked, the checksum of all pixels with `verify`."""
    path = Path(path)
    header = read_header(path)
    found = (path / _IMAGES).stat().st_size if (path / _IMAGES).is_file() else None
    if found != header.image_bytes:
        size = "is missing" if found is None else f"has {found} bytes instead of {header.image_bytes}"
        raise damaged(path, f"{_IMAGES} {size}")
    store = ImageStore(path, header)
    if verify:
        store.verify()
    return store


def check_vacant(destination: Path) -> None:
    """Refuse a destination that exists, before any work is done for it."""
    if destination.exists() or destination.is_symlink():
        raise WarpgradError(f"{destination} exists already: delete it first or choose another destination.")


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
) -> ImageStore:
    """Stream `classes` into a new data set at `destination`, one class in memory at a time.

    Whatever fails, here or in the iterable, leaves nothing behind, not even folders made on the way.
    """
    check_vacant(destination)
    made = [folder for folder in destination.parents if not folder.exists()]
    partial = destination.parent / f".{destination.name}.{uuid.uuid4().hex}.partial"
    try:
        partial.mkdir(parents=True)
        names, groups, offsets, digest = _stream(partial / _IMAGES, classes, name, shape)
        header = Header(
            name=name,
            shape=shape,
            classes=names,
            groups=groups,
            offsets=offsets,
            splits={split: tuple(members) for split, members in (splits or {}).items()},
            sha256=digest,
            source=source,
            licence=licence,
            note=note,
        )
        with (partial / FILE).open("x", encoding="utf-8") as file:
            file.write(header.to_json())
            file.flush()
            os.fsync(file.fileno())
        partial.rename(destination)
    except BaseException as failure:
        shutil.rmtree(partial, ignore_errors=True)
        for folder in made:
            # A folder that somebody else has begun to use meanwhile is not empty and stays.
            with suppress(OSError):
                folder.rmdir()
        if isinstance(failure, OSError):
            raise WarpgradError(f"{name} could not be written to {destination}: {failure}.") from failure
        raise
    return open_store(destination)


def _stream(
    path: Path, classes: Iterable[ClassImages], name: str, shape: tuple[int, int, int]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...], str]:
    digest = hashlib.sha256()
    names: list[str] = []
    groups: list[str] = []
    offsets = [0]
    with path.open("xb") as file:
        for item in classes:
            images = np.ascontiguousarray(item.images)
            if images.dtype != np.uint8 or images.shape[1:] != shape or len(images) == 0:
                raise WarpgradError(
                    f"class '{item.name}' of {name} holds {images.dtype} {images.shape}; "
                    f"needed is uint8 [n, {shape[0]}, {shape[1]}, {shape[2]}] with n at least 1."
                )
            file.write(images.data)
            digest.update(images.data)
            names.append(item.name)
            groups.append(item.group)
            offsets.append(offsets[-1] + len(images))
        file.flush()
        os.fsync(file.fileno())
    return tuple(names), tuple(groups), tuple(offsets), digest.hexdigest()
