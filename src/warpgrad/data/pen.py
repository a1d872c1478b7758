"""The pen: from curves to small grey images, in whole numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from warpgrad.data.draws import Floats
from warpgrad.data.store import Images

_FINE = 4
"""Fine pixels per pixel and direction: an image has _FINE² + 1 grey levels of ink."""


def render(paths: Floats, radius: Floats, size: int) -> Images:
    """Stamp a round nib of `radius` [n] along `paths` [n, points, 2], all in pixels: uint8 [n, size, size], ink 255.

    The page is drawn black on white at four times the size and averaged down, which is what antialiases it.
    """
    fine = size * _FINE
    reach = int(np.ceil(radius.max() * _FINE))
    span = np.arange(-reach, reach + 1)
    down, right = (grid.ravel() for grid in np.meshgrid(span, span, indexing="ij"))
    # A margin that takes what falls off the page: a nib held just outside of it leaves no ink.
    margin = 2 * reach + 1
    wide = fine + 2 * margin
    centre = np.clip(np.floor(paths * _FINE), -reach - 1, fine + reach).astype(np.int64) + margin
    corner = centre[..., 1] * wide + centre[..., 0]
    page = np.zeros((len(paths), wide * wide), dtype=np.uint8)
    for sheet, cells, nib in zip(page, corner, radius, strict=True):
        inside = down * down + right * right <= nib * nib * (_FINE * _FINE)
        offsets = (down * wide + right)[inside]
        sheet[(cells[:, None] + offsets).ravel()] = 1
    kept = page.reshape(-1, wide, wide)[:, margin : margin + fine, margin : margin + fine]
    ink = kept.reshape(-1, size, _FINE, size, _FINE).sum(axis=(2, 4), dtype=np.int64)
    levels: npt.NDArray[np.int64] = (ink * 255 + _FINE * _FINE // 2) // (_FINE * _FINE)
    return levels.astype(np.uint8)
