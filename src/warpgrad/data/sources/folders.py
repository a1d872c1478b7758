"""Pictures in class folders: a user's own data set.

    <class>/<picture>                                 the splits are drawn: 64 / 16 / 20 % of the classes, by a seed
    <class>/<picture>, train.txt, val.txt, test.txt   each file names its classes, one a line
    train|val|test/<class>/<picture>                  the folders are the splits

packed in a zip or not. PNG, JPEG, BMP, GIF, TIFF, WebP and PPM are read.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from warpgrad.data.archives import FileTree, open_tree
from warpgrad.data.pictures import MAX_PIXELS, ClassFiles, Progress, image_header, resized, stream
from warpgrad.data.prepared import TITLES
from warpgrad.data.splits import FILE_NAMES, SPLITS, check_splits, draw_splits, fractions, lines_of
from warpgrad.data.store import ImageStore
from warpgrad.data.writing import check_vacant, write
from warpgrad.errors import WarpgradError, require

_REMEDY = "fix or remove that file"
_SPLIT_OF = {name: split for split, names in FILE_NAMES.items() for name in names}


class Layout(NamedTuple):
    """What a tree of class folders holds."""

    classes: list[ClassFiles]
    """Sorted by name, as their files are."""
    splits: dict[str, list[str]] | None
    """None where the tree defines none."""
    left_out: list[str]
    """The names of files that are not pictures."""


def prepare_folder(
    source: Path | str,
    destination: Path | str,
    *,
    name: str,
    size: int | None = None,
    grey: bool = False,
    split_seed: int | None = None,
    progress: Progress | None = None,
    looked: Progress | None = None,
) -> ImageStore:
    """Make a data set called `name` from the class folders in `source`, a folder or a zip.

    `size` resizes every picture to size×size; without it all must have the same size. Images are stored grey if all are
    grey, or with `grey`; else RGB. `split_seed` draws the splits where the source defines none (0 if not given). Every
    file is checked first (`looked` is its progress), so unreadable files are reported before anything is written.
    """
    source, destination = Path(source).expanduser(), Path(destination)
    check_vacant(destination)
    require(
        size is None or (size >= 1 and size * size <= MAX_PIXELS),
        f"images of {size}×{size} cannot be made; size must be at least 1 and at most {math.isqrt(MAX_PIXELS)}.",
    )
    require(
        re.fullmatch(r"[\w-][\w. -]*", name) and name not in TITLES and name not in TITLES.values(),
        f"'{name}' cannot be the name of your own data set: choose a plain name that no public data set has.",
    )
    require(source.exists(), f"{source} does not exist: give a folder of class folders, or a zip of one.")
    with open_tree(source.resolve() if source.is_dir() else source) as tree:
        layout = read_layout(tree)
        require(
            layout.splits is None or split_seed is None,
            f"{source} has its own splits, so a split seed would have no effect: leave it out.",
        )
        names = [item.name for item in layout.classes]
        seed = split_seed or 0
        splits = layout.splits or draw_splits(names, fractions(len(names), str(source)), "split", seed)
        sides, all_grey = _look_through(tree, layout.classes, size, looked)
        channels = 1 if grey or all_grey else 3
        return write(
            destination,
            stream(layout.classes, resized(tree, size, _REMEDY, channels=channels), progress),
            name=name,
            shape=(channels, sides[1], sides[0]),
            splits=splits,
            source=f"class folders, {source.name}",
            licence="that of the images",
            note=_note(layout, splits, seed, size),
            fingerprint=tree.fingerprint(),
        )


def read_layout(tree: FileTree) -> Layout:
    """Find classes, their pictures and their splits from the names of the files alone."""
    paths = _below_common(tree.names)
    pictures, left_out, texts = _sorted_out(paths)
    require(pictures, f"{tree.path} has no images in class folders: put each class into a folder of its own.")
    by_folder = {path[0] for path in pictures} <= set(_SPLIT_OF) and all(len(path) == 3 for path in pictures)
    depth = 3 if by_folder else 2
    if strange := next((name for path, name in pictures.items() if len(path) != depth), None):
        raise WarpgradError(
            f"{tree.path}: {strange} is not in a class folder: images are <class>/<image>, "
            "or <class>/<image> below train, val and test."
        )
    files: dict[tuple[str, ...], list[str]] = {}
    for path, name in pictures.items():
        files.setdefault(path[:-1], []).append(name)
    if by_folder:
        splits: dict[str, list[str]] | None = _split_folders(tree, list(files))
        left_out += texts.values()
    else:
        splits = _split_files(tree, texts, {key[0] for key in files})
    classes = [ClassFiles(key[-1], "", sorted(members)) for key, members in files.items()]
    return Layout(sorted(classes, key=lambda item: item.name), splits, sorted(left_out))


def _below_common(names: tuple[str, ...]) -> dict[tuple[str, ...], str]:
    """Map the path parts of every file that is not hidden, without the folders that all share, to its name."""
    paths = {path: name for name in names if not _hidden(path := tuple(name.split("/")))}
    paths = _inside(paths)
    # A lone train/ is a split whose siblings are missing, not one more folder around everything.
    while paths and next(iter(paths))[0] not in _SPLIT_OF and (inner := _inside(paths)) != paths:
        paths = inner
    return paths


def _inside(paths: dict[tuple[str, ...], str]) -> dict[tuple[str, ...], str]:
    """Drop the first folder if all paths share one; files outside of any folder share none."""
    if len({path[0] for path in paths}) == 1 and min(map(len, paths)) > 1:
        return {path[1:]: name for path, name in paths.items()}
    return paths


def _hidden(path: tuple[str, ...]) -> bool:
    """Return whether file managers or version control left a file behind; the outermost folder may have any name."""
    inner = path[1:] or path
    return path[0] == "__MACOSX" or any(part.startswith(".") for part in inner)


def _sorted_out(
    paths: dict[tuple[str, ...], str],
) -> tuple[dict[tuple[str, ...], str], list[str], dict[str, str]]:
    """Return pictures in folders by path, files that are not pictures, and split files beside the folders by split."""
    known = {suffix for suffix, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    pictures: dict[tuple[str, ...], str] = {}
    left_out: list[str] = []
    texts: dict[str, str] = {}
    for path, name in paths.items():
        match = re.fullmatch(r"(\w+)\.txt", path[0]) if len(path) == 1 else None
        if Path(path[-1]).suffix.lower() in known and len(path) > 1:
            pictures[path] = name
        elif match and _SPLIT_OF.get(match[1], "") not in ("", *texts):
            texts[_SPLIT_OF[match[1]]] = name
        else:
            left_out.append(name)
    return pictures, left_out, texts


def _split_folders(tree: FileTree, keys: list[tuple[str, ...]]) -> dict[str, list[str]]:
    splits: dict[str, list[str]] = {split: [] for split in SPLITS}
    for folder, name in sorted(keys):
        splits[_SPLIT_OF[folder]].append(name)
    check_splits(splits, {name for _, name in keys}, str(tree.path))
    return splits


def _split_files(tree: FileTree, texts: dict[str, str], classes: set[str]) -> dict[str, list[str]] | None:
    if not texts:
        return None
    if missing := [split for split in SPLITS if split not in texts]:
        wanted = f"{FILE_NAMES[missing[0]][0]}.txt"
        raise WarpgradError(f"{tree.path} has split files, but no {wanted}: add it, with one class per line.")
    splits = {split: lines_of(tree.read(texts[split]), f"{tree.path}: {texts[split]}") for split in SPLITS}
    check_splits(splits, classes, str(tree.path))
    return splits


def _look_through(
    tree: FileTree, classes: list[ClassFiles], size: int | None, looked: Progress | None
) -> tuple[tuple[int, int], bool]:
    """Check all images and return their width and height, and whether all are grey."""
    sides = (size, size) if size is not None else None
    all_grey = True
    for done, item in enumerate(classes, start=1):
        for file in item.files:
            seen = image_header(tree.read(file), f"{tree.path}: {file}", _REMEDY)
            all_grey = all_grey and seen.grey
            sides = sides or seen.size
            require(
                size is not None or seen.size == sides,
                f"{tree.path}: {file} is {seen.size[0]}×{seen.size[1]}, but others are {sides[0]}×{sides[1]}: "
                "choose one size for all with --size.",
            )
        if looked is not None:
            looked(done, len(classes))
    if sides is None:
        raise WarpgradError(f"{tree.path} contains no images.")
    return sides, all_grey


def _note(layout: Layout, splits: dict[str, list[str]], seed: int, size: int | None) -> str:
    parts = ["0 to 255"]
    if size is not None:
        parts.append(f"resized to {size}×{size} by Lanczos")
    parts.append("splits as in the source" if layout.splits is not None else f"splits drawn by seed {seed}")
    if alone := len(layout.classes) - sum(map(len, splits.values())):
        parts.append(f"{alone} classes are in no split")
    if layout.left_out:
        kinds = Counter(Path(name).suffix or Path(name).name for name in layout.left_out)
        parts.append(
            f"{len(layout.left_out)} files that are not images left out ({', '.join(sorted(kinds))}), "
            f"the first {layout.left_out[0]}"
        )
    return "; ".join(parts)
