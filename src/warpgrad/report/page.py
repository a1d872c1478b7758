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

from markupsafe import Markup

from warpgrad.io import write_bytes
from warpgrad.report.blocks import Outline, Section, figures_of, image_type, render
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
        # The sections come first: they make the table of contents, which stands before them.
        content = Markup("").join(section.render(outline) for section in self.sections)
        style, script = (_resource(f"page.{ending}") for ending in ("css", "js"))
        page = render(
            "page.html",
            page=self,
            outline=outline,
            content=content,
            version=__version__,
            policy=_policy(style, script),
            # The project's own; they must stand in the page letter by letter.
            style=Markup(style),
            script=Markup(script),
        )
        # Plain text: the methods of `Markup` escape what they are given.
        return str(page)

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


def _resource(name: str) -> str:
    return resources.files("warpgrad.report").joinpath("templates", name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Forbid every request, and every script and style but the two of this page, named by their digests."""
    return "; ".join(
        [
            "default-src 'none'",
            "img-src data:",
            f"style-src '{_digest(style)}'",
            f"script-src '{_digest(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
