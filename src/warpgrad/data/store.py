"""One format for every image-class data set: a folder with a JSON header and the raw bytes of all images.

    <data set>/header.json   what is in it: `Header`
    <data set>/images.bin    uint8 [images, channels, height, width], class after class, nothing else

Images are read through a read-only memory map, so opening costs nothing and a data set may be larger than memory.
`writing.py` makes such folders.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from warpgrad.errors import WarpgradError, require
from warpgrad.io import DamagedError, digest, unsealed

FORMAT = "warpgrad-images"
VERSION = 1
SEAL = "header_sha256"
"""The entry of a header that holds the SHA-256 of all others."""
HEADER_BYTES = 256 << 20
"""A longer header is rejected before it is read."""
FILE = "header.json"

_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class Header:
    """What is in a data set. It is validated for every instance, whether just written or read back."""

    name: str
    shape: tuple[int, int, int]
    """Channels, height, width: the same for every image."""
    classes: tuple[str, ...]
    groups: tuple[str, ...]
    """The group of each class (e.g. its alphabet), in the order of `classes`; "" where there are none."""
    offsets: tuple[int, ...]
    """Images of class i are offsets[i] .. offsets[i + 1] - 1."""
    splits: Mapping[str, tuple[str, ...]]
    """Published splits by name, each a list of classes; empty where there are none."""
    sha256: str
    """Checksum of the image bytes."""
    source: str
    licence: str
    note: str
    """What the pixel values mean and how they were made."""

    def __post_init__(self) -> None:
        require(len(self.shape) == 3 and min(self.shape) >= 1, "'shape' is not three positive numbers")
        require(self.classes, "there are no classes")
        require(len(set(self.classes)) == len(self.classes), "two classes have the same name")
        require(len(self.groups) == len(self.classes), "'groups' does not name one group per class")
        require(
            len(self.offsets) == len(self.classes) + 1 and self.offsets[0] == 0, "'offsets' does not fit the classes"
        )
        require(
            not any(end <= begin for begin, end in pairwise(self.offsets)),
            "'offsets' does not grow from class to class",
        )
        for split, members in self.splits.items():
            if unknown := sorted(set(members) - set(self.classes)):
                raise WarpgradError(f"split '{split}' names the unknown class '{unknown[0]}'")

    @property
    def image_bytes(self) -> int:
        """The size of all images together."""
        return self.offsets[-1] * math.prod(self.shape)

    def to_json(self) -> str:
        about = {"format": FORMAT, "version": VERSION, "dtype": "uint8"}
        fields = json.loads(json.dumps({**about, **dataclasses.asdict(self)}))
        return json.dumps({**fields, SEAL: digest(fields)}, ensure_ascii=False, indent=1) + "\n"


def read_header(path: Path) -> Header:
    """Read the header of the data set in `path`; an error says if it is missing, of another version, or damaged."""
    file = path / FILE
    require(
        file.is_file(), f"{path} is not a prepared data set: it has no {FILE}; make one with 'warpgrad data prepare'."
    )
    try:
        require(file.stat().st_size <= HEADER_BYTES, f"{file} has more than {HEADER_BYTES:,} bytes: it is too large.")
        fields = json.loads(file.read_text(encoding="utf-8"))
    except WarpgradError:
        raise
    except (OSError, ValueError, RecursionError) as failure:  # a plain ValueError for a number of 5000 digits
        raise damaged(path, f"{FILE} cannot be read ({failure})") from failure
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise WarpgradError(f"{path} is not a prepared data set: the format of its {FILE} is not {FORMAT}.")
    require(
        fields.get("version") == VERSION,
        f"{path} is a data set of version {fields.get('version')}, but this release reads version {VERSION}: "
        "delete it and prepare it again.",
    )
    try:
        found = _header(fields)
    except WarpgradError as failure:
        raise damaged(path, f"in {FILE}, {failure}") from failure
    try:
        unsealed(fields, file, seal=SEAL)
    except DamagedError as failure:
        raise damaged(path, f"{FILE} does not match its checksum") from failure
    return found


def damaged(path: Path, what: str) -> WarpgradError:
    return WarpgradError(f"the data set {path} is damaged: {what}; delete it and prepare it again.")


def _header(fields: dict[str, Any]) -> Header:
    require(fields.get("dtype") == "uint8", f"dtype is {fields.get('dtype')!r} instead of 'uint8'")
    texts = {key: _text(fields, key) for key in ("name", "sha256", "source", "licence", "note")}
    splits: Any = fields.get("splits")
    require(isinstance(splits, dict), "'splits' is not an object")
    return Header(
        shape=cast(tuple[int, int, int], tuple(_list(fields, "shape", int))),  # `Header` checks the length
        classes=tuple(_list(fields, "classes", str)),
        groups=tuple(_list(fields, "groups", str)),
        offsets=tuple(_list(fields, "offsets", int)),
        splits={split: tuple(_list(splits, split, str)) for split in splits},
        **texts,
    )


def _text(fields: dict[str, Any], key: str) -> str:
    if not isinstance(value := fields.get(key), str):
        raise WarpgradError(f"'{key}' is not a string")
    return value


def _list(fields: dict[str, Any], key: str, kind: type[_Kind]) -> list[_Kind]:
    value = fields.get(key)
    # type() rather than isinstance(), because a bool is an int.
    if not isinstance(value, list) or any(type(item) is not kind for item in value):
        raise WarpgradError(f"'{key}' is not a list of {kind.__name__}")
    return value


Images = npt.NDArray[np.uint8]
"""uint8 [n, channels, height, width]."""

IMAGES = "images.bin"


class ImageStore:
    """A data set on disk. `images(i)` copies one class out of the memory map; everything else is in `header`."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path, self.header = path, header
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
        """Return the number of classes."""
        return len(self.header.classes)

    def count(self, class_index: int) -> int:
        """Return the number of images of one class."""
        begin, end = self._span(class_index)
        return end - begin

    def images(self, class_index: int, chosen: Sequence[int] | None = None) -> Tensor:
        """Return all images of one class, or the `chosen` ones in that order, as uint8 [n, channels, height, width].

        The tensor is a copy and may be written to; with `chosen`, only those images are read.
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
        """Map each group name to the indices of its classes, both sorted by name."""
        order = sorted(range(len(self)), key=lambda index: (self.groups[index], self.classes[index]))
        return {group: tuple(indices) for group, indices in groupby(order, self.groups.__getitem__)}

    def split(self, name: str) -> tuple[int, ...]:
        """Return the indices of the classes of a published split."""
        if name not in self.header.splits:
            known = ", ".join(sorted(self.header.splits)) or "none"
            raise WarpgradError(f"{self.header.name} has no split '{name}'; its splits are: {known}.")
        place = {class_name: index for index, class_name in enumerate(self.classes)}
        return tuple(place[class_name] for class_name in self.header.splits[name])

    def verify(self) -> None:
        """Read every byte and compare the result with the checksum in the header."""
        with (self.path / IMAGES).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.header.sha256:
            raise damaged(self.path, f"{IMAGES} does not match the checksum in {FILE}")

    def _span(self, class_index: int) -> tuple[int, int]:
        require(
            0 <= class_index < len(self),
            f"{self.header.name} has classes 0 to {len(self) - 1}; there is no class {class_index}.",
        )
        return self.header.offsets[class_index], self.header.offsets[class_index + 1]


_verified: set[tuple[object, ...]] = set()


def open_store(path: Path | str, *, verify: bool = True) -> ImageStore:
    """Open a data set; header and sizes are always checked, the checksum of all pixels once per process.

    Without `verify`, damaged pixels go unnoticed.
    """
    path = Path(path)
    header = read_header(path)
    found = (path / IMAGES).stat().st_size if (path / IMAGES).is_file() else None
    if found != header.image_bytes:
        size = "is missing" if found is None else f"has {found} bytes instead of {header.image_bytes}"
        raise damaged(path, f"{IMAGES} {size}")
    store = ImageStore(path, header)
    status = (path / IMAGES).stat()
    # A file with the same status has not been written to.
    known = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, header.sha256)
    if verify and known not in _verified:
        store.verify()
        _verified.add(known)
    return store


def check_store(path: Path) -> str:
    """Compare every byte of header and images with its checksum, and return what was checked."""
    store = open_store(path)
    store.verify()  # even if this process has done so before
    text = (path / FILE).read_text(encoding="utf-8")
    if SEAL in json.loads(text) and text != store.header.to_json():
        raise damaged(path, f"the bytes of {FILE} are not as they were written")
    return f"{store.header.offsets[-1]} images, sha256 {store.header.sha256}"
