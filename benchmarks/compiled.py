"""Row compiled: whole meta-steps of small networks, compiled against traced, after both were compared in double
precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import torch

from benchmarks.library import CHECKED_STEPS, NOISE, Piece, difference, whole
from benchmarks.timing import Figure, Way, figure, interleaved
from benchmarks.workloads import WORKLOADS, Workload
from warpgrad.adaptation.compiled import compiler
from warpgrad.adaptation.traced import traced_at_once
from warpgrad.algorithms import Online
from warpgrad.algorithms.backend import BackendName
from warpgrad.errors import WarpgradError

MOST: Mapping[str, float] = MappingProxyType({"mlp": 1.0, "surfaces": 1 / 5})
"""What a compiled meta-step may cost in units of a traced one."""


def piece_by(work: Workload, backend: BackendName) -> Piece:
    """Return the workload's meta-step of Algorithm 1 by some backend."""
    return replace(whole(work), algorithm=Online(steps=work.steps, tasks=len(work.tasks), backend=backend))


def compiled_piece(work: Workload) -> Piece:
    return piece_by(work, "compiled")


def check(name: str, quick: bool) -> float:
    """Return how much the meta-gradients of the loop and of compiled steps differ; raise if it is more than noise."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        work = WORKLOADS[name](quick)
        few = replace(work, steps=min(work.steps, CHECKED_STEPS))
        gap = difference(compiled_piece(few).gradients()["phi"], piece_by(few, "loop").gradients()["phi"])
    finally:
        torch.set_default_dtype(before)
    if not gap <= NOISE:
        raise WarpgradError(f"bench: compiled steps and the loop differ by {gap:.1e} on {name}, more than {NOISE:g}.")
    return gap


def measure(repetitions: int, quick: bool) -> tuple[list[Figure], dict[str, float], dict[str, str]]:
    """Return the figures, the differences before the clocks started, and the reason if there is no compiler."""
    if compiler() is None:
        return [], {}, {"compiled": "there is no C++ compiler here"}
    figures, gaps = [], {}
    for name in MOST:
        gaps[f"{name}, compiled"] = check(name, quick)
        work = WORKLOADS[name](quick)
        ways: dict[str, Way] = {way: piece_by(work, way).meta_step for way in ("traced", "compiled")}
        with traced_at_once():
            timings = interleaved(ways, repetitions)
        words = ("whole meta-step, compiled", "traced")
        most = None if quick else MOST[name]
        figures.append(figure(timings, name, "compiled", "traced", work.points, words=words, most=most))
    return figures, gaps, {}
