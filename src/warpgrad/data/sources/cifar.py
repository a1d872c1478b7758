"""CIFAR-FS (Bertinetto et al. 2019) and FC100 (Oreshkin et al. 2018): CIFAR-100, split by class for few shots.

Both are read from one tree, packed or not: cifar100/data/<class>/*.png with the class names of each split in
cifar100/splits/bertinetto/ (CIFAR-FS) and cifar100/splits/fc100/ (FC100: {train,val,test}.txt, one class a line).
They differ in their splits alone; FC100's keep each superclass in one split, so its test classes are farther from
what was meta-trained. Superclasses, where superclasses.json names them, become the groups of the store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from warpgrad.data.archives import FileTree, Limits, find_tree, open_tree
from warpgrad.data.pictures import ClassFiles, Progress, exactly, stream
from warpgrad.data.splits import FILE_NAMES, check_groups_apart, check_splits, lines_of, table_of
from warpgrad.data.store import ImageStore
from warpgrad.data.writing import check_vacant, write
from warpgrad.errors import WarpgradError, require

ORIGIN = "the page of CIFAR-FS, https://github.com/bertinetto/r2d2"
SIDE = 32

_REMEDY = f"get cifar100.zip from {ORIGIN}"
_LIMITS = Limits(files=200_000, file_bytes=1 << 20, total_bytes=2 << 30)
_PICTURE = re.compile(r"((?:[^/]+/)?)data/([^/]+)/([^/]+\.png)")


@dataclass(frozen=True)
class CifarContents:
    """What a complete tree holds."""

    classes: int = 100
    images: int = 600
    """Of each class."""


@dataclass(frozen=True)
class CifarSplits:
    """One of the two data sets: how it splits the classes."""

    name: str
    folder: str
    """Below splits/."""
    sizes: Mapping[str, int]
    by_group: bool
    """Whether all classes of a superclass are in one split."""


CIFAR_FS = CifarSplits("CIFAR-FS", "bertinetto", {"train": 64, "validation": 16, "test": 20}, by_group=False)
FC100 = CifarSplits("FC100", "fc100", {"train": 60, "validation": 20, "test": 20}, by_group=True)


def prepare_cifar(
    source: Path | str | None,
    destination: Path | str,
    splits: CifarSplits = CIFAR_FS,
    progress: Progress | None = None,
    *,
    _contents: CifarContents | None = None,
) -> ImageStore:
    """Make a data set of 32×32 RGB images with the splits train, validation and test.

    `source` is cifar100.zip, its unpacked folder, or a folder with either (None: WARPGRAD_DATA). It is verified by
    content: 100 classes, 600 images each, every one readable and 32×32, and the published sizes of the splits.
    """
    destination, contents = Path(destination), _contents or CifarContents()
    check_vacant(destination)
    place = find_tree("cifar100", marks=("splits",), subfolder="cifar-fs", source=source, origin=ORIGIN)
    with open_tree(place, _LIMITS) as tree:
        root, found = _complete(tree, contents)
        chosen = {split: _names(tree, root, splits, split) for split in splits.sizes}
        check_splits(chosen, found, f"{place}, {root}splits/{splits.folder}", splits.sizes)
        groups = _groups(tree, root, found)
        if splits.by_group:
            check_groups_apart(chosen, groups, str(place), splits.name)
        return write(
            destination,
            stream(
                [ClassFiles(name, groups.get(name, ""), files) for name, files in found.items()],
                lambda file: exactly(tree.read(file), f"{place}: {file}", _REMEDY, SIDE),
                progress,
            ),
            name=splits.name,
            shape=(3, SIDE, SIDE),
            splits=chosen,
            source="CIFAR-100, https://www.cs.toronto.edu/~kriz/cifar.html (Krizhevsky 2009), "
            f"with the class splits of {splits.name}",
            licence="no formal licence; for research, with citation of Krizhevsky 2009",
            note=f"RGB 0 to 255, {SIDE}×{SIDE}, as published" + ("; groups are the superclasses" if groups else ""),
            fingerprint=tree.fingerprint(),
        )


def _complete(tree: FileTree, contents: CifarContents) -> tuple[str, dict[str, list[str]]]:
    """Return the folder that holds data/, and the sorted files of each class; check that all are there."""
    found: dict[str, list[str]] = {}
    roots: set[str] = set()
    for name in tree.names:
        if match := _PICTURE.fullmatch(name):
            roots.add(match[1])
            found.setdefault(match[2], []).append(name)
    require(found, f"{tree.path} is not the tree of CIFAR-FS: it holds no data/<class>/*.png; {_REMEDY}.")
    require(len(roots) <= 1, f"{tree.path} holds more than one data folder ({', '.join(sorted(roots))}); {_REMEDY}.")
    require(
        len(found) == contents.classes,
        f"{tree.path} holds {len(found)} classes instead of {contents.classes}; {_REMEDY}.",
    )
    for name, files in found.items():
        require(
            len(files) == contents.images,
            f"{tree.path}: class '{name}' has {len(files)} images instead of {contents.images}; {_REMEDY}.",
        )
    return roots.pop(), dict(sorted(found.items()))


def _names(tree: FileTree, root: str, splits: CifarSplits, split: str) -> list[str]:
    file = f"{root}splits/{splits.folder}/{FILE_NAMES[split][0]}.txt"
    require(
        file in tree.names,
        f"{tree.path} has no {file}, which names the classes that {splits.name} puts into {split}: "
        "add it, with one class per line.",
    )
    return lines_of(tree.read(file), f"{tree.path}: {file}")


def _groups(tree: FileTree, root: str, found: Mapping[str, list[str]]) -> dict[str, str]:
    """Return the superclass of each class, or nothing where the tree does not define them."""
    file = f"{root}superclasses.json"
    if file not in tree.names:
        return {}
    groups = table_of(tree.read(file), f"{tree.path}: {file}")
    if missing := sorted(set(found) - set(groups)):
        raise WarpgradError(f"{tree.path}: {file} has no superclass for '{missing[0]}': fix or delete that file.")
    return groups
