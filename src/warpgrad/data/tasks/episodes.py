"""N-way K-shot episodes (§4.1, App. H): a few images of a few classes to adapt to, and L others of each to test on.

An episode is a function of (split, seed): classes without replacement from the split, images without replacement from
each class, the first K of them the support set, the next L the query set.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import ClassVar, Generic, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from warpgrad.data.store import ImageStore
from warpgrad.data.transform import to_float
from warpgrad.errors import require
from warpgrad.keys import fold, generator
from warpgrad.tasks.base import TaskFamily
from warpgrad.tasks.supervised import Loss, MeasuredTask, accuracy
from warpgrad.tensors import laid_channels_last

ImageBatch = tuple[Tensor, Tensor]
"""(images float [n, channels, height, width], labels [n])."""


class Classification(MeasuredTask):
    """Negative log-likelihood of labels, and accuracy at test time. Subclasses define the batches."""

    measures: Mapping[str, Loss] = MappingProxyType({"loss": F.cross_entropy, "accuracy": accuracy})


class BatchedClassification(Classification):
    """Random batches that are a function of the seed, the step and the role; subclasses define `batch(k, role)`."""

    @abstractmethod
    def batch(self, k: int, role: Literal["adapt", "meta"]) -> ImageBatch:
        """Return the batch of step k to adapt to, or to take the meta-loss on."""

    def adapt_batch(self, k: int) -> ImageBatch:
        return self.batch(k, "adapt")

    def meta_batch(self, k: int) -> ImageBatch:
        return self.batch(k, "meta")


SAMPLE = 50
"""The number of evenly spaced images of each training class that the channels' mean and deviation are computed from."""

PRELOAD_BYTES = 2 * 1024**3
"""A split up to this size is read into memory once; a larger one (tieredImageNet's) stays in its file."""

TURNS = 4
"""The number of rotations by multiples of 90° that `rotations` turns into separate classes."""


