"""miniImageNet (Vinyals et al. 2016; the splits of Ravi and Larochelle 2017): 100 classes of ImageNet, 600 images each.

Two published forms are read. Pictures: train.csv, val.csv and test.csv, each with the columns filename and label,
beside a folder images/, packed or not; pictures of any size become 84×84. Pickles:
mini-imagenet-cache-{train,val,test}.pkl, each {"image_data": uint8 [n, 84, 84, 3], "class_dict": {class: places in
image_data}}, read by `plain_pickle`, which executes no code from them.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from warpgrad.data.archives import FileTree, files_fingerprint, find_tree, open_tree
from warpgrad.data.pictures import ClassFiles, Progress, resized, stream, with_progress
from warpgrad.data.plain_pickle import load_plain, numbers_in, text
from warpgrad.data.splits import FILE_NAMES, check_splits
from warpgrad.data.store import Images, ImageStore
from warpgrad.data.writing import ClassImages, check_vacant, write
from warpgrad.errors import WarpgradError, require

T = TypeVar("T")

SIDE = 84
SHAPE = (3, SIDE, SIDE)
LICENCE = "ImageNet's terms of access: for non-commercial research and education"
FOLDERS = "unpack the images into class folders and use 'warpgrad data prepare folder --size 84'"
"""The workaround for a pickle that cannot be read."""


def file_of(pattern: str, split: str) -> str:
    """Return the name of the published file of a split by a pattern such as "{}_labels.pkl"."""
    return pattern.format(FILE_NAMES[split][0])


def one_at_a_time(read: Callable[[str], T]) -> Callable[[str], T]:
    """Cache the last result of `read` until another key is requested, so that only one is in memory at a time."""
    held: dict[str, T] = {}

    def held_or_read(key: str) -> T:
        if key not in held:
            held.clear()
            held[key] = read(key)
        return held[key]

    return held_or_read


ORIGIN = (
    "those who distribute miniImageNet (train.csv, val.csv and test.csv beside a folder images, "
    "or the three pickles mini-imagenet-cache-*.pkl)"
)
_TABLE, _PICKLE = "{}.csv", "mini-imagenet-cache-{}.pkl"
_FACTS: dict[str, Any] = {
    "name": "miniImageNet",
    "shape": SHAPE,
    "source": "miniImageNet (Vinyals et al. 2016), with the class splits of Ravi and Larochelle 2017",
    "licence": LICENCE,
}


@dataclass(frozen=True)
class MiniContents:
    """What the complete data set holds."""

    sizes: Mapping[str, int] = field(default_factory=lambda: {"train": 64, "validation": 16, "test": 20})
    images: int = 600
    """Of each class."""


def prepare_mini_imagenet(
    source: Path | str | None,
    destination: Path | str,
    progress: Progress | None = None,
    *,
    _contents: MiniContents | None = None,
) -> ImageStore:
    """Make the data set from pictures or pickles.

    `source` is their folder, or for pictures a zip of it (None: WARPGRAD_DATA). The content is checked: 64 / 16 / 20
    classes, 600 images each.
    """
    destination, contents = Path(destination), _contents or MiniContents()
    check_vacant(destination)
    marks = (file_of(_TABLE, "train"), file_of(_PICKLE, "train"))
    place = find_tree("mini-imagenet", marks=marks, subfolder="mini-imagenet", source=source, origin=ORIGIN)
    if (place / file_of(_PICKLE, "train")).is_file() and not (place / "images").exists():
        return _from_pickles(place, destination, contents, progress)
    with open_tree(place) as tree:
        classes, splits = _tables(tree, contents)
        return write(
            destination,
            stream(classes, resized(tree, SIDE, "download that image again"), progress),
            splits=splits,
            fingerprint=tree.fingerprint(),
            note=f"RGB 0 to 255, resized to {SIDE}×{SIDE} by Lanczos where it was not of that size",
            **_FACTS,
        )


def _tables(tree: FileTree, contents: MiniContents) -> tuple[list[ClassFiles], dict[str, list[str]]]:
    """Return the pictures of each class, and the splits, from the three tables; check that all are there."""
    train = file_of(_TABLE, "train")
    root = next((name.removesuffix(train) for name in tree.names if f"/{name}".endswith(f"/{train}")), None)
    if root is None:
        raise WarpgradError(
            f"{tree.path} contains neither {train} nor unpacked pickles of miniImageNet: get either from {ORIGIN}."
        )
    there = frozenset(tree.names)
    files: dict[str, list[str]] = {}
    splits: dict[str, list[str]] = {}
    for split in contents.sizes:
        name = root + file_of(_TABLE, split)
        require(name in there, f"{tree.path} has no {name}: get it from {ORIGIN}.")
        found: dict[str, list[str]] = {}
        for picture, label in _rows(tree.read(name), f"{tree.path}: {name}"):
            file = f"{root}images/{picture}"
            require(file in there, f"{tree.path} has no {file}, which {name} names: put the images into images/.")
            found.setdefault(label, []).append(file)
        splits[split] = sorted(found)
        _check_counts(found, contents.images, f"{tree.path}: {name}")
        # A class in two splits is rejected by name below.
        files |= found
    check_splits(splits, files, str(tree.path), contents.sizes)
    return [ClassFiles(name, "", sorted(files[name])) for name in sorted(files)], splits


def _rows(raw: bytes, where: str) -> Iterator[tuple[str, str]]:
    try:
        table = csv.DictReader(io.StringIO(raw.decode("utf-8-sig")), skipinitialspace=True)
        require(
            {"filename", "label"} <= set(table.fieldnames or ()),
            f"{where} has no columns filename and label: get it from {ORIGIN}.",
        )
        for row in table:
            require(
                row["filename"] and row["label"],
                f"{where}, line {table.line_num} does not name an image and a class: get it from {ORIGIN}.",
            )
            yield row["filename"], row["label"]
    except (UnicodeDecodeError, csv.Error) as failure:
        raise WarpgradError(f"{where} is not readable as CSV ({failure}): get it from {ORIGIN}.") from failure


def _from_pickles(place: Path, destination: Path, contents: MiniContents, progress: Progress | None) -> ImageStore:
    paths = {split: place / file_of(_PICKLE, split) for split in contents.sizes}
    if missing := [path.name for path in paths.values() if not path.is_file()]:
        raise WarpgradError(f"{place} has no {missing[0]}: get it from {ORIGIN}.")
    # Read once to check everything and once to write it, so that only one split is in memory at a time.
    splits = {split: sorted(_read_pickle(path, contents)[1]) for split, path in paths.items()}
    names = {name for members in splits.values() for name in members}
    check_splits(splits, names, str(place), contents.sizes)

    @one_at_a_time
    def read(split: str) -> tuple[Images, dict[str, list[int]]]:
        return _read_pickle(paths[split], contents)

    def images_of(split: str, name: str) -> Images:
        images, members = read(split)
        return images[members[name]].transpose(0, 3, 1, 2)

    classes = [
        ClassImages(name, "", partial(images_of, split, name)) for split, members in splits.items() for name in members
    ]
    return write(
        destination,
        with_progress(classes, progress),
        splits=splits,
        note=f"RGB 0 to 255, {SIDE}×{SIDE}, as in the public pickles",
        fingerprint=files_fingerprint(paths),
        **_FACTS,
    )


def _read_pickle(path: Path, contents: MiniContents) -> tuple[Images, dict[str, list[int]]]:
    value = load_plain(path, FOLDERS)
    fields = {text(key): item for key, item in value.items()} if isinstance(value, dict) else {}
    images, table = fields.get("image_data"), fields.get("class_dict")
    if not isinstance(images, np.ndarray) or not isinstance(table, dict):
        raise WarpgradError(f"{path} has no array 'image_data' and dict 'class_dict': get it from {ORIGIN}.")
    require(
        images.dtype == np.uint8 and images.shape[1:] == (SIDE, SIDE, 3),
        f"{path}: image_data is {images.dtype} {images.shape} instead of uint8 [n, {SIDE}, {SIDE}, 3]: {FOLDERS}.",
    )
    members = {text(name): numbers_in(places) or [] for name, places in table.items()}
    _check_counts(members, contents.images, str(path))
    require(
        sorted(itertools.chain(*members.values())) == list(range(len(images))),
        f"{path}: class_dict does not give every image one class: get it from {ORIGIN}.",
    )
    return images, members


def _check_counts(found: Mapping[str, list[str] | list[int]], images: int, where: str) -> None:
    for name, members in found.items():
        require(
            len(members) == len(set(members)) == images,
            f"{where}: class '{name}' has {len(set(members))} images instead of {images}: get it from {ORIGIN}.",
        )
