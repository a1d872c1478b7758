"""What miniImageNet and tieredImageNet share: 84×84 RGB images of ImageNet, and what is said about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from warpgrad.data.splits import FILE_NAMES

T = TypeVar("T")

SIDE = 84
SHAPE = (3, SIDE, SIDE)
LICENCE = "ImageNet's terms of access: for non-commercial research and education"
FOLDERS = "unpack the pictures into class folders and use 'warpgrad data prepare folder --size 84'"
"""The way around a pickle that cannot be read."""


def file_of(pattern: str, split: str) -> str:
    """The published file of a split, e.g. of "{}_labels.pkl"."""
    return pattern.format(FILE_NAMES[split][0])


def one_at_a_time(read: Callable[[str], T]) -> Callable[[str], T]:
    """Keep what was read last until something else is asked for; never two at a time in memory."""
    held: dict[str, T] = {}

    def held_or_read(key: str) -> T:
        if key not in held:
            held.clear()
            held[key] = read(key)
        return held[key]

    return held_or_read
