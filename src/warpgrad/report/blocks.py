"""The building blocks of a page: sections of headings, prose, notes, commands, configurations and figures.

Each block is rendered by the template of the same name in `templates/` and knows nothing about experiments. The
templates escape all text. Prose understands `code` between backticks and **strong** between double stars; everything
else is shown verbatim.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from PIL import Image

from warpgrad.errors import WarpgradError, printable_lines, require
from warpgrad.report.looks import Appearance
from warpgrad.statistics.estimates import Difference, Estimate
from warpgrad.statistics.formatting import between, number

_PNG = b"\x89PNG\r\n\x1a\n"
_CSS_DOTS_PER_INCH = 96


@dataclass(frozen=True)
class OutlineEntry:
    """A line of the table of contents, with the headings under it."""

    anchor: str
    title: str
    under: list[OutlineEntry] = field(default_factory=list)


class Outline:
    """The page's headings in order, each with a unique anchor; the table of contents is built from them."""

    def __init__(self) -> None:
        self.entries: list[OutlineEntry] = []
        self._taken = {"content"}
        """Anchors in use, including that of the page."""

    def enter(self, title: str, *, under: bool = False) -> str:
        """Add a heading, `under` the last one or beside it, and return its anchor.

        The anchor is the title in lower case, with a number appended if it is already taken.
        """
        base = re.sub(r"[^\w]+", "-", title.lower()).strip("-") or "section"
        anchor, number = base, 1
        while anchor in self._taken:
            number += 1
            anchor = f"{base}-{number}"
        self._taken.add(anchor)
        entries = self.entries[-1].under if under and self.entries else self.entries
        entries.append(OutlineEntry(anchor, title))
        return anchor


@dataclass(frozen=True)
class PageContext:
    """The state that the blocks of one page share."""

    outline: Outline
    """Headings add themselves to it."""
    looks: Mapping[str, Appearance]
    """Method -> how it is drawn everywhere on the page."""
    selectable: Collection[str] = ()
    """The methods that the reader can hide on the whole page."""


class Block:
    """One piece of a page, rendered by the template that has its class's name in lower case."""

    def render(self, context: PageContext) -> Markup:
        """Return this block as HTML."""
        return render(f"{type(self).__name__.lower()}.html", block=self, context=context)

    @property
    def inner(self) -> Sequence[Block]:
        """The blocks that it contains."""
        return ()

    @property
    def methods(self) -> Sequence[str]:
        """The methods whose colours it needs."""
        return ()

    def all(self) -> Iterator[Block]:
        """Yield this block and all blocks inside it."""
        yield self
        for block in self.inner:
            yield from block.all()


@dataclass
class Section(Block):
    """A titled part of the page, with an entry in the table of contents."""

    title: str
    blocks: list[Block] = field(default_factory=list)

    def add(self, *blocks: Block) -> Self:
        self.blocks.extend(blocks)
        return self

    @property
    def inner(self) -> Sequence[Block]:
        return self.blocks


@dataclass(frozen=True)
class Heading(Block):
    """A heading inside a section, also in the table of contents."""

    text: str


@dataclass(frozen=True)
class Paragraph(Block):
    """Prose."""

    text: str


@dataclass(frozen=True)
class Items(Block):
    """A list of sentences."""

    texts: Sequence[str]


@dataclass(frozen=True)
class Note(Block):
    """An aside: a remark, or a warning the reader must not miss."""

    text: str
    kind: Literal["note", "warning"] = "note"


@dataclass(frozen=True)
class Code(Block):
    """A command or text to be copied verbatim."""

    text: str
    label: str = ""


@dataclass(frozen=True)
class Tile:
    """One headline figure: what it is, its value, and a line below, such as the paper's value."""

    label: str
    value: str
    detail: str = ""

    @classmethod
    def of(cls, label: str, estimate: Estimate, digits: int | None = None, detail: str = "", unit: str = "") -> Self:
        """Make a tile of the mean with its interval below or, with too few meta-seeds for one, the value of each."""
        digits = estimate.digits() if digits is None else digits
        signed = isinstance(estimate, Difference)
        if not estimate.indicative:
            spread = f"[{between(estimate.interval.low, estimate.interval.high, digits, signed=signed)}]"
        elif estimate.seeds > 1:
            spread = f"each seed: {', '.join(number(mean, digits, signed=signed) for mean in estimate.seed_means)}"
        else:
            spread = "one seed"
        value = " ".join(filter(None, (number(estimate.mean, digits, signed=signed), unit)))
        return cls(label, value, " · ".join(filter(None, (spread, detail))))


