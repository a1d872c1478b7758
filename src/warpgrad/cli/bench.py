"""`warpgrad bench`: what the library costs on this machine, as one table of ratios.

warpgrad bench --quick                                         seconds: does everything run, are numbers equal
warpgrad bench --rows conv maml --repetitions 9                some rows, at full size
warpgrad bench --out results/bench.json --page docs/cost.md    the record and the page that shows it
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from warpgrad.cli.main import parse
from warpgrad.io import write_json


@dataclass(frozen=True)
class BenchArguments:
    rows: tuple[str, ...] = ()
    """Which rows: conv, mlp, rnn, surfaces, maml, ranks, growth, estimate, memory, replay; all if none is named."""
    repetitions: int = 7
    """How often everything is timed; ways take turns within each repetition."""
    quick: bool = False
    """Small networks: a trial of the benchmark, not a result."""
    out: Path | None = None
    """Also write all figures into this JSON file."""
    page: Path | None = None
    """Also put the tables between the marks of this page, and the figure of growth beside it."""


def bench(words: list[str]) -> None:
    """Measure, print, and keep. A missed target is shown, not an error: a benchmark is no test."""
    given: BenchArguments = parse(BenchArguments, words, "warpgrad bench")
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from warpgrad.bench.benchmark import ROWS, run
    from warpgrad.bench.tables import conditions, tables, write_page

    record = run(
        given.rows or ROWS,
        repetitions=given.repetitions,
        quick=given.quick,
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
