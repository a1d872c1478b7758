"""HTML as values: every string is escaped unless it is `Markup`, so nothing unescaped can slip into a page."""

from __future__ import annotations

import html
import re


class Markup(str):
    """Text that is HTML already. Only `element`, `joined` and `inline` make it."""

    __slots__ = ()


_VOID = {"img", "meta", "br"}


def element(tag: str, *children: str, **attributes: str | int | bool | None) -> Markup:
    """`<tag attributes>children</tag>`.

    `class_` is written `class`, `data_copy` is `data-copy`; attributes that are None or False are left out.
    """
    parts = [tag]
    for key, value in attributes.items():
        name = key.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(name)
        elif value is not None and value is not False:
            parts.append(f'{name}="{html.escape(str(value), quote=True)}"')
    opening = f"<{' '.join(parts)}>"
    return Markup(opening if tag in _VOID else f"{opening}{joined(*children)}</{tag}>")


def joined(*children: str) -> Markup:
    """The children one after the other, escaped where they are plain text."""
    return Markup("".join(child if isinstance(child, Markup) else html.escape(child) for child in children))


def inline(text: str) -> Markup:
    """A sentence in which `code` between backticks and **strong** between double stars are set as such."""
    pieces: list[str] = []
    for piece in re.split(r"(`[^`]+`|\*\*[^*]+\*\*)", text):
        if len(piece) > 2 and piece.startswith("`") and piece.endswith("`"):
            pieces.append(element("code", piece[1:-1]))
        elif len(piece) > 4 and piece.startswith("**") and piece.endswith("**"):
            pieces.append(element("strong", piece[2:-2]))
        else:
            pieces.append(piece)
    return joined(*pieces)
