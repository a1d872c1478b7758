"""Strokes: a few control points each, drawn as a smooth curve; glyphs: a few strokes each.

The points of a stroke are (x, y), y pointing down, in a box of about −½ .. ½. Its roundness says how they are joined:
0 by straight lines, ½ by the Catmull-Rom spline.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from warpgrad.data.draws import Floats

_SAMPLES = 32
"""Points per piece between two control points: close enough that the pen leaves no gaps."""


class Stroke(NamedTuple):
    points: Floats
    """[control points, 2]."""
    roundness: float


Glyph = tuple[Stroke, ...]


def _hermite() -> tuple[Floats, Floats, Floats, Floats]:
    t = np.arange(_SAMPLES, dtype=np.float64)[:, None] / _SAMPLES
    square = t * t
    cube = square * t
    begin = 2.0 * cube - 3.0 * square + 1.0
    return begin, cube - 2.0 * square + t, 1.0 - begin, cube - square


_BEGIN, _LEAVE, _END, _ARRIVE = _hermite()


def curve(points: Floats, roundness: Floats) -> Floats:
    """The cardinal spline through [n, m, 2] control points, one roundness per row: [n, (m − 1)·32 + 1, 2]."""
    before = np.concatenate([points[:, :1], points[:, :-1]], axis=1)
    after = np.concatenate([points[:, 1:], points[:, -1:]], axis=1)
    tangent = (after - before) * roundness[:, None, None]
    first, last = points[:, :-1, None], points[:, 1:, None]
    leave, arrive = tangent[:, :-1, None], tangent[:, 1:, None]
    pieces = _BEGIN * first + _LEAVE * leave + _END * last + _ARRIVE * arrive
    return np.concatenate([pieces.reshape(len(points), -1, 2), points[:, -1:]], axis=1)


def moved(glyph: Glyph, scale: Floats, shift: Floats) -> Glyph:
    """Every point times `scale` plus `shift`."""
    return tuple(Stroke(stroke.points * scale + shift, stroke.roundness) for stroke in glyph)


def bounds(glyph: Glyph) -> tuple[Floats, Floats]:
    """The upper left and the lower right of all control points."""
    points = np.concatenate([stroke.points for stroke in glyph])
    return points.min(axis=0), points.max(axis=0)


def retraces(stroke: Stroke, there: Glyph) -> bool:
    """Whether two fifths of the stroke or more run along ink that is there already, its own included."""
    path = _course(stroke)
    place = np.arange(len(path))
    covered = (_near(path, path) & (np.abs(place[:, None] - place) > len(path) // 4)).any(axis=1)
    for other in there:
        covered |= _near(path, _course(other)).any(axis=1)
    return int(covered.sum()) * 5 >= len(path) * 2


def _course(stroke: Stroke) -> Floats:
    return curve(stroke.points[None], np.array([stroke.roundness]))[0, ::4]


def _near(path: Floats, other: Floats) -> npt.NDArray[np.bool_]:
    x = path[:, None, 0] - other[:, 0]
    y = path[:, None, 1] - other[:, 1]
    near: npt.NDArray[np.bool_] = x * x + y * y < 0.08 * 0.08
    return near
