"""Tables of results: our value with its interval, the paper's beside it, and the best one emphasised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from warpgrad.errors import require
from warpgrad.report.blocks import Block
from warpgrad.statistics.estimates import SEEDS_FOR_A_CLAIM, Difference, Estimate
from warpgrad.statistics.formatting import between, number

Best = Literal["highest", "lowest"]


@dataclass(frozen=True)
class Value:
    """A measured number; `paper` is the published one, a number or text such as `83.8 ± 1.9`."""

    mean: float | None
    """None if it was not measured here; the cell may still show the paper's number."""
    low: float | None = None
    high: float | None = None
    paper: float | str | None = None
    indicative: bool = False
    digits: int | None = None
    signed: bool = False
    method: str = "interval"
    """What `low` and `high` are, for the legend below the table."""

    @classmethod
    def of(cls, estimate: Estimate, *, paper: float | str | None = None, digits: int | None = None) -> Self:
        """Make a cell of an estimate, with its interval if there are enough meta-seeds, else marked indicative."""
        interval = estimate.interval
        shown = interval.bounded and not estimate.indicative
        return cls(
            estimate.mean,
            low=interval.low if shown else None,
            high=interval.high if shown else None,
            paper=paper,
            indicative=estimate.indicative,
            digits=estimate.digits() if digits is None else digits,
            signed=isinstance(estimate, Difference),
            method=estimate.method,
        )

    @property
    def text(self) -> str:
        """The mean as printed."""
        return "–" if self.mean is None else number(self.mean, self.digits, signed=self.signed)

    @property
    def ends(self) -> str:
        """The interval as printed; empty if there is none."""
        if self.low is None or self.high is None:
            return ""
        return between(self.low, self.high, self.digits, signed=self.signed)

    @property
    def published(self) -> str | None:
        """The paper's number as printed."""
        if self.paper is None or isinstance(self.paper, str):
            return self.paper
        return number(self.paper, self.digits, signed=self.signed)


@dataclass(frozen=True)
class Sized:
    """A text that is sorted by a number, such as a duration by its seconds."""

    text: str
    size: float


Cell = Value | Sized | str | int | float | None
"""A text, a number, a measured value, or None for an empty cell."""


@dataclass(frozen=True)
class Column:
    """The head of a column."""

    title: str
    unit: str = ""
    best: Best | None = None
    """Which value of this column is emphasised."""
    words: bool = False
    """Whether to align the column left and wrap it, as text."""

    @property
    def label(self) -> str:
        """The title with the unit, as it stands beside a number on a telephone."""
        return ", ".join(filter(None, (self.title, self.unit)))


@dataclass(frozen=True)
class Table(Block):
    """A table of rows and columns; the first cell of a row names it.

    `best_in_row` emphasises within each row, for tables with one method per column. Warning: the emphasis
    marks the best mean as printed (ties share it); only a paired interval tells whether a difference is real.
    """

    columns: Sequence[Column | str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    best_in_row: Best | None = None

    def __post_init__(self) -> None:
        for row in self.rows:
            require(
                len(row) == len(self.columns),
                f"a row of table '{self.caption}' has {len(row)} cells for {len(self.columns)} columns: {list(row)!r}.",
            )

    @property
    def named_columns(self) -> list[Column]:
        """The columns, including those that were given only as a title."""
        return [Column(column) if isinstance(column, str) else column for column in self.columns]

    def winners(self) -> set[tuple[int, int]]:
        """Return the positions (row, column) of the emphasised cells."""
        places = set[tuple[int, int]]()
        if self.best_in_row is not None:
            for i, row in enumerate(self.rows):
                places |= {(i, j) for j in _best(row, self.best_in_row)}
        for j, column in enumerate(self.named_columns):
            if column.best is not None:
                places |= {(i, j) for i in _best([row[j] for row in self.rows], column.best)}
        return places

    @property
    def values(self) -> list[Value]:
        """The measured values, row by row."""
        return [cell for row in self.rows for cell in row if isinstance(cell, Value)]

    @property
    def indicative(self) -> bool:
        """Whether every measured value is indicative; then the legend says so once, and no cell does."""
        measured = [value for value in self.values if value.mean is not None]
        return bool(measured) and all(value.indicative for value in measured)

    def legend(self) -> str:
        """Explain the marks that occur in this table, and no others."""
        values = self.values
        lines: list[str] = []
        if self.best_in_row is not None or any(column.best for column in self.named_columns):
            means = any(value.low is not None or value.indicative for value in values)
            lines.append(f"**bold**: the best{' mean' if means else ''}")
        methods = dict.fromkeys(value.method for value in values if value.low is not None)
        if methods:
            lines.append(f"small: {', or '.join(methods)}")
        if any(value.paper is not None for value in values):
            lines.append("paper: the published figure")
        if self.indicative:
            lines.append(f"all values are indicative: fewer than {SEEDS_FOR_A_CLAIM} meta-seeds")
        elif any(value.indicative for value in values):
            lines.append(f"indicative: fewer than {SEEDS_FOR_A_CLAIM} meta-seeds")
        return " · ".join(lines)


def _best(cells: Sequence[Cell], best: Best) -> list[int]:
    """Return the indices of the best measured values as printed; empty if there is nothing to compare with."""
    numbers = {
        i: float(_rounded(cell)) for i, cell in enumerate(cells) if isinstance(cell, Value) and cell.mean is not None
    }
    if len(numbers) < 2:
        return []
    top = max(numbers.values()) if best == "highest" else min(numbers.values())
    return [i for i, value in numbers.items() if value == top]


def _rounded(value: Value) -> float:
    assert value.mean is not None
    return round(value.mean, value.digits) if value.digits is not None else float(f"{value.mean:.4g}")
