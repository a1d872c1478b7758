"""tieredImageNet (Ren et al. 2018): 608 classes of ImageNet in 34 superclasses, each superclass in one split.

Two published forms are read. Pickles: {train,val,test}_images_png.pkl, a list of PNG files as arrays of bytes, beside
{train,val,test}_labels.pkl, a dict of `label_specific` and `label_general` (the number of the class and of the
superclass of each image) and their names, `label_specific_str` and `label_general_str`. They are read by
`plain_pickle`, which executes no code from them, one split in memory at a time. Pictures: train|val|test/<class>/*, in
a folder or a zip; they become 84×84 and have no superclasses.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from warpgrad.data.archives import files_fingerprint, find_tree, open_tree
from warpgrad.data.pictures import Progress, exactly, resized, stream, with_progress
from warpgrad.data.plain_pickle import Integers, load_plain, numbers_in, text
from warpgrad.data.sources.folders import read_layout
from warpgrad.data.sources.mini_imagenet import FOLDERS, LICENCE, SHAPE, SIDE, file_of, one_at_a_time
from warpgrad.data.splits import check_groups_apart, check_splits
from warpgrad.data.store import Images, ImageStore
from warpgrad.data.writing import ClassImages, check_vacant, write
from warpgrad.errors import WarpgradError, require

ORIGIN = (
    "those who distribute tieredImageNet ({train,val,test}_images_png.pkl and _labels.pkl, "
    "or images as train|val|test/<class>/*)"
)
SIZES = {"train": 351, "validation": 97, "test": 160}

_IMAGES, _LABELS = "{}_images_png.pkl", "{}_labels.pkl"
_FACTS: dict[str, Any] = {
    "name": "tieredImageNet",
    "shape": SHAPE,
    "source": "tieredImageNet (Ren et al. 2018)",
    "licence": LICENCE,
}


def prepare_tiered_imagenet(
    source: Path | str | None,
    destination: Path | str,
    progress: Progress | None = None,
    *,
    _sizes: Mapping[str, int] = SIZES,
) -> ImageStore:
    """Make the data set from pickles or pictures.

    `source` is their folder, or for pictures a zip of it (None: WARPGRAD_DATA). The content is checked: 351 / 97 / 160
    classes, and no superclass in two splits.
    """
    destination = Path(destination)
    check_vacant(destination)
    marks = (file_of(_IMAGES, "train"), "train")
    place = find_tree("tiered-imagenet", marks=marks, subfolder="tiered-imagenet", source=source, origin=ORIGIN)
    if (place / file_of(_IMAGES, "train")).is_file():
        return _from_pickles(place, destination, _sizes, progress)
    with open_tree(place) as tree:
        layout = read_layout(tree)
        if layout.splits is None:
            raise WarpgradError(f"{place} has neither the pickles nor train, val and test: get it from {ORIGIN}.")
        check_splits(layout.splits, {item.name for item in layout.classes}, str(place), _sizes)
        return write(
            destination,
            stream(layout.classes, resized(tree, SIDE, "download that image again"), progress),
            splits=layout.splits,
            fingerprint=tree.fingerprint(),
            note=f"RGB 0 to 255, resized to {SIDE}×{SIDE} by Lanczos where it was not of that size; no superclasses",
            **_FACTS,
        )


class _Labels(NamedTuple):
    """The labels of one split."""

    places: dict[str, Integers]
    """Class -> where its images are in the list."""
    groups: dict[str, str]
    """Class -> superclass."""
    images: int


def _from_pickles(place: Path, destination: Path, sizes: Mapping[str, int], progress: Progress | None) -> ImageStore:
    files = [file_of(pattern, split) for split in sizes for pattern in (_LABELS, _IMAGES)]
    if missing := [file for file in files if not (place / file).is_file()]:
        raise WarpgradError(f"{place} has no {missing[0]}: get it from {ORIGIN}.")
    labels = {split: _read_labels(place / file_of(_LABELS, split)) for split in sizes}
    splits = {split: sorted(found.places) for split, found in labels.items()}
    groups = {name: group for found in labels.values() for name, group in found.groups.items()}
    check_splits(splits, groups, str(place), sizes)
    check_groups_apart(splits, groups, str(place), "tieredImageNet")

    @one_at_a_time
    def read(split: str) -> list[Any]:
        return _read_images(place / file_of(_IMAGES, split), labels[split].images)

    def images_of(split: str, name: str) -> Images:
        encoded, path = read(split), place / file_of(_IMAGES, split)
        places = labels[split].places[name].tolist()
        return np.stack([exactly(_png(encoded[at], path, at), f"{path}, image {at}", FOLDERS, SIDE) for at in places])

    classes = [
        ClassImages(name, groups[name], partial(images_of, split, name))
        for split, members in splits.items()
        for name in members
    ]
    return write(
        destination,
        with_progress(classes, progress),
        splits=splits,
        fingerprint=files_fingerprint({file: place / file for file in files}),
        note=f"RGB 0 to 255, {SIDE}×{SIDE}, as in the public pickles; groups are the superclasses",
        **_FACTS,
    )


def _read_labels(path: Path) -> _Labels:
    value = load_plain(path, FOLDERS)
    fields = {text(key): item for key, item in value.items()} if isinstance(value, dict) else {}
    specific, names = _numbered(fields, "label_specific", path)
    general, titles = _numbered(fields, "label_general", path)
    require(
        len(specific) == len(general),
        f"{path} labels {len(specific)} images by class and {len(general)} by superclass.",
    )
    places: dict[str, Integers] = {}
    groups: dict[str, str] = {}
    for number in np.unique(specific).tolist():
        chosen = np.flatnonzero(specific == number)
        above = np.unique(general[chosen])
        require(
            len(above) == 1,
            f"{path} puts the class '{names[number]}' into {len(above)} superclasses: get it from {ORIGIN}.",
        )
        title = titles[int(above[0])]
        # ImageNet has two cranes and two maillots: the superclass or, if that is the same, the number differs.
        name = f"{title}/{names[number]}"
        name = f"{name} ({number})" if names.count(names[number]) > 1 else name
        places[name], groups[name] = chosen, title
    return _Labels(places, groups, len(specific))


def _numbered(fields: Mapping[str, Any], key: str, path: Path) -> tuple[Integers, list[str]]:
    """Return the number of each image, and the names that the numbers stand for."""
    numbers, names = numbers_in(fields.get(key)) or [], fields.get(f"{key}_str")
    if not numbers or not isinstance(names, list):
        raise WarpgradError(f"{path} has no integers '{key}' and list '{key}_str': get it from {ORIGIN}.")
    require(
        0 <= min(numbers) <= max(numbers) < len(names),
        f"{path}: '{key}' has numbers that '{key}_str' does not name: get it from {ORIGIN}.",
    )
    return np.array(numbers), [text(name) for name in names]


def _read_images(path: Path, count: int) -> list[Any]:
    encoded = load_plain(path, FOLDERS)
    if not isinstance(encoded, list) or len(encoded) != count:
        found = f"{len(encoded)} images" if isinstance(encoded, list) else "no list of images"
        raise WarpgradError(f"{path} contains {found}, but there are {count} labels: get it from {ORIGIN}.")
    return encoded


def _png(item: Any, path: Path, at: int) -> bytes:
    if isinstance(item, bytes):
        return item
    if not isinstance(item, np.ndarray) or item.dtype != np.uint8:
        raise WarpgradError(f"{path}, image {at} is not an array of bytes: get it from {ORIGIN}.")
    return item.tobytes()
