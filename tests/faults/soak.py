"""A soak: kills and signals at random moments, over every kind of command, each repeated until it ends by itself.

    python -m tests.faults.soak --kills 200

After every series of kills the outcome is compared with that of an undisturbed run, bit for bit but for times; nothing
may be left behind, and no worker may outlive its parent. Two ranks run under torchrun as real processes; all else is
forked from this one.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.data.tasks.test_alphabets import tiny_store
from tests.experiments.maze.test_maze_experiment import TINY as MAZE
from tests.faults import crashes
from tests.faults.record import on_record, put_on_record
from tests.support.omniglot_runs import TINY as OMNIGLOT
from warpgrad.experiments.runner import option
from warpgrad.io import PARTIAL, SIGNALS
from warpgrad.training.run_directory import CLEARING

PATIENCE = 120.0
"""Seconds that a command has to save and end after a signal."""
TOGETHER = 200
"""Meta-steps of two ranks, so that training takes a good part of the time from start to end."""
GIVEN_UP = 60
"""Kills of one command; then it is let to its end."""
MEET = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")
"""Where ranks meet: a port that is free, on this machine alone."""
REPEATED = "SIGINT sent again"
"""What is counted where torchrun lost a Ctrl-C while it imported torch."""
NOTHING: dict[str, Any] = {"kills": 0, "series": 0, "failures": []}


@dataclass(frozen=True)
class Soaked:
    """A command, the process that carries it out, and its outcome."""

    words: Callable[[Path], list[str]]
    outcome: Callable[[Path], object]
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
        "synthetic": Soaked(lambda place: crashes.run_words(place, steps=8), one),
        "omniglot": Soaked(lambda place: words_of("omniglot", place, {**OMNIGLOT, "data": store}, 4), one),
        "maze": Soaked(lambda place: words_of("maze", place, MAZE, 4), one),
        "sweep": Soaked(crashes.SCENARIOS["sweep"].words, crashes.outcome_of_runs),
        "reproduce": Soaked(crashes.SCENARIOS["reproduce"].words, crashes.outcome_of_runs),
        "torchrun": Soaked(lambda place: crashes.run_words(place, steps=TOGETHER), one, ranks=2),
    }


def killed(
    job: Soaked, place: Path, seconds: float, number: int = signal.SIGKILL, counts: Counter[str] | None = None
) -> int | None:
    """Carry a command out and send it a signal after so many seconds; its exit code if it was faster, else None."""
    words, counts = job.words(place), Counter() if counts is None else counts
    if job.ranks > 1:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(job.ranks), *MEET]
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                [*launcher, "-m", "tests.faults.rank", *words], stdout=subprocess.DEVNULL, stderr=said,
                env={**os.environ, "PYTHONFAULTHANDLER": "1"},
            )  # fmt: skip
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                early = not listens(process.pid)
                process.send_signal(number)
                counts[signal.Signals(number).name] += 1
            try:
                # The imports of torch may lose a Ctrl-C, and the launcher starts its ranks all the same. Whoever has
                # pressed it sees that and presses it again.
                if number == signal.SIGINT and early and begins_to_listen(process, PATIENCE):
                    process.send_signal(number)
                    counts[REPEATED] += 1
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # tells where it stands
                process.wait()
                said.seek(0)
                where = said.read().decode(errors="replace")[-2000:]
                raise AssertionError(f"works on {PATIENCE:g} s after signal {number}: {where}") from None
            return None
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            os.setsid()
            crashes.prepare_child(said.fileno())
            crashes.carry_out(words)
        if (code := ended(child, seconds)) is not None:
            return code
        os.kill(child, number)
        counts[signal.Signals(number).name] += 1
        code = ended(child, PATIENCE)
        said.seek(0)
        last = said.read().decode(errors="replace")[-300:]
    # Before it has begun to listen it dies by the signal itself; it may also have been about to end.
    assert code in (-number, 128 + number, 0), f"ends with {code} on signal {number}: {last}"
    return None


def listens(pid: int) -> bool:
    """Whether a process handles SIGTERM itself, as torchrun's launcher does from when it starts its ranks."""
    try:
        caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return False
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def begins_to_listen(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait until a process handles signals itself or has ended; whether it is the former."""
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        if listens(process.pid):
            return True
        time.sleep(0.05)
    return False


def ended(child: int, seconds: float) -> int | None:
    """The exit code of a process; None where it still works after so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def gone(place: Path, seconds: float = 60.0) -> bool:
    """Whether no process has files open below a place any more."""
    end = time.monotonic() + seconds
    while crashes.orphans(place):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def series(
    job: Soaked, place: Path, outcome: object, usual: float, dice: random.Random
) -> tuple[Counter[str], list[str]]:
    """Kill a command at random moments until it ends by itself; how often, by which signals, and what was wrong."""
    place.mkdir()
    counts, kills, problems = Counter[str](), 0, []
    code: int | None = None
    while code is None and not problems:
        number = dice.choice((signal.SIGKILL, signal.SIGKILL, *SIGNALS))
        try:
            code = killed(job, place, usual * 1.2 * dice.random() if kills < GIVEN_UP else 600.0, number, counts)
        except AssertionError as error:
            problems.append(f"after {kills} signals: {error}")
        kills += code is None
        if not gone(place):
            problems.append(f"processes outlive signal {number}")
    left = [path.name for path in place.rglob("*") if PARTIAL in path.name or path.name == CLEARING]
    if code not in (0, None):
        problems.append(f"ends with {code} after {kills} kills")
    elif code == 0 and (found := job.outcome(place)) != outcome:
        problems.append(f"another outcome after {kills} kills: {'; '.join(differences(outcome, found))[:600]}")
    counts.update(kills=kills, series=1)
    return counts, [*problems, *([f"left over: {left}"] if left else [])]


def differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Where two outcomes differ, and their values there."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in one.keys() | other.keys():
            yield from differences(one.get(name), other.get(name), f"{where}/{name}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for place, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{where}/{place}")
    elif one != other:
        yield f"{where}: {str(one)[:80]}, not {str(other)[:80]}"


def command_line() -> None:
    form = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    form.add_argument("--kills", type=int, default=200)
    form.add_argument("--seconds", type=float, default=float("inf"), help="begin no series after so many")
    form.add_argument("--seed", type=int, default=0)
    form.add_argument("--only", nargs="+")
    form.add_argument("--record", type=Path, help="where the counts are kept; goes on with those of this commit there")
    given = form.parse_args()
    crashes.set_up()
    stop = time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory(prefix="warpgrad-soak-", dir=crashes.MEMORY) as folder:
        jobs = soaked(Path(folder))
        jobs = {name: job for name, job in jobs.items() if not given.only or name in given.only}
        counts = {name: on_record(given.record, "soak", name) or dict(NOTHING) for name in jobs}
        undisturbed: dict[str, tuple[object, float]] = {}
        while sum(each["kills"] for each in counts.values()) < given.kills and time.monotonic() < stop:
            # The next is the one that was killed the least; two ranks, which take the longest to start, a fifth of it.
            name = min(jobs, key=lambda one: counts[one]["kills"] * jobs[one].ranks ** 2)
            if name not in undisturbed:
                place, began = Path(folder) / f"undisturbed-{name}", time.monotonic()
                place.mkdir()
                assert killed(jobs[name], place, 600.0) == 0, name
                undisturbed[name] = jobs[name].outcome(place), time.monotonic() - began
            own = counts[name]
            dice = random.Random(f"{name} {given.seed} {own['series']}")
            found, wrong = series(jobs[name], Path(folder) / f"{name}-{own['series']}", *undisturbed[name], dice)
            total = Counter({part: count for part, count in own.items() if type(count) is int})
            total.update(found)
            counts[name] = {**total, "failures": [*own["failures"], *wrong]}
            print(
                f"{name}: {dict(found)}; {sum(each['kills'] for each in counts.values())} in all; {wrong}", flush=True
            )
            put_on_record(given.record, "soak", name, counts[name])
    problems = [problem for each in counts.values() for problem in each["failures"]]
    print(f"{ {name: each['kills'] for name, each in counts.items()} } kills: {len(problems)} problems", flush=True)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    command_line()
