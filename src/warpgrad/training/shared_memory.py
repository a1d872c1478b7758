"""What the ranks of one machine say to each other, through memory that they share.

A message over the loopback interface wakes several threads on its way and takes milliseconds, as long as some of the
work between two exchanges. Here every rank has counters and two slots in a common file. For sum s it

    writes its numbers into slot s mod 2, and s into its counter of sums;
    waits until those counters of all are at least s;
    adds up the slots in the order of ranks, so that all ranks find the very same bits.

A slot is written again two sums later. By then all ranks have begun the sum in between, and have read it. So between
two sums the other slot is free: parcels go through it, one at a time, and wait there until their receiver counts them.

What bites: numbers must be seen before the counter that announces them. x86-64 keeps the order of a process's writes;
other processors need not, so ranks talk by torch.distributed there.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

SLOT = 1 << 20
"""Bytes of a slot; longer tensors go piece by piece."""
SPIN = 0.05
"""Seconds in which a rank looks for the others without sleeping: waking up may take longer than what it waits for."""
PAUSE = 0.0005
"""Seconds of sleep between two looks, after that."""

_LINE = 64
"""Bytes for the counters of a rank: those of no two in one line of a cache."""
_SUMS, _SENT, _TAKEN, _RECEIVER = range(4)
"""Which of its numbers is which: sums begun, pieces sent and taken, and for whom the last one is."""


def possible() -> bool:
    """Whether all ranks run on this machine, as torchrun tells, and its processor keeps the order of writes."""
    local, world = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("WORLD_SIZE")
    return local is not None and local == world and sys.platform == "linux" and platform.machine() == "x86_64"


def create(size: int) -> str:
    """Make the common file of so many ranks; its path, or "" where there is no room for it."""
    memory = Path("/dev/shm")
    handle, path = tempfile.mkstemp(prefix="warpgrad-", dir=memory if memory.is_dir() else None)
    try:
        # A file without its blocks would end the process at the first write that finds no room.
        os.posix_fallocate(handle, 0, _bytes(size))
    except OSError:
        Path(path).unlink()
        return ""
    finally:
        os.close(handle)
    return path


def _bytes(size: int) -> int:
    return size * (_LINE + 2 * SLOT)


class SharedMemory:
    """One rank's view of the common file."""

    def __init__(self, path: str, index: int, size: int, timeout: float) -> None:
        self.index, self.size, self.timeout = index, size, timeout
        # Open as long as the process lives: a lock on one byte for each rank goes when its process does.
        self._file = os.open(path, os.O_RDWR)
        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, index)
        memory = mmap.mmap(self._file, _bytes(size))
        self._counters = memoryview(memory)[: size * _LINE].cast("q")
        self._slots = torch.frombuffer(memory, dtype=torch.uint8, offset=size * _LINE).view(size, 2, SLOT)
        self._sums = 0
        self._spin = SPIN if len(os.sched_getaffinity(0)) >= size else 0.0

    def add_up(self, tensor: Tensor) -> None:
        """Make a contiguous tensor the sum of all ranks' tensors, in place."""
        flat = tensor.view(-1)
        for piece in torch.split(flat, SLOT // flat.element_size()):
            self._add_up(piece)

    def hand_over(self, parcels: Iterable[tuple[int, int, Tensor]]) -> None:
        """(sender, receiver, bytes): write the sender's bytes into the receiver's tensor.

        To be called by all ranks after one and the same sum, in a common order of the parcels: the first one that is
        under way then heads the lists of both its ranks, so that no two wait for one another.
        """
        for sender, receiver, data in parcels:
            for piece in torch.split(data, SLOT):
                slot = self._slots[sender, (self._sums + 1) % 2, : len(piece)]
                if sender == self.index:
                    slot.copy_(piece)
                    self._set(sender, _RECEIVER, receiver)
                    self._set(sender, _SENT, self._get(sender, _SENT) + 1)
                    self._wait(receiver, partial(self._empty, sender))
                else:
                    self._wait(sender, partial(self._is_mine, sender))
                    piece.copy_(slot)
                    self._set(sender, _TAKEN, self._get(sender, _TAKEN) + 1)

    def _add_up(self, piece: Tensor) -> None:
        self._sums += 1
        slots = self._slots[:, self._sums % 2, : piece.numel() * piece.element_size()].view(piece.dtype)
        slots[self.index].copy_(piece)
        self._set(self.index, _SUMS, self._sums)
        for rank in range(self.size):
            self._wait(rank, partial(self._has_begun, rank))
        torch.add(slots[0], slots[1], out=piece)
        for other in slots[2:]:
            piece += other

    def _has_begun(self, rank: int) -> bool:
        """Whether a rank's numbers for the latest sum are there."""
        return self._get(rank, _SUMS) >= self._sums

    def _empty(self, sender: int) -> bool:
        """Whether all that a rank has sent is taken."""
        return self._get(sender, _TAKEN) == self._get(sender, _SENT)

    def _is_mine(self, sender: int) -> bool:
        """Whether a piece lies in a rank's slot, for this rank."""
        return not self._empty(sender) and self._get(sender, _RECEIVER) == self.index

    def _get(self, rank: int, which: int) -> int:
        number: int = self._counters[rank * _LINE // 8 + which]
        return number

    def _set(self, rank: int, which: int, number: int) -> None:
        self._counters[rank * _LINE // 8 + which] = number

    def _wait(self, rank: int, ready: Callable[[], bool]) -> None:
        """Until a rank has done something; a RuntimeError where it is gone or silent."""
        began = time.monotonic()
        while not ready():
            waited = time.monotonic() - began
            if waited < self._spin:
                os.sched_yield()
                continue
            time.sleep(PAUSE)
            if waited > self.timeout:
                raise RuntimeError("timed out")
            if self._gone(rank) and not ready():
                raise RuntimeError(f"the process of rank {rank} has ended")

    def _gone(self, rank: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        except OSError:
            return False
        return True
