"""Tasks from any map-style data set, one that has a length and returns an example for an index.

    DatasetTask(dataset, F.cross_entropy, batch_size=32, seed=3)
    FewShotFamily(dataset, F.cross_entropy, ways=5, shots=1, query=15)
    tasks_by_group(dataset, "user", F.mse_loss, batch_size=16)          # one task per user, device, site

An example is a pair (inputs, target), as torchvision's data sets have it, or a mapping of columns, as Hugging Face's
have it; neither package is needed. Every batch is a function of (seed, k, role): which examples it holds, in which
order, and what a random transform does to them, in this process or in workers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from warpgrad.errors import WarpgradError, flag, function, integer, real, short_repr
from warpgrad.keys import fold, generator
from warpgrad.model.learner import Forward
from warpgrad.tasks.base import Batch, TaskFamily
from warpgrad.tasks.supervised import Loss, MeasuredTask, metric_functions

Place = tuple[int, int]
"""An example's index, and the key of the batch that it is drawn for."""


class DatasetTask(MeasuredTask):
    """Batches drawn from a data set, epoch after epoch, each epoch in a different order.

    A batch of mappings calls the model with every column but `label` as keyword arguments; a pair with its first part.
    Override `loss` to call the model differently.

    Example:
        >>> pairs = wg.DatasetTask(list(zip(x, y)), F.mse_loss, batch_size=4, seed=3)
        >>> [tuple(part.shape) for part in pairs.adapt_batch(0)]
        [(4, 2), (4, 1)]
    """

    def __init__(
        self,
        dataset: Any,
        loss: Loss,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        meta: Any = None,
        test: Any = None,
        metrics: Mapping[str, Loss] | None = None,
        label: str = "label",
        collate: Callable[[list[Any]], Any] = default_collate,
        device: torch.device | str | None = None,
        workers: int = 0,
        in_memory: bool = False,
        name: str = "data set",
    ) -> None:
        """
        Args:
            dataset: What has `len(...)` and `dataset[index]`.
            loss: (prediction, target) -> scalar.
            batch_size: Examples per batch; all of them if None.
            seed: The seed of every random draw.
            meta: The data set that the meta-loss is taken on; `dataset` itself, in other batches, if None.
            test: Held-out data, read in order.
            metrics: Test scores besides the loss, by name.
            label: The column that is the target, where examples are mappings.
            collate: Makes a batch from a list of examples.
            device: Where batches go; they stay where `collate` made them if None.
            workers: Processes that load batches ahead; the batches are the same.
            in_memory: Read every example once, and keep it: for few examples and transforms that are not random.
            name: The name in messages.
        """
        self.name = name
        self.measures = {"loss": function(loss, "loss", "F.mse_loss"), **metric_functions(metrics)}
        self._collate = function(collate, "collate", "torch.utils.data.default_collate")
        self._label, self.seed, self._device = label, integer(seed, "seed"), device
        self._workers = integer(workers, "workers")
        if flag(in_memory, "in_memory") and workers:
            raise WarpgradError("in_memory=True reads every example once, so workers= has no effect: leave it out.")
        self._data = {"adapt": dataset, "meta": dataset if meta is None else meta}
        if test is not None:
            self._data["test"] = test
        for role, data in self._data.items():
            if len(check_map_style(data, role)) == 0:
                raise WarpgradError(f"task '{name}' is empty: its {role} data has no examples.")
        if in_memory:
            kept = {id(data): _InMemory(data) for data in self._data.values()}
            self._data = {role: kept[id(data)] for role, data in self._data.items()}
        self._batch_size = batch_size
        if batch_size is not None and integer(batch_size, "batch_size", at_least=1) > len(dataset):
            raise WarpgradError(
                f"task '{name}' asks for batches of {batch_size} from {len(dataset)} examples; pass batch_size=None "
                "for all of them."
            )
        self._orders: dict[str, tuple[int, Tensor]] = {}
        self._ahead: dict[str, _Ahead] = {}

    def adapt_batch(self, k: int) -> Batch:
        return self._batch("adapt", k)

    def meta_batch(self, k: int) -> Batch:
        return self._batch("meta", k)

    def test_batches(self) -> Iterable[Batch]:
        data = self._data.get("test")
        if data is None:
            return
        size = self._batch_size or len(data)
        for number, begin in enumerate(range(0, len(data), size)):
            key = fold(self.seed, "test", number)
            yield self._placed(
                read(data, [(i, key) for i in range(begin, min(begin + size, len(data)))], self._collate)
            )

    def with_seed(self, seed: int) -> Self:
        other = super().with_seed(seed)
        other._orders, other._ahead = {}, {}
        return other

    def places(self, role: str, k: int) -> list[Place]:
        """Return which examples the batch of step k holds, each with the key of its transform."""
        count, key = len(self._data[role]), fold(self.seed, role, k)
        if self._batch_size is None:
            return [(index, key) for index in range(count)]
        size = min(self._batch_size, count)
        per_epoch = count // size  # the remainder is left out until the next epoch's order
        epoch, place = divmod(k, per_epoch)
        kept = self._orders.get(role)
        if kept is None or kept[0] != epoch:
            kept = epoch, torch.randperm(count, generator=generator(self.seed, role, "epoch", epoch))
            self._orders[role] = kept
        return [(int(index), key) for index in kept[1][place * size : (place + 1) * size]]

    def _batch(self, role: str, k: int) -> Batch:
        if not self._workers:
            return self._placed(read(self._data[role], self.places(role, k), self._collate))
        ahead = self._ahead.get(role)
        if ahead is None:
            ahead = self._ahead[role] = _Ahead(self, role)
        return self._placed(ahead.at(k))

    def _placed(self, batch: Batch) -> Batch:
        return batch if self._device is None else _moved(batch, self._device)

    def predicted(self, forward: Forward, batch: Batch) -> tuple[Any, Any]:
        if isinstance(batch, Mapping):
            if self._label not in batch:
                columns = ", ".join(map(str, batch))
                raise WarpgradError(
                    f"a batch of task '{self.name}' has no column '{self._label}', only {columns}: pass label=."
                )
            return forward(**{name: value for name, value in batch.items() if name != self._label}), batch[self._label]
        inputs, target = batch
        return forward(inputs), target


