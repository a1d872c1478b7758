"""Classes as lists of files, and the stream of images they become: what every prepared set of pictures shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from warpgrad.data.archives import Tree
from warpgrad.data.partial_store import ClassImages
from warpgrad.data.pictures import pixels, read_picture
from warpgrad.data.store import Images
from warpgrad.errors import WarpgradError

Progress = Callable[[int, int], None]
"""Called with (classes done, classes in all) after each class."""


class ClassFiles(NamedTuple):
    """One class before its pictures are read."""

    name: str
    group: str
    files: Sequence[str]


def told(classes: Sequence[ClassImages], progress: Progress | None) -> Iterator[ClassImages]:
    """Class after class, with `progress` told of each when it is done with."""
    for done, item in enumerate(classes, start=1):
        yield item
        if progress is not None:
            progress(done, len(classes))


def stream(
    classes: Sequence[ClassFiles], read: Callable[[str], Images], progress: Progress | None
) -> Iterator[ClassImages]:
    """Read class after class with `read(file)`: uint8 [channels, height, width], all alike."""
    return told([ClassImages(item.name, item.group, partial(_stacked, item.files, read)) for item in classes], progress)


def _stacked(files: Sequence[str], read: Callable[[str], Images]) -> Images:
    return np.stack([read(file) for file in files])


def resized(tree: Tree, size: int | None, remedy: str, *, channels: int = 3) -> Callable[[str], Images]:
    """A `read` for `stream`: the pictures of a tree, resized to `size`×`size` where it is given."""
    return lambda file: pixels(read_picture(tree.read(file), f"{tree.path}: {file}", remedy, channels=channels), size)


def exactly(encoded: bytes, where: str, remedy: str, side: int) -> Images:
    """A published RGB picture that must be `side`×`side` already."""
    picture = read_picture(encoded, where, remedy, channels=3)
    if picture.size != (side, side):
        width, height = picture.size
        raise WarpgradError(f"{where} is {width}×{height} instead of {side}×{side}: {remedy}.")
    return pixels(picture)
