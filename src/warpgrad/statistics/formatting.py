"""Human-readable numbers and durations, the same in every sentence and every report."""

from __future__ import annotations

import math
import re

MINUS = "−"
_SCIENTIFIC = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e([+-]\d+)\b")
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, digits: int | None = None, *, signed: bool = False) -> str:
    """Format a number with `digits` decimals, or else four significant digits; `signed` also writes a plus."""
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    if digits is not None:
        text = f"{abs(value):.{digits}f}"
    elif isinstance(value, int) or (value == int(value) and abs(value) < 1e6):
        text = str(abs(int(value)))
    else:
        text = raised(f"{abs(value):.4g}")
    # A value that rounds to zero has no sign worth showing.
    if not any(character in "123456789" for character in text):
        return text
    if value < 0:
        return MINUS + text
    return f"+{text}" if signed else text


def shared_digits(*values: float) -> int | None:
    """Return the number of decimals that gives the largest value four significant digits, to print all alike.

    None if the numbers would be unreadable that way: tiny, huge, zero or not finite.
    """
    size = max(abs(value) for value in values)
    if not 1e-3 <= size < 1e6:
        return None
    return max(0, 3 - math.floor(math.log10(size)))


def between(low: float, high: float, digits: int | None = None, *, signed: bool = False) -> str:
    """Format the ends of an interval, e.g. `1.2 to 3.4`."""
    return f"{number(low, digits, signed=signed)} to {number(high, digits, signed=signed)}"


def duration(seconds: float) -> str:
    """Format a duration in its two largest units, e.g. `2 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


def count(quantity: int, noun: str, plural: str | None = None) -> str:
    """Return a quantity with its noun in singular or plural, e.g. `1 meta-seed`, `4 meta-seeds`."""
    return f"{quantity} {noun if quantity == 1 else plural or noun + 's'}"


def raised(text: str) -> str:
    """Rewrite the numbers of a text that are in scientific notation, e.g. `1.2e-05` as `1.2·10⁻⁵`."""
    return _SCIENTIFIC.sub(lambda found: f"{found[1]}·10{str(int(found[2])).translate(_SUPERSCRIPT)}", text)
