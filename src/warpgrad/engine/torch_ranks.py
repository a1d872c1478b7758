"""What the ranks of torch.distributed say to each other.

Every exchange begins with a word of fixed length from each rank, which says whether it is well. A rank that failed can
therefore answer whatever the others are about to ask, and all stop with its sentence instead of waiting for it. A rank
that is gone closes its connections, which ends the waiting of the others; one that is silent ends it by the timeout.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from warpgrad.engine import shared_memory
from warpgrad.engine.shared_memory import SharedMemory
from warpgrad.errors import NonFiniteError, WarpgradError
from warpgrad.ranks import Ranks

T = TypeVar("T")

TIMEOUT = "WARPGRAD_TIMEOUT"
"""Environment variable: seconds that a rank waits for the others in an exchange."""
CAPACITY = 16
"""Numbers in a word."""
_AT_ONCE = 64
"""Parcels of a rank that are under way at a time."""
_MESSAGE_BYTES = 4096
_FAILED = "failed"


class RankLostError(WarpgradError):
    """Another rank is gone, or has not answered in time."""


class TorchRanks(Ranks):
    """The ranks of torch.distributed's default group."""

    def __init__(self, timeout: float) -> None:
        self.size, self.index = dist.get_world_size(), dist.get_rank()
        self.timeout = timeout
        # The store alone lets ranks wait for rank 0 however long it evaluates, and still hear a signal.
        self._store = dist.distributed_c10d._get_default_store()
        self._over = False
        self._asked = 0
        self._memory: SharedMemory | None = None
        if shared_memory.possible():
            self._memory = self._open_memory()

    def total(self, numbers: Sequence[float]) -> list[float]:
        return self._word(numbers, None)[: len(numbers)]

    def add_up(self, flat: Tensor) -> None:
        with self._watched():
            if self._memory is not None and flat.device.type == "cpu":
                self._memory.add_up(flat)
            else:
                dist.all_reduce(flat)

    def hand_over(self, parcels: Iterable[tuple[int, int, Tensor]]) -> None:
        self.total(())
        waiting = iter(parcels)
        with self._watched():
            # The first parcel in the common order that is still under way heads the lists of both its ranks, so both
            # have named it: some at a time cannot make ranks wait for one another.
            while some := list(islice(waiting, _AT_ONCE)):
                if self._memory is not None and some[0][2].device.type == "cpu":
                    self._memory.hand_over(some)
                    continue
                works = [
                    dist.isend(data, receiver) if sender == self.index else dist.irecv(data, sender)
                    for sender, receiver, data in some
                ]
                for work in works:
                    assert work is not None, "this rank is in the group"
                    work.wait()

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        try:
            yield
        except WarpgradError as error:
            if not self._over:
                self._word((), error)
            raise

    def from_first(self, work: Callable[[], T]) -> T:
        self._asked += 1
        key, answer = f"warpgrad/{self._asked}", _FAILED
        if self.first:
            try:
                result = work()
                answer = json.dumps(result)
            finally:
                with self._watched():
                    self._store.set(key, answer)
            return result
        with self._watched():
            pause = 0.001
            while not self._store.check([key]):
                time.sleep(pause)
                pause = min(2 * pause, 0.2)
            answer = self._store.get(key).decode()
        if answer == _FAILED:
            self.total(())
        value: T = json.loads(answer)
        return value

    def broadcast(self, data: bytes) -> bytes:
        (size,) = self.total([len(data) if self.first else 0])
        received = torch.frombuffer(bytearray(data), dtype=torch.uint8) if self.first else None
        received = torch.empty(int(size), dtype=torch.uint8) if received is None else received
        with self._watched():
            dist.broadcast(received, 0)
        return received.numpy().tobytes()

    def _open_memory(self) -> SharedMemory | None:
        """Memory that all ranks have opened, or None: one that cannot is enough for all to do without."""
        path, found = self.from_first(lambda: shared_memory.create(self.size)), None
        if path:
            with suppress(OSError):  # a container of its own, for example
                found = SharedMemory(path, self.index, self.size, self.timeout)
        (count,) = self.total([found is not None])
        if path and self.first:
            Path(path).unlink()  # all that could have it open: nothing is left behind, however the ranks end
        return found if count == self.size else None

    def _word(self, numbers: Sequence[float], error: WarpgradError | None) -> list[float]:
        """Every rank's word, summed; raises where one of them is an error."""
        assert len(numbers) <= CAPACITY, "a word has a fixed length"
        word = torch.zeros(1 + CAPACITY, dtype=torch.float64)
        word[0] = error is not None
        word[1 : 1 + len(numbers)] = torch.tensor(numbers, dtype=torch.float64)
        self.add_up(word)
        if word[0] > 0:
            self._over = True
            self._stop(error)
        found: list[float] = word[1:].tolist()
        return found

    def _stop(self, error: WarpgradError | None) -> None:
        """Raise the error of the first rank that has one."""
        own = torch.zeros(_MESSAGE_BYTES, dtype=torch.uint8)
        if error is not None:
            kind = b"N" if isinstance(error, NonFiniteError) else b"W"
            text = (kind + str(error).encode())[:_MESSAGE_BYTES]
            own[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        every = [torch.empty_like(own) for _ in range(self.size)]
        with self._watched():
            dist.all_gather(every, own)
        messages = [message.numpy().tobytes().rstrip(b"\0").decode(errors="ignore") for message in every]
        speaker = next(place for place, message in enumerate(messages) if message)
        if speaker == self.index and error is not None:
            raise error
        kind_of = NonFiniteError if messages[speaker][0] == "N" else WarpgradError
        raise kind_of(messages[speaker][1:]) from error

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """What torch.distributed says when a rank is gone or silent becomes one sentence."""
        try:
            yield
        except RuntimeError as error:
            self._over = True
            raise lost(f"rank {self.index} of {self.size}", self.timeout, error) from error


def lost(who: str, timeout: float, error: RuntimeError) -> RankLostError:
    """What torch.distributed said, as one sentence for the user."""
    # Without the place in torch's own source, and its advice.
    reason = re.sub(r"^\[[^]]*\]\s*", "", str(error).strip()).splitlines()[0].partition(". ")[0]
    if "timed out" in reason.lower() or "timeout" in reason.lower():
        return RankLostError(
            f"{who} waited {timeout:g} s for the others in vain: a rank hangs, or its machine is gone; repeat the "
            f"command to go on from the last checkpoint, with more seconds of --timeout (or {TIMEOUT}) if a meta-step "
            "takes longer."
        )
    return RankLostError(
        f"{who} lost another rank, which has stopped ({reason}): its own message says why; repeat the command to go on "
        "from the last checkpoint, or let torchrun do it with --max-restarts."
    )
