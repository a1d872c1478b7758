"""Omniglot for few shots (Vinyals et al. 2016): all 1623 characters as classes, whatever their alphabet.

The images are those of `prepare_omniglot`; the splits are 1100 characters to meta-train, 100 to validate and 423 to
test. Which ones is drawn by a fixed key from the characters' names, so every machine has the same. Rotations by
quarter turns, which the literature counts as classes of their own, are a matter of the episodes and not stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from warpgrad.data.class_files import Progress
from warpgrad.data.omniglot import CONTENTS, Contents, prepare_with_splits
from warpgrad.data.splits import draw_splits
from warpgrad.data.store import ImageStore

SIZES = {"train": 1100, "validation": 100, "test": 423}
_KEY = ("omniglot-fewshot", 0)


def prepare_omniglot_few_shot(
    source: Path | str | None,
    destination: Path | str,
    size: int = 28,
    progress: Progress | None = None,
    *,
    _contents: Contents = CONTENTS,
    _sizes: Mapping[str, int] = SIZES,
) -> ImageStore:
    """Make the data set from Omniglot's two archives, verified as `prepare_omniglot` does."""
    return prepare_with_splits(
        source,
        destination,
        size,
        progress,
        contents=_contents,
        name="Omniglot few-shot",
        splits=lambda classes: draw_splits(classes, _sizes, *_KEY),
        note="; splits drawn by a fixed key from the names of the characters",
    )
