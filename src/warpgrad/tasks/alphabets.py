"""Alphabets as tasks: 20-way classification of randomly transformed characters (App. E).

Batches are drawn with replacement from all training drawings, whatever their class, and every drawing is scaled,
rotated and shifted anew each time. Images stay bytes until they are in a batch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from warpgrad.data.alphabets import AlphabetData, Alphabets
from warpgrad.data.transform import AffineRange, random_affine
from warpgrad.errors import WarpgradError
from warpgrad.keys import fold, generator
from warpgrad.tasks.classification import Classification, ImageBatch
from warpgrad.tasks.supervised import TaskList


class AlphabetTask(Classification):
    """Tell the characters of one alphabet apart.

    L_task and L_meta are the same negative log-likelihood on different batches: both from all training drawings, or
    with `meta_drawings` from separate ones. The test batch is every test drawing, each under one transformation
    that depends on the alphabet alone.
    """

    def __init__(
        self,
        data: AlphabetData,
        *,
        batch_size: int,
        meta_drawings: int = 0,
        seed: int = 0,
        ranges: AffineRange | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """
        Args:
            data: The alphabet's images and labels.
            batch_size: Drawings per batch.
            meta_drawings: Of each character, how many training drawings are kept for L_meta and are never adapted to;
                0 takes both losses on all of them.
            seed: Keys the batches and their transformations.
            ranges: What transformations are drawn from; those of App. E if None.
            device: Where the images are kept and transformed.
        """
        self.name = data.name
        per_character = len(data.train_images) // len(data.characters)
        if batch_size < 1:
            raise WarpgradError(f"batch_size={batch_size}: a batch of alphabet '{data.name}' needs at least 1 drawing.")
        if not 0 <= meta_drawings < per_character:
            raise WarpgradError(
                f"meta_drawings={meta_drawings}: each character of alphabet '{data.name}' has {per_character} training "
                "drawings, and at least one must be left to adapt to."
            )
        self.batch_size = batch_size
        self.seed = seed
        self._ranges = ranges or AffineRange()
        self._images = data.train_images.to(device)
        self._labels = data.train_labels.to(device)
        self._test = (data.test_images.to(device), data.test_labels.to(device))
        place = torch.arange(len(data.train_images)) % per_character
        every = torch.arange(len(data.train_images))
        self._adapt_places = every[place < per_character - meta_drawings]
        self._meta_places = every[place >= per_character - meta_drawings] if meta_drawings else every

    def adapt_batch(self, k: int) -> ImageBatch:
        return self._draw(self._adapt_places, k, "adapt")

    def meta_batch(self, k: int) -> ImageBatch:
        return self._draw(self._meta_places, k, "meta")

    def test_batches(self) -> Iterable[ImageBatch]:
        images, labels = self._test
        yield random_affine(images, fold(self.name, "test"), self._ranges), labels

    def with_seed(self, seed: int) -> AlphabetTask:
        other = copy.copy(self)
        other.seed = seed
        return other

    def _draw(self, places: Tensor, k: int, role: str) -> ImageBatch:
        draw = generator(self.seed, k, role)
        chosen = places[torch.randint(len(places), (self.batch_size,), generator=draw)].to(self._images.device)
        images = random_affine(self._images[chosen], fold(self.seed, k, role), self._ranges)
        return images, self._labels[chosen]


def alphabet_tasks(
    alphabets: Alphabets,
    names: Sequence[str],
    *,
    batch_size: int,
    meta_drawings: int = 0,
    device: torch.device | str = "cpu",
) -> TaskList:
    """Some alphabets as a family: a meta-batch is a shuffled run through them, cycled when they are fewer, with new
    batches and transformations each time."""
    return TaskList(
        [
            AlphabetTask(alphabets[name], batch_size=batch_size, meta_drawings=meta_drawings, device=device)
            for name in names
        ]
    )
