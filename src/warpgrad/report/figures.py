"""The house style of figures, and one appearance per method: the same in every figure of every report.

Figures are drawn on objects of their own with the Agg canvas: no window, no pyplot, and no setting that outlives
`house_style()`. matplotlib is imported when the first figure is drawn, so that pages can be described
without it.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpgrad.io import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

DOTS_PER_INCH = 2 * 96
"""Twice the resolution of the page, so that figures are sharp on dense screens."""

PALETTE = ("#c1272d", "#0072b2", "#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#5b2a86", "#1c2127")
"""Colours that stay apart for readers with protan, deutan and tritan vision; the tests measure it."""

DASHES: tuple[tuple[float, tuple[float, ...] | None], ...] = (
    (0, None),
    (0, (5, 1.6)),
    (0, (1.2, 1.4)),
    (0, (6, 1.5, 1.2, 1.5)),
)

# Methods that meet in one figure of the paper have different colours; the warped ones share the first.
_KNOWN = {
    "warp-leap": (0, 0), "warp-maml": (0, 0), "warp-rnn": (0, 0), "warpgrad": (0, 0), "warp": (0, 0),
    "leap": (1, 0), "maml": (2, 0), "fomaml": (2, 1), "reptile": (3, 0), "finetuning": (4, 0),
    "sgd": (7, 0), "gd": (7, 0), "momentum": (7, 1), "kfac": (5, 0), "ewc": (5, 1),
    "meta-sgd": (6, 0), "meta-curvature": (6, 1), "t-net": (5, 0), "mt-net": (5, 2), "cavia": (4, 0), "anil": (2, 2),
    "rnn": (7, 0), "a2c-rnn": (7, 0), "hyperrnn": (1, 0), "hebbian": (2, 0), "simple-modulation": (3, 0),
    "retroactive-modulation": (4, 0), "t-nets-rnn": (5, 0),
}  # fmt: skip


@dataclass(frozen=True)
class Appearance:
    """How the line of a method is drawn."""

    colour: str
    dash: tuple[float, tuple[float, ...] | None]


def appearances(names: Sequence[str]) -> dict[str, Appearance]:
    """How each method is drawn. A known name has a place of its own; any other gets one from its letters.

    Two of up to 32 names in one figure never look alike: where places clash, the name later in the alphabet moves
    on to the next free one. So looks depend on the names in the figure, and never on their order.
    """
    taken: set[tuple[int, int]] = set()
    result: dict[str, Appearance] = {}
    for name in sorted(set(names), key=lambda name: (_plain(name) not in _KNOWN, name)):
        colour, dash = _KNOWN.get(_plain(name)) or _place(name)
        # All colours first, then the next dash, so that neighbours in a crowded figure differ by colour.
        for _ in range(len(PALETTE) * len(DASHES)):
            if (colour, dash) not in taken:
                break
            colour = (colour + 1) % len(PALETTE)
            dash = (dash + (colour == 0)) % len(DASHES)
        taken.add((colour, dash))
        result[name] = Appearance(PALETTE[colour], DASHES[dash])
    return {name: result[name] for name in names}


def _plain(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.lower())


def _place(name: str) -> tuple[int, int]:
    digest = hashlib.blake2b(_plain(name).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % len(PALETTE), 0


@contextmanager
def house_style() -> Iterator[None]:
    """Settings for figures made inside the block, and restored after it."""
    import matplotlib as mpl
    from cycler import cycler

    settings: dict[Any, Any] = {
        # It comes with matplotlib and has the paper's Greek: figures are the same on every machine.
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "text.color": "#1c2127",
        "axes.labelcolor": "#3d454e",
        "axes.edgecolor": "#8a929b",
        "axes.linewidth": 0.8,
        "axes.prop_cycle": cycler(color=PALETTE),
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlepad": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.unicode_minus": True,
        "grid.color": "#e6e6e3",
        "grid.linewidth": 0.8,
        "xtick.color": "#8a929b",
        "ytick.color": "#8a929b",
        "xtick.labelcolor": "#3d454e",
        "ytick.labelcolor": "#3d454e",
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        "lines.linewidth": 1.9,
        "lines.solid_capstyle": "round",
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "figure.facecolor": "white",
        "savefig.facecolor": "white",
        "figure.constrained_layout.use": True,
    }
    with mpl.rc_context(settings):
        yield


def canvas(width: float = 7.2, height: float = 4.0) -> Canvas:
    """An empty figure of this size in inches, 96 pixels of the page each; use it inside `house_style()`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    return FigureCanvasAgg(Canvas(figsize=(width, height))).figure


def save_png(figure: Canvas, path: Path | None = None) -> bytes:
    """The figure as PNG at twice the page's resolution; written to `path`, whole or not at all, where one is given."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    image = buffer.getvalue()
    if path is not None:
        write_bytes(path, image)
    return image
