"""Which alphabets an experiment runs on: Omniglot's where they have been prepared, else the drawn ones.

A name is always written down with a result. Drawn alphabets are called drawn, never Omniglot.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from warpgrad.data import ImageStore, open_store, prepare_drawn
from warpgrad.data.header import FILE
from warpgrad.data.prepared import DRAWN, OMNIGLOT, STORES, data_name, open_prepared, prepared
from warpgrad.errors import WarpgradError
from warpgrad.locks import BusyError

__all__ = ["DRAWN", "OMNIGLOT", "STORES", "chosen_data", "data_name", "open_data", "prepared"]


_PAUSE = 0.2
"""Seconds between two looks at whether another process has drawn the alphabets."""


def chosen_data(data: str | None) -> str:
    """What `data` means: itself, or where it is None Omniglot if it has been prepared, else the drawn alphabets."""
    if data is not None:
        return data
    return OMNIGLOT if prepared(OMNIGLOT) is not None else DRAWN


def open_data(data: str | None) -> ImageStore:
    """The store that `data` names: `omniglot`, `drawn` (made the first time it is asked for), or a folder."""
    data = chosen_data(data)
    if data == DRAWN:
        return open_store(prepared(DRAWN) or _draw(STORES / DRAWN))
    if data == OMNIGLOT and prepared(OMNIGLOT) is None:
        raise WarpgradError(
            "there is no prepared Omniglot here: make it with 'warpgrad data prepare omniglot', name a prepared "
            "folder with --data, or run on the drawn alphabets with --data drawn."
        )
    return open_prepared(data)


def _draw(destination: Path) -> Path:
    print(f"drawing alphabets into {destination}, once", file=sys.stderr, flush=True)
    # Runs that begin together want the same bytes in the same place: one draws them, the others wait for it.
    while not (destination / FILE).is_file():
        try:
            prepare_drawn(destination)
        except BusyError:
            time.sleep(_PAUSE)
        except WarpgradError:
            if not (destination / FILE).is_file():
                raise
    return destination
