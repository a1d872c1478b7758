"""Teams of processes that do meta-steps on command (`member.py`): ranks that share them, or processes by themselves.

All of them live as long as the measurement, so that teams can take turns; those whose turn it is not wait for a line.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import TextIO

from warpgrad.bench.member import Job
from warpgrad.errors import WarpgradError
from warpgrad.training.distributed import environment_alone

PATIENCE = 300.0
"""Seconds in which a process must have started, or have done a meta-step."""


@dataclass(frozen=True)
class Team:
    """Processes that take up a job at the same time."""

    channels: tuple[TextIO, ...]
    words: tuple[TextIO, ...]
    """What their commands write on stderr."""

    def seconds(self, job: Job) -> list[float]:
        """One meta-step: the wall-clock time of every process."""
        try:
            for channel in self.channels:
                channel.write(json.dumps(asdict(job)) + "\n")
                channel.flush()
            # An empty answer is that of a closed connection.
            return [float(channel.readline()) for channel in self.channels]
        except (OSError, ValueError) as error:
            raise WarpgradError(f"bench: a process of a team has stopped or hangs: {_last(self.words)}") from error


@contextmanager
def teams(ranks: int = 2, alone: int = 2) -> Iterator[tuple[Team, Team]]:
    """`ranks` processes under torchrun on this machine's loopback, and as many as `alone` says without."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        own = [sys.executable, "-m", "warpgrad.bench.member", str(server.getsockname()[1])]
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        shared = _team(stack, server, [[*launch, *own[1:]]], ranks)
        yield shared, _team(stack, server, [own] * alone, alone)


def _team(stack: ExitStack, server: socket.socket, commands: Sequence[Sequence[str]], size: int) -> Team:
    """Start these commands, and wait until `size` processes have called."""
    processes, words = [], []
    for command in commands:
        # A pipe that nobody reads could fill up and stop a process; a file cannot.
        said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the stack closes it
        words.append(stack.enter_context(said))
        processes.append(subprocess.Popen(command, env=_environment(), stdout=subprocess.DEVNULL, stderr=words[-1]))
        stack.callback(_end, processes[-1])
    channels: list[TextIO] = []
    deadline = time.monotonic() + PATIENCE
    server.settimeout(0.2)
    while len(channels) < size:
        try:
            connection, _ = server.accept()
        except TimeoutError:
            if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
                raise WarpgradError(f"bench: a process of a team has not started: {_last(words)}") from None
            continue
        connection.settimeout(PATIENCE)
        channels.append(stack.enter_context(connection.makefile("rw")))
        connection.close()  # the channel alone keeps it open: closing that tells the process to end
    return Team(tuple(channels), tuple(words))


def _environment() -> dict[str, str]:
    loops = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    interface = {"GLOO_SOCKET_IFNAME": loops[0]} if loops else {}
    return {**environment_alone(), "OMP_NUM_THREADS": "1", **interface}


def _last(words: Sequence[TextIO]) -> str:
    """The last line that any command has written."""
    said = []
    for each in words:
        each.seek(0)
        said += [line for line in each.read().splitlines() if line.strip()]
    return said[-1] if said else "it left no message"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Its channels are closed, and it ends by itself, at most after the meta-step at hand."""
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()
