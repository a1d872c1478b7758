"""Weights that come with the package: preset `long` after 1000 meta-steps, from which the demonstration goes on.

Their card is `CARD.md`. They are a run directory as far as it had got, so that the ordinary command takes it up.
"""

from __future__ import annotations

import lzma
from importlib import resources
from pathlib import Path

from warpgrad.io import write_bytes


def lay_out(directory: Path) -> None:
    """Put the run into a directory, unless there is one."""
    if (directory / "config.json").exists():
        return
    files = resources.files(__name__)
    (checkpoint,) = (file for file in files.iterdir() if file.name.endswith(".safetensors"))
    write_bytes(directory / "metrics.jsonl", lzma.decompress((files / "metrics.jsonl.xz").read_bytes()))
    write_bytes(directory / "checkpoints" / checkpoint.name, checkpoint.read_bytes())
    # The settings come last: with them there, the run is whole.
    write_bytes(directory / "config.json", (files / "config.json").read_bytes())
