"""`warpgrad data …`: prepare the public data sets and one's own, draw alphabets, look at a data set.

warpgrad data prepare omniglot --download        fetch the published archives, then prepare them
warpgrad data prepare cifar-fs --source DIR      prepare an archive that is there already
warpgrad data prepare folder --source DIR        a folder of class folders with one's own pictures
warpgrad data prepare clinc150                   sentences of 150 intents in 10 domains
warpgrad data prepare text --source FILE         one's own labelled sentences, CSV or JSONL
warpgrad data draw                               the invented alphabets that stand in where nothing is prepared
warpgrad data montage --data cifar-fs            a picture of a data set: a row per class
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

import warpgrad.data as sets
from warpgrad.cli.main import parse
from warpgrad.data.prepared import CLINC, DRAWN, OMNIGLOT, STORES
from warpgrad.errors import WarpgradError
from warpgrad.io import write_bytes

if TYPE_CHECKING:
    from warpgrad.data import ImageStore, LabelledText


def data(words: list[str]) -> None:
    """`warpgrad data prepare | draw | montage`."""
    table: dict[str, Callable[[list[str]], None]] = {"prepare": prepare, "draw": draw, "montage": show}
    if not words or words[0] not in table:
        found = f"not '{words[0]}'" if words else "nothing was named"
        raise WarpgradError(f"'warpgrad data' can {', '.join(table)}; {found}. See the --help of each.")
    table[words[0]](words[1:])


@dataclass(frozen=True)
class SourceArguments:
    source: Path | None = None
    """Where the published files are, packed or unpacked: their folder or the archive; WARPGRAD_DATA if not given."""
    out: Path | None = None
    """Where the prepared data set goes; data/NAME if not given."""


@dataclass(frozen=True)
class OmniglotArguments(SourceArguments):
    download: bool = False
    """Fetch the archives first, verified by checksum."""


@dataclass(frozen=True)
class FolderArguments:
    source: Path
    """A folder of class folders, or a zip of one; they may lie below train, val and test, or have train.txt, val.txt
    and test.txt beside them, each naming its classes."""
    name: str | None = None
    """What the data set is called; the source's own name if not given."""
    size: int | None = None
    """Resize every picture to SIZE×SIZE; without it all must have the same size."""
    grey: bool = False
    """Make every picture grey; without it they are stored grey only where all are."""
    split_seed: int | None = None
    """Draws 64 / 16 / 20 % of the classes for train, validation and test where the source tells no splits; 0 if not
    given."""
    out: Path | None = None
    """Where the prepared data set goes; data/NAME if not given."""


@dataclass(frozen=True)
class TextArguments:
    source: Path
    """A CSV with a header, or a JSONL file with one object a line, in UTF-8."""
    text_field: str = "text"
    """What the file calls the sentence."""
    label_field: str = "label"
    """What it calls the label."""
    domain_field: str | None = None
    """What it calls the domain of a label; `domain` where there is such a field, none otherwise: then labels are split
    by the seed of a run."""
    name: str | None = None
    """What the data set is called; the file's own name if not given."""
    out: Path | None = None
    """Where the prepared data set goes; data/NAME if not given."""


def prepare(words: list[str]) -> None:
    """From published files, or from a person's own, to a data set that experiments read."""
    table: dict[str, Callable[[list[str]], ImageStore]] = {
        OMNIGLOT: lambda rest: _omniglot(OMNIGLOT, rest),
        "omniglot-fewshot": lambda rest: _omniglot("omniglot-fewshot", rest),
        "cifar-fs": lambda rest: _published(
            "cifar-fs", rest, lambda: partial(sets.prepare_cifar, splits=sets.CIFAR_FS)
        ),
        "fc100": lambda rest: _published("fc100", rest, lambda: partial(sets.prepare_cifar, splits=sets.FC100)),
        "mini-imagenet": lambda rest: _published("mini-imagenet", rest, lambda: sets.prepare_mini_imagenet),
        "tiered-imagenet": lambda rest: _published("tiered-imagenet", rest, lambda: sets.prepare_tiered_imagenet),
        "folder": _folder,
    }
    texts: dict[str, Callable[[list[str]], LabelledText]] = {CLINC: _clinc, "text": _text}
    names = ", ".join((*table, *texts))
    if words and words[0] in ("-h", "--help"):
        print(f"warpgrad data prepare NAME [options], with NAME one of {names}; each has its own --help.")
        return
    if words and words[0] in texts:
        _print_text(texts[words[0]](words[1:]))
        return
    if not words or words[0] not in table:
        found = f"there is no data set '{words[0]}' to prepare" if words else "name the data set to prepare"
        raise WarpgradError(f"{found}; choose {names}.")
    _print_summary(table[words[0]](words[1:]))


def _omniglot(name: str, words: list[str]) -> ImageStore:
    given: OmniglotArguments = parse(OmniglotArguments, words, f"warpgrad data prepare {name}")
    out = _destination(given.out, name)
    if given.download and given.source is not None:
        raise WarpgradError("give either --source or --download, not both.")
    source = given.source
    if given.download:
        source = out.parent / f"{OMNIGLOT}-archives"
        print(f"fetching the archives into {source}", file=sys.stderr, flush=True)
        sets.download_omniglot(source)
    make = sets.prepare_omniglot if name == OMNIGLOT else sets.prepare_omniglot_few_shot
    return make(source, out, progress=_lines("characters prepared"))


def _published(name: str, words: list[str], found: Callable[[], Callable[..., ImageStore]]) -> ImageStore:
    """`found` looks the function up that prepares the set; a help text does not import it."""
    given: SourceArguments = parse(SourceArguments, words, f"warpgrad data prepare {name}")
    return found()(given.source, _destination(given.out, name), progress=_lines("classes prepared"))


