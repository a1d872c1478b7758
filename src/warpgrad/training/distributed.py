"""Several processes, on one machine or many, by torch.distributed.

    warpgrad run omniglot                                                                # one process
    torchrun --nproc-per-node 2 -m warpgrad run omniglot                                 # two
    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m warpgrad run omniglot
                                                                                         # two machines, typed on both

This module finds the ranks, joins them, and passes their messages: gloo between CPUs, NCCL between GPUs.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from typing import NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from warpgrad.algorithms.ranks import ALONE, Ranks
from warpgrad.errors import NonFiniteError, WarpgradError, require

DEFAULT_TIMEOUT = 1800.0
_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_TORCHRUN = re.compile(r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|(TORCHELASTIC|PET)_.*")
"""The environment variables that torchrun sets."""


_current: Ranks | None = None


def current_ranks(device: torch.device, *, timeout: float | None = None) -> Ranks:
    """Return the ranks that this process belongs to: those that torchrun started, or this process alone.

    The group is made at the first call and lives as long as the process. `timeout` of that call applies: the seconds
    that a rank waits for the others in an exchange, `WARPGRAD_TIMEOUT` if None.
    """
    global _current
    if _current is None:
        seconds = _timeout(timeout)
        if not dist.is_available():
            return ALONE
        if not dist.is_initialized():
            if not shared():
                return ALONE
            _initialise(device, seconds)
        if dist.get_world_size() == 1:
            return ALONE
        _current = TorchRanks(seconds)
    return _current


def shared() -> bool:
    """Return whether torchrun has started this process along with others, whether or not it has joined them."""
    size, rank = _number("WORLD_SIZE"), _number("RANK")
    if not all(name in os.environ for name in _ENVIRONMENT):
        return False
    require(
        rank < max(size, 1) and 1 <= _number("MASTER_PORT") <= 65535,
        f"RANK={rank}, WORLD_SIZE={size} and MASTER_PORT={os.environ['MASTER_PORT']} cannot come from torchrun; "
        "unset them, or start the command with torchrun and a --master-port from 1 to 65535.",
    )
    return size > 1


def _number(name: str, default: str = "0") -> int:
    """Read a non-negative integer from an environment variable that torchrun sets."""
    given = os.environ.get(name, default)
    require(
        re.fullmatch("[0-9]{1,9}", given),
        f"{name}={given} is not a value that torchrun sets; unset it, or start with torchrun.",
    )
    return int(given)


def environment_alone() -> dict[str, str]:
    """Return the environment for a process that must not become a rank."""
    return {name: value for name, value in os.environ.items() if not _TORCHRUN.fullmatch(name)}


def is_distributed() -> bool:
    """Return whether this process is one of several ranks."""
    return _current is not None


def leave(code: int) -> NoReturn:
    """End the process with this exit code; as one of several ranks, without shutting torch.distributed down first.

    Its threads occasionally abort while the interpreter shuts down (SIGABRT, after everything has been written), which
    torchrun takes for a failure of the run.
    """
    if is_distributed():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def restarted() -> bool:
    """Return whether torchrun has started this command before."""
    return _number("TORCHELASTIC_RESTART_COUNT") > 0


def _initialise(device: torch.device, timeout: float) -> None:
    require(
        device.type in ("cpu", "cuda"),
        f"several processes can share work on cpu or cuda, not on {device.type}; use --device cpu.",
    )
    backend = "gloo"
    if device.type == "cuda":
        # Words are small and live on the CPU, gradients on the GPU.
        backend = "cpu:gloo,cuda:nccl"
        place, devices = _number("LOCAL_RANK"), torch.cuda.device_count()
        require(
            place < devices,
            f"this machine has {devices} GPUs, too few for process {place + 1}: start at most one process per GPU.",
        )
        torch.cuda.set_device(place)
    # Machines may be minutes apart in starting, however short the timeout of an exchange is.
    patience = max(timeout, DEFAULT_TIMEOUT)
    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=patience)))
        store = PrefixStore(_attempt(store, rank, size, patience), store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
    except (RuntimeError, ValueError, OSError) as error:
        raise rank_lost(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}", patience, error) from error
    atexit.register(_leave)


def _attempt(store: Store, rank: int, size: int, patience: float) -> str:
    """Agree with all living ranks on a name for the keys of this attempt.

    torchrun keeps its store across restarts, with the addresses of ranks that are gone, and gives machines no common
    number of the attempt. Here every rank calls itself by a new random name; rank 0 answers each call with its own
    name, until all have confirmed it. Calls of ranks that are gone are answered too, to no effect.
    """
    own, deadline = secrets.token_hex(8), time.monotonic() + patience
    while time.monotonic() < deadline:
        if rank == 0:
            for place in range(1, size):
                if store.check([f"call/{place}"]):
                    store.set(f"answer/{store.get(f'call/{place}').decode()}", own)
            if store.check([f"confirmed/{own}/{place}" for place in range(1, size)]):
                store.set(f"begin/{own}", "")
                return own
        else:
            store.set(f"call/{rank}", own)
            if store.check([f"answer/{own}"]):
                name = store.get(f"answer/{own}").decode()
                store.set(f"confirmed/{name}/{rank}", "")
                if store.check([f"begin/{name}"]):
                    return name
        time.sleep(0.02)
    raise RuntimeError("timed out waiting for all ranks to begin")


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _timeout(seconds: float | None) -> float:
    name, given = "timeout", str(seconds)
    if seconds is None:
        name, given = TIMEOUT, os.environ.get(TIMEOUT, str(DEFAULT_TIMEOUT))
    try:
        found = float(given)
    except ValueError:
        found = 0.0
    require(0 < found < float("inf"), f"{name}={given}: the seconds that a rank waits must be finite and above 0.")
    return found


T = TypeVar("T")

TIMEOUT = "WARPGRAD_TIMEOUT"
"""Environment variable: seconds that a rank waits for the others in an exchange."""
CAPACITY = 16
"""The largest number of values in one exchange."""
PARCELS_AT_ONCE = 64
"""The largest number of parcels that a rank sends or receives at a time."""
_MESSAGE_BYTES = 4096
_FAILED = "failed"


class RankLostError(WarpgradError):
    """Raised when another rank is gone, or has not answered in time."""


class TorchRanks(Ranks):
    """The ranks of torch.distributed's default group."""

    def __init__(self, timeout: float) -> None:
        self.size, self.index = dist.get_world_size(), dist.get_rank()
        self.timeout = timeout
        # Only the store lets ranks wait for rank 0 however long it evaluates, and still receive a signal.
        self._store = dist.distributed_c10d._get_default_store()
        self._over = False
        self._asked = 0

    def total(self, numbers: Sequence[float]) -> list[float]:
        return self._word(numbers, None)[: len(numbers)]

    def all_reduce(self, flat: Tensor) -> None:
        with self._watched():
            dist.all_reduce(flat)

    def exchange(self, parcels: Iterable[tuple[int, int, Tensor]]) -> None:
        self.total(())
        waiting = iter(parcels)
        with self._watched():
            # The first parcel in the common order that is still under way heads the lists of both its ranks, so both
            # have named it: handling a few at a time cannot deadlock.
            while some := list(islice(waiting, PARCELS_AT_ONCE)):
                works = [
                    dist.isend(data, receiver) if sender == self.index else dist.irecv(data, sender)
                    for sender, receiver, data in some
                ]
                for work in works:
                    assert work is not None, "this rank is in the group"
                    work.wait()

    @contextmanager
    def share_errors(self) -> Iterator[None]:
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

    def _word(self, numbers: Sequence[float], error: WarpgradError | None) -> list[float]:
        """Sum a few numbers over ranks; raise if a rank has sent an error."""
        assert len(numbers) <= CAPACITY, "a word has a fixed length"
        word = torch.zeros(1 + CAPACITY, dtype=torch.float64)
        word[0] = error is not None
        word[1 : 1 + len(numbers)] = torch.tensor(numbers, dtype=torch.float64)
        self.all_reduce(word)
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
        """Turn the errors that torch.distributed raises when a rank is gone or silent into one sentence."""
        try:
            yield
        except RuntimeError as error:
            self._over = True
            raise rank_lost(f"rank {self.index} of {self.size}", self.timeout, error) from error


def rank_lost(who: str, timeout: float, error: Exception) -> RankLostError:
    """Return an error that tells the user in one sentence what torch.distributed reported."""
    # Leave out the location in torch's source, and its advice.
    reason = re.sub(r"^\[[^]]*\]\s*", "", str(error).strip() or type(error).__name__).splitlines()[0].partition(". ")[0]
    if "timed out" in reason.lower() or "timeout" in reason.lower():
        return RankLostError(
            f"{who} waited {timeout:g} s for the other ranks without an answer: a rank hangs, or its machine is down; "
            "repeat the command to resume from the last checkpoint, with a longer --timeout (or "
            f"{TIMEOUT}) if a meta-step takes longer."
        )
    return RankLostError(
        f"{who} lost another rank, which has stopped ({reason}): see that rank's message for the cause; repeat the "
        "command to resume from the last checkpoint, or let torchrun do so with --max-restarts."
    )
