"""The shapes that handwriting is made of: control points of a stroke from one place to another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from warpgrad.data.draws import Draws, Floats

Shape = Callable[[Draws, Floats, Floats], Floats]
"""(draws, begin [2], end [2]) -> control points [m, 2]."""


def line(draws: Draws, begin: Floats, end: Floats) -> Floats:
    del draws
    return _along(begin, end, [(0, 0), (0.5, 0), (1, 0)])


def bow(draws: Draws, begin: Floats, end: Floats) -> Floats:
    """One bulge to a side, from shallow to more than a half circle."""
    bulge = draws.sign() * draws.number(0.2, 0.65)
    flare = draws.number(0.0, 0.2)
    return _along(begin, end, [(0, 0), (0.2 - flare, 0.75 * bulge), (0.5, bulge), (0.8 + flare, 0.75 * bulge), (1, 0)])


def wave(draws: Draws, begin: Floats, end: Floats) -> Floats:
    """An S."""
    bulge = draws.sign() * draws.number(0.2, 0.45)
    return _along(begin, end, [(0, 0), (0.22, bulge), (0.5, 0), (0.78, -bulge), (1, 0)])


def hook(draws: Draws, begin: Floats, end: Floats) -> Floats:
    """A stem whose end turns back."""
    side, depth = draws.sign(), draws.number(0.25, 0.45)
    turn = [(0, 0), (0.5, 0), (0.85, 0.06 * side), (1, depth * 0.55 * side), (0.85, depth * side)]
    return _along(begin, end, [*turn, (0.65, depth * side)] if draws.chance(0.5) else turn)


def corner(draws: Draws, begin: Floats, end: Floats) -> Floats:
    """Two pieces that meet at an angle."""
    place, height = draws.number(0.1, 0.9), draws.sign() * draws.number(0.35, 0.8)
    return _along(begin, end, [(0, 0), (place, height), (1, 0)])


def zigzag(draws: Draws, begin: Floats, end: Floats) -> Floats:
    height = draws.sign() * draws.number(0.25, 0.5)
    if draws.chance(0.5):
        return _along(begin, end, [(0, 0), (0.35, height), (0.65, -height), (1, 0)])
    return _along(begin, end, [(0, 0), (0.25, height), (0.5, 0), (0.75, height), (1, 0)])


def ring(draws: Draws, begin: Floats, end: Floats) -> Floats:
    """A closed round, begun at `begin` and as wide as the way to `end`, a little open or overlapping."""
    flat, side = draws.number(0.3, 0.5), draws.sign()
    slack = draws.number(-0.12, 0.05)
    around = [(0.15, 0.71), (0.5, 1), (0.85, 0.71), (1, 0), (0.85, -0.71), (0.5, -1), (0.15, -0.71)]
    inner = [(x, y * flat * side) for x, y in around]
    return _along(begin, end, [(0, 0), *inner, (0.0, slack * side)])


def curl(draws: Draws, begin: Floats, end: Floats) -> Floats:
    """A stem with a loop in its course, as in a cursive e or l."""
    side, place, wide = draws.sign(), draws.number(0.35, 0.65), draws.number(0.16, 0.26)
    tall = wide * draws.number(1.2, 2.2) * side
    loop = [(place + wide, 0.3 * tall), (place + wide, tall), (place - wide, tall), (place - wide, 0.3 * tall)]
    return _along(begin, end, [(0, 0), *loop, (1, 0)])


def spiral(draws: Draws, begin: Floats, end: Floats) -> Floats:
    """A round that ends inside itself."""
    side = draws.sign()
    inward = [(0.1, 0.42), (0.5, 0.55), (0.9, 0.35), (0.95, -0.15), (0.6, -0.35), (0.35, -0.1), (0.5, 0.12)]
    stop = draws.integer(5, 7)
    return _along(begin, end, [(0, 0), *((x, y * side) for x, y in inward[:stop])])


def _along(begin: Floats, end: Floats, places: list[tuple[float, float]]) -> Floats:
    """Points given by how far they are along begin → end, and how far off to its left, both in its lengths."""
    way = end - begin
    left = np.array([way[1], -way[0]])
    return np.stack([begin + along * way + off * left for along, off in places])
