"""`warpgrad data …`: prepare public data sets and your own, draw alphabets, look at a data set.

warpgrad data prepare omniglot --download        fetch the published archives, then prepare them
warpgrad data prepare cifar-fs --source DIR      prepare an archive that is already there
warpgrad data prepare folder --source DIR        a folder of class folders with your own pictures
warpgrad data prepare clinc150                   sentences of 150 intents in 10 domains
warpgrad data prepare text --source FILE         your own labelled sentences, CSV or JSONL
warpgrad data draw                               the invented alphabets that stand in where nothing is prepared
warpgrad data montage --data cifar-fs            a picture of a data set: a row per class
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

import warpgrad.data as sets
from warpgrad.cli.outer import print_line
from warpgrad.data.prepared import CLINC, DRAWN, OMNIGLOT, STORES
from warpgrad.errors import check_name, require
from warpgrad.io import write_bytes

if TYPE_CHECKING:
    from warpgrad.data import ImageStore, LabelledText

DATA = """Prepare public data sets or your own images and sentences, draw alphabets, or view a data set.

Example: warpgrad data prepare omniglot --download"""
PREPARE = """Prepare a data set for the experiments, from published files or from your own.

Example: warpgrad data prepare cifar-fs --source DIR"""
PUBLIC = {
    OMNIGLOT: "Omniglot with its 50 alphabets",
    "omniglot-fewshot": "Omniglot with characters drawn for few-shot learning: 1100 / 100 / 423",
    "cifar-fs": "CIFAR-100 with the splits of CIFAR-FS",
    "fc100": "CIFAR-100 with the splits of FC100",
    "mini-imagenet": "100 classes of ImageNet as miniImageNet, from images or pickles",
    "tiered-imagenet": "608 classes of ImageNet as tieredImageNet, from images or pickles",
}
"""The public data sets that can be prepared."""


def prepare_omniglot_command(
    *, name: str, source: Path | None = None, out: Path | None = None, download: bool = False
) -> None:
    """Prepare Omniglot.

    Args:
        name: The data set.
        source: The folder with the two published archives, packed or unpacked. Without it, WARPGRAD_DATA.
        out: Where the prepared data set goes. Without it, data/NAME.
        download: Download the archives first and verify their checksums.
    """
    destination = _destination(out, name)
    require(source is None or not download, "give either --source or --download, not both.")
    if download:
        source = destination.parent / f"{OMNIGLOT}-archives"
        print_line(f"downloading the archives into {source}", stream=sys.stderr)
        sets.download_omniglot(source)
    make = sets.prepare_omniglot if name == OMNIGLOT else sets.prepare_omniglot_few_shot
    _print_summary(make(source, destination, progress=_lines("characters prepared")))


def prepare_public_command(*, name: str, source: Path | None = None, out: Path | None = None) -> None:
    """Prepare a published data set.

    Args:
        name: The data set.
        source: The folder or the archive with the published files. Without it, WARPGRAD_DATA.
        out: Where the prepared data set goes. Without it, data/NAME.
    """
    makers: dict[str, Callable[..., ImageStore]] = {
        "cifar-fs": partial(sets.prepare_cifar, splits=sets.CIFAR_FS),
        "fc100": partial(sets.prepare_cifar, splits=sets.FC100),
        "mini-imagenet": sets.prepare_mini_imagenet,
        "tiered-imagenet": sets.prepare_tiered_imagenet,
    }
    _print_summary(makers[name](source, _destination(out, name), progress=_lines("classes prepared")))


def prepare_folder_command(
    *,
    source: Path,
    name: str | None = None,
    size: int | None = None,
    grey: bool = False,
    split_seed: int | None = None,
    out: Path | None = None,
) -> None:
    """Prepare a folder of class folders with your own images.

    Example: warpgrad data prepare folder --source birds --size 84

    Args:
        source: A folder of class folders, or a zip of one. They may be below train, val and test, or train.txt, val.txt
            and test.txt beside them may list the classes of each split.
        name: The name of the data set. Without it, that of the source.
        size: Resize every image to SIZE×SIZE. Without it, all images must have the same size.
        grey: Convert every image to grey. Without it, images are stored in grey only if all of them are grey.
        split_seed: The seed that draws 64 / 16 / 20 % of the classes for train, validation and test if the source has
            no splits. Without it, 0.
        out: Where the prepared data set goes. Without it, data/NAME.
    """
    own = Path(os.path.realpath(source))  # links in a loop are an error of `resolve`
    name = check_name(name or (own.name if own.is_dir() else own.stem), "the data set's name")
    store = sets.prepare_folder(
        source, _destination(out, name), name=name, size=size, grey=grey, split_seed=split_seed,
        looked=_lines("classes looked through"), progress=_lines("classes prepared"),
    )  # fmt: skip
    _print_summary(store)


def prepare_clinc_command(*, source: Path | None = None, out: Path | None = None) -> None:
    """Prepare CLINC150: sentences of 150 intents in 10 domains.

    Example: warpgrad data prepare clinc150 --source DIR

    Args:
        source: The folder with data_full.json and domains.json. Without it, clinc150 in WARPGRAD_DATA.
        out: Where the prepared data set goes. Without it, data/clinc150.
    """
    _print_text(sets.prepare_clinc(source, out or STORES / CLINC))


def prepare_text_command(
    *,
    source: Path,
    text_field: str = "text",
    label_field: str = "label",
    domain_field: str | None = None,
    name: str | None = None,
    out: Path | None = None,
) -> None:
    """Prepare your own labelled sentences.

    Example: warpgrad data prepare text --source tickets.csv --text-field sentence

    Args:
        source: A CSV file with a header, or a JSONL file with one object per line, in UTF-8.
        text_field: The field with the sentence.
        label_field: The field with the label.
        domain_field: The field with the domain of the label. Without it, `domain` if there is such a field; otherwise
            the seed of a run splits the labels.
        name: The name of the data set. Without it, that of the file.
        out: Where the prepared data set goes. Without it, data/NAME.
    """
    name = name or source.stem
    fields = sets.Fields(text_field, label_field, domain_field)
    _print_text(sets.prepare_text(source, out or STORES / name, name=name, fields=fields))


def _destination(out: Path | None, name: str) -> Path:
    """Return where a data set goes, and mention what an interrupted command left there."""
    from warpgrad.data.writing import partial_of

    destination = out or STORES / name
    if (left := partial_of(destination)).exists():
        print_line(f"resuming what an interrupted command left in {left}, if its source is the same", stream=sys.stderr)
    return destination


def draw_command(*, out: Path = STORES / DRAWN, seed: int = 0, alphabets: int = 50) -> None:
    """Draw a data set of invented alphabets, which is used where no other is prepared.

    Example: warpgrad data draw --seed 1

    Args:
        out: Where the data set goes.
        seed: The seed of the alphabets.
        alphabets: The number of alphabets.
    """
    _print_summary(sets.prepare_drawn(out, seed, alphabets=alphabets, progress=_lines("alphabets drawn")))


def montage_command(
    *,
    data: Annotated[str | None, arg(metavar="NAME|DIR")] = None,
    group: Annotated[str | None, arg(aliases=["--alphabet"])] = None,
    split: str | None = None,
    classes: int = 64,
    drawings: int = 20,
    zoom: int = 2,
    out: Path = Path("montage.png"),
) -> None:
    """Show classes in one image: a row per class, a column per example.

    Example: warpgrad data montage --data cifar-fs --split test

    Args:
        data: The data set to show: the name of a prepared one, or its folder. Without it, Omniglot if it is prepared,
            otherwise the drawn alphabets.
        group: The alphabet, superclass or other group of classes.
        split: The split, such as test. Without a group or a split, the classes for meta-training, or the first group if
            the data set has no splits.
        classes: The largest number of rows.
        drawings: The number of images of each class.
        zoom: The factor by which images are enlarged along each side.
        out: The PNG file to write.
    """
    require(group is None or split is None, "give either --group or --split, not both.")
    from warpgrad.experiments.omniglot.methods import open_data

    store = open_data(data)
    name, chosen = _rows(store, group, split)
    shown = chosen[:classes]
    buffer = io.BytesIO()
    sets.montage(store, shown, drawings=drawings, zoom=zoom).save(buffer, format="PNG")
    write_bytes(out, buffer.getvalue())
    count = f"{len(shown)}" if len(shown) == len(chosen) else f"{len(shown)} of {len(chosen)}"
    print_line(f"{store.header.name}, {name}, {count} {_words(store)[1]}: {out}")


def _rows(store: ImageStore, group: str | None, split: str | None) -> tuple[str, tuple[int, ...]]:
    """Return the name of the group or split to show, and the indices of its classes."""
    if split is None and group is None and "train" in store.header.splits:
        split = "train"
    if split is not None:
        return split, store.split(split)
    members = store.members()
    name = group if group is not None else next(iter(members))
    require(name in members, f"{store.header.name} has no {_words(store)[0]} '{name}'; it has {', '.join(members)}.")
    return name or "all", members[name]


def _words(store: ImageStore) -> tuple[str, str]:
    """Return what a group and the classes of this data set are called."""
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
        print_line(f"{header.name}: {len(store)} {classes}{of}: {splits}")
        print_line(
            f"{header.offsets[-1]} images, {height}×{width}, {'grey' if channels == 1 else 'RGB'}; {header.note}"
        )
    else:
        usable = len(sets.usable_alphabets(store))
        print_line(f"{header.name}: {len(store)} {classes}{of}, {usable} with 20 or more")
    print_line(f"sha256 {header.sha256}")
    print_line(f"data set: {store.path}")


def _print_text(text: LabelledText) -> None:
    counts = [len(own) for own in text.members()]
    domains = f" in {len(set(text.domains))} domains" if text.has_domains() else ", no domains to split by"
    print_line(f"{text.name}: {len(text.texts)} sentences, {len(text.labels)} labels{domains}")
    fewest = text.labels[counts.index(min(counts))]
    outside = f"; {len(text.out_of_scope)} sentences out of scope" if text.out_of_scope else ""
    print_line(f"{min(counts)} ('{fewest}') to {max(counts)} sentences of a label{outside}")
    print_line(f"sha256 {text.sha256}")
    print_line(f"data set: {text.path}")


def _lines(what: str) -> Callable[[int, int], None]:
    """Return a progress callback that prints a line to stderr for every tenth of the work."""

    def progress(done: int, total: int) -> None:
        if 10 * done // total > 10 * (done - 1) // total:
            print_line(f"{done}/{total} {what}", stream=sys.stderr)

    return progress
