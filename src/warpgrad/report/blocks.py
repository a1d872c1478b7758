"""What a page is made of: sections of headings, prose, notes, commands and configurations.

A block turns itself into HTML and knows nothing of experiments. Prose understands `code` between backticks and
**strong** between double stars; everything else is shown letter by letter.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from warpgrad.report.markup import Markup, element, inline, joined


class Outline:
    """The page's headings in order, each with an anchor of its own; the table of contents is made from it."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, str, str]] = []
        """(level, anchor, title)"""
        self._taken = {"content"}
        """Anchors in use; the page's own is among them."""

    def enter(self, level: int, title: str) -> str:
        """Add a heading; its anchor is its title in lower case, numbered where that is taken."""
        base = re.sub(r"[^\w]+", "-", title.lower()).strip("-") or "section"
        anchor, number = base, 1
        while anchor in self._taken:
            number += 1
            anchor = f"{base}-{number}"
        self._taken.add(anchor)
        self.entries.append((level, anchor, title))
        return anchor


class Block(ABC):
    """One piece of a page."""

    @abstractmethod
    def render(self, outline: Outline) -> Markup:
        """This block as HTML; headings enter themselves into `outline`."""


def rendered(blocks: Sequence[Block], outline: Outline) -> Markup:
    return joined(*(block.render(outline) for block in blocks))


@dataclass
class Section(Block):
    """A titled part of the page, with an entry in the table of contents."""

    title: str
    blocks: list[Block] = field(default_factory=list)

    def add(self, *blocks: Block) -> Self:
        self.blocks.extend(blocks)
        return self

    def render(self, outline: Outline) -> Markup:
        anchor = outline.enter(2, self.title)
        heading = element("h2", self.title, id=anchor)
        return element("section", heading, rendered(self.blocks, outline), aria_labelledby=anchor)


@dataclass(frozen=True)
class Heading(Block):
    """A heading inside a section, also in the table of contents."""

    text: str

    def render(self, outline: Outline) -> Markup:
        return element("h3", self.text, id=outline.enter(3, self.text))


@dataclass(frozen=True)
class Paragraph(Block):
    text: str

    def render(self, outline: Outline) -> Markup:
        del outline
        return element("p", inline(self.text))


@dataclass(frozen=True)
class Items(Block):
    """A list of sentences."""

    texts: Sequence[str]

    def render(self, outline: Outline) -> Markup:
        del outline
        return element("ul", *(element("li", inline(text)) for text in self.texts))


@dataclass(frozen=True)
class Note(Block):
    """Something beside the line of thought: a remark, or a warning the reader must not miss."""

    text: str
    kind: Literal["note", "warning"] = "note"

    def render(self, outline: Outline) -> Markup:
        del outline
        label = element("strong", "Warning" if self.kind == "warning" else "Note", class_="label")
        return element("aside", label, element("p", inline(self.text)), class_=self.kind, role="note")


@dataclass(frozen=True)
class Code(Block):
    """A command or text to be copied as it stands."""

    text: str
    label: str = ""

    def render(self, outline: Outline) -> Markup:
        del outline
        label = element("span", self.label, class_="label") if self.label else ""
        # The button does nothing without the script, which is what unhides it.
        button = element("button", "Copy", type="button", data_copy=True, hidden=True)
        what = self.label or "Code"
        text = element("pre", element("code", self.text), tabindex=0, role="region", aria_label=what)
        return element("div", element("div", label, button, class_="bar"), text, class_="code")


@dataclass(frozen=True)
class Tile:
    """One headline figure: what it is, its value, and a line below, such as the paper's value."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Tiles(Block):
    """Headline figures side by side."""

    tiles: Sequence[Tile]

    def render(self, outline: Outline) -> Markup:
        del outline
        return element("dl", *(self._tile(tile) for tile in self.tiles), class_="tiles")

    @staticmethod
    def _tile(tile: Tile) -> Markup:
        detail = element("dd", inline(tile.detail), class_="detail") if tile.detail else ""
        return element("div", element("dt", tile.label), element("dd", tile.value, class_="value"), detail)


@dataclass(frozen=True)
class Collapsible(Block):
    """Blocks behind a line that opens them; all are open in print."""

    summary: str
    blocks: Sequence[Block]
    open: bool = False

    def render(self, outline: Outline) -> Markup:
        inside = element("div", rendered(self.blocks, outline), class_="inside")
        return element("details", element("summary", inline(self.summary)), inside, open=self.open)


@dataclass(frozen=True)
class KeyValues(Block):
    """A configuration: names and values, nested ones under dotted names."""

    values: Mapping[str, Any]

    def render(self, outline: Outline) -> Markup:
        del outline
        if not self.values:
            return element("p", "Nothing is set.", class_="quiet")
        rows = (
            element("tr", element("th", name, scope="row"), element("td", element("code", shown(value))))
            for name, value in flattened(self.values).items()
        )
        return element("div", element("table", element("tbody", *rows), class_="pairs"), class_="scroll")


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(flattened(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def shown(value: Any) -> str:
    """A setting as it is written in JSON, strings without their quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