class FewShotImages:
    """The splits of a store, and the channel statistics of its training split by which all of them are normalised."""

    def __init__(
        self, store: ImageStore, device: torch.device | str = "cpu", preload_bytes: int = PRELOAD_BYTES
    ) -> None:
        self.store, self.device, self.preload_bytes = store, torch.device(device), preload_bytes
        self._splits: dict[str, SplitImages] = {}

    @cached_property
    def statistics(self) -> tuple[Tensor, Tensor]:
        """(mean, standard deviation) of each channel over `SAMPLE` images of every training class, in [0, 1].

        A fixed sample, instead of all images, means reading some thousand images only; no seed changes it.
        """
        total = square = torch.zeros(self.store.shape[0], dtype=torch.float64)
        count = 0
        for class_index in self.store.split("train"):
            there = self.store.count(class_index)
            chosen = sorted({place * there // SAMPLE for place in range(SAMPLE)})
            pixels = self.store.images(class_index, chosen).transpose(0, 1).flatten(1).double() / 255.0
            total = total + pixels.sum(1)
            square = square + pixels.square().sum(1)
            count += pixels.shape[1]
        mean = total / count
        deviation = (square / count - mean.square()).clamp(min=0).sqrt()
        # A channel that never changes is left at 0 instead of being divided by 0.
        return mean, torch.where(deviation > 0, deviation, 1.0)

    def split(self, name: str) -> SplitImages:
        """Return a split, which is read once."""
        if name not in self._splits:
            self._splits[name] = SplitImages(self, name)
        return self._splits[name]

    def normalised(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """Normalise uint8 images to channels-last floats of mean 0 and deviation 1."""
        mean, deviation = (value.to(self.device, dtype)[:, None, None] for value in self.statistics)
        return laid_channels_last((to_float(images, self.device, dtype) - mean) / deviation)


class SplitImages:
    """The images of one split: one uint8 tensor in memory where they fit, else read from the file when needed."""

    def __init__(self, images: FewShotImages, name: str) -> None:
        self.images, self.name = images, name
        store = images.store
        self.classes = store.split(name)
        self.counts = [store.count(class_index) for class_index in self.classes]
        self._offsets = [*accumulate(self.counts, initial=0)]
        self._pixels: Tensor | None = None
        if self._offsets[-1] * math.prod(store.shape) <= images.preload_bytes:
            self._pixels = torch.cat([store.images(class_index) for class_index in self.classes]).to(images.device)

    def take(self, place: int, chosen: Tensor) -> Tensor:
        """Return some images of the split's class number `place`, uint8 [n, channels, height, width]."""
        if self._pixels is None:
            return self.images.store.images(self.classes[place], chosen.tolist()).to(self.images.device)
        return self._pixels[(chosen + self._offsets[place]).to(self._pixels.device)]


T = TypeVar("T", bound=Classification)


class SplitFamily(TaskFamily, Generic[T]):
    """Tasks drawn from the classes of one split: any of them by a seed, and a list of numbered ones to test on."""

    source: SplitImages
    noun: ClassVar[str] = "task"
    """What a task is called."""

    @abstractmethod
    def draw(self, name: str, seed: int) -> T:
        """Return the task of this seed."""

    def sample(self, seed: int) -> T:
        return self.draw(f"{self.source.name} {self.noun}", seed)

    def tasks(self, count: int) -> Iterator[T]:
        """Yield the first `count` numbered tasks one by one; they are the same for every method, seed and machine."""
        for index in range(count):
            yield self.draw(f"{self.source.name} {self.noun} {index}", fold(self.noun, index))

    def check_classes(self, classes: int, ways: int) -> tuple[int, str]:
        """Check that a split has enough classes; return the fewest images of any class, and words that name it."""
        store, counts = self.source.images.store, self.source.counts
        data, split, fewest = store.header.name, self.source.name, min(counts)
        require(
            classes >= ways, f"split '{split}' of {data} has {classes} classes, too few for {ways} ways; ask for fewer."
        )
        name = store.classes[self.source.classes[counts.index(fewest)]]
        return fewest, f"class '{name}' of {data} ({split}) has {fewest} images"


@dataclass(frozen=True)
class EpisodeShape:
    """N-way K-shot with L query images per class."""

    ways: int = 5
    shots: int = 1
    query: int = 15

    def __post_init__(self) -> None:
        for name, least in (("ways", 2), ("shots", 1), ("query", 1)):
            require(getattr(self, name) >= least, f"{name}={getattr(self, name)}: an episode needs at least {least}.")


class FewShotTask(Classification):
    """Tell N classes apart after seeing K images of each. The support set is the batch of every adaptation step, the
    query set that of every meta-loss and of the test."""

    def __init__(self, name: str, support: ImageBatch, query: ImageBatch, classes: tuple[str, ...]) -> None:
        self.name, self.support, self.query, self.classes = name, support, query, classes
        self.stack_key = (FewShotTask, support[0].shape, query[0].shape)

    def adapt_batch(self, k: int) -> ImageBatch:
        del k
        return self.support

    def meta_batch(self, k: int) -> ImageBatch:
        del k
        return self.query

    def test_batches(self) -> Iterable[ImageBatch]:
        yield self.query


class FewShotImageFamily(SplitFamily[FewShotTask]):
    """All episodes of one split."""

    noun = "episode"

    def __init__(
        self,
        images: FewShotImages,
        split: str,
        shape: EpisodeShape,
        *,
        rotations: bool = False,
        flips: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """
        Args:
            images: The data set.
            split: `train`, `validation` or `test`.
            shape: Ways, shots and query images.
            rotations: Images turned by 90°, 180° and 270° are classes of their own (Omniglot's protocol).
            flips: Mirror each image left to right with probability ½, for meta-training.
            dtype: Of the images.
        """
        self.source = images.split(split)
        self.shape, self.rotations, self.flips, self.dtype = shape, rotations, flips, dtype
        fewest, whose = self.check_classes(self.classes, shape.ways)
        require(
            fewest >= shape.shots + shape.query,
            f"{whose}, too few for {shape.shots} shots and {shape.query} query images; ask for fewer: shots "
            "(in meta-training, train_shots) or query.",
        )
        _, height, width = images.store.shape
        require(
            not rotations or height == width,
            f"images of {images.store.header.name} are not square, so turning them changes their shape; leave "
            "rotations off.",
        )

    @property
    def classes(self) -> int:
        """How many classes an episode draws from."""
        return len(self.source.classes) * (TURNS if self.rotations else 1)

    def draw(self, name: str, seed: int) -> FewShotTask:
        shape, source, store = self.shape, self.source, self.source.images.store
        draw = generator(source.name, seed)
        names: list[str] = []
        chosen: list[Tensor] = []
        for label in torch.randperm(self.classes, generator=draw)[: shape.ways].tolist():
            place, turns = divmod(label, TURNS) if self.rotations else (label, 0)
            order = torch.randperm(source.counts[place], generator=draw)[: shape.shots + shape.query]
            images = source.take(place, order)
            if turns:
                images = torch.rot90(images, turns, dims=(2, 3))
            if self.flips:
                mirrored = torch.rand(len(images), generator=draw) < 0.5
                images = torch.where(mirrored.to(images.device)[:, None, None, None], images.flip(3), images)
            chosen.append(images)
            names.append(store.classes[source.classes[place]] + (f" turned {90 * turns}°" if turns else ""))
        support, query = (
            [images[part] for images in chosen] for part in (slice(shape.shots), slice(shape.shots, None))
        )
        return FewShotTask(name, self._batch(support), self._batch(query), tuple(names))

    def _batch(self, of_classes: list[Tensor]) -> ImageBatch:
        images = self.source.images.normalised(torch.cat(of_classes), self.dtype)
        labels = torch.arange(len(of_classes), device=images.device).repeat_interleave(len(of_classes[0]))
        return images, labels
