"""The replay buffer of Algorithm 2: points (τ, k, θ, buffers, rule state), in memory or on disk.

Every entry is one row of bytes in one array, allocated once. The array lies in memory while it fits the
memory budget, else in a memory-mapped scratch file that the operating system pages in and out. Tensors keep their
memory format: a channels-last θ that came back contiguous would be converted again at every use.
The buffer is scratch: it is rebuilt from keys after a resume and never part of a checkpoint.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from warpgrad.adaptation.base import Point
from warpgrad.algorithms.ranks import Ranks
from warpgrad.errors import WarpgradError, require
from warpgrad.tensors import Tensors

_ALIGN = 64


@dataclass(frozen=True)
class ReplayBudget:
    """How many bytes of trajectory may be kept, and where.

    Example:
        >>> wg.Offline(steps=100, tasks=20, budget=wg.ReplayBudget(memory=1 << 30, disk=0)).steps
        100
    """

    memory: int = 4 << 30
    """Bytes that may be held in memory; more goes to disk."""
    disk: int = 64 << 30
    """Bytes that may be held in a scratch file; 0 forbids one."""
    directory: Path | None = None
    """Where the scratch file is made; the system's temporary directory if None."""


@dataclass(frozen=True)
class ReplayEntry:
    """One sample of p(τ, θ): the index of its task, the point, and segment k's part of ∇C where it was kept."""

    task: int
    point: Point
    increment: Tensors


@dataclass(frozen=True)
class _Slot:
    section: str
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    begin: int
    end: int


@dataclass
class ReplayBuffer:
    """Append while tasks adapt, then read in any order.

    Example:
        >>> buffer = wg.ReplayBuffer(capacity=10)
        >>> buffer.append(0, start)
        >>> len(buffer), buffer[0].point.k
        (1, 0)
    """

    capacity: int
    budget: ReplayBudget = field(default_factory=ReplayBudget)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        self._slots: list[_Slot] = []
        self._index: list[tuple[int, int]] = []
        self._array: Tensor | None = None
        self._rows: dict[torch.dtype, Tensor] = {}
        self._spilled = False

    def __len__(self) -> int:
        return len(self._index)

    @property
    def entry_bytes(self) -> int:
        """Bytes per entry; 0 before the first one."""
        return self._slots[-1].end if self._slots else 0

    @property
    def on_disk(self) -> bool:
        return self._spilled

    def lay_out(self, point: Point, increment: Tensors | None = None) -> dict[str, Tensors]:
        """Fix the layout of all entries by the first one, whether it is stored or not, and return its parts."""
        sections = {"theta": point.theta, "buffers": point.buffers, "state": point.state}
        sections["increment"] = increment or {}
        if not self._rows:
            self._slots = _layout(sections)
            self._array = self._allocate()
            self._rows = {dtype: self._array.view(dtype) for dtype in {slot.dtype for slot in self._slots}}
        return sections

    def append(self, task: int, point: Point, increment: Tensors | None = None) -> None:
        """Copy a point into the buffer."""
        sections = self.lay_out(point, increment)
        assert isinstance(point.k, int), "stacked points are split before they are stored"
        place = self.reserve(task, point.k)
        begin = place * self.entry_bytes
        kept: list[Tensor] = []
        values: list[Tensor] = []
        for slot in self._slots:
            value = sections[slot.section].get(slot.name)
            if value is None:
                _view(self._rows, begin, slot).zero_()
            else:
                kept.append(_view(self._rows, begin, slot))
                values.append(value)
        torch._foreach_copy_(kept, values)

    def __getitem__(self, place: int) -> ReplayEntry:
        """Return the entry at `place`, on the device; in memory on a CPU it is a view, valid until `close`."""
        task, k = self._index[place]
        sections: dict[str, Tensors] = {"theta": {}, "buffers": {}, "state": {}, "increment": {}}
        begin, elsewhere = place * self.entry_bytes, self.device.type != "cpu"
        for slot in self._slots:
            kept = _view(self._rows, begin, slot)
            sections[slot.section][slot.name] = kept.to(self.device) if elsewhere else kept
        return ReplayEntry(
            task, Point(k, sections["theta"], sections["buffers"], sections["state"]), sections["increment"]
        )

    def packed(self, place: int) -> Tensor:
        """Return the bytes of the entry at `place`, which fit into a buffer of equal layout."""
        assert self._array is not None
        return self._array[place * self.entry_bytes : (place + 1) * self.entry_bytes]

    def reserve(self, task: int, k: int) -> int:
        """Make room for one more entry and return its place; its bytes are to be written to `packed(place)`."""
        if len(self) == self.capacity:
            raise WarpgradError(f"the replay buffer is full at {self.capacity} entries.")
        self._index.append((task, k))
        return len(self) - 1

    def close(self) -> None:
        """Release the memory or the scratch file."""
        self._array, self._rows = None, {}
        self._index = []
        self._spilled = False

    def _allocate(self) -> Tensor:
        total = self.capacity * self.entry_bytes
        if total <= self.budget.memory:
            return torch.empty(total, dtype=torch.uint8)
        require(
            total <= self.budget.disk,
            f"the replay buffer needs {total:,} bytes for {self.capacity} points, more than its budget of "
            f"{self.budget.memory:,} in memory and {self.budget.disk:,} on disk; raise ReplayBudget, "
            "lower steps or tasks, or use Online.",
        )
        try:
            # The file never has a name, so that a kill cannot leave it behind.
            with tempfile.TemporaryFile(prefix="warpgrad-replay-", dir=self.budget.directory) as scratch:
                # A mapped page for which the disk has no room would end the process by SIGBUS: allocate it now.
                os.posix_fallocate(scratch.fileno(), 0, total)
                array = torch.frombuffer(mmap.mmap(scratch.fileno(), total), dtype=torch.uint8)
        except OSError as error:
            where = self.budget.directory or tempfile.gettempdir()
            raise WarpgradError(
                f"the replay buffer needs a scratch file of {total:,} bytes in {where}: {error.strerror}; make room "
                "there, choose another folder (ReplayBudget, TMPDIR), lower steps or tasks, or use Online."
            ) from error
        self._spilled = True
        return array


