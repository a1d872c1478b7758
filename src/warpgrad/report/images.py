"""Figures in the page itself: PNG and SVG as data addresses, with caption and a text for those who cannot see them."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from warpgrad.errors import WarpgradError
from warpgrad.report.blocks import Block, Outline
from warpgrad.report.markup import Markup, element, inline

_PNG = b"\x89PNG\r\n\x1a\n"
_CSS_DOTS_PER_METRE = 96 / 0.0254


@dataclass(frozen=True)
class Figure(Block):
    """An image with its caption. `alt` says in words what the image shows, and must not be empty."""

    image: bytes
    alt: str
    caption: str = ""

    def __post_init__(self) -> None:
        if not self.alt.strip():
            raise WarpgradError("a figure needs alt=..., a sentence that says what it shows.")
        image_type(self.image)

    def render(self, outline: Outline) -> Markup:
        del outline
        kind = image_type(self.image)
        width, height = _png_size(self.image) if kind == "image/png" else (None, None)
        source = f"data:{kind};base64,{base64.b64encode(self.image).decode('ascii')}"
        image = element("img", src=source, alt=self.alt, width=width, height=height)
        caption = element("figcaption", inline(self.caption)) if self.caption else ""
        return element("figure", element("div", image, class_="card"), caption)


@dataclass(frozen=True)
class Gallery(Block):
    """Figures side by side where there is room."""

    figures: Sequence[Figure]

    def render(self, outline: Outline) -> Markup:
        return element("div", *(figure.render(outline) for figure in self.figures), class_="gallery")


def figures_of(block: Block) -> Sequence[Figure]:
    """The figures that a block shows."""
    if isinstance(block, Gallery):
        return block.figures
    return [block] if isinstance(block, Figure) else []


def image_type(image: bytes) -> str:
    """`image/png` or `image/svg+xml`, by what the bytes are and not by a name."""
    if image.startswith(_PNG) and len(image) > 33:
        return "image/png"
    head = image[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    if head.startswith(b"<svg") or (head.startswith((b"<?xml", b"<!")) and b"<svg" in head):
        return "image/svg+xml"
    raise WarpgradError("a figure must be the bytes of a PNG or SVG image; save it as one of these.")


def _png_size(image: bytes) -> tuple[int, int]:
    """Width and height on the page: pixels over the resolution the file states, 96 to the inch where it states none.

    So a figure saved at twice the resolution is shown at its own size, and sharp.
    """
    pixels = struct.unpack(">II", image[16:24])
    place, scale = 8, 1.0
    while place + 8 <= len(image):
        length, kind = struct.unpack(">I4s", image[place : place + 8])
        if kind == b"IDAT" or place + 12 + length > len(image):
            break
        if kind == b"pHYs" and length == 9:
            across, _, metres = struct.unpack(">IIB", image[place + 8 : place + 17])
            if metres == 1 and across > 0:
                scale = _CSS_DOTS_PER_METRE / across
        place += length + 12
    return max(1, round(pixels[0] * scale)), max(1, round(pixels[1] * scale))
