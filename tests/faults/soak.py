"""A soak: kills at random moments, over every kind of command, each repeated until it ends by itself.

    python -m tests.faults.soak --kills 200

After every series of kills the outcome is compared with that of an undisturbed run, bit for bit but for times; nothing
may be left behind, and no worker may outlive its parent. Two ranks run under torchrun as real processes; all else is
forked from this one.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.data.tasks.test_alphabets import tiny_store
from tests.experiments.maze.test_maze_experiment import TINY as MAZE
from tests.faults import crashes
from tests.support.omniglot_runs import TINY as OMNIGLOT
from warpgrad.experiments.runner import option
from warpgrad.io import PARTIAL
from warpgrad.training.run_directory import CLEARING

GIVEN_UP = 60
"""Kills of one command; then it is let to its end."""


@dataclass(frozen=True)
class Soaked:
    """A command, the process that carries it out, and its outcome."""

    words: Callable[[Path], list[str]]
    outcome: Callable[[Path], object]
    seconds: float
    """About how long it takes; kills come within this time."""
    ranks: int = 1


def words_of(experiment: str, place: Path, settings: dict[str, object], steps: int) -> list[str]:
    every = {**settings, "meta_steps": steps}
    flat = [word for name, value in every.items() for word in option(name, value)]
    return ["run", experiment, "--preset", "small", "--out", str(place / "run"), *flat, "--quiet"]


def soaked(folder: Path) -> dict[str, Soaked]:
    store = str(tiny_store(folder / "store", alphabets=6).path)

    def one(place: Path) -> object:
        return crashes.outcome_of_run(place / "run")

    return {
        "synthetic": Soaked(lambda place: crashes.run_words(place, steps=8), one, 1.0),
        "omniglot": Soaked(lambda place: words_of("omniglot", place, {**OMNIGLOT, "data": store}, 4), one, 4.0),
        "maze": Soaked(lambda place: words_of("maze", place, MAZE, 4), one, 4.0),
        "sweep": Soaked(crashes.SCENARIOS["sweep"].words, crashes.outcome_of_runs, 4.0),
        "reproduce": Soaked(crashes.SCENARIOS["reproduce"].words, crashes.outcome_of_runs, 4.0),
        "torchrun": Soaked(lambda place: crashes.run_words(place, steps=8), one, 25.0, ranks=2),
    }


def killed(job: Soaked, place: Path, seconds: float) -> int | None:
    """Carry a command out and kill it after so many seconds; its exit code if it was faster."""
    words = job.words(place)
    if job.ranks > 1:
        launcher = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(job.ranks),
            "--master-port",
            "0",
        ]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([*launcher, "-m", "warpgrad", *words], **silent)  # type: ignore[call-overload]
        try:
            return int(process.wait(seconds))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return None
    child = os.fork()
    if child == 0:
        os.setsid()
        crashes.prepare_child(os.open(os.devnull, os.O_WRONLY))
        crashes.carry_out(words)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def gone(place: Path, seconds: float = 60.0) -> bool:
    """Whether no process has files open below a place any more."""
    end = time.monotonic() + seconds
    while crashes.orphans(place):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def command_line() -> None:
    form = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    form.add_argument("--kills", type=int, default=200)
    form.add_argument("--seed", type=int, default=0)
    form.add_argument("--only", nargs="+")
    given = form.parse_args()
    crashes.set_up()
    dice, kills, problems = random.Random(given.seed), 0, 0
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="warpgrad-soak-") as folder:
        jobs = soaked(Path(folder))
        jobs = {name: job for name, job in jobs.items() if not given.only or name in given.only}
        expected = {}
        for name, job in jobs.items():
            place = Path(folder) / f"undisturbed-{name}"
            place.mkdir()
            began = time.monotonic()
            assert killed(job, place, 600.0) == 0, name
            print(f"{name}: {time.monotonic() - began:.1f} s undisturbed", flush=True)
            expected[name] = job.outcome(place), time.monotonic() - began
        series = 0
        while kills < given.kills:
            name = list(jobs)[series % len(jobs)]
            job, series = jobs[name], series + 1
            place = Path(folder) / f"{name}-{series}"
            place.mkdir()
            outcome, usual = expected[name]
            own = 0
            while (code := killed(job, place, usual * 1.2 * dice.random() if own < GIVEN_UP else 600.0)) is None:
                own, kills = own + 1, kills + 1
                if not gone(place):
                    problems += 1
                    print(f"{name}: processes outlive a kill", flush=True)
            counts[name] = counts.get(name, 0) + own
            left = [path.name for path in place.rglob("*") if PARTIAL in path.name or path.name == CLEARING]
            if code != 0 or left or job.outcome(place) != outcome:
                problems += 1
                print(f"{name}: ends with {code} after {own} kills, left {left}, or differs", flush=True)
            print(f"{name}: {own} kills; {kills} in all, {problems} problems", flush=True)
    print(f"{kills} kills {counts}: {problems} problems", flush=True)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    command_line()