def _view(rows: Mapping[torch.dtype, Tensor], begin: int, slot: _Slot) -> Tensor:
    """Return the tensor of a slot in the row that begins at byte `begin`."""
    return rows[slot.dtype].as_strided(slot.shape, slot.strides, (begin + slot.begin) // slot.dtype.itemsize)


def _layout(sections: dict[str, Tensors]) -> list[_Slot]:
    slots: list[_Slot] = []
    begin = 0
    for section, tensors in sections.items():
        for name, value in tensors.items():
            # Rows and slots start at multiples of 64 bytes, as torch's own allocations do: bytes can be viewed as any
            # dtype, and kernels read a replayed θ as fast as a fresh one.
            end = begin + -(-value.nbytes // _ALIGN) * _ALIGN
            # The strides of a copy: those of the value itself where it has no gaps.
            strides = torch.empty_like(value, device="meta").stride()
            slots.append(_Slot(section, name, value.dtype, tuple(value.shape), strides, begin, end))
            begin = end
    return slots


Pair = tuple[int, int]
"""Task and step of a point."""


class Shares:
    """The shares of all updates of a meta-step, as one rank sees them, and the points it has for them."""

    def __init__(self, order: Sequence[Pair], eta: int, tasks: int, ranks: Ranks) -> None:
        """Divide the replayed points of `tasks` tasks, in `order`, into updates of `eta` consecutive ones."""
        self.updates: list[list[Pair]] = []
        """The points that this rank evaluates, update by update."""
        self.moves: list[tuple[int, int, Pair]] = []
        """Sender, receiver and point, for the points that this rank sends or receives, in an order common to all."""
        self._ranks = ranks
        self._replayed = frozenset(order)
        self._places: dict[Pair, int] = {}
        holders = min(ranks.size, tasks)  # a rank without a task does not know what an entry looks like
        ends = [ranks.share(tasks, rank).stop for rank in range(holders)]
        for begin in range(0, len(order), eta):
            chosen = order[begin : begin + eta]
            owners = [bisect_right(ends, task) for task, _ in chosen]
            triples = list(zip(owners, balanced(owners, holders), chosen, strict=True))
            self.updates.append([pair for _, rank, pair in triples if rank == ranks.index])
            self.moves += [(old, new, pair) for old, new, pair in triples if old != new and ranks.index in (old, new)]

    @property
    def incoming(self) -> int:
        """How many points this rank receives."""
        return sum(receiver == self._ranks.index for _, receiver, _ in self.moves)

    def __contains__(self, pair: object) -> bool:
        """Return whether a point is replayed at all."""
        return pair in self._replayed

    def collected(self, pair: Pair, place: int) -> None:
        """Note where in the replay buffer a point lies."""
        self._places[pair] = place

    def exchange(self, buffer: ReplayBuffer) -> None:
        """Send the points that other ranks evaluate and receive those that this one does; called by all ranks."""
        if self._ranks.size > 1:
            self._ranks.exchange(self._parcels(buffer))

    def entries(self, update: Sequence[Pair], buffer: ReplayBuffer) -> list[ReplayEntry]:
        """Return the points of an update that this rank evaluates."""
        return [buffer[self._places[pair]] for pair in update]

    def _parcels(self, buffer: ReplayBuffer) -> Iterator[tuple[int, int, Tensor]]:
        for sender, receiver, pair in self.moves:
            if receiver == self._ranks.index:
                self._places[pair] = buffer.reserve(*pair)
            yield sender, receiver, buffer.packed(self._places[pair])


def balanced(owners: Sequence[int], size: int) -> list[int]:
    """Return the rank, of `size`, that evaluates each point: equal shares, moving few away from their `owners`."""
    held = [owners.count(rank) for rank in range(size)]
    each, more = divmod(len(owners), size)
    richest = sorted(range(size), key=lambda rank: -held[rank])[:more]
    free = [each + (rank in richest) for rank in range(size)]
    chosen: list[int | None] = []
    for owner in owners:
        keeps = free[owner] > 0
        free[owner] -= keeps
        chosen.append(owner if keeps else None)
    spare = iter([rank for rank in range(size) for _ in range(free[rank])])
    return [next(spare) if rank is None else rank for rank in chosen]
