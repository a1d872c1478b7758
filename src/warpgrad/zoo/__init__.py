"""Pretrained warps, each with a card that says how it was made.

    wg.zoo.names()                                         # what comes with the package
    print(wg.zoo.card("omniglot-warp-leap-32"))            # data, settings, numbers, commit
    method = wg.zoo.load("omniglot-warp-leap-32")          # the network with θ0 and φ, and the rule that adapts it
    fitted = wg.adapt(method.learner, task, rule=method.rule, steps=100)

An entry is a folder with two files: `weights.safetensors`, written by `wg.save` or a run, and `card.json`. Some also
keep the meta-losses of their run, `metrics.jsonl.xz`, so that it can be resumed. `python -m warpgrad.zoo` makes an
entry from a run and the record of its results.
"""

from __future__ import annotations

import dataclasses
import hashlib
import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpgrad.errors import check_name, expect, file_path, require
from warpgrad.io import DamagedError, read_bytes, read_object, write_bytes, write_json
from warpgrad.statistics.formatting import duration

if TYPE_CHECKING:
    import torch

    from warpgrad.algorithms.method import Method

ENTRIES = Path(__file__).parent / "entries"
"""The entries that come with the package, one folder each."""
WEIGHTS, CARD, METRICS = "weights.safetensors", "card.json", "metrics.jsonl.xz"


@dataclass(frozen=True)
class Card:
    """Where the weights of an entry come from; `str(card)` is a page of Markdown.

    Example:
        >>> card = wg.zoo.card("synthetic-long")
        >>> card.meta_steps, card.settings["hidden"], str(card).splitlines()[0]
        (1000, 30, '# synthetic-long')
    """

    name: str
    experiment: str
    method: str
    preset: str
    seed: int
    meta_steps: int
    processor_seconds: float
    """Processor time of meta-training, on one core."""
    data: Mapping[str, str]
    """`name`, `source` and `licence` of the data, and their `sha256` if there is a data set."""
    settings: Mapping[str, Any]
    """Every setting of the run, as in its config.json."""
    numbers: Mapping[str, float]
    """The run's results on held-out tasks, as in the record."""
    record: Mapping[str, str]
    """The `file` with the record, and the `row` and `commit` of the run there."""
    commit: str
    """The commit of the source that made these weights."""
    command: str
    """The command that reproduces the run."""
    versions: Mapping[str, str]
    hardware: Mapping[str, Any]
    weights_sha256: str
    """Checksum of the file with the weights."""

    def __str__(self) -> str:
        rows = {
            "method": f"`{self.method}` of experiment `{self.experiment}`, preset `{self.preset}`, seed {self.seed}",
            "data": f"{self.data['name']}: {self.data['source']}",
            "licence of the data": self.data["licence"],
            "hash of the data": f"`{self.data['sha256']}`" if "sha256" in self.data else "no data set",
            "meta-training": f"{self.meta_steps} meta-steps, {duration(self.processor_seconds)} of processor time",
            "made by": f"`{self.command}`",
            "commit": f"`{self.commit}`",
            "versions": ", ".join(f"{name} {version}" for name, version in self.versions.items()),
            "hardware": ", ".join(f"{name}: {value}" for name, value in self.hardware.items()),
            "results": f"`{self.record['file']}`, row '{self.record['row']}', made at `{self.record['commit']}`",
            "weights": f"SHA-256 `{self.weights_sha256}`",
        }
        return "\n".join(
            [
                *(f"# {self.name}", "", "| | |", "|---|---|"),
                *(f"| {name} | {value} |" for name, value in rows.items()),
                *("", "| on held-out tasks, one seed | |", "|---|---|"),
                *(f"| {name} | {value:.4g} |" for name, value in self.numbers.items()),
                *("", "| setting | |", "|---|---|"),
                *(f"| {name} | {value} |" for name, value in self.settings.items()),
            ]
        )


