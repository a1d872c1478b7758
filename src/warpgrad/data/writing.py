"""Writing a data set, class by class, whole or not at all.

It is built in a hidden folder beside its place, `.NAME.partial`, and renamed at the end. Where the caller says by a
fingerprint what the images are made of, an interrupted call leaves the folder, and the same call goes on from what is
whole there. What it ends with is what an uninterrupted call ends with.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import PIL

from warpgrad.data.archives import SourceLostError
from warpgrad.data.header import Header
from warpgrad.data.partial_store import JOURNAL, ClassImages, PartialStore
from warpgrad.data.store import ImageStore, open_store
from warpgrad.errors import WarpgradError
from warpgrad.version import __version__


def check_vacant(destination: Path) -> None:
    """Refuse a destination that exists, before any work is done for it."""
    if destination.exists() or destination.is_symlink():
        raise WarpgradError(f"{destination} exists already: delete it first or choose another destination.")


def partial_of(destination: Path) -> Path:
    """The folder in which a data set is built."""
    return destination.parent / f".{destination.name}.partial"


def write(
    destination: Path,
    classes: Iterable[ClassImages],
    *,
    name: str,
    shape: tuple[int, int, int],
    source: str,
    licence: str,
    note: str = "",
    splits: Mapping[str, Sequence[str]] | None = None,
    fingerprint: str | None = None,
) -> ImageStore:
    """Stream `classes` into a new data set at `destination`, one class in memory at a time.

    `fingerprint` stands for everything that the images are made of. With it an interrupted call can be repeated, and
    so can one that lost its source; without it, and where a class is not what it should be, nothing is left behind,
    not even folders made on the way.
    """
    check_vacant(destination)
    made = [folder for folder in destination.parents if not folder.exists()]
    partial = partial_of(destination)
    chosen = {split: tuple(members) for split, members in (splits or {}).items()}
    facts = [fingerprint, name, shape, source, licence, note, chosen]
    identity = None if fingerprint is None else _identity(facts)
    begun: PartialStore | None = None
    try:
        partial.mkdir(parents=True, exist_ok=True)
        begun = PartialStore(partial, name, shape, identity)
        check_vacant(destination)  # again, now that no other process can finish it
        for item in classes:
            begun.add(item)
        begun.finish(
            lambda written: Header(
                name=name, shape=shape, splits=chosen, source=source, licence=licence, note=note, **written
            )
        )
        partial.rename(destination)
        (destination / JOURNAL).unlink()
    except BaseException as failure:
        amiss = isinstance(failure, WarpgradError) and not isinstance(failure, SourceLostError)
        kept = fingerprint is not None and not amiss
        if begun is not None and not kept:
            shutil.rmtree(partial, ignore_errors=True)
        for folder in made:
            # A folder that is in use, by us or by somebody else meanwhile, is not empty and stays.
            with suppress(OSError):
                folder.rmdir()
        if isinstance(failure, OSError):
            go_on = ": mend that and repeat the command, which goes on where this one stopped" if kept else ""
            raise WarpgradError(f"{name} could not be written to {destination} ({failure}){go_on}.") from failure
        raise
    finally:
        if begun is not None:
            begun.close()
    return open_store(destination)


def _identity(facts: Any) -> str:
    """Of a data set to be: versions are part of it because a decoder may change."""
    text = json.dumps([facts, __version__, PIL.__version__], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
