"""One picture: from the bytes of an image file to uint8 [channels, height, width].

There are three pitfalls: Pillow resizes 1-bit and palette images by nearest neighbour whatever the filter, so they are
converted to grey or RGB first; transparent pixels have hidden colours, so they are composited on white; and a camera
may store a picture on its side with an EXIF orientation, which is applied.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from warpgrad.data.archives import FileTree
from warpgrad.data.store import Images, ImageStore
from warpgrad.data.writing import ClassImages
from warpgrad.errors import WarpgradError, require

UNREADABLE = (
    MemoryError,
    OSError,
    SyntaxError,
    EOFError,
    ValueError,
    zlib.error,
    struct.error,
    Image.DecompressionBombError,
)
"""What Pillow raises for broken files, which has no common base class. Our own errors are ValueErrors too."""

_GREY = frozenset({"1", "L", "LA", "La"})
_TRANSPARENT = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_DEEP = frozenset({"I", "F", "I;16", "I;16L", "I;16B", "I;16N"})
_LYING = frozenset({5, 6, 7, 8})
"""The values of the EXIF orientation (274) that exchange height and width."""


class ImageHeader(NamedTuple):
    """What the header of an image file says, without its pixels."""

    size: tuple[int, int]
    """Width, height."""
    grey: bool


def image_header(encoded: bytes, where: str, remedy: str) -> ImageHeader:
    """Return size and colour of an image file; this is cheap, because the pixels are not decoded."""
    with _opened(encoded, where, remedy) as image:
        width, height = image.size
        lying = image.getexif().get(274) in _LYING
        return ImageHeader((height, width) if lying else (width, height), image.mode in _GREY)


def read_picture(encoded: bytes, where: str, remedy: str, *, channels: int) -> Image.Image:
    """Read the whole picture, upright, as grey (1 channel) or RGB (3)."""
    with _opened(encoded, where, remedy) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.mode in _TRANSPARENT or "transparency" in upright.info:
            solid = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", solid.size, "white"), solid)
        return upright.convert("L" if channels == 1 else "RGB")


def pixels(picture: Image.Image, size: int | None = None) -> Images:
    """Convert a picture to uint8 [channels, height, width], resized by Lanczos to `size`×`size` if needed.

    The whole picture is kept, so one that is not square is squeezed.
    """
    if size is not None and picture.size != (size, size):
        picture = picture.resize((size, size), Image.Resampling.LANCZOS)
    rows = np.asarray(picture)
    return rows[None] if rows.ndim == 2 else np.ascontiguousarray(rows.transpose(2, 0, 1))


FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""The formats that are read; others in Pillow start external programs, or are not pictures."""
MAX_PIXELS = 50_000_000
"""A picture with more is refused before its pixels are decoded."""


@contextmanager
def _opened(encoded: bytes, where: str, remedy: str) -> Iterator[Image.Image]:
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            if image.size[0] * image.size[1] > MAX_PIXELS:
                raise ValueError(f"{image.size[0]}×{image.size[1]} pixels, more than {MAX_PIXELS:,}")
            deep = image.mode in _DEEP
            if not deep:
                yield image
    except UNREADABLE as failure:
        raise WarpgradError(f"{where} is not a readable image ({failure}): {remedy}.") from failure
    require(not deep, f"{where} has more than 8 bits per pixel and channel: convert it to 8 bits first.")


Progress = Callable[[int, int], None]
"""Called with (classes done, classes in all) after each class."""


class ClassFiles(NamedTuple):
    """One class before its pictures are read."""

    name: str
    group: str
    files: Sequence[str]


def with_progress(classes: Sequence[ClassImages], progress: Progress | None) -> Iterator[ClassImages]:
    """Yield class after class, and call `progress` when each is done."""
    for done, item in enumerate(classes, start=1):
        yield item
        if progress is not None:
            progress(done, len(classes))


def stream(
    classes: Sequence[ClassFiles], read: Callable[[str], Images], progress: Progress | None
) -> Iterator[ClassImages]:
    """Yield class after class, read with `read(file)`: uint8 [channels, height, width], all of one shape."""
    return with_progress(
        [ClassImages(item.name, item.group, partial(_stacked, item.files, read)) for item in classes], progress
    )


def _stacked(files: Sequence[str], read: Callable[[str], Images]) -> Images:
    return np.stack([read(file) for file in files])


def resized(tree: FileTree, size: int | None, remedy: str, *, channels: int = 3) -> Callable[[str], Images]:
    """Return a `read` for `stream` that reads pictures of a tree, resized to `size`×`size` if given."""
    return lambda file: pixels(read_picture(tree.read(file), f"{tree.path}: {file}", remedy, channels=channels), size)


def exactly(encoded: bytes, where: str, remedy: str, side: int) -> Images:
    """Read a published RGB picture, which must be `side`×`side` already."""
    picture = read_picture(encoded, where, remedy, channels=3)
    if picture.size != (side, side):
        width, height = picture.size
        raise WarpgradError(f"{where} is {width}×{height} instead of {side}×{side}: {remedy}.")
    return pixels(picture)


def montage(
    store: ImageStore, classes: Sequence[int], *, drawings: int = 20, zoom: int = 1, gap: int = 2
) -> Image.Image:
    """Show the first `drawings` images of each of `classes` as one picture, grey images as dark ink on light paper.

    `zoom` repeats each pixel, so the picture shows what a network sees; a class with fewer images leaves blanks.
    """
    require(
        classes and drawings >= 1 and zoom >= 1,
        "a montage needs at least one class, one drawing and a zoom of 1 or more.",
    )
    channels, height, width = store.shape
    require(channels in (1, 3), f"{store.header.name} has {channels} channels; a montage shows grey (1) or RGB (3).")
    tall, wide = height + gap, width + gap
    page = np.full((len(classes) * tall + gap, drawings * wide + gap, channels), 200, dtype=np.uint8)
    for row, class_index in enumerate(classes):
        count = min(drawings, store.count(class_index))
        images = store.images(class_index, range(count)).permute(0, 2, 3, 1).numpy()
        for column, image in enumerate(images):
            top, left = gap + row * tall, gap + column * wide
            page[top : top + height, left : left + width] = 255 - image if channels == 1 else image
    page = page.repeat(zoom, axis=0).repeat(zoom, axis=1)
    return Image.fromarray(page[..., 0] if channels == 1 else page)