def _folder(words: list[str]) -> ImageStore:
    given: FolderArguments = parse(FolderArguments, words, "warpgrad data prepare folder")
    own = given.source.resolve()
    name = given.name or (own.name if own.is_dir() else own.stem)
    return sets.prepare_folder(
        given.source,
        _destination(given.out, name),
        name=name,
        size=given.size,
        grey=given.grey,
        split_seed=given.split_seed,
        looked=_lines("classes looked through"),
        progress=_lines("classes prepared"),
    )


def _clinc(words: list[str]) -> LabelledText:
    given: SourceArguments = parse(SourceArguments, words, f"warpgrad data prepare {CLINC}")
    return sets.prepare_clinc(given.source, given.out or STORES / CLINC)


def _text(words: list[str]) -> LabelledText:
    given: TextArguments = parse(TextArguments, words, "warpgrad data prepare text")
    name = given.name or given.source.stem
    fields = sets.Fields(given.text_field, given.label_field, given.domain_field)
    return sets.prepare_text(given.source, given.out or STORES / name, name=name, fields=fields)


def _destination(out: Path | None, name: str) -> Path:
    """Where it goes; what an interrupted command left there is named."""
    from warpgrad.data.writing import partial_of

    destination = out or STORES / name
    if (left := partial_of(destination)).exists():
        print(f"going on with what an interrupted command left in {left}, if its source is the same", file=sys.stderr)
    return destination


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
    store = sets.prepare_drawn(given.out, given.seed, alphabets=given.alphabets, progress=_lines("alphabets drawn"))
    _print_summary(store)


@dataclass(frozen=True)
class MontageArguments:
    data: Annotated[str | None, tyro.conf.arg(metavar="NAME|DIR")] = None
    """What to look at: a prepared data set by name, or its folder; Omniglot where it is prepared, else the drawn
    alphabets."""
    group: Annotated[str | None, tyro.conf.arg(aliases=["--alphabet"])] = None
    """The alphabet, superclass or other group of classes."""
    split: str | None = None
    """The split, e.g. test. With neither: the classes to meta-train on, or the first group of a set without them."""
    classes: int = 64
    """At most so many rows."""
    drawings: int = 20
    """Images of each class."""
    zoom: int = 2
    """Screen pixels per image pixel, along each side."""
    out: Path = Path("montage.png")
    """The picture."""


def show(words: list[str]) -> None:
    """Classes as a picture: a row per class, a column per image."""
    given: MontageArguments = parse(MontageArguments, words, "warpgrad data montage")
    if given.group is not None and given.split is not None:
        raise WarpgradError("give either --group or --split, not both.")
    from warpgrad.experiments.omniglot.methods import open_data

    store = open_data(given.data)
    name, chosen = _rows(store, given.group, given.split)
    shown = chosen[: given.classes]
    buffer = io.BytesIO()
    sets.montage(store, shown, drawings=given.drawings, zoom=given.zoom).save(buffer, format="PNG")
    write_bytes(given.out, buffer.getvalue())
    count = f"{len(shown)}" if len(shown) == len(chosen) else f"{len(shown)} of {len(chosen)}"
    print(f"{store.header.name}, {name}, {count} {_words(store)[1]}: {given.out}")


def _rows(store: ImageStore, group: str | None, split: str | None) -> tuple[str, tuple[int, ...]]:
    """What is shown: its name, and the indices of its classes."""
    if split is None and group is None and "train" in store.header.splits:
        split = "train"
    if split is not None:
        return split, store.split(split)
    members = store.members()
    name = group if group is not None else next(iter(members))
    if name not in members:
        raise WarpgradError(f"{store.header.name} has no {_words(store)[0]} '{name}'; it has {', '.join(members)}.")
    return name or "all", members[name]


def _words(store: ImageStore) -> tuple[str, str]:
    """What a group and classes are called."""
    handwriting = store.header.name.startswith(("Omniglot", "drawn"))
    return ("alphabet", "characters") if handwriting else ("group", "classes")


def _print_summary(store: ImageStore) -> None:
    header = store.header
    group, classes = _words(store)
    groups = len(set(header.groups) - {""})
    of = f" of {groups} {group}s" if groups else ""
    if "train" in header.splits:
        splits = ", ".join(f"{split} {len(members)}" for split, members in header.splits.items())
        channels, height, width = header.shape
        print(f"{header.name}: {len(store)} {classes}{of}: {splits}")
        print(f"{header.offsets[-1]} images, {height}×{width}, {'grey' if channels == 1 else 'RGB'}; {header.note}")
    else:
        usable = len(sets.usable_alphabets(store))
        print(f"{header.name}: {len(store)} {classes}{of}, {usable} with 20 or more")
    print(f"sha256 {header.sha256}")
    print(f"data set: {store.path}")


def _print_text(text: LabelledText) -> None:
    counts = [len(own) for own in text.members()]
    domains = f" in {len(set(text.domains))} domains" if text.has_domains() else ", no domains to split by"
    print(f"{text.name}: {len(text.texts)} sentences, {len(text.labels)} labels{domains}")
    fewest = text.labels[counts.index(min(counts))]
    outside = f"; {len(text.out_of_scope)} sentences out of scope" if text.out_of_scope else ""
    print(f"{min(counts)} ('{fewest}') to {max(counts)} sentences of a label{outside}")
    print(f"sha256 {text.sha256}")
    print(f"data set: {text.path}")


def _lines(what: str) -> Callable[[int, int], None]:
    """A line on stderr for every tenth of the work."""

    def progress(done: int, total: int) -> None:
        if 10 * done // total > 10 * (done - 1) // total:
            print(f"{done}/{total} {what}", file=sys.stderr, flush=True)

    return progress
