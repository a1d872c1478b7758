"""Invented alphabets: a style each, and characters composed of strokes in that style.

What makes the characters of a real alphabet look related is shared here as well: few kinds of strokes, a common
grid on which they begin, bend and end, parts that recur (radicals), letters that grew out of one another, a bar or
stem that all have, marks above or below, knobs, symmetry.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from warpgrad.data.draws import Draws, Floats
from warpgrad.data.shapes import Shape, bow, corner, curl, hook, line, ring, spiral, wave, zigzag
from warpgrad.data.strokes import Glyph, Stroke, bounds, moved, retraces

_MOVES: tuple[Shape | None, ...] = (None, line, corner, zigzag, bow, wave, hook, ring, curl, spiral)
"""What a stroke can be; None stands for a walk over the grid."""

_TEMPERS = (
    (1.0, 1.6, 0.7, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    (1.2, 0.4, 0.0, 0.0, 1.0, 0.4, 0.8, 0.6, 0.3, 0.25),
    (1.0, 1.0, 0.4, 0.1, 0.8, 0.2, 0.6, 0.4, 0.1, 0.1),
)
"""How often each move is made at most: in angular, in round and in mixed alphabets."""

_CURSIVE = 0.2
"""From this roundness on, a walk cuts its corners."""


@dataclass(frozen=True)
class Style:
    """What the characters of one alphabet have in common."""

    weights: tuple[float, ...]
    """How often each of the moves is made."""
    roundness: float
    strokes: tuple[float, ...]
    """How often a character has 1, 2, 3 or 4 strokes of its own."""
    connected: float
    """How often a stroke begins on one that is there already."""
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
    """How often a small mark stands above or below."""
    use_radical: float
    family: float
    """How often a character is another one with a stroke changed."""
    radicals: tuple[Glyph, ...] = ()
    common: Glyph = ()
    """Strokes that every character has; mostly none."""


def draw_style(draws: Draws) -> Style:
    """Draw the style of one alphabet."""
    temper = draws.weighted([2.0, 4.0, 4.0])
    typical = draws.number(1.4, 3.3)
    plain = Style(
        weights=tuple(weight * _favour(draws) for weight in _TEMPERS[temper]),
        roundness=(draws.number(0.0, 0.08), draws.number(0.4, 0.52), draws.number(0.2, 0.5))[temper],
        strokes=tuple(max(0.03, 1.0 - abs(count - typical) / 1.4) for count in range(1, 5)),
        connected=draws.number(0.7, 1.0),
        upright=draws.number(0.4, 0.95),
        rows=(-0.5, draws.number(-0.15, 0.15), 0.5),
        columns=(-0.5, 0.0, 0.5) if draws.chance(0.6) else (-0.5, 0.5),
        aspect=draws.number(0.65, 1.2),
        height=draws.number(0.75, 1.35),
        symmetric=draws.number(0.1, 0.4) if draws.chance(0.35) else 0.0,
        knobs=draws.number(0.3, 0.8) if draws.chance(0.06) else 0.0,
        marked=draws.number(0.15, 0.5) if draws.chance(0.3) else 0.0,
        use_radical=draws.number(0.1, 0.7),
        family=draws.number(0.3, 0.9),
    )
    radicals = tuple(_strokes(draws, plain, (), draws.integer(1, 2)) for _ in range(draws.integer(3, 7)))
    return replace(plain, radicals=radicals, common=_common(draws) if draws.chance(0.2) else ())


def draw_character(draws: Draws, style: Style, others: list[Glyph]) -> Glyph:
    """Draw one more character beside the `others`; empty where no stroke found a place."""
    if others and draws.chance(style.family):
        kept = others[draws.integer(0, len(others) - 1)]
        if len(kept) > 1 and draws.chance(0.6):
            left_out = draws.integer(0, len(kept) - 1)
            kept = kept[:left_out] + kept[left_out + 1 :]
        return kept + _strokes(draws, style, kept, 1 if len(kept) < 4 else 0)
    count = 1 + draws.weighted(style.strokes)
    glyph = style.common
    if not draws.chance(style.use_radical):
        glyph += _strokes(draws, style, glyph, count)
    else:
        radical = style.radicals[draws.integer(0, len(style.radicals) - 1)]
        rest = max(1, count - 1)
        if draws.chance(0.5):
            glyph = radical + glyph
            glyph += _strokes(draws, style, glyph, rest)
        else:
            halves = (radical, _strokes(draws, style, (), rest))
            glyph += _beside(*halves) if draws.chance(0.5) else _beside(*reversed(halves))
    if draws.chance(style.symmetric):
        mirrored = moved(glyph, np.array([-1.0, 1.0]), np.zeros(2))
        glyph += tuple(stroke for stroke in mirrored if not retraces(stroke, glyph))
    if glyph and draws.chance(style.marked):
        glyph += (_mark(draws, style, glyph),)
    return glyph


def sized(glyph: Glyph, style: Style) -> Glyph:
    """Centred, in the proportions of the alphabet, and half of the way to its common size."""
    proportion = np.array([style.aspect, 1.0])
    low, high = (bound * proportion for bound in bounds(glyph))
    extent = max(high[0] - low[0], high[1] - low[1], 0.2)
    scale = 2.0 * style.height / (1.0 + extent)
    return moved(glyph, proportion * scale, (low + high) * (-0.5 * scale))


def _favour(draws: Draws) -> float:
    """Cubed, so that every alphabet has a few favourite moves and hardly makes the others."""
    share = draws.number(0.1, 1.0)
    return share * share * share


def _strokes(draws: Draws, style: Style, there: Glyph, count: int) -> Glyph:
    """Up to `count` new strokes; one that would go over old ink is not made."""
    made: list[Stroke] = []
    for _ in range(3 * count):
        before = (*there, *made)
        begin = _on(draws, before) if before and draws.chance(style.connected) else _node(draws, style)
        move = _MOVES[draws.weighted(style.weights)]
        if move is None:
            points = _walk(draws, style, begin)
        else:
            points = move(draws, begin, _apart(draws, style, begin))
            if move in (ring, spiral):
                # A turn as wide as the whole box would drown the rest.
                points = begin + (points - begin) * draws.number(0.4, 0.8)
        stroke = Stroke(np.clip(points, -0.6, 0.6), style.roundness)
        if retraces(stroke, before):
            continue
        made.append(stroke)
        if draws.chance(style.knobs):
            tip = stroke.points[-1]
            way = np.array([draws.number(0.1, 0.16), draws.number(-0.1, 0.1)])
            made.append(Stroke(ring(draws, tip, tip + way), 0.5))
        count -= 1
        if count == 0:
            break
    return tuple(made)


def _node(draws: Draws, style: Style) -> Floats:
    column = style.columns[draws.integer(0, len(style.columns) - 1)]
    return np.array([column, style.rows[draws.integer(0, len(style.rows) - 1)]])


def _apart(draws: Draws, style: Style, begin: Floats) -> Floats:
    """A node of the grid well away from `begin`, mostly straight across or straight down."""
    upright = draws.chance(style.upright)
    for _ in range(12):
        end = _node(draws, style)
        if upright:
            kept = draws.integer(0, 1)
            end[kept] = begin[kept]
        x, y = end - begin
        if x * x + y * y > 0.16:
            return end
    return np.array([begin[0], 0.5 if begin[1] < 0.0 else -0.5])


def _walk(draws: Draws, style: Style, begin: Floats) -> Floats:
    """From node to node without lifting the pen and without turning straight back."""
    path = [begin]
    for _ in range(draws.integer(2, 4)):
        end = _apart(draws, style, path[-1])
        x, y = end - path[max(0, len(path) - 2)]
        if len(path) < 2 or x * x + y * y >= 0.04:
            path.append(end)
    middles = [(first + second) * 0.5 for first, second in pairwise(path)]
    if style.roundness >= _CURSIVE:
        return np.stack([path[0], *middles, path[-1]] if draws.chance(0.7) else path)
    # The middles are points of their own, so that an unsteady hand bends the pieces a little.
    between = [point for pair in zip(path, middles, strict=False) for point in pair]
    return np.stack([*between, path[-1]])


def _on(draws: Draws, there: Glyph) -> Floats:
    """A place on a stroke: one of its ends or the middle of its course."""
    points = there[draws.integer(0, len(there) - 1)].points
    place: Floats = points[(0, len(points) // 2, -1)[draws.integer(0, 2)]]
    return place.copy()


def _common(draws: Draws) -> Glyph:
    """A bar along the top, or a stem at a side."""
    side = draws.sign() * 0.5
    begin, end = ((-0.5, -0.5), (0.5, -0.5)) if draws.chance(0.6) else ((side, -0.5), (side, 0.5))
    return (Stroke(line(draws, np.array(begin), np.array(end)), 0.0),)


def _mark(draws: Draws, style: Style, glyph: Glyph) -> Stroke:
    """A tick or a small ring above or below."""
    low, high = bounds(glyph)
    y = low[1] - 0.16 if draws.chance(0.6) else high[1] + 0.16
    at = np.array([draws.number(low[0], high[0]), y])
    way = np.array([draws.number(0.04, 0.25), draws.number(-0.1, 0.1)])
    return Stroke((line, line, ring)[draws.integer(0, 2)](draws, at, at + way), style.roundness)


def _beside(left: Glyph, right: Glyph) -> Glyph:
    """Two parts in the two halves of the box."""
    narrow = np.array([0.44, 1.0])
    shift = np.array([0.28, 0.0])
    return moved(left, narrow, -shift) + moved(right, narrow, shift)
