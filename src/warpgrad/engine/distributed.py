"""Several processes, on one machine or many, by torch.distributed.

    warpgrad run omniglot                                                                # one process
    torchrun --nproc-per-node 2 -m warpgrad run omniglot                                 # two
    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m warpgrad run omniglot
                                                                                         # two machines, typed on both

This module finds the ranks and joins them; what they say to each other is in `engine/torch_ranks.py`.
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import sys
import time
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from warpgrad.engine.torch_ranks import TIMEOUT, TorchRanks, lost
from warpgrad.errors import WarpgradError
from warpgrad.ranks import ALONE, Ranks

DEFAULT_TIMEOUT = 1800.0
_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_TORCHRUN = re.compile(r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|(TORCHELASTIC|PET)_.*")
"""What torchrun tells the processes that it starts."""


_current: Ranks | None = None


def joined(device: torch.device, *, timeout: float | None = None) -> Ranks:
    """The ranks that this process is one of: those that torchrun started, else itself alone.

    The group is made at the first call, whose `timeout` holds: seconds that a rank waits for the others in an exchange,
    `WARPGRAD_TIMEOUT` if None. It lives as long as the process.
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
    """Whether torchrun has started this process along with others, joined or not."""
    return all(name in os.environ for name in _ENVIRONMENT) and int(os.environ["WORLD_SIZE"]) > 1


def environment_alone() -> dict[str, str]:
    """The environment for a process that is to be no rank, whoever starts it."""
    return {name: value for name, value in os.environ.items() if not _TORCHRUN.fullmatch(name)}


def several() -> bool:
    """Whether this process is one of several ranks."""
    return _current is not None


def leave(code: int) -> NoReturn:
    """End the process with this exit code; as one of several, without taking torch.distributed down first.

    Its threads were seen to abort now and then while an interpreter ended (SIGABRT, everything written long before),
    which torchrun takes for a failure of the run.
    """
    if several():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def restarted() -> bool:
    """Whether torchrun has started this command before."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def _initialise(device: torch.device, timeout: float) -> None:
    if device.type not in ("cpu", "cuda"):
        raise WarpgradError(f"several processes can share work on cpu or cuda, not on {device.type}; use --device cpu.")
    backend = "gloo"
    if device.type == "cuda":
        # Words are small and live on the CPU, gradients on the GPU.
        backend = "cpu:gloo,cuda:nccl"
        place, devices = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if place >= devices:
            raise WarpgradError(
                f"process {place + 1} of this machine finds {devices} GPUs: start as many processes as there are GPUs."
            )
        torch.cuda.set_device(place)
    # Machines may be minutes apart in starting, however short the timeout of an exchange is.
    patience = max(timeout, DEFAULT_TIMEOUT)
    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=patience)))
        store = PrefixStore(_attempt(store, rank, size, patience), store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
    except RuntimeError as error:
        raise lost(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}", patience, error) from error
    atexit.register(_leave)


def _attempt(store: Store, rank: int, size: int, patience: float) -> str:
    """A name that all living ranks agree on, for the keys of this attempt.

    torchrun keeps its store over restarts, with the addresses of ranks that are gone, and tells machines no common
    number of the attempt. Here every rank calls itself by a new random name; rank 0 answers each call with its own
    name, until all have confirmed it. Calls of the dead are answered too, and nobody hears it.
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
    if not 0 < found < float("inf"):
        raise WarpgradError(f"{name}={given}: give the seconds that a rank waits for others, more than 0.")
    return found
