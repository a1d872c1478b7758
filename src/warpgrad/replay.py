"""The replay buffer of Algorithm 2: points (τ, k, θ, buffers, rule state), in memory or on disk.

Every entry is one row of bytes in one array, allocated once. The array lies in memory while it fits the
memory budget, else in a memory-mapped scratch file that the operating system pages in and out.
The buffer is scratch: it is rebuilt from keys after a resume and never part of a checkpoint.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from warpgrad.adaptation import Point
from warpgrad.errors import WarpgradError
from warpgrad.tensors import Tensors

_ALIGN = 16


@dataclass(frozen=True)
class ReplayBudget:
    """How many bytes of trajectory may be kept, and where."""

    memory: int = 4 << 30
    """Bytes that may be held in memory; more goes to disk."""
    disk: int = 64 << 30
    """Bytes that may be held in a scratch file; 0 forbids one."""
    directory: Path | None = None
    """Where the scratch file is made; the system's temporary directory if None."""


@dataclass(frozen=True)
class Entry:
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
    begin: int
    end: int


@dataclass
class ReplayBuffer:
    """Append while tasks adapt, then read in any order."""

    capacity: int
    budget: ReplayBudget = field(default_factory=ReplayBudget)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        self._slots: list[_Slot] = []
        self._index: list[tuple[int, int]] = []
        self._rows: Tensor | None = None
        self._file: Path | None = None

    def __len__(self) -> int:
        return len(self._index)

    @property
    def entry_bytes(self) -> int:
        """Bytes per entry; 0 before the first one."""
        return self._slots[-1].end if self._slots else 0

    @property
    def on_disk(self) -> bool:
        return self._file is not None

    def append(self, task: int, point: Point, increment: Tensors | None = None) -> None:
        """Copy a point in. The first one fixes the layout of all."""
        sections = {"theta": point.theta, "buffers": point.buffers, "state": point.state}
        sections["increment"] = increment or {}
        if self._rows is None:
            self._slots = _layout(sections)
            self._rows = self._allocate()
        if len(self) == self.capacity:
            raise WarpgradError(f"the replay buffer is full at {self.capacity} entries.")
        row = self._rows[len(self)]
        for slot in self._slots:
            value = sections[slot.section].get(slot.name)
            view = row[slot.begin : slot.begin + _bytes(slot.dtype, slot.shape)].view(slot.dtype).view(slot.shape)
            if value is None:
                view.zero_()
            else:
                view.copy_(value)
        assert isinstance(point.k, int), "stacked points are split before they are stored"
        self._index.append((task, point.k))

    def __getitem__(self, place: int) -> Entry:
        """The entry at `place`, on the device. In memory on a CPU it is a view: valid until `close`."""
        assert self._rows is not None
        task, k = self._index[place]
        row = self._rows[place]
        sections: dict[str, Tensors] = {"theta": {}, "buffers": {}, "state": {}, "increment": {}}
        for slot in self._slots:
            flat = row[slot.begin : slot.begin + _bytes(slot.dtype, slot.shape)]
            sections[slot.section][slot.name] = flat.view(slot.dtype).view(slot.shape).to(self.device)
        point = Point(k, sections["theta"], sections["buffers"], sections["state"])
        return Entry(task, point, sections["increment"])

    def close(self) -> None:
        """Give the memory or the scratch file back."""
        self._rows = None
        self._index = []
        if self._file is not None:
            self._file.unlink(missing_ok=True)
            self._file = None

    def _allocate(self) -> Tensor:
        total = self.capacity * self.entry_bytes
        if total <= self.budget.memory:
            return torch.empty(self.capacity, self.entry_bytes, dtype=torch.uint8)
        if total > self.budget.disk:
            raise WarpgradError(
                f"the replay buffer needs {total:,} bytes for {self.capacity} points, more than its budget of "
                f"{self.budget.memory:,} in memory and {self.budget.disk:,} on disk; raise ReplayBudget, "
                "lower steps or tasks, or use Online."
            )
        with tempfile.NamedTemporaryFile(prefix="warpgrad-replay-", dir=self.budget.directory, delete=False) as scratch:
            self._file = Path(scratch.name)
        rows = torch.from_file(str(self._file), shared=True, size=total, dtype=torch.uint8)
        return rows.view(self.capacity, self.entry_bytes)


def _bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return dtype.itemsize * torch.Size(shape).numel()


def _layout(sections: dict[str, Tensors]) -> list[_Slot]:
    slots: list[_Slot] = []
    begin = 0
    for section, tensors in sections.items():
        for name, value in tensors.items():
            size = _bytes(value.dtype, tuple(value.shape))
            # Rows and slots start at multiples of 16 bytes, so that bytes can be viewed as any dtype.
            end = begin + -(-size // _ALIGN) * _ALIGN
            slots.append(_Slot(section, name, value.dtype, tuple(value.shape), begin, end))
            begin = end
    return slots
