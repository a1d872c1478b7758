"""Ranks: the processes that share a meta-step.

Algorithms ask for two things: which part of some work belongs to this process, and sums over all processes. The class
here is a single process, which does all the work and whose sums are complete. `warpgrad.training.distributed` has the
class for several processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from typing import TypeVar

import torch
from torch import Tensor

from warpgrad.tensors import Accumulator

T = TypeVar("T")


class Ranks:
    """One process among `size`, the one at `index`. Every method but `share` must be called by all of them."""

    size = 1
    index = 0

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes files, validates and logs."""
        return self.index == 0

    def share(self, count: int, rank: int | None = None) -> slice:
        """Return the part of `count` tasks that belongs to a rank, by default this one.

        Shares are contiguous, and the first ranks have one more.
        """
        place = self.index if rank is None else rank
        each, more = divmod(count, self.size)
        begin = place * each + min(place, more)
        return slice(begin, begin + each + (place < more))

    def total(self, numbers: Sequence[float]) -> list[float]:
        """Sum a few numbers over ranks; if a rank has failed, all ranks raise its error here."""
        return list(numbers)

    def all_reduce(self, flat: Tensor) -> None:
        """Sum a contiguous tensor over all ranks, in place."""

    def exchange(self, parcels: Iterable[tuple[int, int, Tensor]]) -> None:
        """Send parcels of (sender, receiver, bytes): the sender's bytes are written into the receiver's tensor.

        A rank names the parcels that it sends or receives, in an order that is common to all ranks.
        """
        assert not list(parcels), "a single process has nothing to exchange"

    def share_errors(self) -> AbstractContextManager[None]:
        """Make all ranks raise a `WarpgradError` that any rank raises inside the block."""
        return nullcontext()

    def from_first(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0 alone, and return its result, a JSON value, on all ranks."""
        return work()

    def broadcast(self, data: bytes) -> bytes:
        """Send rank 0's bytes to all ranks."""
        return data


ALONE = Ranks()


def all_reduce(ranks: Ranks, sums: Sequence[tuple[Accumulator, Mapping[str, Tensor]]]) -> None:
    """Sum accumulators over all ranks: one exchange of counts, then one of a flat tensor.

    Every sum comes with the parameters it is a gradient for, because a rank without a share of the work has no
    gradient from which to read the shapes. Sums that no rank has added to stay empty.
    """
    if ranks.size == 1:
        return
    counts = ranks.total([number for own, _ in sums for number in (own.count, bool(own.total))])
    parts: list[tuple[Accumulator, str, Tensor]] = []
    for place, (own, parameters) in enumerate(sums):
        own.count = int(counts[2 * place])
        if counts[2 * place + 1]:
            parts += [(own, name, value) for name, value in parameters.items()]
    if not parts:
        return
    flat, views = _flat([value for *_, value in parts])
    for (own, name, _), view in zip(parts, views, strict=True):
        if name in own.total:
            view.copy_(own.total[name])
        else:
            view.zero_()
    ranks.all_reduce(flat)
    for (own, name, value), view in zip(parts, views, strict=True):
        own.total[name] = view.to(value.dtype)


def _flat(parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return a new flat tensor, and a view of it for every parameter.

    Views have the layouts of the parameters, which ranks share: with different layouts, rounding could differ.
    """
    dtype = reduce(torch.promote_types, (value.dtype for value in parameters))
    sizes = [value.numel() for value in parameters]
    flat = parameters[0].new_empty(sum(sizes), dtype=dtype)
    views = [
        part.as_strided(value.shape, torch.empty_like(value, device="meta").stride())
        for part, value in zip(torch.split(flat, sizes), parameters, strict=True)
    ]
    return flat, views
