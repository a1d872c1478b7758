"""`warpgrad verify`: compare every byte of what this library wrote with its checksums."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from warpgrad.errors import WarpgradError, printable, require
from warpgrad.io import CHECKSUMS, DamagedError, check_every_byte, check_files, read_json, read_object


def verify_command(paths: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN|DATA|MODEL|FILE...")]) -> None:
    """Compare every byte with its checksum; the exit code is 2 if anything is damaged.

    Example: warpgrad verify runs/synthetic/* data/omniglot results/synthetic.json

    Args:
        paths: Run directories, prepared data sets, folders of 'warpgrad adapt', files of wg.save, checkpoints, records
            or the best.json of a sweep.
    """
    require(paths, "give run directories, prepared data sets or files: warpgrad verify RUN|DATA|MODEL|FILE...")
    damaged: list[WarpgradError] = []
    for path in paths:
        try:
            checked = list(parts(path))
            print(f"{printable(path)}: intact ({printable(', '.join(checked))})")
        except WarpgradError as error:
            damaged.append(error)
    if damaged:
        more = f" ({len(damaged)} of {len(paths)} are not intact)" if len(paths) > 1 else ""
        raise DamagedError(f"{damaged[0]}{more}")


def parts(path: Path) -> Iterator[str]:
    """Yield what was compared in a folder or file; raise an error at the first part that is damaged."""
    # Imported only where needed, because each of these imports torch.
    if (path / "header.json").exists():
        from warpgrad.data.store import check_store

        yield check_store(path)
    elif (path / "text.json").exists():
        from warpgrad.data.sources.text import check_text

        yield from check_text(path)
    elif (path / CHECKSUMS).exists():
        yield from check_files(path)
    elif path.is_file():
        yield from _file(path)
    else:
        yield from run_parts(path)


def _file(path: Path) -> Iterator[str]:
    if path.suffix == ".safetensors":
        from warpgrad.training import checkpoint

        checkpoint.read_checkpoint(path)
        yield "checksum of all it holds"
        return
    content = read_json(path)
    if isinstance(content, dict) and "runs" in content:
        from warpgrad.experiments.records import check_record

        known = check_record(path)
    else:
        known = check_every_byte(path)
    yield "checksum of all it holds" if known else "it has no checksum"


def run_parts(path: Path) -> Iterator[str]:
    """Yield what was compared in a run, file by file."""
    from warpgrad.training.run_directory import check_metrics, check_owner, loaded, saved_checkpoints

    if not (path / "config.json").is_file():
        raise WarpgradError(
            f"{path} is neither a run directory (config.json), a prepared data set (header.json, text.json), a folder "
            f"of 'warpgrad adapt' ({CHECKSUMS}) nor a file; give one of these."
        )
    for name in ("config.json", "summary.json", "evaluation.json"):
        if os.path.lexists(path / name):  # also a link that leads nowhere, which cannot be read
            yield name if check_every_byte(path / name) else f"{name} has no checksum"
    check_owner(path)
    saved = saved_checkpoints(path)
    if not saved and (path / "summary.json").exists() and read_object(path / "summary.json").get("steps"):
        raise DamagedError(f"{path} has no checkpoint, but its summary.json is of a trained run; restore checkpoints/.")
    for file in saved:
        try:
            loaded(file)
        except WarpgradError:
            if file.exists():
                raise
            continue  # a process that is training has replaced it since it was listed
        yield file.name
    if saved:
        yield "metrics.jsonl" if check_metrics(path) else "metrics.jsonl has no checksum"
