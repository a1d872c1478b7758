"""Tables of results: ours with its interval, the paper's figure beside it, the best one emphasised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from warpgrad.errors import WarpgradError
from warpgrad.report.blocks import Block, Outline
from warpgrad.report.markup import Markup, element, inline, joined
from warpgrad.statistics.estimates import SEEDS_FOR_A_CLAIM, Difference, Estimate
from warpgrad.statistics.formatting import between, number

Best = Literal["highest", "lowest"]


@dataclass(frozen=True)
class Value:
    """A measured number. `paper` is the published one, a number or its text, e.g. `83.8 ± 1.9`."""

    mean: float | None
    """None: not measured here; the paper's figure may still stand in the cell."""
    low: float | None = None
    high: float | None = None
    paper: float | str | None = None
    indicative: bool = False
    digits: int | None = None
    signed: bool = False
    method: str = "interval"
    """What `low` and `high` are, for the line below the table."""

    @classmethod
    def of(cls, estimate: Estimate, *, paper: float | str | None = None, digits: int | None = None) -> Self:
        """A cell from the statistics, with their interval and their verdict on the number of meta-seeds."""
        interval = estimate.interval
        return cls(
            estimate.mean,
            low=interval.low if interval.bounded else None,
            high=interval.high if interval.bounded else None,
            paper=paper,
            indicative=estimate.indicative,
            digits=estimate.digits() if digits is None else digits,
            signed=isinstance(estimate, Difference),
            method=estimate.method,
        )

    @property
    def text(self) -> str:
        return "–" if self.mean is None else number(self.mean, self.digits, signed=self.signed)


Cell = Value | str | int | float | None
"""A text, a number, a measured value, or None for an empty place."""


@dataclass(frozen=True)
class Column:
    title: str
    unit: str = ""
    best: Best | None = None
    """Which value of this column is emphasised."""
    words: bool = False
    """Set to the left and wrapped, as text is."""


@dataclass(frozen=True)
class Table(Block):
    """Rows under columns; the first cell of a row names it.

    `best_in_row` emphasises within each row, for tables with one method per column. What bites: the emphasis
    marks the best mean as printed (ties share it); whether a difference is real is for a paired interval to say.
    """

    columns: Sequence[Column | str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    best_in_row: Best | None = None

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise WarpgradError(
                    f"a row of table '{self.caption}' has {len(row)} cells for {len(self.columns)} columns: "
                    f"{list(row)!r}."
                )

    def render(self, outline: Outline) -> Markup:
        del outline
        columns = [Column(column) if isinstance(column, str) else column for column in self.columns]
        winners = self._winners(columns)
        head = element("thead", element("tr", *(_header(column, i) for i, column in enumerate(columns))))
        body = element(
            "tbody",
            *(
                element("tr", *(_cell(cell, columns[j], j, (i, j) in winners) for j, cell in enumerate(row)))
                for i, row in enumerate(self.rows)
            ),
        )
        # The caption stands outside what scrolls, so that it is read whole on a narrow screen.
        caption = element("figcaption", inline(self.caption)) if self.caption else ""
        name = self.caption or "Table"
        scroll = element(
            "div", element("table", head, body), class_="scroll", tabindex=0, role="region", aria_label=name
        )
        return element("figure", caption, scroll, self._legend(columns), class_="results")

    def _winners(self, columns: Sequence[Column]) -> set[tuple[int, int]]:
        places = set[tuple[int, int]]()
        if self.best_in_row is not None:
            for i, row in enumerate(self.rows):
                places |= {(i, j) for j in _best(row, self.best_in_row)}
        for j, column in enumerate(columns):
            if column.best is not None:
                places |= {(i, j) for i in _best([row[j] for row in self.rows], column.best)}
        return places

    def _legend(self, columns: Sequence[Column]) -> Markup:
        """Says what the marks in this very table mean, and nothing about marks that are not in it."""
        values = [cell for row in self.rows for cell in row if isinstance(cell, Value)]
        lines: list[str] = []
        if self.best_in_row is not None or any(column.best for column in columns):
            lines.append("**bold**: the best mean")
        methods = dict.fromkeys(value.method for value in values if value.low is not None)
        if methods:
            lines.append(f"small: {', or '.join(methods)}")
        if any(value.paper is not None for value in values):
            lines.append("paper: the published figure")
        if any(value.indicative for value in values):
            lines.append(f"indicative: fewer than {SEEDS_FOR_A_CLAIM} meta-seeds")
        return element("p", inline(" · ".join(lines)), class_="legend") if lines else Markup()


def _best(cells: Sequence[Cell], best: Best) -> list[int]:
    """The places of the best measured values as they are printed; none where there is nothing to beat."""
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


def _header(column: Column, place: int) -> Markup:
    unit = element("span", f" {column.unit}", class_="unit") if column.unit else ""
    return element("th", column.title, unit, scope="col", class_="words" if column.words or place == 0 else None)


def _cell(cell: Cell, column: Column, place: int, winner: bool) -> Markup:
    classes = " ".join(name for name, on in (("words", column.words), ("best", winner)) if on) or None
    if place == 0:
        return element("th", _content(cell, winner), scope="row", class_=classes)
    return element("td", _content(cell, winner), class_=classes)


def _content(cell: Cell, winner: bool) -> Markup:
    if cell is None:
        return element("span", "–", class_="quiet")
    if isinstance(cell, str):
        return inline(cell)
    if not isinstance(cell, Value):
        return joined(number(cell))
    parts = [element("strong" if winner else "span", cell.text, class_="mean")]
    if cell.low is not None and cell.high is not None:
        ends = between(cell.low, cell.high, cell.digits, signed=cell.signed)
        parts.append(element("small", ends, class_="interval"))
    if cell.indicative:
        parts.append(element("span", "indicative", class_="badge"))
    if cell.paper is not None:
        paper = cell.paper if isinstance(cell.paper, str) else number(cell.paper, cell.digits, signed=cell.signed)
        parts.append(element("small", f"paper {paper}", class_="paper"))
    return element("div", *_spaced(parts), class_="value")


def _spaced(parts: Sequence[Markup]) -> list[str]:
    """With spaces between, so that a copied or spoken cell keeps its words apart."""
    return [piece for part in parts for piece in (part, " ")][:-1]
