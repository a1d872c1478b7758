"""Small image stores with splits: every class has a colour pattern of its own under noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from warpgrad.data import ClassImages, ImageStore, write

SPLITS = ("train", "validation", "test")


def few_shot_store(
    path: Path, *, size: int = 32, channels: int = 3, classes: int = 6, images: int = 12, seed: int = 0
) -> ImageStore:
    """`classes` classes per split, `images` images each."""
    random = np.random.default_rng(seed)
    names = {split: [f"{split}{place}" for place in range(classes)] for split in SPLITS}

    def made():
        for split in SPLITS:
            for name in names[split]:
                pattern = random.integers(30, 226, size=(1, channels, 4, 4)).repeat(size // 4, 2).repeat(size // 4, 3)
                noise = random.integers(-30, 30, size=(images, channels, size, size))
                yield ClassImages(name, "", (pattern + noise).astype(np.uint8))

    return write(
        path, made(), name=f"patterns {size}", shape=(channels, size, size), source="test", licence="", splits=names
    )
