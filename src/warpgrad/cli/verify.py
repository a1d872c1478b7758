"""`warpgrad verify RUN|DATA...`: compare every byte of runs and prepared data sets with their checksums."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from warpgrad.errors import WarpgradError, printable, require
from warpgrad.io import JSON_BYTES, SEAL, DamagedError, read_bytes, read_object, reason


def verify_command(paths: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN|DATA...")]) -> None:
    """Compare every byte of runs and prepared data sets with their checksums; exit code 2 where one is not whole.

    Example: warpgrad verify runs/synthetic/* data/omniglot

    Args:
        paths: Run directories and prepared data sets.
    """
    require(paths, "name run directories or prepared data sets: warpgrad verify RUN|DATA...")
    damaged: list[WarpgradError] = []
    for path in paths:
        try:
            checked = data_parts(path) if (path / "header.json").exists() else run_parts(path)
            print(f"{printable(path)}: whole ({printable(', '.join(checked))})")
        except WarpgradError as error:
            damaged.append(error)
    if damaged:
        more = f" ({len(damaged)} of {len(paths)} are not whole)" if len(paths) > 1 else ""
        raise DamagedError(f"{damaged[0]}{more}")


def data_parts(path: Path) -> Iterator[str]:
    from warpgrad.data.store import open_store

    store = open_store(path, verify=True)
    yield f"{store.header.offsets[-1]} images, sha256 {store.header.sha256}"


def run_parts(path: Path) -> Iterator[str]:
    """What of a run was compared, file by file."""
    from warpgrad.training import checkpoint
    from warpgrad.training.run_directory import metrics_digest, saved_checkpoints

    if not (path / "config.json").is_file():
        raise WarpgradError(f"{path} is neither a run directory (config.json) nor a prepared data set (header.json).")
    for name in ("config.json", "summary.json", "evaluation.json"):
        if (path / name).exists():
            read_object(path / name)
            sealed = SEAL in json.loads(read_bytes(path / name, JSON_BYTES))
            yield name if sealed else f"{name} has no checksum"
    saved = saved_checkpoints(path)
    states = [checkpoint.read_checkpoint(file) for file in saved]
    for file, state in zip(saved, states, strict=True):
        if file.name != f"step-{state.get('step', -1):08d}.safetensors":
            raise DamagedError(f"checkpoint {file} is damaged (it is not of the meta-step in its name).")
        yield file.name
    if not saved:
        return
    metrics = path / "metrics.jsonl"
    try:
        lines = read_bytes(metrics)
    except OSError as error:
        raise DamagedError(
            f"{metrics} cannot be read: {reason(error)}; restore it or start over with --fresh."
        ) from error
    kept, offset = states[-1].get("digest"), int(states[-1].get("offset", 0))
    if kept is None:
        yield "metrics.jsonl has no checksum"
    elif len(lines) < offset or metrics_digest(lines[:offset], metrics) != kept:
        raise DamagedError(f"{metrics} is damaged: it is not what its checkpoint knew; restore it or start over.")
    else:
        yield "metrics.jsonl"
