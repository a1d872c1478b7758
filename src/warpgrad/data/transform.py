"""Random affine transformations of a whole batch at once, which make the alphabets too hard for few shots (App. E).

Each image is scaled by .8–1.2, rotated by any angle, and shifted by up to a fifth of its height and width. The
parameters are a function of a key alone: drawn on the CPU, then moved, so every device sees the same images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from warpgrad.errors import require
from warpgrad.keys import generator


@dataclass(frozen=True)
class AffineRange:
    """The ranges from which transformations are drawn uniformly."""

    scale: tuple[float, float] = (0.8, 1.2)
    """Smallest and largest magnification."""
    rotate: tuple[float, float] = (0.0, 360.0)
    """In degrees, counterclockwise as the image is seen."""
    shift: float = 0.2
    """Largest shift either way, as a fraction of the height and of the width; the two are drawn independently."""

    def __post_init__(self) -> None:
        require(
            0.0 < self.scale[0] <= self.scale[1] and self.rotate[0] <= self.rotate[1] and self.shift >= 0.0,
            f"scale {self.scale}, rotate {self.rotate}, shift {self.shift} are not valid: "
            "ranges go from the smaller to the larger value, scale is above 0, and shift is at least 0.",
        )


def random_affine(images: Tensor, key: int, ranges: AffineRange | None = None) -> Tensor:
    """Transform each image of a batch [n, channels, height, width] by its own draw; uint8 becomes float32 in [0, 1]."""
    floats = images if images.is_floating_point() else to_float(images)
    return transform(floats, *draw_affine(len(images), key, ranges or AffineRange()))


def draw_affine(count: int, key: int, ranges: AffineRange) -> tuple[Tensor, Tensor, Tensor]:
    """Draw scales [n], angles [n] in degrees, and shifts [n, 2] (down, right) in fractions, float64 on the CPU."""
    draws = torch.rand(4, count, generator=generator(key, "affine"), dtype=torch.float64)
    scale = ranges.scale[0] + (ranges.scale[1] - ranges.scale[0]) * draws[0]
    angle = ranges.rotate[0] + (ranges.rotate[1] - ranges.rotate[0]) * draws[1]
    return scale, angle, ranges.shift * (2.0 * draws[2:].T - 1.0)


def transform(images: Tensor, scale: Tensor, angle: Tensor, shift: Tensor) -> Tensor:
    """Scale and rotate about the centre, then shift; bilinear, with paper (0) beyond the edges.

    `grid_sample` needs the inverse map, from a place in the result to the place in the image that it shows, in
    coordinates that run from −1 to 1 along either side: x = R⁻¹ (x' − shift) / scale, corrected for the aspect ratio.
    """
    require(
        images.dim() == 4 and images.is_floating_point(),
        f"transform takes float images [n, channels, height, width], not {images.dtype} "
        f"{tuple(images.shape)}; convert them with to_float.",
    )
    height, width = images.shape[-2:]
    radians = angle.double() * (math.pi / 180.0)
    cosine, sine = torch.cos(radians) / scale, torch.sin(radians) / scale
    # Rows of the inverse rotation. y points down, so what looks counterclockwise is clockwise in (x, y).
    rows = torch.stack([cosine, -sine * (height / width), sine * (width / height), cosine], dim=1)
    matrix = rows.view(-1, 2, 2)
    offset = -(matrix @ (2.0 * shift.double()).flip(1)[:, :, None])
    way_back = torch.cat([matrix, offset], dim=2).to(images)
    grid = (way_back @ _page(height, width, images.dtype, images.device)).view(-1, 2, height, width).permute(0, 2, 3, 1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


@lru_cache(maxsize=8)
def _page(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return (x, y, 1) of the centre of every pixel, [3, height·width], cached because it is the same for every batch.

    This is what `affine_grid` does, at a third of its cost, and exact where the sides are powers of two.
    """
    y = (2.0 * torch.arange(height, dtype=dtype, device=device) + 1.0) / height - 1.0
    x = (2.0 * torch.arange(width, dtype=dtype, device=device) + 1.0) / width - 1.0
    return torch.stack([x.repeat(height), y.repeat_interleave(width), x.new_ones(height * width)])


def to_float(images: Tensor, device: torch.device | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Convert uint8 0..255 to `dtype` 0..1 on `device`; floats are only moved and cast."""
    # Move first, while a pixel is one byte.
    moved = images if device is None else images.to(device)
    if moved.dtype == torch.uint8:
        return moved.to(dtype).div_(255.0)
    require(moved.is_floating_point(), f"images must be uint8 (0 to 255) or float (0 to 1), not {moved.dtype}.")
    return moved.to(dtype)
