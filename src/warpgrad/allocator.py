"""Keep freed memory with the process: large activations are allocated and freed thousands of times a minute.

By default glibc hands blocks of some hundred kilobytes back to the kernel when they are freed, and the kernel clears
and maps every page again at the next allocation. For small convolutional networks that took a quarter of an inner step.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Ask the C library to reuse freed blocks; the process then holds its peak until it ends. False where it cannot."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _NEVER)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
