"""The drawn alphabets: invented characters, each drawn by many writers, made from a seed.

They are the built-in default where no handwriting is on disk, with the same format and pipeline. The generator was
tuned by hand until its ink, stroke width and distances within and between characters were near those of all 46 usable
alphabets of Omniglot, held-out ones included; so similarity in these is by construction and not evidence.

An alphabet is a style, and its characters are strokes in that style (`glyphs`); writers draw them (`writers`). The same
seed is meant to give the same bytes on every machine; this was tested on one machine, with NumPy's SIMD on and off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt

from warpgrad.data.drawn.glyphs import Glyph, Random, Style, draw_character, draw_style, proportioned
from warpgrad.data.drawn.writers import draw_glyph, draw_model, draw_writers
from warpgrad.data.store import Images, ImageStore
from warpgrad.data.writing import ClassImages, check_vacant, write
from warpgrad.errors import require

Levels = npt.NDArray[np.int64]

_TRIES = 40
"""After this many rejected characters an alphabet accepts any, because its style has no more distinct ones."""
_MODEL = 28
_LEAST_INK, _MOST_INK = 25, 140
"""In thousandths of the page."""


def prepare_drawn(
    destination: Path | str,
    seed: int = 0,
    size: int = 28,
    progress: Callable[[int, int], None] | None = None,
    *,
    alphabets: int = 50,
    characters: tuple[int, int] = (20, 40),
    drawers: int = 20,
) -> ImageStore:
    """Draw a data set: `alphabets` of `characters` (fewest, most) each, every character by `drawers` writers.

    Images are `size`×`size`, ink 255 on paper 0; `progress(alphabets done, alphabets in all)` is called after
    each alphabet. An alphabet does not depend on how many others there are.
    """
    destination = Path(destination)
    check_vacant(destination)
    fewest, most = characters
    require(
        min(alphabets, fewest, drawers) >= 1 and most >= fewest and size >= 8,
        f"cannot draw {alphabets} alphabets of {fewest} to {most} characters by {drawers} writers at {size}×{size}: "
        "every number must be at least 1, the range ascending, and the size at least 8.",
    )
    return write(
        destination,
        _classes(seed, size, alphabets, characters, drawers, progress),
        name="drawn alphabets",
        shape=(1, size, size),
        source=f"drawn by warpgrad from seed {seed}: invented alphabets, no handwriting of anyone",
        licence="free of rights",
        note="ink 255, paper 0",
        fingerprint=f"{alphabets} alphabets, {fewest} to {most} characters, {drawers} drawers",
    )


def _classes(
    seed: int,
    size: int,
    alphabets: int,
    characters: tuple[int, int],
    drawers: int,
    progress: Callable[[int, int], None] | None,
) -> Iterator[ClassImages]:
    for alphabet in range(alphabets):
        place = ("drawn", seed, alphabet)
        group = f"Drawn_{alphabet + 1:02d}"
        style = draw_style(Random(*place, "style"))
        writers = draw_writers(Random(*place, "hands"), drawers)  # the bytes depend on this key
        number = Random(*place, "characters").integer(*characters)
        for index, glyph in enumerate(_alphabet(place, style, number)):
            images = partial(draw_glyph, Random(*place, "drawings", index), glyph, writers, size)
            yield ClassImages(f"{group}/character{index + 1:02d}", group, images)
        if progress is not None:
            progress(alphabet + 1, alphabets)


def _alphabet(place: tuple[str, int, int], style: Style, number: int) -> Iterator[Glyph]:
    """Yield characters that are neither blots nor specks and distinct from one another, even turned by right angles."""
    glyphs: list[Glyph] = []
    known: list[Levels] = []
    for index in range(number):
        for attempt in count():
            glyph = draw_character(Random(*place, "character", index, attempt), style, glyphs)
            if not glyph:
                continue
            page = proportioned(glyph, style)
            model = draw_model(page, _MODEL)
            outline = _outline(model)
            if attempt >= _TRIES or (_legible(model) and not any(_alike(outline, old) for old in known)):
                break
        glyphs.append(glyph)
        known += [np.rot90(outline, turns) for turns in range(4)]
        yield page


# The functions below decide what is in the data set, so they use integers: a sum of floats may vary by machine.


def _legible(model: Images) -> bool:
    """Return whether there is some ink, not too much, and in lines: 2 · ink / outline is the width of a stroke."""
    levels = model.astype(np.int64)
    ink = int(levels.sum())
    outline = int(np.abs(np.diff(levels, axis=0)).sum() + np.abs(np.diff(levels, axis=1)).sum())
    page = 255 * levels.size
    return _LEAST_INK * page < 1000 * ink < _MOST_INK * page and 50 * ink < 36 * outline


def _outline(model: Images) -> Levels:
    """Blur the model, so that comparisons depend on where strokes run and not on single pixels."""
    half = model.astype(np.int64).reshape(_MODEL // 2, 2, _MODEL // 2, 2).sum(axis=(1, 3))
    padded = np.pad(half, 1)
    rows = padded[:-2] + padded[1:-1] + padded[2:]
    return np.asarray(rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:])


def _alike(first: Levels, second: Levels) -> bool:
    difference = first - second
    smaller = min(int((first * first).sum()), int((second * second).sum()))
    return 100 * int((difference * difference).sum()) < 6 * smaller