class FewShotFamily(TaskFamily):
    """N-way K-shot episodes over the classes of a labelled data set: its classes are drawn, then its examples.

    A task adapts to `shots` examples per class and is judged and tested on `query` others. Classes are numbered from 0.

    Example:
        >>> data = [(torch.ones(2) * (i % 3), i % 3) for i in range(12)]
        >>> family = wg.FewShotFamily(data, F.cross_entropy, ways=2, shots=1, query=2)
        >>> family.sample(0).meta_batch(0)[1].tolist()
        [0, 0, 1, 1]
    """

    def __init__(
        self,
        dataset: Any,
        loss: Loss,
        *,
        ways: int,
        shots: int,
        query: int,
        labels: Sequence[Hashable] | str | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            dataset: Any map-style data set with labels.
            loss: (prediction, class number) -> scalar.
            ways: Classes per task.
            shots: Examples per class to adapt to.
            query: Examples per class for the meta-loss and the test.
            labels: The class of every example, or the name of the column that has it. If None, `dataset.targets` or
                `dataset.labels`, else the column `label`, else what the examples themselves say, which are read once.
            options: Of `DatasetTask`, such as `metrics`, `collate`, `device`.
        """
        self.ways = integer(ways, "ways", at_least=2)
        self.shots, self.query = integer(shots, "shots", at_least=1), integer(query, "query", at_least=1)
        self.dataset = check_map_style(dataset, "data set")
        self._loss = function(loss, "loss", "F.cross_entropy")
        self._label = labels if isinstance(labels, str) else options.pop("label", "label")
        self._options = {"in_memory": True, **options}
        by_class: dict[Hashable, list[int]] = {}
        for index, value in enumerate(column(dataset, labels, self._label)):
            by_class.setdefault(value, []).append(index)
        self.classes = {value: places for value, places in by_class.items() if len(places) >= shots + query}
        if len(self.classes) < ways:
            raise WarpgradError(
                f"{ways}-way tasks of {shots} + {query} examples per class need {ways} classes of that size, but the "
                f"data set has only {len(self.classes)} (of {len(by_class)})."
            )

    def sample(self, seed: int) -> DatasetTask:
        draw = generator(seed, "few-shot")
        names = list(self.classes)
        support: list[tuple[int, int]] = []
        query: list[tuple[int, int]] = []
        for number, place in enumerate(torch.randperm(len(names), generator=draw)[: self.ways].tolist()):
            members = self.classes[names[place]]
            chosen = [
                members[i] for i in torch.randperm(len(members), generator=draw)[: self.shots + self.query].tolist()
            ]
            support += [(index, number) for index in chosen[: self.shots]]
            query += [(index, number) for index in chosen[self.shots :]]
        held_out = _Relabelled(self.dataset, query, self._label)
        return DatasetTask(
            _Relabelled(self.dataset, support, self._label), self._loss, meta=held_out, test=held_out, seed=seed,
            label=self._label, **{"name": f"episode {seed}", **self._options},
        )  # fmt: skip


def tasks_by_group(
    dataset: Any,
    groups: Sequence[Hashable] | str,
    loss: Loss,
    *,
    batch_size: int | None = None,
    meta: float = 0.25,
    test: float = 0.25,
    least: int = 4,
    seed: int = 0,
    **options: Any,
) -> list[DatasetTask]:
    """Make one task for each user, device or site of a data set, for `TaskList(...)`, in order of first appearance.

    Args:
        dataset: Any map-style data set.
        groups: The group of every example, or the name of the column that has it, which the model is not given.
        loss: (prediction, target) -> scalar.
        batch_size: Examples per batch; smaller groups take all they have.
        meta: Share of a group's examples that the meta-loss is taken on.
        test: Share that is held out for the test.
        least: Groups with fewer examples are left out.
        seed: Draws the shares, and keys the batches.
        options: Of `DatasetTask`, such as `metrics`, `label`, `workers`.

    Example:
        >>> users = wg.tasks_by_group(list(zip(x, y)), ["ann", "bob"] * 4, F.mse_loss)
        >>> [user.name for user in users]
        ['ann', 'bob']
    """
    for value, argument in ((meta, "meta"), (test, "test")):
        real(value, argument, above=0)
    if meta + test >= 1:
        raise WarpgradError(f"meta={meta} and test={test} leave nothing to adapt to: their sum must be below 1.")
    integer(least, "least", at_least=3)
    check_map_style(dataset, "data set")
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(column(dataset, groups, groups if isinstance(groups, str) else "group")):
        members.setdefault(group, []).append(index)
    tasks: list[DatasetTask] = []
    hidden = groups if isinstance(groups, str) else None
    for group, places in members.items():
        if len(places) < least:
            continue
        order = torch.randperm(len(places), generator=generator(seed, "shares", repr(group))).tolist()
        chosen = [places[i] for i in order]
        judged, tested = max(1, round(meta * len(chosen))), max(1, round(test * len(chosen)))
        parts = chosen[judged + tested :], chosen[:judged], chosen[judged : judged + tested]
        adapted, held_out, unseen = (_Chosen(dataset, part, hidden) for part in parts)
        size = None if batch_size is None else min(batch_size, len(parts[0]))
        tasks.append(
            DatasetTask(
                adapted,
                loss,
                batch_size=size,
                meta=held_out,
                test=unseen,
                seed=fold(seed, repr(group)),
                **{"name": str(group), **options},
            )
        )
    if not tasks:
        raise WarpgradError(f"no group of the data set has {least} examples or more.")
    return tasks


def check_map_style(dataset: Any, what: str) -> Any:
    """Check that a data set has a length and gives any example by its index, and return it."""
    if isinstance(dataset, IterableDataset):
        raise WarpgradError(
            f"the {what} is an IterableDataset, whose examples cannot be accessed by index: collect it into a list "
            "first."
        )
    if isinstance(dataset, DataLoader):
        raise WarpgradError(f"the {what} is a DataLoader: pass its dataset; batch_size= and workers= do the rest.")
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")) or isinstance(dataset, Mapping):
        raise WarpgradError(
            f"the {what} must have len(...) and dataset[index], as torch.utils.data.Dataset has, not "
            f"{short_repr(dataset)}."
        )
    return dataset


def column(dataset: Any, values: Sequence[Hashable] | str | None, label: str) -> list[Hashable]:
    """Return one value for every example: given, the data set's own, or read from the examples."""
    if values is not None and not isinstance(values, str):
        found: Any = values
    elif values is None and getattr(dataset, "targets", None) is not None:
        found = dataset.targets
    elif values is None and getattr(dataset, "labels", None) is not None:
        found = dataset.labels
    elif label in getattr(dataset, "column_names", ()):
        found = dataset[label]
    else:
        found = [_entry(dataset[index], label) for index in range(len(dataset))]
    if not isinstance(found, Iterable):
        raise WarpgradError(
            f"labels= and groups= must be one value per example, or the name of a column, not {short_repr(found)}."
        )
    plain = found.tolist() if hasattr(found, "tolist") else list(found)
    if len(plain) != len(dataset):
        raise WarpgradError(f"there are {len(plain)} labels for {len(dataset)} examples.")
    return [value.item() if isinstance(value, Tensor) else value for value in plain]


def read(dataset: Any, places: Sequence[Place], collate: Callable[[list[Any]], Any]) -> Any:
    """Read a batch, with every random draw of a transform keyed; the caller's generators are left untouched."""
    with _kept_generators():
        return collate(_Keyed(dataset).__getitems__(places))


@contextmanager
def _kept_generators() -> Iterator[None]:
    own = random.getstate(), np.random.get_state()  # noqa: NPY002 - what transforms draw from
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(own[0])
        np.random.set_state(own[1])  # noqa: NPY002


class _Keyed(Dataset[Any]):
    """A data set whose transforms draw from generators that the batch has seeded, here or in a worker."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, place: Place) -> Any:
        return self.__getitems__([place])[0]

    def __getitems__(self, places: Sequence[Place]) -> list[Any]:
        key = places[0][1]
        torch.default_generator.manual_seed(key)
        random.seed(key)
        np.random.seed(key % 2**32)  # noqa: NPY002
        return [self.dataset[index] for index, _ in places]


class _Ahead:
    """Batches of one role loaded by workers, in the order of k; a request for another k starts over there."""

    def __init__(self, task: DatasetTask, role: str) -> None:
        self._task, self._role = task, role
        self._next = -1
        self._last: tuple[int, Any] | None = None
        self._batches: Iterator[Any] = iter(())

    def at(self, k: int) -> Any:
        if self._last is not None and self._last[0] == k:
            return self._last[1]
        if k != self._next:
            loader: DataLoader[Any] = DataLoader(
                _Keyed(self._task._data[self._role]),
                batch_sampler=cast(Any, _From(self._task, self._role, k)),
                num_workers=self._task._workers,
                collate_fn=self._task._collate,
            )
            self._batches = iter(loader)
        self._last, self._next = (k, next(self._batches)), k + 1
        return self._last[1]


class _From:
    """The places of batch k, of batch k + 1, and so on."""

    def __init__(self, task: DatasetTask, role: str, k: int) -> None:
        self._task, self._role, self._k = task, role, k

    def __iter__(self) -> Iterator[list[Place]]:
        k = self._k
        while True:
            yield self._task.places(self._role, k)
            k += 1


class _InMemory(Dataset[Any]):
    """A data set whose examples are read once and kept."""

    def __init__(self, dataset: Any) -> None:
        with _kept_generators():
            self.examples = _Keyed(dataset).__getitems__([(index, 0) for index in range(len(dataset))])

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Any:
        return self.examples[index]


class _Chosen(Dataset[Any]):
    """Some examples of a data set, without the column that chose them."""

    def __init__(self, dataset: Any, places: Sequence[int], hidden: str | None) -> None:
        self.dataset, self.places, self.hidden = dataset, list(places), hidden

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Any:
        example = self.dataset[self.places[index]]
        if self.hidden is None or not isinstance(example, Mapping):
            return example
        return {name: value for name, value in example.items() if name != self.hidden}


class _Relabelled(Dataset[Any]):
    """Some examples of a data set under new class numbers."""

    def __init__(self, dataset: Any, places: Sequence[tuple[int, int]], label: str) -> None:
        self.dataset, self.places, self.label = dataset, list(places), label

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Any:
        place, number = self.places[index]
        example = self.dataset[place]
        if isinstance(example, Mapping):
            return {**example, self.label: number}
        return *example[:-1], number


def _entry(example: Any, label: str) -> Any:
    if isinstance(example, Mapping):
        if label not in example:
            raise WarpgradError(f"the examples have no column '{label}', only {', '.join(map(str, example))}.")
        return example[label]
    return example[-1]


def _moved(tree: Any, device: torch.device | str) -> Any:
    if isinstance(tree, Tensor):
        return tree.to(device)
    if isinstance(tree, Mapping):
        return {name: _moved(value, device) for name, value in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(_moved(value, device) for value in tree)
    return tree
