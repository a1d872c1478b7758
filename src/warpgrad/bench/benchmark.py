"""All rows, one after the other, as one record of JSON values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from warpgrad.bench import estimates, growth, memory, peers, ranks, replay, steps
from warpgrad.bench.workloads import WORKLOADS
from warpgrad.errors import WarpgradError
from warpgrad.experiments import runner

ROWS = (*WORKLOADS, "maml", "ranks", "growth", "estimate", "memory", "replay")
FORMAT = 2


def run(
    rows: Sequence[str] = ROWS,
    *,
    repetitions: int = 7,
    quick: bool = False,
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measure the named rows. `quick` shrinks networks until every row takes seconds: a trial, not a result."""
    unknown = [name for name in rows if name not in ROWS]
    if unknown:
        raise WarpgradError(f"bench has no row '{unknown[0]}'; choose from {', '.join(ROWS)}.")
    if repetitions < 1:
        raise WarpgradError(f"repetitions={repetitions}: time everything at least once.")
    record: dict[str, Any] = {
        "format": FORMAT,
        "rows": list(rows),
        "repetitions": repetitions,
        "finer": {**steps.FINER, "ranks": ranks.FINER},
        "quick": quick,
        "hardware": runner.hardware(),
        "versions": runner.versions(),
        "commit": runner.commit(),
        "sizes": {name: WORKLOADS[name](quick).words for name in rows if name in WORKLOADS},
        "figures": [],
        "differences": {},
        "absent": {},
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        record["hardware"]["threads"] = 1
        for name in rows:
            if say is not None:
                say(name)
            _measure(name, record, repetitions, quick)
    finally:
        torch.set_num_threads(threads)
    return record


def _measure(name: str, record: dict[str, Any], repetitions: int, quick: bool) -> None:
    if name == "memory":
        peaks = memory.measure(quick)
        record["memory"] = {"peaks": [peak.record() for peak in peaks], "online_grows": memory.grows(peaks)}
    elif name == "replay":
        record["replay"] = replay.measure(repetitions, quick).record()
    elif name == "ranks":
        record["ranks"] = [one.record() for one in ranks.measure(repetitions, quick)]
    elif name == "growth":
        record["growth"] = [one.record() for one in growth.measure(repetitions, quick)]
    elif name == "estimate":
        record["estimate"] = [one.record() for one in estimates.measure(quick)]
    elif name == "maml":
        figures, absent = peers.measure(repetitions, quick)
        record["figures"] += [one.record() for one in figures]
        record["absent"].update(absent)
    else:
        figures, difference = steps.measure(WORKLOADS[name], repetitions, quick)
        record["figures"] += [one.record() for one in figures]
        record["differences"][name] = difference
