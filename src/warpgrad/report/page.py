"""One HTML page that needs nothing but itself: no request leaves it, and its own policy forbids any.

    page = Page("Omniglot", "20-way, 100 steps").add(Section("Accuracy").add(table, figure))
    page.write(Path("report.html"))

The same blocks give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources
from pathlib import Path
from typing import Self

from warpgrad.io import write_bytes
from warpgrad.report.blocks import Outline, Section, rendered
from warpgrad.report.images import figures_of, image_type
from warpgrad.report.markup import Markup, element, inline
from warpgrad.version import __version__


class Page:
    """A title, a line below it, and sections."""

    def __init__(self, title: str, subtitle: str = "") -> None:
        self.title = title
        self.subtitle = subtitle
        self.sections: list[Section] = []

    def add(self, *sections: Section) -> Self:
        self.sections.extend(sections)
        return self

    def html(self) -> str:
        """The whole page."""
        outline = Outline()
        main = element("main", rendered(self.sections, outline), id="content")
        subtitle = element("p", inline(self.subtitle), class_="subtitle") if self.subtitle else ""
        header = element("header", element("h1", self.title), subtitle)
        body = element(
            "body",
            element("a", "Skip to the content", href="#content", class_="skip"),
            header,
            element("div", _contents(outline), main, class_="columns"),
            element(
                "footer", element("p", f"Made by warpgrad {__version__}. This page stands alone: it loads nothing.")
            ),
            _verbatim("script", "page.js"),
        )
        head = element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=_policy()),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("title", self.title),
            _verbatim("style", "page.css"),
        )
        return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"

    def write(self, path: Path) -> Path:
        """Write the page to `path`, whole or not at all."""
        # A file name that is no valid text must not cost the whole report.
        write_bytes(path, self.html().encode("utf-8", errors="replace"))
        return path

    def write_figures(self, directory: Path) -> list[Path]:
        """Write every figure of the sections to a file of its own, named after its section and place in it."""
        written = []
        for section in self.sections:
            figures = [figure for block in section.blocks for figure in figures_of(block)]
            for place, figure in enumerate(figures, start=1):
                name = re.sub(r"\W+", "-", section.title.lower()).strip("-")
                ending = image_type(figure.image).removeprefix("image/").removesuffix("+xml")
                written.append(directory / f"{name}-{place}.{ending}")
                write_bytes(written[-1], figure.image)
        return written


def _contents(outline: Outline) -> Markup:
    """The table of contents: sections, and their headings under them."""
    groups: list[tuple[Markup, list[Markup]]] = []
    for level, anchor, title in outline.entries:
        link = element("a", title, href=f"#{anchor}")
        if level == 2 or not groups:
            groups.append((link, []))
        else:
            groups[-1][1].append(element("li", link))
    items = (element("li", link, element("ol", *under) if under else "") for link, under in groups)
    return element("nav", element("ol", *items), aria_label="Contents")


def _resource(name: str) -> str:
    return resources.files("warpgrad.report").joinpath(name).read_text(encoding="utf-8")


def _verbatim(tag: str, name: str) -> Markup:
    """The project's own style or script, which must stand in the page letter by letter."""
    return Markup(f"<{tag}>{_resource(name)}</{tag}>")


def _policy() -> str:
    """Forbid every request, and every script and style but the two of this page, named by their digests."""
    digests = {
        name: base64.b64encode(hashlib.sha256(_resource(name).encode()).digest()).decode("ascii")
        for name in ("page.css", "page.js")
    }
    return "; ".join(
        [
            "default-src 'none'",
            "img-src data:",
            f"style-src 'sha256-{digests['page.css']}'",
            f"script-src 'sha256-{digests['page.js']}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
