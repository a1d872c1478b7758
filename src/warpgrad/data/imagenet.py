"""What miniImageNet and tieredImageNet share: 84×84 RGB images of ImageNet, and what is said about them."""

from __future__ import annotations

from warpgrad.data.splits import FILE_NAMES

SIDE = 84
SHAPE = (3, SIDE, SIDE)
LICENCE = "ImageNet's terms of access: for non-commercial research and education"
FOLDERS = "unpack the pictures into class folders and use 'warpgrad data prepare folder --size 84'"
"""The way around a pickle that cannot be read."""


def file_of(pattern: str, split: str) -> str:
    """The published file of a split, e.g. of "{}_labels.pkl"."""
    return pattern.format(FILE_NAMES[split][0])
