"""Keys: every random draw depends on where it happens, never on what was drawn before.

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
    """Return the key of the place that `parts` name, e.g. `fold(seed, meta_step, "task", 3)`."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & _MASK


def generator(*parts: int | str) -> torch.Generator:
    """Return a new CPU generator for the place that `parts` name.

    Draw on the CPU and then move the result, so that it is the same for any device.
    """
    return torch.Generator().manual_seed(fold(*parts))


@contextmanager
def isolated_rng(device: torch.device) -> Iterator[None]:
    """Preserve the caller's global random state, whatever the block seeds or draws."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


def seed_global(device: torch.device, key: int) -> None:
    """Seed the generator that dropout on `device` will draw from.

    Modules such as `nn.Dropout` accept no generator, so a keyed mask requires a keyed global generator.
    Call this only inside `isolated_rng`.
    """
    # torch.manual_seed also seeds every other backend, which takes a hundred times as long.
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        torch.cuda.manual_seed(key)
    elif device.type == "mps":
        torch.mps.manual_seed(key)
