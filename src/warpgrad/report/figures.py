"""The house style of figures drawn with matplotlib: pictures on pages, and charts as images for documents.

Each figure is a separate object with an Agg canvas: no window, no pyplot, and no setting that outlives
`house_style()`. matplotlib is imported when the first figure is drawn, so that pages can be described
without it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpgrad.io import write_bytes
from warpgrad.report.looks import DARK_PALETTE, PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

DOTS_PER_INCH = 2 * 96
"""Twice the resolution of the page, so that figures are sharp on dense screens."""

GROUND = ("#ffffff", "#1c2026")
"""Background of figures on light and on dark pages: the colour of the card they lie on."""
INK = PALETTE[-1]


def themed(colour: str, dark: bool) -> str:
    """Return the dark variant of a colour of the palette if `dark`; any other colour is returned unchanged."""
    return DARK_PALETTE[PALETTE.index(colour)] if dark and colour in PALETTE else colour


def plain(text: str) -> str:
    """Escape text for matplotlib, so that a dollar sign in a name does not start a formula."""
    return text.replace("$", r"\$")


@contextmanager
def house_style(*, dark: bool = False) -> Iterator[None]:
    """Apply the house style to figures made inside the block, on a light or a dark background."""
    import matplotlib as mpl
    from cycler import cycler

    ink, soft, edge, grid = (
        (INK, "#3d454e", "#8a929b", "#e6e6e3") if not dark else (themed(INK, dark), "#c3cad2", "#6b747e", "#333a43")
    )
    settings: dict[Any, Any] = {
        # It comes with matplotlib and has the paper's Greek letters, so figures are the same on every machine.
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "text.color": ink,
        "axes.labelcolor": soft,
        "axes.edgecolor": edge,
        "axes.linewidth": 0.8,
        "axes.prop_cycle": cycler(color=DARK_PALETTE if dark else PALETTE),
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlepad": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.unicode_minus": True,
        "grid.color": grid,
        "grid.linewidth": 0.8,
        "xtick.color": edge,
        "ytick.color": edge,
        "xtick.labelcolor": soft,
        "ytick.labelcolor": soft,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        "lines.linewidth": 1.9,
        "lines.solid_capstyle": "round",
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "figure.facecolor": GROUND[dark],
        "axes.facecolor": GROUND[dark],
        "savefig.facecolor": GROUND[dark],
        "figure.constrained_layout.use": True,
    }
    with mpl.rc_context(settings):
        yield


def canvas(width: float = 7.2, height: float = 4.0) -> Canvas:
    """Return an empty figure of this size in inches (96 page pixels each); call it inside `house_style()`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    return FigureCanvasAgg(Canvas(figsize=(width, height))).figure


def save_png(figure: Canvas, path: Path | None = None, *, colours: int | None = None) -> bytes:
    """Return the figure as a PNG at twice the page's resolution, and write it atomically to `path` if one is given.

    With `colours`, it is reduced to a palette of that size: maps and surfaces shrink to a third and look the same.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    if colours is not None:
        from PIL import Image

        with Image.open(buffer) as picture:
            reduced = picture.convert("RGB").quantize(colours, dither=Image.Dither.NONE)
        reduced.save(buffer := io.BytesIO(), "PNG", optimize=True)
    image = buffer.getvalue()
    if path is not None:
        write_bytes(path, image)
    return image
