"""The cost of the library on this machine, with every figure a ratio taken in one run.

    python -m benchmarks --quick                                         # seconds: does it run, are numbers equal
    python -m benchmarks --rows conv maml --repetitions 9                # some rows, at full size
    python -m benchmarks --out results/bench.json --page docs/cost.md    # the record and the page that shows it

All rows, one after the other, become one record of JSON values. A missed target is shown, not raised as an error: a
benchmark is not a test.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks import compiled, elsewhere, estimates, growth, memory, peers, ranks, replay, steps
from benchmarks.elsewhere import Elsewhere
from benchmarks.tables import conditions, tables, write_page
from benchmarks.workloads import WORKLOADS
from warpgrad.cli.outer import keep_freed_memory
from warpgrad.errors import WarpgradError
from warpgrad.io import write_json
from warpgrad.training import distributed
from warpgrad.training.resources import hardware, versions
from warpgrad.version import commit

ROWS = (*WORKLOADS, "compiled", "jax", "authors", "before", "maml", "ranks", "growth", "estimate", "memory", "replay")
FORMAT = 4


def run(
    rows: Sequence[str] = ROWS,
    *,
    repetitions: int = 7,
    quick: bool = False,
    others: Elsewhere | None = None,
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measure the named rows, and return the record.

    `quick` shrinks networks until every row takes seconds: a trial, not a result. `others` says where the peers are
    that run in separate processes.
    """
    unknown = [name for name in rows if name not in ROWS]
    if unknown:
        raise WarpgradError(f"the benchmark has no row '{unknown[0]}'; choose from {', '.join(ROWS)}.")
    if repetitions < 1:
        raise WarpgradError(f"repetitions={repetitions}: time everything at least once.")
    record: dict[str, Any] = {
        "format": FORMAT,
        "rows": list(rows),
        "repetitions": repetitions,
        "finer": {**steps.FINER, "ranks": ranks.FINER},
        "quick": quick,
        "hardware": hardware(),
        "versions": versions(),
        "commit": commit(),
        "sizes": {name: WORKLOADS[name](quick).words for name in rows if name in WORKLOADS},
        "figures": [],
        "differences": {},
        "absent": {},
        "seconds": {},
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        record["hardware"]["threads"] = 1
        for name in rows:
            if say is not None:
                say(name)
            began = time.perf_counter()
            _measure(name, record, repetitions, quick, others or Elsewhere())
            record["seconds"][name] = round(time.perf_counter() - began, 1)
    finally:
        torch.set_num_threads(threads)
    return record


def _measure(name: str, record: dict[str, Any], repetitions: int, quick: bool, others: Elsewhere) -> None:
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
    elif name in ("maml", "jax", "authors", "before", "compiled"):
        if name == "maml":
            figures, absent = peers.measure(repetitions, quick)
        elif name == "compiled":
            figures, gaps, absent = compiled.measure(repetitions, quick)
            record["differences"].update(gaps)
        else:
            by = {
                "jax": elsewhere.measure_jax,
                "authors": elsewhere.measure_authors,
                "before": elsewhere.measure_before,
            }
            figures, absent = by[name](others, repetitions, quick)
        record["figures"] += [one.record() for one in figures]
        record["absent"].update({peer: {"row": name, "reason": reason} for peer, reason in absent.items()})
    else:
        figures, difference = steps.measure(WORKLOADS[name], repetitions, quick)
        record["figures"] += [one.record() for one in figures]
        record["differences"][name] = difference


def main(words: Sequence[str] | None = None) -> None:
    """Measure the rows, print the tables, and save the record and the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What the library costs on this machine.")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS, help="Which rows; all if none is named.")
    parser.add_argument(
        "--repetitions", type=int, default=7, help="How often everything is timed; ways take turns in each repetition."
    )
    parser.add_argument("--quick", action="store_true", help="Small networks: a trial of the benchmark, not a result.")
    parser.add_argument("--jax-python", type=Path, help="An interpreter that has JAX, for the row jax.")
    parser.add_argument("--jax-program", type=Path, help="Algorithm 1 in JAX, for the row jax.")
    parser.add_argument("--authors", type=Path, help="The folder of the authors' package, for the row authors.")
    parser.add_argument("--before", type=Path, help="A clone of this repository at an earlier commit, for row before.")
    parser.add_argument("--out", type=Path, help="Also write all figures into this JSON file.")
    parser.add_argument(
        "--page", type=Path, help="Also put the tables between the marks of this page, and the figure beside it."
    )
    given = parser.parse_args(words)
    if distributed.shared():
        raise WarpgradError("the benchmark starts processes of its own: give the command without torchrun.")
    keep_freed_memory()
    record = run(
        given.rows,
        repetitions=given.repetitions,
        quick=given.quick,
        others=Elsewhere(given.jax_python, given.jax_program, given.authors, given.before),
        say=lambda row: print(f"measuring {row}", file=sys.stderr, flush=True),
    )
    # Into a file or a pipe, lines are as long as they are.
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(conditions(record), highlight=False, markup=False)
    for columns in tables(record):
        table = Table(title=columns.title)
        for name in columns.header:
            table.add_column(name, justify="right" if name in ("ms", "K", "MB", "p", "ranks", "processes") else "left")
        for row in columns.rows:
            table.add_row(*map(Text, row))
        console.print(table)
    if given.out is not None:
        write_json(given.out, record)
        print(f"record: {given.out}")
    if given.page is not None:
        write_page(given.page, record)
        print(f"page: {given.page}")


if __name__ == "__main__":
    try:
        main()
    except WarpgradError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        sys.exit(2)
