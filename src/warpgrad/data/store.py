"""One format for every image-class data set: a folder with a JSON header and the raw bytes of all images.

    <data set>/header.json   what is in it: `Header`
    <data set>/images.bin    uint8 [images, channels, height, width], class after class, nothing else

Images are read through a read-only memory map, so opening costs nothing and a data set larger than memory works.
`writing.py` makes such folders.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from warpgrad.data.header import FILE, Header, damaged, read_header
from warpgrad.errors import WarpgradError

Images = npt.NDArray[np.uint8]
"""uint8 [n, channels, height, width]."""

IMAGES = "images.bin"


class ImageStore:
    """A data set on disk. `images(i)` copies one class out of the memory map; what else is known is in `header`."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.header = header
        self._pixels: Images = np.memmap(
            path / IMAGES, dtype=np.uint8, mode="r", shape=(header.offsets[-1], *header.shape)
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
        with (self.path / IMAGES).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.header.sha256:
            raise damaged(self.path, f"the checksum of {IMAGES} is not the one in its {FILE}")

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
    found = (path / IMAGES).stat().st_size if (path / IMAGES).is_file() else None
    if found != header.image_bytes:
        size = "is missing" if found is None else f"has {found} bytes instead of {header.image_bytes}"
        raise damaged(path, f"{IMAGES} {size}")
    store = ImageStore(path, header)
    if verify:
        store.verify()
    return store
