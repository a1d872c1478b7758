"""Row replay: bytes per entry of the replay buffer, and the time to write and read one, in memory and on disk."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.timing import MILLI, Spread, Way, interleaved
from benchmarks.workloads import conv
from warpgrad.adaptation.base import Point
from warpgrad.algorithms.replay import ReplayBudget, ReplayBuffer
from warpgrad.keys import generator
from warpgrad.tensors import Tensors

BUDGETS = {"memory": ReplayBudget(), "disk": ReplayBudget(memory=0)}


@dataclass(frozen=True)
class Replay:
    """Figures per entry, θ and buffers of the conv workload; times are of the wall clock, in milliseconds."""

    entry_bytes: int
    entries: int
    write: dict[str, Spread]
    read: dict[str, Spread]

    def record(self) -> dict[str, Any]:
        times = {"write": self.write, "read": self.read}
        return {
            "entry_bytes": self.entry_bytes,
            "entries": self.entries,
            **{name: {place: one.record() for place, one in each.items()} for name, each in times.items()},
        }


def measure(repetitions: int, quick: bool) -> Replay:
    """Append a trajectory's points to buffers in memory and on disk, then read them in random order.

    Warning: a scratch file passes through the page cache, so these are times of a machine with memory to spare.
    """
    learner = conv(quick).make()
    point = Point(0, learner.start(0), learner.buffers(), {})
    entries = 4 if quick else 100
    order = torch.randperm(entries, generator=generator("bench", "replay")).tolist()
    buffers: dict[str, ReplayBuffer] = {}

    def write(place: str) -> None:
        if place in buffers:
            buffers.pop(place).close()
        buffers[place] = buffer = ReplayBuffer(entries, BUDGETS[place])
        for k in range(entries):
            buffer.append(0, Point(k, point.theta, point.buffers, {}))

    def read(place: str) -> None:
        buffer = buffers[place]
        for chosen in order:
            touch(buffer[chosen].point.theta)

    try:
        ways: dict[str, Way] = {}
        for place in BUDGETS:
            ways[f"write {place}"] = partial(write, place)
            ways[f"read {place}"] = partial(read, place)
        timings = interleaved(ways, repetitions, clock=time.perf_counter)
        size = buffers["memory"].entry_bytes
    finally:
        for buffer in buffers.values():
            buffer.close()
    times = {
        name: {place: timings.time(f"{name} {place}").scaled(MILLI / entries) for place in BUDGETS}
        for name in ("write", "read")
    }
    return Replay(size, entries, times["write"], times["read"])


def touch(theta: Tensors) -> float:
    """Read every value: an entry is a view, which costs nothing until it is used."""
    return sum(float(value.sum()) for value in theta.values())
