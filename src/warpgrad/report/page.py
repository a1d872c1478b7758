"""One self-contained HTML page: it makes no requests, and its content security policy forbids any.

    page = Page("Omniglot", "20-way, 100 steps").add(Section("Accuracy").add(table, figure))
    page.write(Path("report.html"))

The same blocks give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from markupsafe import Markup

from warpgrad.io import write_bytes
from warpgrad.lazy import naming_extras
from warpgrad.report.blocks import Block, Figure, Outline, PageContext, Section, image_type, render
from warpgrad.report.charts import Chart
from warpgrad.report.forest import Forest
from warpgrad.report.looks import DARK_PALETTE, PALETTE, appearances
from warpgrad.report.tables import Table
from warpgrad.version import __version__


class Page:
    """A page with a title, a subtitle, and sections."""

    def __init__(self, title: str, subtitle: str = "") -> None:
        self.title = title
        self.subtitle = subtitle
        self.sections: list[Section] = []

    def add(self, *sections: Section) -> Self:
        self.sections.extend(sections)
        return self

    def html(self) -> str:
        """Return the whole page as HTML."""
        context = self._context()
        # The sections are rendered first, because they fill the table of contents that precedes them.
        content = Markup("").join(section.render(context) for section in self.sections)
        charts = [block for block in self._blocks() if isinstance(block, Chart)]
        style = _resource("page.css") + _colours()
        scripts = [_resource("page.js"), *([_resource("charts.js")] if charts else [])]
        script, library = "".join(scripts), _library() if charts else ""
        page = render(
            "page.html",
            page=self,
            context=context,
            content=content,
            seeds=list(dict.fromkeys(seed for chart in charts for seed in chart.seeds)),
            version=__version__,
            policy=_policy(style, script, library),
            # The project's own files and the library, which must be in the page verbatim.
            style=Markup(style),
            script=Markup(script),
            library=Markup(library),
        )
        # A plain string, because the methods of `Markup` escape their arguments.
        return str(page)

    def _blocks(self) -> Iterator[Block]:
        for section in self.sections:
            yield from section.all()

    def _context(self) -> PageContext:
        """Assign one look to each method on the page; the reader can hide those that occur in more than one block."""
        shown = [list(dict.fromkeys(block.methods)) for block in self._blocks() if isinstance(block, Chart | Forest)]
        # The block with the most methods has the order of the rows; a headline leaves out what it compares with.
        ordered = sorted(shown, key=len, reverse=True)
        looks = appearances(list(dict.fromkeys(method for methods in ordered for method in methods)))
        named = [
            {row[0] for row in block.rows if isinstance(row[0], str)}
            for block in self._blocks()
            if type(block) is Table
        ]
        places = Counter(method for methods in (*shown, *named) for method in methods if method in looks)
        selectable = [method for method in looks if places[method] > 1]
        return PageContext(Outline(), looks, selectable if len(selectable) > 1 else ())

    def write(self, path: Path) -> Path:
        """Write the page atomically to `path`."""
        # A file name that is not valid text must not make the whole report fail.
        write_bytes(path, self.html().encode("utf-8", errors="replace"))
        return path

    def write_figures(self, directory: Path) -> list[Path]:
        """Write every figure and chart to a separate file, named after its section and its position there."""
        looks, written = self._context().looks, []
        for section in self.sections:
            images = [
                block.image if isinstance(block, Figure) else block.image(looks)
                for block in section.all()
                if isinstance(block, Figure | Chart)
            ]
            for place, image in enumerate(images, start=1):
                name = re.sub(r"\W+", "-", section.title.lower()).strip("-")
                ending = image_type(image).removeprefix("image/").removesuffix("+xml")
                written.append(directory / f"{name}-{place}.{ending}")
                write_bytes(written[-1], image)
        return written


def _resource(name: str) -> str:
    return resources.files("warpgrad.report").joinpath("templates", name).read_text(encoding="utf-8")


def _colours() -> str:
    """Return the palette as CSS for the style sheet and the script: one variable and one class per colour."""
    light, dark = (
        "".join(f"--c{place}: {colour}; " for place, colour in enumerate(palette))
        for palette in (PALETTE, DARK_PALETTE)
    )
    classes = "".join(f".c{place} {{ --own: var(--c{place}); }}\n" for place in range(len(PALETTE)))
    return f":root {{ {light}}}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n{classes}"


@cache
def _library() -> str:
    """Return the JavaScript of the chart library from its Python package, without importing the package."""
    spec = find_spec("bokeh")
    with naming_extras():
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(name="bokeh")
    folder = Path(spec.origin).parent / "server" / "static" / "js"
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in ("bokeh.min.js", "bokeh-api.min.js"))


def _policy(style: str, script: str, library: str) -> str:
    """Return a policy that forbids every request, and every script except those of this page, given by their digests.

    The library creates style elements as it draws, so a page with charts allows any style; styles cannot make requests
    either.
    """
    scripts = [f"'{_digest(text)}'" for text in (library, script) if text]
    return "; ".join(
        [
            "default-src 'none'",
            "img-src data:",
            "style-src 'unsafe-inline'" if library else f"style-src '{_digest(style)}'",
            f"script-src {' '.join(scripts)}",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
