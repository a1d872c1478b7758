"""The split of classes into meta-training, validation and meta-testing: checked where published, else drawn by key."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence

from warpgrad.errors import WarpgradError, require
from warpgrad.keys import fold

SPLITS = ("train", "validation", "test")
"""The names of the splits of every few-shot data set in a store."""

FILE_NAMES = {"train": ("train",), "validation": ("val", "validation"), "test": ("test",)}
"""The names of the splits in published files and folders."""


def check_splits(
    splits: Mapping[str, Sequence[str]], classes: Collection[str], where: str, sizes: Mapping[str, int] | None = None
) -> None:
    """Check that splits name existing classes, share no class, and have the published `sizes`."""
    home: dict[str, str] = {}
    for split, members in splits.items():
        for name in members:
            require(name in classes, f"{where}: the split {split} names the class '{name}', which has no images there.")
            if name in home:
                both = f"twice in {split}" if home[name] == split else f"both in {home[name]} and in {split}"
                raise WarpgradError(f"{where}: the class '{name}' is {both}; a class must be in one split only.")
            home[name] = split
        require(members, f"{where}: the split {split} has no classes.")
        wanted = len(members) if sizes is None else sizes[split]
        require(len(members) == wanted, f"{where}: the split {split} has {len(members)} classes instead of {wanted}.")


def check_groups_apart(splits: Mapping[str, Sequence[str]], groups: Mapping[str, str], where: str, name: str) -> None:
    """Check that splits share no group (superclass); classes without one are ignored."""
    home: dict[str, str] = {}
    for split, members in splits.items():
        for group in (groups.get(member, "") for member in members):
            if group and home.setdefault(group, split) != split:
                raise WarpgradError(
                    f"{where}: the superclass '{group}' is both in {home[group]} and in {split}, "
                    f"but {name} keeps every superclass in one split: get its files again."
                )


def draw_splits(classes: Iterable[str], sizes: Mapping[str, int], *key: int | str) -> dict[str, list[str]]:
    """Deal the classes out by a keyed shuffle; `sizes` says how many go where.

    The place of a class in the shuffle is a hash of the key and of its name, which does not depend on file order,
    platform or library versions.
    """
    order = sorted(classes, key=lambda name: fold(*key, name))
    dealt: dict[str, list[str]] = {}
    for split, size in sizes.items():
        dealt[split], order = sorted(order[:size]), order[size:]
    return dealt


def fractions(count: int, where: str) -> dict[str, int]:
    """Return 64 / 16 / 20 % of `count` classes, as in miniImageNet and CIFAR-FS, and at least one each."""
    require(count >= len(SPLITS), f"{where} has {count} classes; {len(SPLITS)} or more are needed for three splits.")
    validation, test = max(1, round(0.16 * count)), max(1, round(0.20 * count))
    return {"train": count - validation - test, "validation": validation, "test": test}


def lines_of(raw: bytes, where: str) -> list[str]:
    """Return the class names of a split file, which has one per line; blank lines are ignored."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as failure:
        raise WarpgradError(f"{where} is not UTF-8 text ({failure}).") from failure
    return [line.strip() for line in text.splitlines() if line.strip()]


def table_of(raw: bytes, where: str) -> dict[str, str]:
    """Parse a JSON file that maps every class to its group."""
    try:
        table: dict[str, str] = json.loads(raw)
    except (ValueError, RecursionError) as failure:
        raise WarpgradError(f"{where} is not valid JSON ({failure}).") from failure
    require(
        isinstance(table, dict) and all(isinstance(group, str) for group in table.values()),
        f"{where} is not a JSON object from class names to group names.",
    )
    return table
