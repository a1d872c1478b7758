"""Alphabets as tasks: the seed decides which are held out, which characters and which drawings are used (App. E).

Every draw is keyed by the seed and by names, never by positions in a file or by other draws: the same seed gives every
method the same alphabets, the same 20 characters of each, and the same 15 / 5 drawings of each character.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor

from warpgrad.data.store import ImageStore
from warpgrad.data.tasks.episodes import BatchedClassification, ImageBatch
from warpgrad.data.transform import AffineRange, random_affine
from warpgrad.errors import require
from warpgrad.keys import fold, generator
from warpgrad.tasks.supervised import TaskList


class AlphabetTask(BatchedClassification):
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
        self.name, self.stack_key = data.name, (AlphabetTask, batch_size)
        per_character = len(data.train_images) // len(data.characters)
        require(
            batch_size >= 1, f"batch_size={batch_size}: a batch of alphabet '{data.name}' needs at least 1 drawing."
        )
        require(
            0 <= meta_drawings < per_character,
            f"meta_drawings={meta_drawings}: each character of alphabet '{data.name}' has {per_character} training "
            "drawings, and at least one must be left to adapt to.",
        )
        self.batch_size, self.seed, self._ranges = batch_size, seed, ranges or AffineRange()
        self._images, self._labels = data.train_images.to(device), data.train_labels.to(device)
        self._test = (data.test_images.to(device), data.test_labels.to(device))
        every = torch.arange(len(data.train_images))
        adapted = every % per_character < per_character - meta_drawings
        self._places = {"adapt": every[adapted], "meta": every[~adapted] if meta_drawings else every}

    def batch(self, k: int, role: Literal["adapt", "meta"]) -> ImageBatch:
        places = self._places[role]
        drawn = torch.randint(len(places), (self.batch_size,), generator=generator(self.seed, k, role))
        chosen = places[drawn].to(self._images.device)
        images = random_affine(self._images[chosen], fold(self.seed, k, role), self._ranges)
        return images, self._labels[chosen]

    def test_batches(self) -> Iterable[ImageBatch]:
        images, labels = self._test
        yield random_affine(images, fold(self.name, "test"), self._ranges), labels


def alphabet_tasks(
    alphabets: Alphabets,
    names: Sequence[str],
    *,
    batch_size: int,
    meta_drawings: int = 0,
    device: torch.device | str = "cpu",
) -> TaskList:
    """Return some alphabets as a family of tasks.

    A meta-batch is a shuffled pass over them, cycled if they are fewer, with new batches and transformations each time.
    """
    return TaskList(
        [
            AlphabetTask(alphabets[name], batch_size=batch_size, meta_drawings=meta_drawings, device=device)
            for name in names
        ]
    )


_Item = TypeVar("_Item")


@dataclass(frozen=True)
class AlphabetProtocol:
    """The numbers of App. E."""

    characters: int = 20
    """Ways of the classification; alphabets with fewer characters are left out."""
    train_drawings: int = 15
    test_drawings: int = 5
    held_out: int = 10
    """Alphabets for meta-testing."""

    def __post_init__(self) -> None:
        require(
            min(self.characters, self.train_drawings, self.test_drawings, self.held_out) >= 1,
            f"{self} is not possible: each of its numbers must be at least 1.",
        )


@dataclass(frozen=True)
class AlphabetSplit:
    """The alphabets of one seed, by name; the three are disjoint."""

    seed: int
    train: tuple[str, ...]
    """For meta-training. With more tasks, those of fewer tasks stay among them."""
    validation: tuple[str, ...]
    """Those that meta-training does not use; may be empty."""
    test: tuple[str, ...]
    """Held out for meta-testing: the same whatever the number of meta-training tasks."""


def split_alphabets(
    store: ImageStore, seed: int, tasks: int, protocol: AlphabetProtocol | None = None
) -> AlphabetSplit:
    """Split the alphabets by seed: some are held out for meta-testing, the next `tasks` are for meta-training, the
    others for validation."""
    protocol = protocol or AlphabetProtocol()
    usable = usable_alphabets(store, protocol)
    rest = len(usable) - protocol.held_out
    there = f"{store.header.name} has {len(usable)} alphabets with {protocol.characters} characters or more"
    require(rest >= 1, f"{there}: too few to hold out {protocol.held_out} and meta-train on the others.")
    require(
        1 <= tasks <= rest,
        f"{there}; with {protocol.held_out} held out there can be 1 to {rest} meta-training tasks, not {tasks}.",
    )
    order = _shuffled(usable, seed, "alphabets")
    test, remaining = order[: protocol.held_out], order[protocol.held_out :]
    return AlphabetSplit(seed, tuple(remaining[:tasks]), tuple(remaining[tasks:]), tuple(test))


def usable_alphabets(store: ImageStore, protocol: AlphabetProtocol | None = None) -> tuple[str, ...]:
    """Return the alphabets with enough characters, sorted by name: 46 of Omniglot's 50."""
    protocol = protocol or AlphabetProtocol()
    return tuple(name for name, members in store.members().items() if len(members) >= protocol.characters)


@dataclass(frozen=True, eq=False)
class AlphabetData:
    """One alphabet's images, uint8 [n, channels, height, width], and labels 0..characters−1, class after class."""

    name: str
    characters: tuple[str, ...]
    """The class name of each label."""
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


class Alphabets:
    """The data of a store's alphabets under one seed; each alphabet is read once and kept (a third of a MB)."""

    def __init__(self, store: ImageStore, seed: int, protocol: AlphabetProtocol | None = None) -> None:
        self.store, self.seed, self.protocol = store, seed, protocol or AlphabetProtocol()
        self._members = store.members()
        self._kept: dict[str, AlphabetData] = {}

    def split(self, tasks: int) -> AlphabetSplit:
        return split_alphabets(self.store, self.seed, tasks, self.protocol)

    def __getitem__(self, name: str) -> AlphabetData:
        """Return the alphabet's data; the tensors are shared between callers and must not be modified."""
        if name not in self._kept:
            self._kept[name] = self._read(name)
        return self._kept[name]

    def _read(self, name: str) -> AlphabetData:
        members = self._members.get(name, ())
        require(
            len(members) >= self.protocol.characters,
            f"{self.store.header.name} has {len(members)} characters of alphabet '{name}'; "
            f"{self.protocol.characters} are needed.",
        )
        chosen = _shuffled(members, self.seed, "characters", name)[: self.protocol.characters]
        pairs = [self._drawings(class_index) for class_index in chosen]
        labels = torch.arange(len(chosen))
        return AlphabetData(
            name=name,
            characters=tuple(self.store.classes[class_index] for class_index in chosen),
            train_images=torch.cat([train for train, _ in pairs]),
            train_labels=labels.repeat_interleave(self.protocol.train_drawings),
            test_images=torch.cat([test for _, test in pairs]),
            test_labels=labels.repeat_interleave(self.protocol.test_drawings),
        )

    def _drawings(self, class_index: int) -> tuple[Tensor, Tensor]:
        name, there = self.store.classes[class_index], self.store.count(class_index)
        train, test = self.protocol.train_drawings, self.protocol.test_drawings
        require(
            there >= train + test,
            f"character '{name}' of {self.store.header.name} has {there} drawings; "
            f"{train} to train and {test} to test are needed.",
        )
        order = _shuffled(range(there), self.seed, "drawings", name)
        images = self.store.images(class_index, order[: train + test])
        return images[:train], images[train:]


def _shuffled(items: Sequence[_Item], *parts: int | str) -> list[_Item]:
    order = torch.randperm(len(items), generator=generator(*parts)).tolist()
    return [items[place] for place in order]
