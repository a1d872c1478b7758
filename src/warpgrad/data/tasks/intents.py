"""Tasks on sentences: tell some labels (intents) apart after K sentences of each.

The output of the encoder's frozen lower layers is computed once for each sentence and kept (`SentenceStates`); tasks
draw from that. A task is a function of (labels, shots, seed). Every adaptation step sees the same number of sentences
of each label, at most `batch_shots`, so that steps on many shots cost no more than on few.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from warpgrad.data.sources.text import LabelledText
from warpgrad.errors import WarpgradError, require
from warpgrad.keys import fold, generator
from warpgrad.model.learner import Forward
from warpgrad.tasks.base import Task, TaskFamily
from warpgrad.tasks.supervised import accuracy
from warpgrad.training import checkpoint

logger = logging.getLogger(__name__)

Encode = Callable[[Sequence[str]], tuple[Tensor, Tensor]]
"""Sentences -> (hidden states [n, tokens, width], attention mask [n, tokens])."""
CHUNK = 256
"""The number of sentences that are encoded at once."""


class SentenceStates:
    """Hidden states of many sentences, without padding: one after the other in one tensor."""

    def __init__(self, states: Tensor, offsets: Tensor) -> None:
        self.states = states
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def width(self) -> int:
        return self.states.shape[1]

    def batch(self, places: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return (states, mask) of some sentences, padded to the longest of them."""
        index = torch.as_tensor(places)
        begin, lengths = self.offsets[index], self.offsets[index + 1] - self.offsets[index]
        steps = torch.arange(int(lengths.max()))
        mask = steps < lengths[:, None]
        gathered = self.states[(begin[:, None] + steps).clamp(max=len(self.states) - 1)]
        device = self.states.device
        return gathered * mask[:, :, None].to(gathered), mask.long().to(device)

    @classmethod
    def encoded(
        cls, texts: Sequence[str], encode: Encode, progress: Callable[[int, int], None] | None = None
    ) -> SentenceStates:
        """Encode texts, in batches of sentences of similar length."""
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        parts: dict[int, Tensor] = {}
        for begin in range(0, len(order), CHUNK):
            chosen = order[begin : begin + CHUNK]
            states, mask = encode([texts[place] for place in chosen])
            for row, place in enumerate(chosen):
                parts[place] = states[row][mask[row].bool()].clone()
            if progress is not None:
                progress(min(begin + CHUNK, len(order)), len(order))
        lengths = torch.tensor([0, *(len(parts[place]) for place in range(len(texts)))])
        return cls(torch.cat([parts[place] for place in range(len(texts))]), lengths.cumsum(0))


def cached_states(
    texts: Sequence[str],
    encode: Encode,
    folder: Path,
    key: str,
    progress: Callable[[int, int], None] | None = None,
) -> SentenceStates:
    """Return the states of texts, cached in `folder`; `key` identifies the encoder and its layers."""
    digest = hashlib.sha256("\0".join([key, *texts]).encode()).hexdigest()
    path = folder / f"states-{digest[:16]}.safetensors"
    if path.is_file():
        try:
            return _kept_states(checkpoint.read_checkpoint(path), digest, len(texts))
        except (WarpgradError, KeyError) as error:  # writes are atomic, but disks fail
            logger.warning("%s is damaged or from an earlier version and is computed again (%s).", path, error)
    made = SentenceStates.encoded(texts, encode, progress)
    checkpoint.write_checkpoint(path, {"key": digest, "states": made.states, "offsets": made.offsets})
    return made


def _kept_states(kept: Mapping[str, Any], digest: str, count: int) -> SentenceStates:
    """Check that what a file holds are the states of `count` sentences, and of those that `digest` identifies."""
    states, offsets = kept["states"], kept["offsets"]
    require(kept.get("key", digest) == digest, "it holds the states of other sentences or of another encoder")
    require(
        all(isinstance(part, Tensor) for part in (states, offsets))
        and states.ndim == 2
        and states.is_floating_point()
        and bool(states.isfinite().all())
        and offsets.dtype == torch.int64
        and offsets.shape == (count + 1,)
        and int(offsets[0]) == 0
        and int(offsets[-1]) == len(states)
        and bool((offsets.diff() >= 0).all()),
        f"it does not hold the states of {count} sentences",
    )
    return SentenceStates(states, offsets)


class SentenceBatch(NamedTuple):
    """Sentences of a support set, then those to classify, which are the support set itself if there are no others."""

    states: Tensor
    mask: Tensor
    support: Tensor
    """Labels of the support set."""
    labels: Tensor
    """Of the sentences to classify."""
    classes: int


