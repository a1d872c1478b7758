"""Rows jax, authors and before: peers in separate processes, which take turns with ours.

None belongs to this library. Whoever runs the benchmark names where they are: an interpreter that has JAX and the
program of the peer, the folder with the authors' package `warpgrad`, and a clone of this repository at an earlier
commit. What is not named, or does not run, is reported as absent with the reason. All times are processor times.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.compiled import compiled_piece
from benchmarks.library import whole
from benchmarks.timing import MILLI, Figure, Timings, Way, figure
from benchmarks.workloads import WORKLOADS, Workload, conv
from warpgrad.adaptation.traced import traced_at_once
from warpgrad.errors import WarpgradError
from warpgrad.objectives import Approximate
from warpgrad.version import commit

MOST_JAX = {"mlp": 1.2}
"""What a compiled meta-step may cost in units of JAX's."""
MOST_AUTHORS = 1 / 1.5
MOST_BEFORE = 1.0
"""What an update of an agent in the maze may cost in units of an earlier version's."""
AGENTS = ("warp-rnn", "hebbian", "simple-modulation", "retroactive-modulation")
TURNS = 5
"""The largest number of processes of each peer: each of them has to start, import and compile."""
OURS_PER_TURN = 10
PROGRAM = Path(__file__).with_name("authors_program.py")
UPDATES_PER_TURN, TURNS_BEFORE = 7, 3
HERE = Path(__file__).parent.parent
UPDATE = re.compile(r"^([\w-]+) +([0-9]+) +[0-9.]+% +[0-9.]+$", re.MULTILINE)
"""A line of `benchmarks.maze_profile`: the agent, milliseconds per update, and shares of it."""
LINE = re.compile(r"^(\w+) +exact meta-step, ms per \(task, step\): ([0-9.e-]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Elsewhere:
    """Where the peers are, as named by the person who runs the benchmark."""

    jax_python: Path | None = None
    """An interpreter that has JAX."""
    jax_program: Path | None = None
    """Algorithm 1 in JAX; it prints milliseconds per (task, step) of each network, a line each."""
    authors: Path | None = None
    """The folder that holds the authors' package."""
    before: Path | None = None
    """A clone of this repository at an earlier commit."""


def measure_jax(peers: Elsewhere, repetitions: int, quick: bool) -> tuple[list[Figure], dict[str, str]]:
    """Compare compiled meta-steps with JAX's."""
    if peers.jax_python is None or peers.jax_program is None:
        return [], {"jax": "name it with --jax-python and --jax-program"}
    works = {name: WORKLOADS[name](quick) for name in ("mlp", "surfaces")}
    pieces = {name: compiled_piece(work) for name, work in works.items()}
    for piece in pieces.values():
        piece.meta_step()
    ours: dict[str, list[float]] = {name: [] for name in works}
    theirs: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(min(repetitions, TURNS)):
        try:
            found = jax_milliseconds(peers.jax_python, peers.jax_program)
        except WarpgradError as error:
            return [], {"jax": str(error)}
        for name, work in works.items():
            if name not in found:
                return [], {"jax": f"{peers.jax_program} printed no line for {name}"}
            ours[name].append(typical(pieces[name].meta_step))
            theirs[name].append(found[name] * work.points / MILLI)
    figures = []
    for name, work in works.items():
        timings = Timings({"ours": ours[name], "jax": theirs[name]})
        words = ("whole meta-step, compiled", "JAX (jit, scan, vmap)")
        # At a size other than the peer's there is nothing to compare.
        most = None if quick else MOST_JAX.get(name)
        figures.append(figure(timings, name, "ours", "jax", work.points, words=words, most=most))
    return figures, {}


def jax_milliseconds(python: Path, program: Path) -> dict[str, float]:
    """Run one process of the peer, and return the milliseconds it measured by the name of the network."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    environment.pop("PYTHONPATH", None)
    return {name: float(value) for name, value in LINE.findall(_output([str(python), str(program)], environment))}


def measure_authors(peers: Elsewhere, repetitions: int, quick: bool) -> tuple[list[Figure], dict[str, str]]:
    """Compare first-order Warp-Leap with the authors' package, which takes no inner step to a point."""
    if peers.authors is None:
        return [], {"authors' package": "name its folder with --authors"}
    work = conv(quick)
    piece = whole(work, Approximate())
    with traced_at_once():
        piece.meta_step()
    ours, theirs = [], []
    for _ in range(min(repetitions, TURNS)):
        ours.append(typical(piece.meta_step))
        try:
            theirs.append(statistics.median(authors_seconds(peers.authors, work, quick)))
        except WarpgradError as error:
            return [], {"authors' package": str(error)}
    timings = Timings({"ours": ours, "authors": theirs})
    words = ("first-order Warp-Leap", "authors' package")
    most = None if quick else MOST_AUTHORS
    return [figure(timings, "conv", "ours", "authors", work.points, words=words, most=most)], {}


def authors_seconds(folder: Path, work: Workload, quick: bool) -> list[float]:
    """Return the seconds that each of several meta-steps of the authors' package takes."""
    filters, size = (8, 5) if quick else (64, 20)
    command = [sys.executable, str(PROGRAM), *map(str, (filters, size, 20, work.steps, 3 if quick else OURS_PER_TURN))]
    package = next((place for place in (folder, folder / "src/warpgrad") if (place / "warpgrad").is_dir()), None)
    if package is None:
        raise WarpgradError(f"{folder} holds no package warpgrad")
    printed = _output(command, {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(package)})
    found: list[float] = json.loads(printed.splitlines()[-1])
    return found


def measure_before(peers: Elsewhere, repetitions: int, quick: bool) -> tuple[list[Figure], dict[str, str]]:
    """Compare updates of agents in the maze, at the paper's size, with those of an earlier version."""
    if peers.before is None:
        return [], {"earlier version": "name a clone of this repository at an earlier commit with --before"}
    agents, updates = (AGENTS[:1], 1) if quick else (AGENTS, UPDATES_PER_TURN)
    seconds: dict[Path, dict[str, list[float]]] = {
        place: {agent: [] for agent in agents} for place in (HERE, peers.before)
    }
    for turn in range(min(repetitions, TURNS_BEFORE)):
        for place in list(seconds)[:: -1 if turn % 2 else 1]:
            try:
                found = update_milliseconds(place, agents, updates)
            except WarpgradError as error:
                return [], {"earlier version": str(error)}
            for agent in agents:
                if agent not in found:
                    return [], {"earlier version": f"{place} printed no line for {agent}"}
                seconds[place][agent].append(found[agent] / MILLI)
    revision = commit(peers.before / "src" / "warpgrad")
    figures = []
    for agent in agents:
        timings = Timings({"ours": seconds[HERE][agent], "before": seconds[peers.before][agent]})
        words = (f"update of the agent {agent} in the maze", f"earlier version {(revision or '')[:7]}".strip())
        most = None if quick else MOST_BEFORE
        figures.append(figure(timings, "rnn", "ours", "before", 1, words=words, most=most))
    return figures, {}


def update_milliseconds(folder: Path, agents: Sequence[str], updates: int) -> dict[str, float]:
    """Time one update of each agent by `benchmarks.maze_profile` of a clone of this repository."""
    if not (folder / "benchmarks" / "maze_profile.py").is_file():
        raise WarpgradError(f"{folder} holds no clone of this repository")
    command = [sys.executable, "-m", "benchmarks.maze_profile", "--agents", *agents, "--updates", str(updates)]
    path = os.pathsep.join((str(folder / "src"), str(folder)))
    printed = _output(command, {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}, folder)
    return {agent: float(value) for agent, value in UPDATE.findall(printed)}


def typical(way: Way) -> float:
    """Return the median processor time of several calls."""
    seconds = []
    for _ in range(OURS_PER_TURN):
        began = time.process_time()
        way()
        seconds.append(time.process_time() - began)
    return statistics.median(seconds)


def _output(command: Sequence[str], environment: dict[str, str], folder: Path | None = None) -> str:
    """Return what a program prints; if it fails, raise an error with its last line on stderr."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    except OSError as error:
        raise WarpgradError(f"{command[0]} cannot be started: {error.strerror}") from error
    if done.returncode != 0:
        raise WarpgradError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return done.stdout
