"""One HTML page that needs nothing but itself: no request leaves it, and its own policy forbids any.

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

from warpgrad.errors import WarpgradError
from warpgrad.io import write_bytes
from warpgrad.report.blocks import Block, Figure, Outline, PageContext, Section, image_type, render
from warpgrad.report.charts import Chart
from warpgrad.report.forest import Forest
from warpgrad.report.looks import DARK_PALETTE, PALETTE, appearances
from warpgrad.report.tables import Table
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
        context = self._context()
        # The sections come first: they make the table of contents, which stands before them.
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
            # The project's own, and the library; they must stand in the page letter by letter.
            style=Markup(style),
            script=Markup(script),
            library=Markup(library),
        )
        # Plain text: the methods of `Markup` escape what they are given.
        return str(page)

    def _blocks(self) -> Iterator[Block]:
        for section in self.sections:
            yield from section.all()

    def _context(self) -> PageContext:
        """One look for each method of the page; the reader chooses among those that stand in more than one place."""
        shown = [list(dict.fromkeys(block.methods)) for block in self._blocks() if isinstance(block, Chart | Forest)]
        looks = appearances(list(dict.fromkeys(method for methods in shown for method in methods)))
        named = [
            {row[0] for row in block.rows if isinstance(row[0], str)}
            for block in self._blocks()
            if type(block) is Table
        ]
        places = Counter(method for methods in (*shown, *named) for method in methods if method in looks)
        selectable = [method for method in looks if places[method] > 1]
        return PageContext(Outline(), looks, selectable if len(selectable) > 1 else ())

    def write(self, path: Path) -> Path:
        """Write the page to `path`, whole or not at all."""
        # A file name that is no valid text must not cost the whole report.
        write_bytes(path, self.html().encode("utf-8", errors="replace"))
        return path

    def write_figures(self, directory: Path) -> list[Path]:
        """Write every figure and chart to a file of its own, named after its section and its place there."""
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
    """The palette as the style sheet and the script know it: one variable and one class for each colour."""
    light, dark = (
        "".join(f"--c{place}: {colour}; " for place, colour in enumerate(palette))
        for palette in (PALETTE, DARK_PALETTE)
    )
    classes = "".join(f".c{place} {{ --own: var(--c{place}); }}\n" for place in range(len(PALETTE)))
    return f":root {{ {light}}}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n{classes}"


@cache
def _library() -> str:
    """The charts' library, as its Python package carries it; the package itself is not imported."""
    spec = find_spec("bokeh")
    if spec is None or spec.origin is None:
        raise WarpgradError("bokeh is not installed: pip install 'warpgrad[paper]'.")
    folder = Path(spec.origin).parent / "server" / "static" / "js"
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in ("bokeh.min.js", "bokeh-api.min.js"))


def _policy(style: str, script: str, library: str) -> str:
    """Forbid every request, and every script but those of this page, named by their digests.

    The library makes style elements as it draws, so on a page with charts any style is allowed; styles can ask nobody
    for anything either.
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
