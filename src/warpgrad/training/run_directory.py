"""The run directory: everything a run reads and writes, and the contract with `report`.

config.json      the settings; a run goes on only under the settings it began with
metrics.jsonl    one line per meta-step, append-only
checkpoints/     step-00000012.safetensors, the newest two
summary.json     written at the end: what was run, on what, for how long, with what result
figures/
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from warpgrad.algorithms.ranks import ALONE, Ranks
from warpgrad.errors import WarpgradError, refuse_if
from warpgrad.io import locked, read_json, remove_partial, write_json, writing
from warpgrad.training import checkpoint
from warpgrad.training.distributed import several

RUN_FORMAT = 1
KEEP = 2
TIMES = ("seconds", "cpu_seconds", "validation_seconds", "test_seconds")
"""The entries of a metrics line that say how long it took: the one thing in which a repeated run differs."""
EXTENDABLE = "meta_steps"
"""The one setting that may change between a run and its continuation."""


class RunDirectory:
    """One run on disk, open for writing by one process at a time.

    Example:
        >>> run = training.RunDirectory(folder / "mine", {"seed": 0})
        >>> run.begin_metrics(offset=0), run.saved()
        ([], [])
        >>> run.close()
    """

    def __init__(self, path: Path, config: Mapping[str, Any], *, fresh: bool = False, ranks: Ranks = ALONE) -> None:
        """Create the directory, or take up the run in it.

        Args:
            fresh: Delete what an earlier run left.
            ranks: The processes that work on this run, of which this one writes.
        """
        refuse_if(
            several() and ranks.size == 1,
            "this method meta-learns nothing that several processes could share; run it without torchrun.",
        )
        self.path = path
        self.checkpoints = path / "checkpoints"
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            self._lock = locked(
                self.path / ".lock", f"another process is running in {self.path}; wait for it or choose another."
            )
        self._metrics: BinaryIO | None = None
        try:
            self._open(config, fresh)
        except BaseException:
            self.close()
            raise

    def _open(self, config: Mapping[str, Any], fresh: bool) -> None:
        if fresh:
            self._clear()
        elif not (self.path / "config.json").exists() and any(_others(self.path)):
            raise WarpgradError(f"{self.path} holds files but no run; choose an empty directory.")
        with writing(self.path):
            self.checkpoints.mkdir(exist_ok=True)
        for directory in (self.path, self.checkpoints):
            remove_partial(directory)
        self._check_config(config)
        write_json(self.path / "config.json", {"format": RUN_FORMAT, **config})

    def begin_metrics(self, offset: int) -> list[dict[str, Any]]:
        """Cut metrics.jsonl back to what the checkpoint knew, and return those records."""
        path = self.path / "metrics.jsonl"
        with writing(path):
            path.touch()
            if path.stat().st_size < offset:
                raise WarpgradError(
                    f"{path} is shorter than its checkpoint says; restore the file or start over with --fresh."
                )
            os.truncate(path, offset)
            self._metrics = path.open("ab")
        return [json.loads(line) for line in path.read_text().splitlines()]

    def append(self, record: Mapping[str, Any]) -> None:
        assert self._metrics is not None, "begin_metrics comes first"
        with writing(self.path / "metrics.jsonl"):
            self._metrics.write((json.dumps(record) + "\n").encode())
            self._metrics.flush()

    @property
    def offset(self) -> int:
        """Bytes of metrics written so far; part of every checkpoint."""
        assert self._metrics is not None, "begin_metrics comes first"
        return self._metrics.tell()

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, then forget all but the newest."""
        if self._metrics is not None:
            os.fsync(self._metrics.fileno())
        checkpoint.save(self.checkpoints / f"step-{step:08d}.safetensors", state)
        for old in self.saved()[:-KEEP]:
            old.unlink(missing_ok=True)

    def saved(self) -> list[Path]:
        """Checkpoints of meta-steps, oldest first."""
        return saved_checkpoints(self.path)

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        self._lock.release()

    def _clear(self) -> None:
        """Delete a run, and nothing that is not one."""
        if not (self.path / "config.json").exists() and any(_others(self.path)):
            raise WarpgradError(f"{self.path} holds files but no run; --fresh deletes runs only.")
        for name in ("metrics.jsonl", "summary.json", "evaluation.json", "config.json"):
            (self.path / name).unlink(missing_ok=True)
        for name in ("checkpoints", "figures", "tensorboard"):
            shutil.rmtree(self.path / name, ignore_errors=True)

    def _check_config(self, config: Mapping[str, Any]) -> None:
        path = self.path / "config.json"
        if not path.exists():
            return
        kept = read_json(path)
        if not isinstance(kept, dict) or kept.pop("format", None) != RUN_FORMAT:
            raise WarpgradError(
                f"{path} was written by another version of warpgrad; use that version, choose another directory, "
                "or start over with --fresh."
            )
        given = json.loads(json.dumps(config))
        done = max((int(saved.stem.removeprefix("step-")) for saved in self.saved()), default=0)
        if given.get(EXTENDABLE, done) < done:
            raise WarpgradError(
                f"the run in {self.path} has taken {done} meta-steps, and {given[EXTENDABLE]} are asked for; "
                "ask for no fewer, choose another directory, or start over with --fresh."
            )
        for name in sorted(set(kept) | set(given)):
            if name != EXTENDABLE and kept.get(name) != given.get(name):
                raise WarpgradError(
                    f"the run in {self.path} has {name} = {kept.get(name)!r}, not {given.get(name)!r}; "
                    "choose another directory, or start over with --fresh."
                )


def saved_checkpoints(path: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted((path / "checkpoints").glob("step-*.safetensors"))


def newest_checkpoint(path: Path) -> Path:
    """The last checkpoint of a run that is not open for writing."""
    saved = saved_checkpoints(path)
    if not saved:
        raise WarpgradError(f"{path} has no checkpoint; run it first with 'warpgrad run'.")
    return saved[-1]


def _others(path: Path) -> list[Path]:
    return [entry for entry in path.iterdir() if entry.name != ".lock"]
