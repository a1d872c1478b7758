"""Omniglot (Lake, Salakhutdinov and Tenenbaum 2015): 50 alphabets, 1623 characters, 20 drawings of each.

The published archives hold 1-bit PNGs of 105×105 with ink 0 on paper 1. Here they become 8-bit images of 28×28 with ink
255 on paper 0. There are two pitfalls: Pillow resizes 1-bit images by nearest neighbour whatever the filter, so they
must be converted to grey first; and folders list their files in any order, so everything is sorted.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from warpgrad.data.archives import FileTree, Limits, find_archives, open_tree
from warpgrad.data.download import download
from warpgrad.data.pictures import UNREADABLE, Progress, with_progress
from warpgrad.data.splits import draw_splits
from warpgrad.data.store import Images, ImageStore
from warpgrad.data.writing import ClassImages, check_vacant, write
from warpgrad.errors import WarpgradError, require

Contents = Mapping[str, Mapping[str, int]]
"""Archive -> alphabet -> number of characters."""

ORIGIN = "the folder python/ of Brenden Lake's Omniglot repository, https://github.com/brendenlake/omniglot"
DRAWINGS = 20
SIDE = 105

CONTENTS: Contents = {
    "images_background": {
        "Alphabet_of_the_Magi": 20,
        "Anglo-Saxon_Futhorc": 29,
        "Arcadian": 26,
        "Armenian": 41,
        "Asomtavruli_(Georgian)": 40,
        "Balinese": 24,
        "Bengali": 46,
        "Blackfoot_(Canadian_Aboriginal_Syllabics)": 14,
        "Braille": 26,
        "Burmese_(Myanmar)": 34,
        "Cyrillic": 33,
        "Early_Aramaic": 22,
        "Futurama": 26,
        "Grantha": 43,
        "Greek": 24,
        "Gujarati": 48,
        "Hebrew": 22,
        "Inuktitut_(Canadian_Aboriginal_Syllabics)": 16,
        "Japanese_(hiragana)": 52,
        "Japanese_(katakana)": 47,
        "Korean": 40,
        "Latin": 26,
        "Malay_(Jawi_-_Arabic)": 40,
        "Mkhedruli_(Georgian)": 41,
        "N_Ko": 33,
        "Ojibwe_(Canadian_Aboriginal_Syllabics)": 14,
        "Sanskrit": 42,
        "Syriac_(Estrangelo)": 23,
        "Tagalog": 17,
        "Tifinagh": 55,
    },
    "images_evaluation": {
        "Angelic": 20,
        "Atemayar_Qelisayer": 26,
        "Atlantean": 26,
        "Aurek-Besh": 26,
        "Avesta": 26,
        "Ge_ez": 26,
        "Glagolitic": 45,
        "Gurmukhi": 45,
        "Kannada": 41,
        "Keble": 26,
        "Malayalam": 47,
        "Manipuri": 40,
        "Mongolian": 30,
        "Old_Church_Slavonic_(Cyrillic)": 45,
        "Oriya": 46,
        "Sylheti": 28,
        "Syriac_(Serto)": 23,
        "Tengwar": 25,
        "Tibetan": 42,
        "ULOG": 26,
    },
}

_ADDRESS = "https://github.com/brendenlake/omniglot/raw/master/python/"
_SHA256 = {
    "images_background": "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
    "images_evaluation": "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
}
_LIMITS = Limits(files=100_000, file_bytes=1 << 20, total_bytes=256 << 20)
_DRAWING = re.compile(r"([^/]+)/([^/]+)/(character\d+)/(\d+)_(\d+)\.png")

Drawings = dict[tuple[str, str], tuple[FileTree, list[str]]]
"""(alphabet, character) -> the tree that holds its drawings, and their names in the order of the drawers."""


def download_omniglot(folder: Path, progress: Callable[[int, int | None], None] | None = None) -> None:
    """Fetch the two published archives into `folder` and verify their checksums.

    No other function of this module uses the network.
    """
    for archive, sha256 in _SHA256.items():
        download(f"{_ADDRESS}{archive}.zip", sha256, folder / f"{archive}.zip", progress)


def prepare_omniglot(
    source: Path | str | None,
    destination: Path | str,
    size: int = 28,
    progress: Progress | None = None,
    *,
    _contents: Contents = CONTENTS,
) -> ImageStore:
    """Make a data set of `size`×`size` images, ink 255 on paper 0, from the two archives or their unpacked folders.

    `source` is the folder they are in (None: WARPGRAD_DATA). They are verified by content, not by checksum, so repacked
    archives are accepted: every alphabet, character and drawing must be there, readable and 105×105.
    `progress(characters done, characters in all)` is called after each character.
    """

    def by_archive(classes: Sequence[str]) -> dict[str, list[str]]:
        return {
            archive.removeprefix("images_"): [name for name in classes if name.split("/")[0] in alphabets]
            for archive, alphabets in _contents.items()
        }

    return prepare_with_splits(
        source, destination, size, progress, contents=_contents, name="Omniglot", splits=by_archive
    )


def prepare_with_splits(
    source: Path | str | None,
    destination: Path | str,
    size: int,
    progress: Progress | None,
    *,
    contents: Contents,
    name: str,
    splits: Callable[[Sequence[str]], Mapping[str, Sequence[str]]],
    note: str = "",
) -> ImageStore:
    """Prepare Omniglot under a `name`, with the splits that `splits(all classes)` returns and a `note` about them."""
    destination = Path(destination)
    check_vacant(destination)
    require(size >= 1, f"images of {size}×{size} cannot be made; size must be at least 1.")
    places = find_archives(list(contents), subfolder="omniglot", folder=source, origin=ORIGIN)
    with ExitStack() as stack:
        drawings: Drawings = {}
        fingerprints = []
        for place, (archive, alphabets) in zip(places, contents.items(), strict=True):
            tree = stack.enter_context(open_tree(place, _LIMITS))
            drawings |= _complete(tree, archive, alphabets)
            fingerprints.append(tree.fingerprint())
        return write(
            destination,
            with_progress(_classes(drawings, size), progress),
            name=name,
            shape=(1, size, size),
            splits=splits([f"{alphabet}/{character}" for alphabet, character in sorted(drawings)]),
            source="Omniglot, https://github.com/brendenlake/omniglot (Lake, Salakhutdinov and Tenenbaum 2015)",
            licence="MIT, Copyright (c) 2015 Brenden Lake",
            note=f"ink 255, paper 0; 1-bit {SIDE}×{SIDE} made grey, then resized to {size}×{size} by Lanczos{note}",
            fingerprint=" ".join(fingerprints),
        )


def _complete(tree: FileTree, archive: str, alphabets: Mapping[str, int]) -> Drawings:
    """Sort the drawings of one archive by character, and check that all are there; an error names what is wrong."""

    def check(condition: object, why: str) -> None:
        require(condition, f"{tree.path} {why}; get {archive}.zip from {ORIGIN}.")

    found: dict[tuple[str, str], dict[int, str]] = {}
    for name in tree.names:
        # Anything that is not a drawing of this archive (a note, an icon left by a file manager) is ignored.
        if (match := _DRAWING.fullmatch(name)) and match[1] == archive:
            numbered, number = found.setdefault((match[2], match[3]), {}), int(match[5])
            check(number not in numbered, f"contains a drawing twice, as {numbered.get(number)} and {name}")
            numbered[number] = name
    check(found, f"is not Omniglot's {archive}: it contains no {archive}/<alphabet>/<character>/<drawing>.png")
    strange = sorted({alphabet for alphabet, _ in found} - set(alphabets))
    check(not strange, f"contains the alphabet '{', '.join(strange[:1])}', which is not in Omniglot's {archive}")
    expected = {
        (alphabet, f"character{number:02d}") for alphabet, count in alphabets.items() for number in range(1, count + 1)
    }
    missing = [f"{alphabet}/{character}" for alphabet, character in sorted(expected - set(found))]
    for alphabet, character in sorted(expected & set(found)):
        absent = sorted(set(range(1, DRAWINGS + 1)) - set(found[alphabet, character]))
        missing += [f"{alphabet}/{character} drawing {number:02d}" for number in absent]
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    check(not missing, f"is incomplete: {', '.join(missing[:3])}{more} missing")
    extra = sorted(set(found) - expected)
    extra += [key for key in sorted(expected & set(found)) if len(found[key]) > DRAWINGS]
    check(not extra, f"contains more than Omniglot's {archive} does, in {', '.join(map('/'.join, extra[:1]))}")
    return {key: (tree, [names[number] for number in sorted(names)]) for key, names in sorted(found.items())}


def _classes(drawings: Drawings, size: int) -> list[ClassImages]:
    return [
        ClassImages(f"{alphabet}/{character}", alphabet, partial(_read, tree, names, size))
        for (alphabet, character), (tree, names) in sorted(drawings.items(), key=lambda item: item[0])
    ]


def _read(tree: FileTree, names: Sequence[str], size: int) -> Images:
    return np.stack([ink(tree.read(name), size, f"{tree.path}: {name}") for name in names])[:, None]


def ink(encoded: bytes, size: int, where: str) -> Images:
    """Read a published drawing as uint8 [size, size], ink 255 on paper 0, resized with an antialiasing filter."""
    try:
        with Image.open(io.BytesIO(encoded), formats=["PNG"]) as image:
            require(
                image.size == (SIDE, SIDE),
                f"{where} is {image.size[0]}×{image.size[1]} instead of {SIDE}×{SIDE}: get the archives from {ORIGIN}.",
            )
            grey = image.convert("L")
    except WarpgradError:
        raise
    except UNREADABLE as failure:
        raise WarpgradError(f"{where} is not a readable PNG ({failure}): get the archives from {ORIGIN}.") from failure
    drawing = 255 - np.asarray(grey)
    require(
        0 < int(drawing.sum(dtype=np.int64)) < drawing.size * 255 // 2,
        f"{where} is blank or mostly ink; drawings are black on white: get the archives from {ORIGIN}.",
    )
    inverted = Image.fromarray(drawing)
    return np.asarray(inverted.resize((size, size), Image.Resampling.LANCZOS))


SIZES = {"train": 1100, "validation": 100, "test": 423}
_KEY = ("omniglot-fewshot", 0)


def prepare_omniglot_few_shot(
    source: Path | str | None,
    destination: Path | str,
    size: int = 28,
    progress: Progress | None = None,
    *,
    _contents: Contents = CONTENTS,
    _sizes: Mapping[str, int] = SIZES,
) -> ImageStore:
    """Make the few-shot data set from Omniglot's two archives, verified as in `prepare_omniglot`."""
    return prepare_with_splits(
        source,
        destination,
        size,
        progress,
        contents=_contents,
        name="Omniglot few-shot",
        splits=lambda classes: draw_splits(classes, _sizes, *_KEY),
        note="; splits drawn by a fixed key from the names of the characters",
    )
