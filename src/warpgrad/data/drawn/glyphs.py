"""Invented alphabets: each has a style, and characters composed of strokes in that style.

They share what makes the characters of a real alphabet look related: few kinds of strokes, a common grid on which they
begin, bend and end, recurring parts (radicals), letters derived from one another, a bar or stem that all have, marks
above or below, knobs, symmetry.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from warpgrad.keys import fold

Floats = npt.NDArray[np.float64]


class Random:
    """Random numbers keyed by `parts` (see `warpgrad.keys.fold`)."""

    def __init__(self, *parts: int | str) -> None:
        self._bits = np.random.PCG64(fold(*parts))

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> Floats:
        raw = np.asarray(self._bits.random_raw(math.prod(shape)), dtype=np.uint64)
        unit: Floats = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return (low + (high - low) * unit).reshape(shape)

    def bell(self, deviation: float, shape: tuple[int, ...]) -> Floats:
        """Draw nearly Gaussian numbers around 0: sums of four uniform draws, never beyond 2√3 deviations."""
        first, second, third, fourth = self.uniform(-0.5, 0.5, (4, *shape))
        return np.asarray((first + second + third + fourth) * (deviation * math.sqrt(3.0)))

    def number(self, low: float, high: float) -> float:
        return float(self.uniform(low, high, (1,))[0])

    def integer(self, low: int, high: int) -> int:
        """Draw an integer uniformly from low..high, both included."""
        return low + int(self.number(0.0, 1.0) * (high - low + 1))

    def chance(self, probability: float) -> bool:
        return self.number(0.0, 1.0) < probability

    def sign(self) -> float:
        return 1.0 if self.chance(0.5) else -1.0

    def weighted(self, weights: Sequence[float]) -> int:
        """Draw an index in proportion to its weight."""
        # accumulate(), not sum(): the rounding of sum() differs between releases of Python.
        reached = list(accumulate(weights))
        return min(bisect_right(reached, self.number(0.0, 1.0) * reached[-1]), len(weights) - 1)


StrokeShape = Callable[[Random, Floats, Floats], Floats]
"""(random, begin [2], end [2]) -> control points [m, 2]."""


def line(_: Random, begin: Floats, end: Floats) -> Floats:
    return _along(begin, end, [(0, 0), (0.5, 0), (1, 0)])


def bow(random: Random, begin: Floats, end: Floats) -> Floats:
    """Draw one bulge to a side, from shallow to more than a half circle."""
    bulge, flare = random.sign() * random.number(0.2, 0.65), random.number(0.0, 0.2)
    return _along(begin, end, [(0, 0), (0.2 - flare, 0.75 * bulge), (0.5, bulge), (0.8 + flare, 0.75 * bulge), (1, 0)])


def wave(random: Random, begin: Floats, end: Floats) -> Floats:
    """Draw an S."""
    bulge = random.sign() * random.number(0.2, 0.45)
    return _along(begin, end, [(0, 0), (0.22, bulge), (0.5, 0), (0.78, -bulge), (1, 0)])


def hook(random: Random, begin: Floats, end: Floats) -> Floats:
    """Draw a stem whose end turns back."""
    side, depth = random.sign(), random.number(0.25, 0.45)
    turn = [(0, 0), (0.5, 0), (0.85, 0.06 * side), (1, depth * 0.55 * side), (0.85, depth * side)]
    return _along(begin, end, [*turn, (0.65, depth * side)] if random.chance(0.5) else turn)


def corner(random: Random, begin: Floats, end: Floats) -> Floats:
    """Draw two pieces that meet at an angle."""
    place, height = random.number(0.1, 0.9), random.sign() * random.number(0.35, 0.8)
    return _along(begin, end, [(0, 0), (place, height), (1, 0)])


def zigzag(random: Random, begin: Floats, end: Floats) -> Floats:
    height = random.sign() * random.number(0.25, 0.5)
    if random.chance(0.5):
        return _along(begin, end, [(0, 0), (0.35, height), (0.65, -height), (1, 0)])
    return _along(begin, end, [(0, 0), (0.25, height), (0.5, 0), (0.75, height), (1, 0)])


def ring(random: Random, begin: Floats, end: Floats) -> Floats:
    """Draw a ring that starts at `begin` and reaches to `end`, a little open or overlapping."""
    flat, side, slack = random.number(0.3, 0.5), random.sign(), random.number(-0.12, 0.05)
    around = [(0.15, 0.71), (0.5, 1), (0.85, 0.71), (1, 0), (0.85, -0.71), (0.5, -1), (0.15, -0.71)]
    return _along(begin, end, [(0, 0), *((x, y * flat * side) for x, y in around), (0.0, slack * side)])


def curl(random: Random, begin: Floats, end: Floats) -> Floats:
    """Draw a stem with a loop in its course, as in a cursive e or l."""
    side, place, wide = random.sign(), random.number(0.35, 0.65), random.number(0.16, 0.26)
    tall = wide * random.number(1.2, 2.2) * side
    loop = [(place + wide, 0.3 * tall), (place + wide, tall), (place - wide, tall), (place - wide, 0.3 * tall)]
    return _along(begin, end, [(0, 0), *loop, (1, 0)])


def spiral(random: Random, begin: Floats, end: Floats) -> Floats:
    """Draw a ring that ends inside itself."""
    side, stop = random.sign(), random.integer(5, 7)
    inward = [(0.1, 0.42), (0.5, 0.55), (0.9, 0.35), (0.95, -0.15), (0.6, -0.35), (0.35, -0.1), (0.5, 0.12)]
    return _along(begin, end, [(0, 0), *((x, y * side) for x, y in inward[:stop])])


def _along(begin: Floats, end: Floats, places: list[tuple[float, float]]) -> Floats:
    """Return points given by their distances along begin → end and to its left, in units of its length."""
    way = end - begin
    left = np.array([way[1], -way[0]])
    return np.stack([begin + along * way + off * left for along, off in places])


_SAMPLES = 32
"""The number of points between two control points, close enough that the pen leaves no gaps."""


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
    """Return the cardinal spline through [n, m, 2] control points, one roundness per row: [n, (m − 1)·32 + 1, 2]."""
    before = np.concatenate([points[:, :1], points[:, :-1]], axis=1)
    after = np.concatenate([points[:, 1:], points[:, -1:]], axis=1)
    tangent = (after - before) * roundness[:, None, None]
    first, last = points[:, :-1, None], points[:, 1:, None]
    leave, arrive = tangent[:, :-1, None], tangent[:, 1:, None]
    pieces = _BEGIN * first + _LEAVE * leave + _END * last + _ARRIVE * arrive
    return np.concatenate([pieces.reshape(len(points), -1, 2), points[:, -1:]], axis=1)


def moved(glyph: Glyph, scale: Floats, shift: Floats) -> Glyph:
    """Multiply every point by `scale` and add `shift`."""
    return tuple(Stroke(stroke.points * scale + shift, stroke.roundness) for stroke in glyph)


def bounds(glyph: Glyph) -> tuple[Floats, Floats]:
    """Return the upper left and the lower right corner of the box around all control points."""
    points = np.concatenate([stroke.points for stroke in glyph])
    return points.min(axis=0), points.max(axis=0)


def retraces(stroke: Stroke, there: Glyph) -> bool:
    """Return whether two fifths of the stroke or more run along existing ink, that of the stroke included."""
    path = _course(stroke)
    place = np.arange(len(path))
    covered = (_near(path, path) & (np.abs(place[:, None] - place) > len(path) // 4)).any(axis=1)
    for other in there:
        covered |= _near(path, _course(other)).any(axis=1)
    return int(covered.sum()) * 5 >= len(path) * 2


def _course(stroke: Stroke) -> Floats:
    return curve(stroke.points[None], np.array([stroke.roundness]))[0, ::4]


def _near(path: Floats, other: Floats) -> npt.NDArray[np.bool_]:
    x, y = path[:, None, 0] - other[:, 0], path[:, None, 1] - other[:, 1]
    return np.asarray(x * x + y * y < 0.08 * 0.08)


_MOVES: tuple[StrokeShape | None, ...] = (None, line, corner, zigzag, bow, wave, hook, ring, curl, spiral)
"""What a stroke can be; None stands for a walk over the grid."""

_TEMPERS = (
    (1.0, 1.6, 0.7, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    (1.2, 0.4, 0.0, 0.0, 1.0, 0.4, 0.8, 0.6, 0.3, 0.25),
    (1.0, 1.0, 0.4, 0.1, 0.8, 0.2, 0.6, 0.4, 0.1, 0.1),
)
"""The maximum weight of each move in angular, in round and in mixed alphabets."""

_CURSIVE = 0.2
"""The roundness from which on a walk cuts its corners."""


@dataclass(frozen=True)
class Style:
    """What the characters of one alphabet have in common."""

    weights: tuple[float, ...]
    """How often each of the moves is made."""
    roundness: float
    strokes: tuple[float, ...]
    """How often a character has 1, 2, 3 or 4 strokes, not counting shared parts."""
    connected: float
    """How often a stroke begins on an existing one."""
    upright: float
    """How often a stroke keeps to its row or column of the grid."""
    rows: tuple[float, ...]
    columns: tuple[float, ...]
    aspect: float
    """Width over height."""
    height: float
    symmetric: float
    """How often the right half mirrors the left."""
    knobs: float
    """How often a stroke ends in a small ring."""
    marked: float
    """How often there is a small mark above or below."""
    use_radical: float
    family: float
    """How often a character is another one with a stroke changed."""
    radicals: tuple[Glyph, ...] = ()
    common: Glyph = ()
    """Strokes that every character has; mostly none."""


def draw_style(random: Random) -> Style:
    """Draw the style of one alphabet."""
    temper = random.weighted([2.0, 4.0, 4.0])
    typical = random.number(1.4, 3.3)
    plain = Style(
        weights=tuple(weight * _favour(random) for weight in _TEMPERS[temper]),
        roundness=(random.number(0.0, 0.08), random.number(0.4, 0.52), random.number(0.2, 0.5))[temper],
        strokes=tuple(max(0.03, 1.0 - abs(count - typical) / 1.4) for count in range(1, 5)),
        connected=random.number(0.7, 1.0),
        upright=random.number(0.4, 0.95),
        rows=(-0.5, random.number(-0.15, 0.15), 0.5),
        columns=(-0.5, 0.0, 0.5) if random.chance(0.6) else (-0.5, 0.5),
        aspect=random.number(0.65, 1.2),
        height=random.number(0.75, 1.35),
        symmetric=random.number(0.1, 0.4) if random.chance(0.35) else 0.0,
        knobs=random.number(0.3, 0.8) if random.chance(0.06) else 0.0,
        marked=random.number(0.15, 0.5) if random.chance(0.3) else 0.0,
        use_radical=random.number(0.1, 0.7),
        family=random.number(0.3, 0.9),
    )
    radicals = tuple(_strokes(random, plain, (), random.integer(1, 2)) for _ in range(random.integer(3, 7)))
    return replace(plain, radicals=radicals, common=_common(random) if random.chance(0.2) else ())


def draw_character(random: Random, style: Style, others: list[Glyph]) -> Glyph:
    """Draw one more character in addition to the `others`; it is empty if there was no room for a stroke."""
    if others and random.chance(style.family):
        kept = others[random.integer(0, len(others) - 1)]
        if len(kept) > 1 and random.chance(0.6):
            left_out = random.integer(0, len(kept) - 1)
            kept = kept[:left_out] + kept[left_out + 1 :]
        return kept + _strokes(random, style, kept, 1 if len(kept) < 4 else 0)
    count = 1 + random.weighted(style.strokes)
    glyph = style.common
    if not random.chance(style.use_radical):
        glyph += _strokes(random, style, glyph, count)
    else:
        radical, rest = style.radicals[random.integer(0, len(style.radicals) - 1)], max(1, count - 1)
        if random.chance(0.5):
            glyph = radical + glyph
            glyph += _strokes(random, style, glyph, rest)
        else:
            halves = (radical, _strokes(random, style, (), rest))
            glyph += _beside(*halves) if random.chance(0.5) else _beside(*reversed(halves))
    if random.chance(style.symmetric):
        mirrored = moved(glyph, np.array([-1.0, 1.0]), np.zeros(2))
        glyph += tuple(stroke for stroke in mirrored if not retraces(stroke, glyph))
    if glyph and random.chance(style.marked):
        glyph += (_mark(random, style, glyph),)
    return glyph


def proportioned(glyph: Glyph, style: Style) -> Glyph:
    """Centre a glyph, give it the proportions of the alphabet, and scale it half of the way to the common size."""
    proportion = np.array([style.aspect, 1.0])
    low, high = (bound * proportion for bound in bounds(glyph))
    extent = max(high[0] - low[0], high[1] - low[1], 0.2)
    scale = 2.0 * style.height / (1.0 + extent)
    return moved(glyph, proportion * scale, (low + high) * (-0.5 * scale))


def _favour(random: Random) -> float:
    """Draw a cubed share, so that every alphabet has a few favourite moves and hardly makes the others."""
    share = random.number(0.1, 1.0)
    return share * share * share


def _strokes(random: Random, style: Style, there: Glyph, count: int) -> Glyph:
    """Draw up to `count` new strokes, except those that would go over existing ink."""
    made: list[Stroke] = []
    for _ in range(3 * count):
        before = (*there, *made)
        begin = _on(random, before) if before and random.chance(style.connected) else _node(random, style)
        move = _MOVES[random.weighted(style.weights)]
        if move is None:
            points = _walk(random, style, begin)
        else:
            points = move(random, begin, _apart(random, style, begin))
            if move in (ring, spiral):
                # A turn as wide as the whole box would dominate the rest.
                points = begin + (points - begin) * random.number(0.4, 0.8)
        stroke = Stroke(np.clip(points, -0.6, 0.6), style.roundness)
        if retraces(stroke, before):
            continue
        made.append(stroke)
        if random.chance(style.knobs):
            tip = stroke.points[-1]
            way = np.array([random.number(0.1, 0.16), random.number(-0.1, 0.1)])
            made.append(Stroke(ring(random, tip, tip + way), 0.5))
        count -= 1
        if count == 0:
            break
    return tuple(made)


def _node(random: Random, style: Style) -> Floats:
    column = style.columns[random.integer(0, len(style.columns) - 1)]
    return np.array([column, style.rows[random.integer(0, len(style.rows) - 1)]])


def _apart(random: Random, style: Style, begin: Floats) -> Floats:
    """Draw a node of the grid well away from `begin`, mostly in the same row or column."""
    upright = random.chance(style.upright)
    for _ in range(12):
        end = _node(random, style)
        if upright:
            kept = random.integer(0, 1)
            end[kept] = begin[kept]
        x, y = end - begin
        if x * x + y * y > 0.16:
            return end
    return np.array([begin[0], 0.5 if begin[1] < 0.0 else -0.5])


def _walk(random: Random, style: Style, begin: Floats) -> Floats:
    """Walk from node to node without lifting the pen and without turning straight back."""
    path = [begin]
    for _ in range(random.integer(2, 4)):
        end = _apart(random, style, path[-1])
        x, y = end - path[max(0, len(path) - 2)]
        if len(path) < 2 or x * x + y * y >= 0.04:
            path.append(end)
    middles = [(first + second) * 0.5 for first, second in pairwise(path)]
    if style.roundness >= _CURSIVE:
        return np.stack([path[0], *middles, path[-1]] if random.chance(0.7) else path)
    # The midpoints are control points too, so that an unsteady writer bends the pieces a little.
    between = [point for pair in zip(path, middles, strict=False) for point in pair]
    return np.stack([*between, path[-1]])


def _on(random: Random, there: Glyph) -> Floats:
    """Draw a point on a stroke: one of its ends or the middle of its course."""
    points = there[random.integer(0, len(there) - 1)].points
    return np.array(points[(0, len(points) // 2, -1)[random.integer(0, 2)]])


def _common(random: Random) -> Glyph:
    """Draw a bar along the top, or a stem at a side."""
    side = random.sign() * 0.5
    begin, end = ((-0.5, -0.5), (0.5, -0.5)) if random.chance(0.6) else ((side, -0.5), (side, 0.5))
    return (Stroke(line(random, np.array(begin), np.array(end)), 0.0),)


def _mark(random: Random, style: Style, glyph: Glyph) -> Stroke:
    """Draw a tick or a small ring above or below."""
    low, high = bounds(glyph)
    y = low[1] - 0.16 if random.chance(0.6) else high[1] + 0.16
    at = np.array([random.number(low[0], high[0]), y])
    way = np.array([random.number(0.04, 0.25), random.number(-0.1, 0.1)])
    return Stroke((line, line, ring)[random.integer(0, 2)](random, at, at + way), style.roundness)


def _beside(left: Glyph, right: Glyph) -> Glyph:
    """Place two parts in the two halves of the box."""
    narrow, shift = np.array([0.44, 1.0]), np.array([0.28, 0.0])
    return moved(left, narrow, -shift) + moved(right, narrow, shift)
