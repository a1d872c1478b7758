"""How different people draw the same character.

What is constant in a writer (slant, proportions, place on the page, nib, care) shows in all of their drawings; the rest
is random in each drawing. Lengths are in half pages, as glyphs are laid out at half the width of the page.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from warpgrad.data.drawn.glyphs import Floats, Glyph, Random, curve
from warpgrad.data.store import Images

NIB = 0.64
"""Radius of a usual nib, in pixels of a 28×28 page."""
_PAGE = 28.0
_CENTRE = 0.483
"""People draw a little above and left of the middle."""
_KNOT = 16
"""The number of points of a path between two knots of the tremor."""


@dataclass(frozen=True)
class Writers:
    """What is constant in n writers; one row per writer in every field."""

    slant: Floats
    turn: Floats
    stretch: Floats
    place: Floats
    nib: Floats
    loose: Floats
    """How carelessly a writer draws; 1 is usual."""
    rounding: Floats
    """How much a writer rounds corners."""

    def __len__(self) -> int:
        return len(self.nib)


def draw_writers(random: Random, count: int) -> Writers:
    """Draw the writers of one alphabet; some alphabets are written with more care than others by all."""
    care = random.number(0.65, 1.35)
    return Writers(
        slant=random.bell(0.1, (count,)),
        turn=random.bell(0.06, (count,)),
        stretch=1.0 + random.bell(0.07, (count, 2)),
        place=random.bell(0.049, (count, 2)),
        nib=NIB * (1.0 + random.uniform(-0.06, 0.06, (count,))),
        loose=care * random.uniform(0.5, 1.5, (count,)),
        rounding=random.uniform(0.0, 0.2, (count,)),
    )


def draw_glyph(random: Random, glyph: Glyph, writers: Writers, size: int) -> Images:
    """Make one drawing of `glyph` by each writer: uint8 [n, 1, size, size], ink 255 on paper 0."""
    count = len(writers)
    # Now and then a writer slips.
    slip = random.uniform(0.0, 1.0, (count,)) < 0.12
    loose = (writers.loose * (1.0 + 0.8 * slip))[:, None, None]
    page = np.concatenate([_stroke(random, *stroke, writers, loose) for stroke in glyph], axis=1)
    page = _bent(page, random.bell(0.15, (3, count, 1, 2)) * loose)
    page = page * (1.0 + random.bell(0.08, (count, 1, 1)))
    page = page * (writers.stretch * (1.0 + random.bell(0.07, (count, 2))))[:, None]
    page = _turned(page, writers.turn + random.bell(0.05, (count,)))
    page = _slanted(page, writers.slant)
    page = page + (writers.place + random.bell(0.075, (count, 2)))[:, None]
    return rasterise(size * (_CENTRE + 0.5 * page), writers.nib * (size / _PAGE), size)[:, None]


def draw_model(glyph: Glyph, size: int) -> Images:
    """Draw the ideal glyph, without the variation of any writer: uint8 [size, size]."""
    page = np.concatenate([curve(stroke.points[None], np.array([stroke.roundness])) for stroke in glyph], axis=1)
    return np.asarray(rasterise(size * (0.5 + 0.5 * page), np.array([NIB * (size / _PAGE)]), size)[0])


def _stroke(random: Random, points: Floats, roundness: float, writers: Writers, loose: Floats) -> Floats:
    """Draw one stroke by each writer, off in place and size, its points shifted (neighbours alike), with a tremor."""
    count = len(writers)
    noise = random.bell(0.05, (count, len(points) + 2, 2)) * loose
    drawn = points + (noise[:, :-2] + 2.0 * noise[:, 1:-1] + noise[:, 2:]) / np.sqrt(6.0)
    centre = (drawn.min(axis=1, keepdims=True) + drawn.max(axis=1, keepdims=True)) * 0.5
    drawn = centre + (drawn - centre) * (1.0 + random.bell(0.09, (count, 1, 2)) * loose)
    drawn = drawn + random.bell(0.04, (count, 1, 2)) * loose
    path = curve(drawn, np.minimum(0.55, roundness + writers.rounding))
    return path + _tremor(random, count, path.shape[1]) * loose


def _tremor(random: Random, count: int, points: int) -> Floats:
    knots = random.bell(0.01, (count, points // _KNOT + 2, 2))
    place = np.arange(points)
    before, part = place // _KNOT, (place % _KNOT / _KNOT)[:, None]
    return np.asarray(knots[:, before] * (1.0 - part) + knots[:, before + 1] * part)


def _bent(page: Floats, bend: Floats) -> Floats:
    """Bend the page smoothly as a whole, by a quadratic function of position."""
    x, y = page[..., 0:1], page[..., 1:2]
    return np.asarray(page + bend[0] * (x * x) + bend[1] * (x * y) + bend[2] * (y * y))


def _turned(page: Floats, turn: Floats) -> Floats:
    """Rotate by about `turn` radians; the half-angle form needs no sine."""
    half = turn[:, None] * 0.5
    whole = 1.0 + half * half
    cosine, sine = (1.0 - half * half) / whole, 2.0 * half / whole
    x, y = page[..., 0], page[..., 1]
    return np.stack([cosine * x - sine * y, sine * x + cosine * y], axis=-1)


def _slanted(page: Floats, slant: Floats) -> Floats:
    x, y = page[..., 0], page[..., 1]
    return np.stack([x - y * slant[:, None], y], axis=-1)


_FINE = 4
"""The number of fine pixels per pixel and direction: an image has _FINE² + 1 grey levels of ink."""


def rasterise(paths: Floats, radius: Floats, size: int) -> Images:
    """Stamp a round nib of `radius` [n] along `paths` [n, points, 2], all in pixels: uint8 [n, size, size], ink 255.

    The page is drawn black on white at four times the size and averaged down, which antialiases it.
    """
    fine = size * _FINE
    reach = int(np.ceil(radius.max() * _FINE))
    span = np.arange(-reach, reach + 1)
    down, right = (grid.ravel() for grid in np.meshgrid(span, span, indexing="ij"))
    # A margin takes what falls off the page: a nib just outside of it leaves no ink.
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
    return np.asarray((ink * 255 + _FINE * _FINE // 2) // (_FINE * _FINE), dtype=np.uint8)
