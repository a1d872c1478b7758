"""What a page is made of: sections of headings, prose, notes, commands, configurations and figures.

Each block is shown by the template of its name in `templates/` and knows nothing of experiments. The templates escape
all text. Prose understands `code` between backticks and **strong** between double stars; everything else is shown
letter by letter.
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
    """The page's headings in order, each with an anchor of its own; the table of contents is made from it."""

    def __init__(self) -> None:
        self.entries: list[OutlineEntry] = []
        self._taken = {"content"}
        """Anchors in use; the page's own is among them."""

    def enter(self, title: str, *, under: bool = False) -> str:
        """Add a heading, `under` the last one or beside it.

        Its anchor is its title in lower case, numbered where that is taken.
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
    """What the blocks of one page share."""

    outline: Outline
    """Headings enter themselves into it."""
    looks: Mapping[str, Appearance]
    """Method -> how it is drawn everywhere on the page."""
    selectable: Collection[str] = ()
    """The methods that the reader can hide on the whole page."""


class Block:
    """One piece of a page; the template that shows it has its class's name in lower case."""

    def render(self, context: PageContext) -> Markup:
        """This block as HTML."""
        return render(f"{type(self).__name__.lower()}.html", block=self, context=context)

    @property
    def inner(self) -> Sequence[Block]:
        """The blocks that it holds."""
        return ()

    @property
    def methods(self) -> Sequence[str]:
        """Whose colours it needs."""
        return ()

    def all(self) -> Iterator[Block]:
        """This block and all within it."""
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
    """Something beside the line of thought: a remark, or a warning the reader must not miss."""

    text: str
    kind: Literal["note", "warning"] = "note"


@dataclass(frozen=True)
class Code(Block):
    """A command or text to be copied as it stands."""

    text: str
    label: str = ""


@dataclass(frozen=True)
class Tile:
    """One headline figure: what it is, its value, and a line below, such as the paper's value."""

    label: str
    value: str
    detail: str = ""

    @classmethod
    def of(cls, label: str, estimate: Estimate, digits: int | None = None, detail: str = "") -> Self:
        """The mean, and below it its interval; with too few meta-seeds for one, what each of them gave."""
        digits = estimate.digits() if digits is None else digits
        signed = isinstance(estimate, Difference)
        if not estimate.indicative:
            spread = f"[{between(estimate.interval.low, estimate.interval.high, digits, signed=signed)}]"
        elif estimate.seeds > 1:
            spread = f"each seed: {', '.join(number(mean, digits, signed=signed) for mean in estimate.seed_means)}"
        else:
            spread = "one seed"
        return cls(label, number(estimate.mean, digits, signed=signed), " · ".join(filter(None, (spread, detail))))


@dataclass(frozen=True)
class Tiles(Block):
    """Headline figures side by side."""

    tiles: Sequence[Tile]


@dataclass(frozen=True)
class Collapsible(Block):
    """Blocks behind a line that opens them; all are open in print."""

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
    """An image in the page itself, with its caption. `alt` describes what it shows, and must not be empty."""

    image: bytes
    alt: str
    caption: str = ""
    dark: bytes | None = None
    """The same for a dark page; None shows the one image on both."""

    def __post_init__(self) -> None:
        require(self.alt.strip(), "a figure needs alt=..., a sentence that says what it shows.")
        _ = self.size  # reading it refuses what is no image

    @property
    def source(self) -> str:
        """The image as a data address."""
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
    """A template of `templates/` as HTML; every value in it is escaped unless it is `Markup`."""
    return Markup(_ENVIRONMENT.get_template(template).render(**values))


def prose(text: str) -> Markup:
    """A sentence in which `code` between backticks and **strong** between double stars are set as such."""
    # Escaping first leaves backticks and stars as they are.
    return Markup(
        re.sub(
            r"`([^`]+)`|\*\*([^*]+)\*\*",
            lambda found: f"<code>{found[1]}</code>" if found[1] else f"<strong>{found[2]}</strong>",
            str(escape(text)),
        )
    )


def dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(dotted(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def shown(value: Any) -> str:
    """A setting as it is written in JSON, strings without their quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _data_address(image: bytes) -> str:
    return f"data:{image_type(image)};base64,{base64.b64encode(image).decode('ascii')}"


def image_type(image: bytes) -> str:
    """`image/png` or `image/svg+xml`, by what the bytes are and not by a name."""
    if image.startswith(_PNG) and len(image) > 33:
        return "image/png"
    head = image[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    if head.startswith(b"<svg") or (head.startswith((b"<?xml", b"<!")) and b"<svg" in head):
        return "image/svg+xml"
    raise WarpgradError("a figure must be the bytes of a PNG or SVG image; save it as one of these.")


def _png_size(image: bytes) -> tuple[int, int]:
    """Width and height on the page: pixels over the resolution the file states, 96 to the inch where it states none.

    So a figure saved at twice the resolution is shown at its own size, and sharp.
    """
    try:
        with Image.open(io.BytesIO(image), formats=["PNG"]) as opened:
            (width, height), (across, _) = opened.size, opened.info.get("dpi", (_CSS_DOTS_PER_INCH,) * 2)
    except (OSError, SyntaxError, ValueError) as error:
        raise WarpgradError(f"a figure is no readable PNG ({error}); save it again.") from error
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
