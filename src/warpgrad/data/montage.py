"""A page of drawings to look at: one row per class, one column per drawing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from warpgrad.data.store import ImageStore
from warpgrad.errors import WarpgradError


def montage(
    store: ImageStore, classes: Sequence[int], *, drawings: int = 20, zoom: int = 1, gap: int = 2
) -> Image.Image:
    """The first `drawings` images of each of `classes`, dark ink on light paper for grey images, as one picture.

    `zoom` repeats each pixel, so what is seen is what a network gets; a class with fewer images leaves blanks.
    """
    if not classes or drawings < 1 or zoom < 1:
        raise WarpgradError("a montage needs at least one class, one drawing and a zoom of 1 or more.")
    channels, height, width = store.shape
    if channels not in (1, 3):
        raise WarpgradError(f"{store.header.name} has {channels} channels; a montage shows grey (1) or RGB (3).")
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