def names(folder: str | Path | None = None) -> list[str]:
    """Return the names of the entries that come with the package, or of those in a folder.

    Example:
        >>> "synthetic-long" in wg.zoo.names()
        True
    """
    place = _place(folder)
    require(place.is_dir(), f"there is no folder {place}; give the one that holds the entries.")
    return sorted(path.parent.name for path in place.glob(f"*/{CARD}"))


def card(name: str, folder: str | Path | None = None) -> Card:
    """Return the card of an entry: data, settings, numbers, commit.

    Args:
        name: One of `names()`.
        folder: Where the entry lies; among those of the package if None.

    Example:
        >>> wg.zoo.card("synthetic-long").command
        'warpgrad run synthetic --preset long'
    """
    path = _entry(name, folder) / CARD
    kept = read_object(path)
    fields = {field.name for field in dataclasses.fields(Card)}
    require(kept.keys() == fields, f"{path} is not a card of this version of warpgrad; make the entry again.")
    return Card(**kept)


def load(name: str, folder: str | Path | None = None, *, device: torch.device | str = "cpu") -> Method:
    """Build the network of an entry and return its method: learner with θ0 and φ, rule, objective, initialiser.

    Args:
        name: One of `names()`.
        folder: Where the entry lies; among those of the package if None.
        device: Where the network goes.

    Example:
        >>> pretrained = wg.zoo.load("synthetic-long")
        >>> pretrained.rule.lr, sum(value.numel() for value in pretrained.learner.phi.values())
        (0.1, 152)
    """
    from warpgrad.experiments import find_builder, stored_config
    from warpgrad.training.saving import load as load_method

    entry, found = _entry(name, folder), card(name, folder)
    _whole(entry / WEIGHTS, found)
    _, config = stored_config(found.settings, entry / CARD)
    build = find_builder(found.experiment)
    return load_method(entry / WEIGHTS, build(dataclasses.replace(config, device=str(device))).learner)


def restore_run(name: str, directory: str | Path, folder: str | Path | None = None) -> None:
    """Write the run of an entry into a directory, where its command resumes it; an existing run is left alone.

    Example:
        >>> wg.zoo.restore_run("synthetic-long", folder / "run")
        >>> sorted(path.name for path in (folder / "run").glob("[a-z]*"))
        ['checkpoints', 'config.json', 'metrics.jsonl']
    """
    entry, found, directory = _entry(name, folder), card(name, folder), file_path(directory, "directory", "runs/mine")
    require((entry / METRICS).exists(), f"{name} contains only weights, so its run cannot be resumed.")
    if (directory / "config.json").exists():
        return
    from warpgrad.training.run_directory import reserved

    weights, metrics = _whole(entry / WEIGHTS, found), lzma.decompress(read_bytes(entry / METRICS))
    with reserved(directory):
        if (directory / "config.json").exists():  # written by another process, which may have resumed the run
            return
        write_bytes(directory / "metrics.jsonl", metrics)
        write_bytes(directory / "checkpoints" / f"step-{found.meta_steps:08d}.safetensors", weights)
        # The settings are written last: once they exist, the run is complete.
        write_json(directory / "config.json", found.settings, seal=True)


def _whole(path: Path, found: Card) -> bytes:
    """Return the bytes of the weights after checking them against the card's checksum."""
    weights = read_bytes(path)
    if hashlib.sha256(weights).hexdigest() != found.weights_sha256:
        raise DamagedError(f"{path} is not the file that its card describes; install or copy it again.")
    return weights


def _place(folder: str | Path | None) -> Path:
    return ENTRIES if folder is None else file_path(folder, "folder", "pretrained")


def _entry(name: str, folder: str | Path | None) -> Path:
    expect(name, str, "name", '"synthetic-long"')
    entry = _place(folder) / check_name(name, "the entry")
    known = names(folder)
    require(name in known, f"there is no pretrained warp '{name}'; choose one of {', '.join(known) or '(none)'}.")
    return entry


__all__ = ["Card", "card", "load", "names", "restore_run"]
