"""Sums and parcels through shared memory: the numbers, the same bits for all, and ranks that are gone or silent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from warpgrad.training import shared_memory
from warpgrad.training.shared_memory import SLOT, SharedMemory, create, possible

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is shared on Linux")


@pytest.fixture
def path() -> Iterator[str]:
    found = create(3)
    yield found
    Path(found).unlink()


def together(ranks: list[SharedMemory], tensors: list[list[Tensor]]) -> None:
    """Every rank adds up its tensors, one after the other, at the same time as the others."""

    def work(rank: SharedMemory) -> None:
        for tensor in tensors[rank.index]:
            rank.add_up(tensor)

    with ThreadPoolExecutor(len(ranks)) as pool:
        list(pool.map(work, ranks))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(1, 17), (SLOT // 8, SLOT // 8 + 1, 3 * SLOT // 4 + 5)])
def test_all_ranks_find_the_sum_and_the_same_bits(path, sizes, dtype, monkeypatch):
    # A lock is the process's own: threads of one cannot tell by it whether another has ended.
    monkeypatch.setattr(SharedMemory, "_gone", lambda self, rank: False)
    ranks = [SharedMemory(path, index, 3, timeout=60.0) for index in range(3)]
    draw = torch.Generator().manual_seed(0)
    own = [[torch.randn(size, generator=draw, dtype=dtype) for size in sizes] for _ in ranks]
    expected = [first + second + third for first, second, third in zip(*own, strict=True)]
    for _ in range(3):
        tensors = [[tensor.clone() for tensor in each] for each in own]
        together(ranks, tensors)
        for found in tensors:
            assert all(map(torch.equal, found, expected))


def test_parcels_arrive_between_sums_in_a_common_order(path, monkeypatch):
    monkeypatch.setattr(SharedMemory, "_gone", lambda self, rank: False)
    ranks = [SharedMemory(path, index, 3, timeout=60.0) for index in range(3)]
    draw = torch.Generator().manual_seed(0)
    routes = [(0, 1), (2, 1), (0, 2), (0, 1), (1, 0), (2, 0), (1, 2), (0, 1)]
    sizes = [5, SLOT + 3, 1, 2 * SLOT, 7, SLOT, 11, 13]
    sent = [torch.randint(256, (size,), generator=draw, dtype=torch.uint8) for size in sizes]

    def work(rank: SharedMemory) -> dict[int, Tensor]:
        number, taken = torch.ones(SLOT // 4), {}
        for _ in range(3):
            rank.add_up(number)
            own = []
            for place, (sender, receiver) in enumerate(routes):
                if rank.index == receiver:
                    taken[place] = torch.zeros_like(sent[place])
                if rank.index in (sender, receiver):
                    own.append((sender, receiver, taken.get(place, sent[place])))
            rank.hand_over(own)
        rank.add_up(number)
        assert torch.equal(number, torch.full_like(number, 3.0**4)), "parcels leave sums alone"
        return taken

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(work, ranks))
    for place, (_, receiver) in enumerate(routes):
        assert torch.equal(found[receiver][place], sent[place])


CHILD = """
import sys, torch
from warpgrad.training.shared_memory import SharedMemory
sums = SharedMemory(sys.argv[1], 1, 2, 60.0)
print("here", flush=True)
numbers = torch.ones(3)
sums.add_up(numbers)
print(numbers.tolist(), flush=True)
if sys.argv[2] == "silent":
    sys.stdin.read()
"""


@pytest.mark.parametrize(("fate", "words"), [("ends", "the process of rank 1 has ended"), ("silent", "timed out")])
def test_a_rank_that_is_gone_or_silent_ends_the_waiting(path, fate, words):
    own = SharedMemory(path, 0, 2, timeout=60.0)
    command = [sys.executable, "-c", CHILD, path, fate]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "here\n"
        numbers = torch.full((3,), 2.0)
        own.add_up(numbers)
        assert numbers.tolist() == [3.0] * 3
        assert child.stdout.readline() == "[3.0, 3.0, 3.0]\n"
        if fate == "silent":
            own.timeout = 0.5
        with pytest.raises(RuntimeError, match=words):
            own.add_up(numbers)
        with pytest.raises(RuntimeError, match=words):
            own.hand_over([(0, 1, torch.zeros(3, dtype=torch.uint8))])
        with pytest.raises(RuntimeError, match=words):
            own.hand_over([(1, 0, torch.zeros(3, dtype=torch.uint8))])
        child.stdin.close()


def test_memory_is_shared_only_where_torchrun_has_all_ranks_on_one_machine(monkeypatch):
    monkeypatch.setattr(shared_memory.platform, "machine", lambda: "x86_64")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not possible()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert not possible()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert possible()
    monkeypatch.setattr(shared_memory.platform, "machine", lambda: "aarch64")
    assert not possible()


def test_without_room_there_is_no_shared_memory(monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = set(Path("/dev/shm").glob("warpgrad-*"))
    monkeypatch.setattr(shared_memory.os, "posix_fallocate", full)
    assert create(2) == ""
    assert set(Path("/dev/shm").glob("warpgrad-*")) == before
