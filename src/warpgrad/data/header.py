"""The header of a data set: everything about it besides its pixels, as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from warpgrad.errors import WarpgradError

FORMAT = "warpgrad-images"
VERSION = 1
FILE = "header.json"

_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class Header:
    """What is in a data set. Its rules hold for every instance, whether just written or read back."""

    name: str
    shape: tuple[int, int, int]
    """Channels, height, width: the same for every image."""
    classes: tuple[str, ...]
    groups: tuple[str, ...]
    """The group of each class (e.g. its alphabet), in the order of `classes`; "" where there are none."""
    offsets: tuple[int, ...]
    """Images of class i are offsets[i] .. offsets[i + 1] - 1."""
    splits: Mapping[str, tuple[str, ...]]
    """Published splits by name, each a list of classes; empty where there are none."""
    sha256: str
    """Checksum of the image bytes."""
    source: str
    licence: str
    note: str
    """What the pixel values mean and how they were made."""

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or min(self.shape) < 1:
            raise WarpgradError("'shape' is not three positive numbers")
        if not self.classes:
            raise WarpgradError("there are no classes")
        if len(set(self.classes)) != len(self.classes):
            raise WarpgradError("two classes have the same name")
        if len(self.groups) != len(self.classes):
            raise WarpgradError("'groups' does not name one group per class")
        if len(self.offsets) != len(self.classes) + 1 or self.offsets[0] != 0:
            raise WarpgradError("'offsets' does not fit the classes")
        if any(end <= begin for begin, end in pairwise(self.offsets)):
            raise WarpgradError("'offsets' does not grow from class to class")
        for split, members in self.splits.items():
            if unknown := sorted(set(members) - set(self.classes)):
                raise WarpgradError(f"split '{split}' names the unknown class '{unknown[0]}'")

    @property
    def image_bytes(self) -> int:
        """The size of all images together."""
        channels, height, width = self.shape
        return self.offsets[-1] * channels * height * width

    def to_json(self) -> str:
        about = {"format": FORMAT, "version": VERSION, "dtype": "uint8"}
        return json.dumps({**about, **dataclasses.asdict(self)}, ensure_ascii=False, indent=1) + "\n"


def read_header(path: Path) -> Header:
    """The header of the data set in the folder `path`; a clear refusal where it is none, of another version, or
    damaged."""
    file = path / FILE
    if not file.is_file():
        raise WarpgradError(
            f"{path} is not a prepared data set: it has no {FILE}; make one with 'warpgrad data prepare'."
        )
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as failure:
        raise damaged(path, f"{FILE} cannot be read ({failure})") from failure
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise WarpgradError(f"{path} is not a prepared data set: its {FILE} is of another format than {FORMAT}.")
    if fields.get("version") != VERSION:
        raise WarpgradError(
            f"{path} is a data set of version {fields.get('version')}, but this release reads version {VERSION}: "
            "delete it and prepare it again."
        )
    try:
        return _header(fields)
    except WarpgradError as failure:
        raise damaged(path, f"in {FILE}, {failure}") from failure


def damaged(path: Path, what: str) -> WarpgradError:
    return WarpgradError(f"the data set {path} is damaged: {what}; delete it and prepare it again.")


def _header(fields: dict[str, Any]) -> Header:
    if fields.get("dtype") != "uint8":
        raise WarpgradError(f"dtype is {fields.get('dtype')!r} instead of 'uint8'")
    texts = {key: _text(fields, key) for key in ("name", "sha256", "source", "licence", "note")}
    splits = fields.get("splits")
    if not isinstance(splits, dict):
        raise WarpgradError("'splits' is not a table")
    channels_height_width = _list(fields, "shape", int)
    if len(channels_height_width) != 3:
        raise WarpgradError("'shape' is not three positive numbers")
    return Header(
        shape=(channels_height_width[0], channels_height_width[1], channels_height_width[2]),
        classes=tuple(_list(fields, "classes", str)),
        groups=tuple(_list(fields, "groups", str)),
        offsets=tuple(_list(fields, "offsets", int)),
        splits={split: tuple(_list(splits, split, str)) for split in splits},
        **texts,
    )


def _text(fields: dict[str, Any], key: str) -> str:
    if not isinstance(value := fields.get(key), str):
        raise WarpgradError(f"'{key}' is not a text")
    return value


def _list(fields: dict[str, Any], key: str, kind: type[_Kind]) -> list[_Kind]:
    value = fields.get(key)
    # type() rather than isinstance(): in Python, true is an int.
    if not isinstance(value, list) or any(type(item) is not kind for item in value):
        raise WarpgradError(f"'{key}' is not a list of {kind.__name__}")
    return value
