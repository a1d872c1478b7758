"""One appearance per method: the same colour and dash in every chart, forest plot and picture on a page."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

PALETTE = ("#c1272d", "#0072b2", "#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#5b2a86", "#1c2127")
"""Colours for a light background, distinct also with protan, deutan and tritan vision; the tests measure it."""

DARK_PALETTE = ("#f0595f", "#4a87d3", "#11b39b", "#f0cb35", "#b9c6ff", "#f58ccb", "#9b57ff", "#e6e8eb")
"""The same colours, in the same order, for a dark background."""

DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.6), (1.2, 1.4), (6, 1.5, 1.2, 1.5))
"""Lengths of strokes and gaps, in line widths; the empty one is a solid line."""

# Methods that meet in one figure of the paper have different colours; the warped ones share the first.
_KNOWN = {
    "warp-leap": (0, 0), "warp-maml": (0, 0), "warp-rnn": (0, 0), "warpgrad": (0, 0), "warp": (0, 0),
    "leap": (1, 0), "maml": (2, 0), "fomaml": (2, 1), "reptile": (3, 0), "finetuning": (4, 0), "fine-tuning": (4, 0),
    "sgd": (7, 0), "gd": (7, 0), "momentum": (4, 0), "adam": (3, 0), "kfac": (5, 0), "ewc": (5, 1),
    "meta-sgd": (6, 0), "meta-curvature": (6, 1), "t-net": (5, 0), "mt-net": (5, 2), "cavia": (4, 0), "anil": (2, 2),
    "rnn": (7, 0), "a2c-rnn": (7, 0), "hyperrnn": (1, 0), "hebbian": (2, 0), "simple-modulation": (3, 0),
    "retroactive-modulation": (4, 0), "t-nets-rnn": (5, 0),
}  # fmt: skip

# Pictures show these in their own colours before the other names on the page are known.
_DRAWN = ("warpgrad", "sgd", "adam")


@dataclass(frozen=True)
class Appearance:
    """How the line of a method is drawn."""

    place: int
    """Index of its colour, in both palettes."""
    dashing: int
    """Index of its dash."""

    @property
    def colour(self) -> str:
        return PALETTE[self.place]

    @property
    def dash(self) -> tuple[float, ...]:
        return DASHES[self.dashing]

    def turned(self, by: int) -> Appearance:
        """Return the same colour with another dash, for a second line of the same method."""
        return Appearance(self.place, (self.dashing + by) % len(DASHES))


def appearances(names: Sequence[str]) -> dict[str, Appearance]:
    """Return how each method is drawn.

    A known name has a fixed appearance, also when a comma, a colon or a bracket follows it (`Leap, 25 tasks`); any
    other gets one from a hash of its name. No two of up to 32 names look alike: if two clash, the one later in the
    alphabet moves on to the next free appearance. So looks depend on the names on the page but never on their order.
    Only if there are more names than colours do those with the same beginning, such as the trials of one method, share
    a colour and cycle through the dashes.
    """
    begins = [_begin(name) for name in dict.fromkeys(names)]
    if len(begins) > len(PALETTE) and len(set(begins)) < len(begins):
        families = appearances(sorted(set(begins)))
        members: dict[str, int] = {}
        found = {}
        for name in sorted(set(names)):
            members[_begin(name)] = members.get(_begin(name), -1) + 1
            found[name] = families[_begin(name)].turned(members[_begin(name)])
        return {name: found[name] for name in names}
    taken: set[tuple[int, int]] = set()
    result: dict[str, Appearance] = {}
    for name in sorted(set(names), key=_rank):
        colour, dash = _KNOWN.get(_plain(name)) or _KNOWN.get(_plain(_begin(name))) or _place(name)
        # All colours first, then the next dash, so that neighbours in a crowded chart differ by colour.
        for _ in range(len(PALETTE) * len(DASHES)):
            if (colour, dash) not in taken:
                break
            colour = (colour + 1) % len(PALETTE)
            dash = (dash + (colour == 0)) % len(DASHES)
        taken.add((colour, dash))
        result[name] = Appearance(colour, dash)
    return {name: result[name] for name in names}


def _rank(name: str) -> tuple[bool, bool, bool, str, str]:
    """Return the place of a name among those that choose their looks, the first of which gets what it wants."""
    whole, begin = _plain(name), _plain(_begin(name))
    return whole not in _DRAWN, whole not in _KNOWN, begin not in _KNOWN, begin, name


def _begin(name: str) -> str:
    return re.split(r"[,:(]", name)[0].strip()


def _plain(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.lower())


def _place(name: str) -> tuple[int, int]:
    digest = hashlib.blake2b(_plain(name).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % len(PALETTE), 0
