"""`warpgrad data …`: prepare Omniglot, draw alphabets, look at a data set.

warpgrad data prepare omniglot --download        fetch the published archives, then prepare them
warpgrad data prepare omniglot --source DIR      prepare archives that are there already
warpgrad data draw                               the invented alphabets that stand in where nothing is prepared
warpgrad data montage --data omniglot            a picture of one alphabet
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from warpgrad.cli import parse
from warpgrad.data import ImageStore, download_omniglot, montage, prepare_drawn, prepare_omniglot, usable_alphabets
from warpgrad.engine.files import write_bytes
from warpgrad.errors import WarpgradError
from warpgrad.experiments.omniglot_data import DRAWN, OMNIGLOT, STORES, open_data


def data(words: list[str]) -> None:
    """`warpgrad data prepare | draw | montage`."""
    table: dict[str, Callable[[list[str]], None]] = {"prepare": prepare, "draw": draw, "montage": show}
    if not words or words[0] not in table:
        found = f"not '{words[0]}'" if words else "nothing was named"
        raise WarpgradError(f"'warpgrad data' can {', '.join(table)}; {found}. See the --help of each.")
    table[words[0]](words[1:])


@dataclass(frozen=True)
class PrepareArguments:
    name: tyro.conf.Positional[str]
    """The data set: omniglot."""
    source: Path | None = None
    """The folder with its published archives, packed or unpacked; WARPGRAD_DATA if not given."""
    download: bool = False
    """Fetch the archives first, verified by checksum."""
    out: Path = STORES / OMNIGLOT
    """Where the prepared data set goes."""


def prepare(words: list[str]) -> None:
    """From published archives to a data set that experiments read."""
    given: PrepareArguments = parse(PrepareArguments, words, "warpgrad data prepare")
    if given.name != OMNIGLOT:
        raise WarpgradError(f"there is no data set '{given.name}' to prepare; choose {OMNIGLOT}.")
    if given.download and given.source is not None:
        raise WarpgradError("give either --source or --download, not both.")
    source = given.source
    if given.download:
        source = given.out.parent / f"{OMNIGLOT}-archives"
        print(f"fetching the archives into {source}", file=sys.stderr, flush=True)
        download_omniglot(source)
    store = prepare_omniglot(source, given.out, progress=_lines("characters prepared"))
    _print_summary(store)


@dataclass(frozen=True)
class DrawArguments:
    out: Path = STORES / DRAWN
    """Where the data set goes."""
    seed: int = 0
    """Another seed invents other alphabets."""
    alphabets: int = 50
    """How many."""


def draw(words: list[str]) -> None:
    """Invent alphabets."""
    given: DrawArguments = parse(DrawArguments, words, "warpgrad data draw")
    store = prepare_drawn(given.out, given.seed, alphabets=given.alphabets, progress=_lines("alphabets drawn"))
    _print_summary(store)


@dataclass(frozen=True)
class MontageArguments:
    data: Annotated[str | None, tyro.conf.arg(metavar="omniglot|drawn|DIR")] = None
    """What to look at; Omniglot where it is prepared, else the drawn alphabets."""
    alphabet: str | None = None
    """The alphabet; the first one if not given."""
    drawings: int = 20
    """Drawings of each character."""
    zoom: int = 2
    """Screen pixels per image pixel, along each side."""
    out: Path = Path("montage.png")
    """The picture."""


def show(words: list[str]) -> None:
    """One alphabet as a picture: a row per character, a column per drawing."""
    given: MontageArguments = parse(MontageArguments, words, "warpgrad data montage")
    store = open_data(given.data)
    members = store.members()
    name = given.alphabet or next(iter(members))
    if name not in members:
        raise WarpgradError(f"{store.header.name} has no alphabet '{name}'; it has {', '.join(members)}.")
    buffer = io.BytesIO()
    montage(store, members[name], drawings=given.drawings, zoom=given.zoom).save(buffer, format="PNG")
    write_bytes(given.out, buffer.getvalue())
    print(f"{store.header.name}, {name}, {len(members[name])} characters: {given.out}")


def _print_summary(store: ImageStore) -> None:
    header = store.header
    usable = len(usable_alphabets(store))
    print(f"{header.name}: {len(store)} characters of {len(store.members())} alphabets, {usable} with 20 or more")
    print(f"sha256 {header.sha256}")
    print(f"data set: {store.path}")


def _lines(what: str) -> Callable[[int, int], None]:
    """A line on stderr for every tenth of the work."""

    def progress(done: int, total: int) -> None:
        if 10 * done // total > 10 * (done - 1) // total:
            print(f"{done}/{total} {what}", file=sys.stderr, flush=True)

    return progress
