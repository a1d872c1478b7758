"""Rows of networks (conv, mlp, rnn, surfaces, transformer): inner step, meta-gradients and whole meta-step against the
bare loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from benchmarks.bare import Bare, Weights
from benchmarks.library import along, bare_meta_step, check, whole
from benchmarks.timing import Figure, Way, figure, interleaved
from benchmarks.workloads import Workload
from warpgrad.adaptation.traced import traced_at_once
from warpgrad.objectives import Approximate, Exact

MOST: Mapping[str, float] = MappingProxyType({"conv": 1.05, "mlp": 1 / 1.3, "surfaces": 1 / 5})
"""What the library may cost in units of the bare loop: 5 % more where kernels are large, less where tasks are
stacked."""
MOST_INNER: Mapping[str, float] = MappingProxyType({"exact": 4.2, "approximate": 2.1})
"""What a meta-gradient on conv may cost in inner steps."""
FINER: Mapping[str, int] = MappingProxyType({"conv": 6})
"""How many times more repetitions, where a target is near 1 and the noise of one repetition as large as its margin.
They are short, so that what is compared is close together in time."""

QUANTITIES = ("inner", "approximate", "exact", "meta-step")
WORDS: Mapping[str, str] = MappingProxyType(
    {
        "inner": "inner step",
        "approximate": "approximate meta-gradient",
        "exact": "exact meta-gradient",
        "meta-step": "whole meta-step",
    }
)


def measure(make_work: Callable[[bool], Workload], repetitions: int, quick: bool) -> tuple[list[Figure], float]:
    """Return the figures of one workload, and how much numbers differed before the clocks started."""
    gap = check(lambda: make_work(quick))
    work = make_work(quick)
    ways = ways_of(work)
    with traced_at_once():
        timings = interleaved(ways, FINER.get(work.name, 1) * repetitions)
    make = partial(figure, timings, work.name, points=work.points)
    kernels, figures = work.name == "conv", []
    for name in QUANTITIES:
        # Targets hold for equal arithmetic: where the library has its own second derivatives, the loop uses them too.
        own = kernels and name in ("exact", "meta-step")
        most = MOST.get(work.name)
        figures.append(
            make(name, f"{name}, bare", words=(WORDS[name], "bare loop"), most=None if own else most),
        )
        if own:
            words = (WORDS[name], "bare loop, our second derivatives")
            figures.append(make(name, f"{name}, kernels", words=words, most=most))
    for name, most in MOST_INNER.items():
        words = (WORDS[name], "inner step")
        figures.append(make(name, "inner", words=words, most=most if work.name == "conv" else None))
    return figures, gap


def ways_of(work: Workload) -> dict[str, Way]:
    """Return every piece of work, through the library and by hand, in the order in which they take turns."""
    pieces = {"inner": along(work, None), "approximate": along(work, Approximate()), "exact": along(work, Exact())}
    ways: dict[str, Way] = {}
    loops = {"bare": Bare(work), "kernels": Bare(work, kernels=True)}
    used = ("bare", "kernels") if work.name == "conv" else ("bare",)
    for name, piece in pieces.items():
        ways[name] = piece.gradients
        for loop in used if name == "exact" else used[:1]:
            ways[f"{name}, {loop}"] = partial(loops[loop].trajectories, Weights.of(work), name)
    ways["meta-step"] = whole(work).meta_step
    for loop in used:
        ways[f"meta-step, {loop}"] = _meta_step(loops[loop], Weights.of(work))
    return ways


def _meta_step(bare: Bare, weights: Weights) -> Callable[[], None]:
    return lambda: bare_meta_step(bare, weights)
