"""One process of a team: reads jobs from a connection, line by line, and answers each with the seconds it took.

python -m warpgrad.bench.member PORT                 # a rank where torchrun starts it, else by itself
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch

from warpgrad.algorithms import Algorithm, Offline, Online
from warpgrad.algorithms.meta_optimiser import MetaOptimiser
from warpgrad.algorithms.method import Method
from warpgrad.algorithms.ranks import Ranks
from warpgrad.allocator import keep_freed_memory
from warpgrad.bench.workloads import conv
from warpgrad.initialisers import Leap
from warpgrad.objectives import Exact
from warpgrad.rules import SGD
from warpgrad.training.distributed import joined, leave


@dataclass(frozen=True)
class Job:
    """A meta-step on conv, with Leap."""

    tasks: int
    steps: int
    """K."""
    samples: int = 0
    """η of Algorithm 2; 0 for adaptation without a warp to train."""
    quick: bool = False

    @property
    def points(self) -> int:
        """(task, step) pairs."""
        return self.tasks * self.steps


def prepared(job: Job, ranks: Ranks) -> Callable[[], None]:
    """The job's meta-step, to be repeated."""
    work = conv(job.quick, steps=job.steps, tasks=job.tasks)
    method = Method(work.make(), SGD(work.rate), Exact() if job.samples else None, Leap())
    update = MetaOptimiser(method, partial(torch.optim.SGD, lr=work.rate))
    algorithm: Algorithm = (
        Offline(steps=job.steps, tasks=job.tasks, samples=job.samples)
        if job.samples
        else Online(steps=job.steps, tasks=job.tasks)
    )

    def meta_step() -> None:
        algorithm.meta_step(method, work.tasks, work.keys, update, ranks)

    return meta_step


def main(port: int) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    ranks = joined(torch.device("cpu"))
    ready = cache(partial(prepared, ranks=ranks))
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rw") as channel:
        for line in channel:
            meta_step = ready(Job(**json.loads(line)))
            began = time.perf_counter()
            meta_step()
            channel.write(f"{time.perf_counter() - began}\n")
            channel.flush()
    leave(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
