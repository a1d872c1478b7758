"""N-way tasks with hundreds of images of each class (§4.2, App. H): adapted to in batches, over many steps.

A task is a function of (split, seed): classes without replacement from the split, images without replacement from each
class, the first of them to adapt to, the next L to be tested on. It holds indices of images, not images: these stay
bytes in the store until they are in a batch, so a task of thousands of large images costs nothing to draw.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from warpgrad.data.tasks.episodes import BatchedClassification, FewShotImages, ImageBatch, SplitFamily, SplitImages
from warpgrad.errors import require
from warpgrad.keys import generator

TEST_BATCH = 100
"""The maximum size of a test batch; hundreds of large images at once would take more memory than adaptation."""


@dataclass(frozen=True)
class ManyShotShape:
    """N-way tasks with up to `shots` training and exactly `test` test images per class, in batches."""

    ways: int = 10
    shots: int = 640
    """The maximum number of training images; a class with fewer gives all that `test` leaves."""
    test: int = 50
    batch_size: int = 64
    meta_images: int = 0
    """Of each class, how many training images only L_meta sees; 0: both losses see all, in different batches."""

    def __post_init__(self) -> None:
        for name, least in (("ways", 2), ("shots", 1), ("test", 1), ("batch_size", 1), ("meta_images", 0)):
            require(
                getattr(self, name) >= least, f"{name}={getattr(self, name)}: a many-shot task needs at least {least}."
            )
        require(
            self.meta_images < self.shots,
            f"meta_images={self.meta_images} of {self.shots} shots: at least one image of each class must be left "
            "to adapt to.",
        )

    def training_images(self, count: int) -> int:
        """Return how many images of a class of `count` images are for training."""
        return min(self.shots, count - self.test)


class ManyShotTask(BatchedClassification):
    """Tell N classes apart. L_task and L_meta are the same negative log-likelihood on different random batches, drawn
    from all training images whatever their class; the test batches are the held-out images."""

    def __init__(
        self,
        name: str,
        source: SplitImages,
        places: list[int],
        *,
        adapt: Tensor,
        meta: Tensor,
        test: Tensor,
        batch_size: int,
        seed: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """
        Args:
            name: Shown in messages.
            source: Where the images are.
            places: The class of each label, as an index into `source`.
            adapt: The images that adaptation draws from, [n, 2]: label, and place among those of its class.
            meta: Those that the meta-loss draws from.
            test: The held-out ones.
            batch_size: Images per batch.
            seed: Keys the batches.
            dtype: Of the images in a batch.
        """
        self.name, self.source, self.places = name, source, places
        self.stack_key = (ManyShotTask, batch_size)
        self.adapt_images, self.meta_images, self.test_images = adapt, meta, test
        self.batch_size, self.seed, self.dtype = batch_size, seed, dtype

    @property
    def classes(self) -> tuple[str, ...]:
        store = self.source.images.store
        return tuple(store.classes[self.source.classes[place]] for place in self.places)

    def batch(self, k: int, role: Literal["adapt", "meta"]) -> ImageBatch:
        chosen = self.adapt_images if role == "adapt" else self.meta_images
        drawn = torch.randint(len(chosen), (self.batch_size,), generator=generator(self.seed, k, role))
        return self._read(chosen[drawn])

    def test_batches(self) -> Iterable[ImageBatch]:
        # Batches have equal size, because scores are averaged over batches.
        count = len(self.test_images)
        size = max(size for size in range(1, min(count, TEST_BATCH) + 1) if count % size == 0)
        for begin in range(0, count, size):
            yield self._read(self.test_images[torch.arange(begin, begin + size)])

    def _read(self, chosen: Tensor) -> ImageBatch:
        """Read the chosen images class by class, and return them in the order of `chosen`."""
        labels, images = chosen.unbind(1)
        order = labels.argsort(stable=True)
        parts = [
            self.source.take(self.places[label], images[labels == label]) for label in sorted(set(labels.tolist()))
        ]
        pixels = torch.cat(parts)
        pixels = pixels[order.argsort().to(pixels.device)]
        return self.source.images.normalised(pixels, self.dtype), labels.to(pixels.device)


class ManyShotFamily(SplitFamily[ManyShotTask]):
    """All many-shot tasks of one split."""

    def __init__(
        self, images: FewShotImages, split: str, shape: ManyShotShape, *, dtype: torch.dtype = torch.float32
    ) -> None:
        """
        Args:
            images: The data set.
            split: `train`, `validation` or `test`.
            shape: Ways, shots, test images and batches.
            dtype: Of the images in a batch.
        """
        self.source = images.split(split)
        self.shape, self.dtype = shape, dtype
        fewest, whose = self.check_classes(len(self.source.classes), shape.ways)
        require(
            shape.training_images(fewest) > shape.meta_images,
            f"{whose}; {shape.test} test images and {shape.meta_images} for the meta-loss leave none to adapt to; ask "
            "for fewer.",
        )

    def draw(self, name: str, seed: int) -> ManyShotTask:
        shape, source = self.shape, self.source
        draw = generator(source.name, "many-shot", seed)
        places = torch.randperm(len(source.classes), generator=draw)[: shape.ways].tolist()
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for place in places:
            order = torch.randperm(source.counts[place], generator=draw)
            training = shape.training_images(source.counts[place])
            kept = training - shape.meta_images
            meta = order[kept:training] if shape.meta_images else order[:kept]
            parts.append((order[:kept], meta, order[training : training + shape.test]))
        adapt, of_meta, test = (_labelled(part) for part in zip(*parts, strict=True))
        return ManyShotTask(
            name,
            source,
            places,
            adapt=adapt,
            meta=of_meta,
            test=test,
            batch_size=shape.batch_size,
            seed=seed,
            dtype=self.dtype,
        )


def _labelled(of_classes: Iterable[Tensor]) -> Tensor:
    pairs = [torch.stack([torch.full_like(places, label), places], dim=1) for label, places in enumerate(of_classes)]
    return torch.cat(pairs)
