"""Processes that do meta-steps on command: ranks that share them under torchrun, or processes by themselves.

A worker connects to the pool, says how many ranks it is one of, reads jobs line by line, and answers each with the
seconds it took. All workers live as long as the measurement, so that pools can take turns; those whose turn it is not
wait for a line.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import TextIO

import torch

from benchmarks.fresh_process import importing_alike
from benchmarks.workloads import conv
from warpgrad.algorithms import Algorithm, Offline, Online
from warpgrad.algorithms.meta_optimiser import MetaOptimiser
from warpgrad.algorithms.method import Method
from warpgrad.algorithms.ranks import Ranks
from warpgrad.cli.outer import keep_freed_memory
from warpgrad.errors import WarpgradError
from warpgrad.initialisers import Leap
from warpgrad.objectives import Exact
from warpgrad.rules import SGD
from warpgrad.training.distributed import current_ranks, environment_alone, leave

PATIENCE = 300.0
"""Seconds in which a worker must have started, or have done a meta-step."""


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


@dataclass(frozen=True)
class WorkerPool:
    """Workers that take up a job at the same time."""

    channels: tuple[TextIO, ...]
    messages: tuple[TextIO, ...]
    """What their commands write on stderr."""
    ranks: tuple[int, ...]
    """Of how many ranks each worker is one; 1 for a process by itself."""

    def seconds(self, job: Job) -> list[float]:
        """Run one meta-step, and return the wall-clock time of every worker."""
        try:
            for channel in self.channels:
                channel.write(json.dumps(asdict(job)) + "\n")
                channel.flush()
            # An empty answer means that the connection is closed.
            return [float(channel.readline()) for channel in self.channels]
        except (OSError, ValueError) as error:
            raise WarpgradError(f"a worker of the benchmark has stopped or hangs: {_last(self.messages)}") from error


@contextmanager
def worker_pools(ranks: int = 2, alone: int = 2) -> Iterator[tuple[WorkerPool, WorkerPool]]:
    """Start `ranks` workers under torchrun on this machine's loopback, and `alone` workers without it."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        own = [sys.executable, "-m", "benchmarks.worker_pool", str(server.getsockname()[1])]
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        shared = _start(stack, server, [[*launch, *own[1:]]], ranks)
        yield shared, _start(stack, server, [own] * alone, alone)


def prepared(job: Job, ranks: Ranks) -> tuple[Method, Callable[[], None]]:
    """Return the job's method, and a function that takes its meta-step."""
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

    return method, meta_step


def work_for(port: int) -> None:
    """Run a worker: a rank if torchrun started it, otherwise a process by itself."""
    torch.set_num_threads(1)
    keep_freed_memory()
    ranks = current_ranks(torch.device("cpu"))
    ready = cache(partial(prepared, ranks=ranks))
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rw") as channel:
        _answer(channel, ranks.size)
        for line in channel:
            _, meta_step = ready(Job(**json.loads(line)))
            began = time.perf_counter()
            meta_step()
            _answer(channel, time.perf_counter() - began)
    leave(0)


def _answer(channel: TextIO, value: float) -> None:
    channel.write(f"{value}\n")
    channel.flush()


def _start(stack: ExitStack, server: socket.socket, commands: Sequence[Sequence[str]], size: int) -> WorkerPool:
    """Start these commands, and wait until `size` workers have connected."""
    processes, messages = [], []
    for command in commands:
        # A pipe that nobody reads could fill up and stop a process; a file cannot.
        said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the stack closes it
        messages.append(stack.enter_context(said))
        processes.append(subprocess.Popen(command, env=_environment(), stdout=subprocess.DEVNULL, stderr=said))
        stack.callback(_end, processes[-1])
    channels: list[TextIO] = []
    deadline = time.monotonic() + PATIENCE
    server.settimeout(0.2)
    while len(channels) < size:
        try:
            connection, _ = server.accept()
        except TimeoutError:
            if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
                raise WarpgradError(f"a worker of the benchmark has not started: {_last(messages)}") from None
            continue
        connection.settimeout(PATIENCE)
        channels.append(stack.enter_context(connection.makefile("rw")))
        connection.close()  # the channel alone keeps it open: closing that tells the worker to end
    return WorkerPool(tuple(channels), tuple(messages), tuple(int(channel.readline()) for channel in channels))


def _environment() -> dict[str, str]:
    loops = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    interface = {"GLOO_SOCKET_IFNAME": loops[0]} if loops else {}
    return {**importing_alike(environment_alone()), "OMP_NUM_THREADS": "1", **interface}


def _last(messages: Sequence[TextIO]) -> str:
    """Return the last line that any command has written."""
    said = []
    for each in messages:
        each.seek(0)
        said += [line for line in each.read().splitlines() if line.strip()]
    return said[-1] if said else "it left no message"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process to end by itself, its channels being closed; terminate it if it does not."""
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    work_for(int(sys.argv[1]))
