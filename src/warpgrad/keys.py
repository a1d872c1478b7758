"""Keys: every random draw is a function of where it happens, never of what was drawn before.

A key is a 63-bit integer. `fold(seed, meta_step, task, k, "meta")` is the key of one draw; the same parts
give the same draw on any machine, in any order, on any rank, and after any resume. Nothing in the
library draws from a generator whose state outlives one use.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_MASK = (1 << 63) - 1


def fold(*parts: int | str) -> int:
    """The key of the place that `parts` name, e.g. `fold(seed, meta_step, "task", 3)`."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & _MASK


def generator(*parts: int | str) -> torch.Generator:
    """A new CPU generator for the place that `parts` name. Draw on the CPU, then move: the same on any device."""
    return torch.Generator().manual_seed(fold(*parts))


@contextmanager
def isolated_rng(device: torch.device) -> Iterator[None]:
    """Leave the caller's global random state as it was, whatever the block seeds or draws."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


def seed_global(device: torch.device, key: int) -> None:
    """Seed the generator that dropout on `device` will draw from.

    Modules such as `nn.Dropout` accept no generator of their own, so a keyed mask means a keyed global
    generator. Only ever called inside `isolated_rng`.
    """
    # torch.manual_seed also visits every other backend, which costs a hundred times as much.
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        torch.cuda.manual_seed(key)
    elif device.type == "mps":
        torch.mps.manual_seed(key)