class IntentTask(Task):
    """Tell labels apart after seeing K sentences of each."""

    def __init__(
        self,
        name: str,
        states: SentenceStates,
        support: Sequence[Sequence[int]],
        query: Sequence[Sequence[int]],
        *,
        batch_shots: int = 5,
        meta_query: int | None = None,
        outside: Sequence[int] = (),
        seed: int = 0,
    ) -> None:
        """
        Args:
            name: Of the task.
            states: All sentences.
            support: For every label, the places of the sentences to adapt to.
            query: For every label, the places of the sentences to be judged on.
            batch_shots: Sentences of each label in an adaptation step, at most.
            meta_query: Sentences of each label in the meta-loss, at most; all if None.
            outside: Sentences of no label, for the score of those out of scope.
            seed: Keys the batches.
        """
        self.name = name
        self.states = states
        self.support, self.query, self.outside = support, query, outside
        self.batch_shots, self.meta_query = batch_shots, meta_query
        self.seed = seed

    @property
    def classes(self) -> int:
        return len(self.support)

    def with_seed(self, seed: int) -> IntentTask:
        return IntentTask(
            self.name, self.states, self.support, self.query,
            batch_shots=self.batch_shots, meta_query=self.meta_query, outside=self.outside, seed=seed,
        )  # fmt: skip

    def adapt_batch(self, k: int) -> SentenceBatch:
        return self.batch(self._drawn(self.support, self.batch_shots, "adapt", k))

    def meta_batch(self, k: int) -> SentenceBatch:
        return self.batch(
            self._drawn(self.support, self.batch_shots, "meta support", k),
            self._drawn(self.query, self.meta_query, "meta", k),
        )

    def test_batches(self) -> Iterable[SentenceBatch]:
        yield self.batch(self.support, self.query)

    def loss(self, forward: Forward, batch: SentenceBatch) -> Tensor:
        return F.cross_entropy(forward(batch.states, batch.mask, batch.support, batch.classes), batch.labels)

    def metrics(self, forward: Forward, batch: SentenceBatch) -> dict[str, float]:
        logits = forward(batch.states, batch.mask, batch.support, batch.classes)
        return {
            "loss": float(F.cross_entropy(logits, batch.labels).detach()),
            "accuracy": float(accuracy(logits, batch.labels)),
        }

    def batch(self, support: Sequence[Sequence[int]], asked: Sequence[Sequence[int]] = ()) -> SentenceBatch:
        """Return a batch of these sentences of every label."""
        places = [place for own in support for place in own]
        labels = _labels(support)
        if not asked:
            return SentenceBatch(*self.states.batch(places), labels, labels, len(support))
        places += [place for own in asked for place in own]
        return SentenceBatch(*self.states.batch(places), labels, _labels(asked), len(support))

    def _drawn(self, of: Sequence[Sequence[int]], most: int | None, role: str, k: int) -> list[list[int]]:
        """Draw at most `most` sentences of every label, by key."""
        if most is None or all(len(own) <= most for own in of):
            return [list(own) for own in of]
        draw = generator(self.seed, k, role)
        return [[own[place] for place in torch.randperm(len(own), generator=draw)[:most].tolist()] for own in of]


def _labels(of: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([label for label, own in enumerate(of) for _ in own])


@dataclass(frozen=True)
class IntentShape:
    """How tasks are drawn."""

    ways: int = 15
    shots: tuple[int, ...] = (5,)
    """One of them is drawn for every task."""
    query: int = 15
    """The number of query sentences of each label."""
    batch_shots: int = 5
    meta_query: int | None = None


def check_labels(text: LabelledText, labels: Sequence[int], shots: int, where: str = "") -> None:
    """Check that a split has at least two labels, each with enough sentences for the `shots` asked for at `where`."""
    members = text.members()
    for label in labels:
        if len(members[label]) < shots + 1:
            raise WarpgradError(
                f"the label '{text.labels[label]}' of {text.name} has {_sentences(len(members[label]))}: {shots} "
                f"shots{where} and at least one sentence to test on need {shots + 1}; ask for fewer, or add sentences."
            )
    if len(labels) < 2:
        raise WarpgradError(f"{text.name} has fewer than two labels in a split, but a task needs at least two.")


class IntentFamily(TaskFamily):
    """Tasks on the labels of one split: sets of labels drawn at random and, as often, whole domains."""

    def __init__(
        self,
        text: LabelledText,
        states: SentenceStates,
        labels: Sequence[int],
        shape: IntentShape,
        outside: Sequence[int] = (),
    ) -> None:
        self.text, self.states, self.shape, self.outside = text, states, shape, outside
        self.labels = tuple(labels)
        self._members: Mapping[int, list[int]] = {
            label: own for label, own in enumerate(text.members()) if label in set(labels)
        }
        self.domains = self._domains()
        check_labels(text, self.labels, max(shape.shots))

    def sample(self, seed: int) -> IntentTask:
        draw = generator("intents", seed)
        shots = self.shape.shots[int(torch.randint(len(self.shape.shots), (1,), generator=draw))]
        if self.domains and int(torch.randint(2, (1,), generator=draw)):
            name = sorted(self.domains)[int(torch.randint(len(self.domains), (1,), generator=draw))]
            return self.task(name, self.domains[name], shots, seed)
        ways = min(self.shape.ways, len(self.labels))
        chosen = torch.randperm(len(self.labels), generator=draw)[:ways].tolist()
        return self.task("labels drawn at random", [self.labels[place] for place in chosen], shots, seed)

    def task(self, name: str, labels: Sequence[int], shots: int, seed: int) -> IntentTask:
        """Return the task on these labels, with sentences drawn by the seed."""
        draw = generator("sentences", seed)
        support, query = [], []
        for label in labels:
            own = self._members[label]
            order = [own[place] for place in torch.randperm(len(own), generator=draw).tolist()]
            support.append(order[:shots])
            query.append(order[shots : shots + self.shape.query])
        return IntentTask(
            name, self.states, support, query,
            batch_shots=self.shape.batch_shots, meta_query=self.shape.meta_query, outside=self.outside,
            seed=fold(seed, "batches"),
        )  # fmt: skip

    def _domains(self) -> dict[str, list[int]]:
        """Return the domains of the split with two labels or more."""
        found: dict[str, list[int]] = {}
        for label in self.labels:
            found.setdefault(self.text.domains[label], []).append(label)
        return {name: own for name, own in found.items() if name and len(own) > 1}


def _sentences(count: int) -> str:
    return "one sentence" if count == 1 else f"{count} sentences"
