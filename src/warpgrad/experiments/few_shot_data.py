"""What the few-shot experiment can run on: any prepared data set with the three splits."""

from __future__ import annotations

from warpgrad.data.prepared import open_prepared
from warpgrad.data.store import ImageStore
from warpgrad.errors import WarpgradError
from warpgrad.experiments.few_shot_config import DATA

SPLITS = ("train", "validation", "test")


def open_data(data: str) -> ImageStore:
    """The store that `data` names, or the one in the folder `data`."""
    store = open_prepared(data)
    for split in SPLITS:
        if split not in store.header.splits:
            known = ", ".join(sorted(store.header.splits)) or "none"
            raise WarpgradError(
                f"{store.header.name} has no split '{split}' (its splits: {known}), which few-shot learning needs; "
                f"choose one of {', '.join(DATA)}."
            )
    return store
