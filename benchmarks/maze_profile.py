"""How long an update of the maze experiment takes, and how much of that is the environment.

    OMP_NUM_THREADS=1 python -m benchmarks.maze_profile                    # the Warp-RNN at the paper's size
    OMP_NUM_THREADS=1 python -m benchmarks.maze_profile --agents all

An update is what `warpgrad run maze` does at each meta-step, without files: 30 episodes of 200 steps, one backward
pass, Adam. Times are of the processor, which other processes on the machine disturb least. The target for the
environment is at most 15 % of an update of the Warp-RNN.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch

from warpgrad.algorithms import Continual
from warpgrad.algorithms.meta_optimiser import MetaOptimiser
from warpgrad.cli.outer import keep_freed_memory
from warpgrad.experiments.maze.config import PRESETS
from warpgrad.experiments.maze.experiment import build
from warpgrad.maze import AGENTS, MazeEpisodes
from warpgrad.tasks.reinforcement import EpisodeFamily

TARGET = 0.15


class Stopwatch:
    """Time spent in some functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = function(*args, **kwargs)
            self.seconds += time.perf_counter() - began
            return result

        return timed

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Time every begin and step of the maze, including the draws of goals and teleports."""
        begin, step = self.around(MazeEpisodes.__init__), self.around(MazeEpisodes.step)
        with mock.patch.object(MazeEpisodes, "__init__", begin), mock.patch.object(MazeEpisodes, "step", step):
            yield


def profile(name: str, updates: int) -> tuple[float, float]:
    """Return the median processor milliseconds per update, and the environment's share of the wall-clock time."""
    config = replace(PRESETS["paper"], method=name)
    method = build(config)
    algorithm = Continual(tasks=1, batches=config.warp_every)
    update = MetaOptimiser(method, partial(torch.optim.Adam, lr=config.lr), clip=config.clip)
    family, watch = EpisodeFamily(config.episodes), Stopwatch()
    times, total = [], 0.0
    with watch.environment():
        for number in range(updates + 1):
            if number == 1:  # the first update warms up
                watch.seconds = total = 0.0
            began, began_wall = time.process_time(), time.perf_counter()
            algorithm.meta_step(method, family.meta_batch(number, 1), [number], update)
            times.append(time.process_time() - began)
            total += time.perf_counter() - began_wall
    return 1000 * statistics.median(times[1:]), watch.seconds / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", nargs="+", default=["warp-rnn"], choices=[*AGENTS, "all"])
    parser.add_argument("--updates", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as the command line does
    print(f"{'agent':<24}{'ms/update':>10}{'environment':>13}{'hours for 20 000':>18}")
    for name in AGENTS if "all" in given.agents else given.agents:
        milliseconds, share = profile(name, given.updates)
        print(f"{name:<24}{milliseconds:>10.0f}{share:>13.1%}{milliseconds * 20_000 / 3.6e6:>18.2f}", flush=True)
        if name == "warp-rnn":
            verdict = "within" if share <= TARGET else "ABOVE"
            print(f"{'':<24}the environment's share is {verdict} the target of {TARGET:.0%}")


if __name__ == "__main__":
    main()