@dataclass(frozen=True)
class Tiles(Block):
    """Headline figures side by side."""

    tiles: Sequence[Tile]


@dataclass(frozen=True)
class Collapsible(Block):
    """Blocks hidden behind a line that opens them; all are open in print."""

    summary: str
    blocks: Sequence[Block]
    open: bool = False

    @property
    def inner(self) -> Sequence[Block]:
        return self.blocks


@dataclass(frozen=True)
class KeyValues(Block):
    """A configuration: names and values, nested ones under dotted names."""

    values: Mapping[str, Any]

    @property
    def flat(self) -> dict[str, str]:
        return {name: shown(value) for name, value in dotted(self.values).items()}


@dataclass(frozen=True)
class Figure(Block):
    """An image embedded in the page, with its caption; `alt` describes what it shows and must not be empty."""

    image: bytes
    alt: str
    caption: str = ""
    dark: bytes | None = None
    """The same image for a dark page; None shows the one image on both."""

    def __post_init__(self) -> None:
        require(self.alt.strip(), "a figure needs alt=..., a sentence that says what it shows.")
        _ = self.size  # raises if the bytes are no image

    @property
    def source(self) -> str:
        """The image as a data URL."""
        return _data_address(self.image)

    @property
    def dark_source(self) -> str | None:
        return None if self.dark is None else _data_address(self.dark)

    @property
    def size(self) -> tuple[int, int] | None:
        """Width and height on the page; None for an SVG, which has its own."""
        return _png_size(self.image) if image_type(self.image) == "image/png" else None


@dataclass(frozen=True)
class Gallery(Block):
    """Figures and charts side by side where there is room."""

    figures: Sequence[Block]

    @property
    def inner(self) -> Sequence[Block]:
        return self.figures


def render(template: str, **values: Any) -> Markup:
    """Render a template of `templates/` to HTML; every value in it is escaped unless it is `Markup`."""
    return Markup(_ENVIRONMENT.get_template(template).render(**values))


def prose(text: str) -> Markup:
    """Convert a sentence to HTML, with `code` between backticks and **strong** between double stars."""
    # Escaping first leaves backticks and stars as they are.
    return Markup(
        re.sub(
            r"`([^`]+)`|\*\*([^*]+)\*\*",
            lambda found: f"<code>{found[1]}</code>" if found[1] else f"<strong>{found[2]}</strong>",
            str(escape(text)),
        )
    )


def dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings into one with dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(dotted(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def shown(value: Any) -> str:
    """Return a setting as JSON, but strings without their quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _data_address(image: bytes) -> str:
    return f"data:{image_type(image)};base64,{base64.b64encode(image).decode('ascii')}"


def image_type(image: bytes) -> str:
    """Return `image/png` or `image/svg+xml`, judged by the bytes and not by a file name."""
    if image.startswith(_PNG) and len(image) > 33:
        return "image/png"
    head = image[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    if head.startswith(b"<svg") or (head.startswith((b"<?xml", b"<!")) and b"<svg" in head):
        return "image/svg+xml"
    raise WarpgradError("a figure must be the bytes of a PNG or SVG image; save it as one of these.")


def _png_size(image: bytes) -> tuple[int, int]:
    """Return width and height on the page: pixels scaled from the file's resolution, or 96 per inch if it has none.

    A figure saved at twice the resolution therefore keeps its size on the page and is sharper.
    """
    try:
        with Image.open(io.BytesIO(image), formats=["PNG"]) as opened:
            (width, height), (across, _) = opened.size, opened.info.get("dpi", (_CSS_DOTS_PER_INCH,) * 2)
    except (OSError, SyntaxError, ValueError) as error:
        raise WarpgradError(f"a figure is not a readable PNG ({error}); save it again.") from error
    scale = _CSS_DOTS_PER_INCH / across if across > 0 else 1.0
    return max(1, round(width * scale)), max(1, round(height * scale))


_ENVIRONMENT = Environment(
    loader=PackageLoader("warpgrad.report"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=lambda value: printable_lines(value) if type(value) is str else value,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {"prose": prose, "number": number}
