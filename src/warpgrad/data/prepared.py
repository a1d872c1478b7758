"""Where prepared data sets are, and how to open one by name.

Names and places are needed for help texts, so torch is imported only where a store is opened.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from warpgrad.data.archives import VARIABLE
from warpgrad.errors import WarpgradError, require

if TYPE_CHECKING:
    from warpgrad.data.store import ImageStore

STORES = Path("data")
"""Where prepared data sets are written by default, next to runs/."""

OMNIGLOT, DRAWN, CLINC = "omniglot", "drawn", "clinc150"

TITLES = {
    OMNIGLOT: "Omniglot",
    "omniglot-fewshot": "Omniglot few-shot",
    "cifar-fs": "CIFAR-FS",
    "fc100": "FC100",
    "mini-imagenet": "miniImageNet",
    "tiered-imagenet": "tieredImageNet",
    DRAWN: "drawn alphabets",
}
"""The names of the known data sets in their headers. A data set made from a user's folders has any other name."""


def prepared(name: str) -> Path | None:
    """Find the prepared data set of this name, if any, in the folder prepared/ of WARPGRAD_DATA or in data/."""
    from warpgrad.data.store import FILE

    return next((folder for folder in _places(name) if (folder / FILE).is_file()), None)


def _places(name: str) -> list[Path]:
    """Return the folders where a prepared data set of this name may be."""
    folders = [Path(named).expanduser() / "prepared"] if (named := os.environ.get(VARIABLE)) else []
    return [folder / name for folder in (*folders, STORES)]


def content_hash(data: str) -> str | None:
    """Return the recorded SHA-256 of the images or sentences that `data` names, or None where there are none."""
    from warpgrad.data.sources.text import FILE as SENTENCES
    from warpgrad.data.sources.text import open_text
    from warpgrad.data.store import FILE, read_header

    images = prepared(data) or Path(data).expanduser()
    if (images / FILE).is_file():
        return read_header(images).sha256
    folders = (Path(data).expanduser(), *_places(data))
    return open_text(data).sha256 if any((folder / SENTENCES).is_file() for folder in folders) else None


def open_prepared(data: str) -> ImageStore:
    """Open the store that `data` names: a data set that was prepared under this name, or else a folder with one."""
    from warpgrad.data.store import FILE, open_store

    if (found := prepared(data)) is not None:
        return open_store(found)
    if data in TITLES:
        command = "draw" if data == DRAWN else f"prepare {data}"
        raise WarpgradError(
            f"there is no prepared {TITLES[data]} here: make it with 'warpgrad data {command}', or give a prepared "
            "folder with --data."
        )
    folder = Path(data).expanduser()
    require(
        folder.exists(),
        f"'{data}' is not a prepared data set: choose one of {', '.join(TITLES)}, make it with 'warpgrad data prepare "
        f"folder --name {folder.name}', or give a folder with a {FILE}.",
    )
    return open_store(folder)


def data_name(store: ImageStore) -> str:
    """Return the name that results on this store use, taken from its header and not from its location."""
    return next((name for name, title in TITLES.items() if title == store.header.name), store.header.name)
