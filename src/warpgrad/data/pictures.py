"""One picture: from the bytes of an image file to uint8 [channels, height, width].

Three things bite: Pillow resizes 1-bit and palette images by nearest neighbour whatever filter is asked for, so they
become grey or RGB before; what is transparent has hidden colours, so it is laid on white; and a camera may store a
picture lying on its side with a note that says so, which is followed.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from warpgrad.data.store import Images
from warpgrad.errors import WarpgradError

UNREADABLE = (OSError, SyntaxError, EOFError, ValueError, zlib.error, struct.error, Image.DecompressionBombError)
"""What Pillow raises for broken files, which is not one family. Our own errors are ValueErrors too."""

_GREY = frozenset({"1", "L", "LA", "La"})
_TRANSPARENT = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_DEEP = frozenset({"I", "F", "I;16", "I;16L", "I;16B", "I;16N"})
_LYING = frozenset({5, 6, 7, 8})
"""The values of the EXIF note (orientation, 274) that exchange height and width."""


class Look(NamedTuple):
    """What the head of an image file says, without its pixels."""

    size: tuple[int, int]
    """Width, height."""
    grey: bool


def look(encoded: bytes, where: str, remedy: str) -> Look:
    """Size and colour of an image file; cheap, for the pixels are not decoded."""
    with _opened(encoded, where, remedy) as image:
        width, height = image.size
        lying = image.getexif().get(274) in _LYING
        return Look((height, width) if lying else (width, height), image.mode in _GREY)


def read_picture(encoded: bytes, where: str, remedy: str, *, channels: int) -> Image.Image:
    """The whole picture, upright, grey (1 channel) or RGB (3)."""
    with _opened(encoded, where, remedy) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.mode in _TRANSPARENT or "transparency" in upright.info:
            solid = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", solid.size, "white"), solid)
        return upright.convert("L" if channels == 1 else "RGB")


def pixels(picture: Image.Image, size: int | None = None) -> Images:
    """uint8 [channels, height, width], resized by Lanczos to `size`×`size` where it has another size.

    The whole picture is kept, so one that is not square is squeezed.
    """
    if size is not None and picture.size != (size, size):
        picture = picture.resize((size, size), Image.Resampling.LANCZOS)
    rows = np.asarray(picture)
    return rows[None] if rows.ndim == 2 else np.ascontiguousarray(rows.transpose(2, 0, 1))


@contextmanager
def _opened(encoded: bytes, where: str, remedy: str) -> Iterator[Image.Image]:
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            deep = image.mode in _DEEP
            if not deep:
                yield image
    except UNREADABLE as failure:
        raise WarpgradError(f"{where} is no readable image ({failure}): {remedy}.") from failure
    if deep:
        raise WarpgradError(f"{where} has more than 8 bits per pixel and channel: convert it to 8 bits first.")
