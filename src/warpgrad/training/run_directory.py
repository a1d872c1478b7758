"""The run directory: everything a run reads and writes, and the contract with `report`.

config.json      the settings; a run resumes only under the settings it began with
metrics.jsonl    one line per meta-step, append-only
checkpoints/     step-00000012.safetensors, the newest two
summary.json     written at the end: what was run, on what, for how long, with what result
figures/

A kill at any moment leaves a directory in which the same command can resume. The order of writes ensures this: `.lock`
comes first, config.json second; when an earlier run is deleted, `.clearing` is written before anything is removed, and
is removed last.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from warpgrad.algorithms.ranks import ALONE, Ranks
from warpgrad.errors import WarpgradError, require
from warpgrad.io import (
    CONTENT,
    PARTIAL,
    DamagedError,
    Lock,
    contents_of,
    digest,
    locked,
    open_regular,
    read_bytes,
    read_object,
    reason,
    remove_partial,
    settings_of,
    write_all,
    write_bytes,
    write_json,
    writing,
)
from warpgrad.training import checkpoint
from warpgrad.training.distributed import is_distributed

logger = logging.getLogger(__name__)

RUN_FORMAT = 1
KEEP = 2
TIMES = ("seconds", "cpu_seconds", "validation_seconds", "test_seconds")
"""The entries of a metrics line that hold times, the only numbers in which a repeated run differs."""
DIAGNOSTICS = ("lr/", "gradient_norm/")
"""Prefixes of the entries of a metrics line that describe the course of meta-training rather than its results."""
EXTENDABLE = "meta_steps"
"""The only setting that may change between a run and its continuation."""
DEFAULTS = {"threads": 1}
"""Settings that are written to config.json only if they differ from these."""
OWNER = "run"
"""The entry of checkpoints, summaries and evaluations that names their run, by its `identity`."""
WHOLE = "sha256:"
"""The prefix of a checksum that covers all bytes of metrics.jsonl."""
LOCK, CLEARING = ".lock", ".clearing"
FILES = ("metrics.jsonl", "summary.json", "evaluation.json", "config.json")
FOLDERS = ("checkpoints", "figures", "tensorboard")

_STEP = re.compile(r"step-[0-9]{8,18}\.safetensors")
_reserved: dict[Path, Lock] = {}


def _lock(path: Path) -> Lock:
    with writing(path):
        _check_ours(path)
        path.mkdir(parents=True, exist_ok=True)
        return locked(path / LOCK, f"another process is running in {path}; wait for it or choose another.")


@contextmanager
def reserved(path: Path) -> Iterator[None]:
    """Hold a run directory's lock for as long as a command works there, so that it summarises its own run.

    Inside the block, the one `RunDirectory` that is open at a time uses this lock.
    """
    key = path.absolute()
    _reserved[key] = _lock(path)
    try:
        yield
    finally:
        _reserved.pop(key).release()


def check_place(path: Path, lock: Lock | None = None) -> None:
    """Raise an error if a run directory was removed, moved or replaced while this process worked in it.

    Whatever is at its path now is not what the lock protects: it may be another process's run. Without `lock`, the one
    that `reserved` holds is meant.
    """
    lock = lock or _reserved[path.absolute()]
    if not lock.is_at(path / LOCK):
        raise WarpgradError(
            f"{path} was removed, moved or replaced while this process worked in it, so nothing more is written there; "
            "repeat the command with where the run is now (--out, or run= in Python)."
        )


class RunDirectory:
    """One run on disk, open for writing by one process at a time.

    Example:
        >>> run = training.RunDirectory(folder / "mine", {"seed": 0})
        >>> run.begin_metrics(offset=0), run.saved()
        ([], [])
        >>> run.close()
    """

    def __init__(self, path: Path, config: Mapping[str, Any], *, fresh: bool = False, ranks: Ranks = ALONE) -> None:
        """Create the directory, or resume the run in it.

        Args:
            fresh: Delete what an earlier run left.
            ranks: The processes that work on this run, of which this one writes.
        """
        require(
            ranks.size > 1 or not is_distributed(),
            "this method meta-learns nothing that several processes could share; run it without torchrun.",
        )
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._borrowed = path.absolute() in _reserved
        self._lock = _reserved.pop(path.absolute()) if self._borrowed else _lock(path)
        self._metrics: int | None = None
        self.offset = 0
        """Bytes of metrics written so far; part of every checkpoint."""
        self._digest = hashlib.sha256()
        self._identity = ""
        try:
            with writing(path):
                self._open(config, fresh)
        except BaseException:
            self.close()
            raise

    def _open(self, config: Mapping[str, Any], fresh: bool) -> None:
        for name in (*FILES, *FOLDERS):
            if (self.path / name).is_symlink():
                raise WarpgradError(
                    f"{self.path / name} is a link, which is not followed; replace it with the file or folder itself."
                )
        if fresh or (self.path / CLEARING).exists():
            self._clear()
        elif not (self.path / "config.json").exists() and (left := self._left()):
            raise WarpgradError(
                f"{self.path} has {left} of a run but not its config.json; restore that, choose another directory, or "
                "start over with --fresh."
            )
        remove_partial(self.path)
        kept = self._check_config(config)
        write_json(self.path / "config.json", {"format": RUN_FORMAT, **kept, **config}, seal=True)
        self._identity = identity(read_object(self.path / "config.json"))
        self.checkpoints.mkdir(exist_ok=True)
        remove_partial(self.checkpoints)

    def _left(self) -> str | None:
        """Return the name of a file of a run other than its settings, if there is any."""
        own = [path for path in (*(self.path / name for name in FILES), *self.saved()) if path.exists()]
        return own[0].name if own else None

    def begin_metrics(self, offset: int, digest: str | None = None) -> list[dict[str, Any]]:
        """Truncate metrics.jsonl to what the checkpoint knew, and return those records.

        `digest` is the checksum of those bytes; None in a checkpoint of an earlier version.
        """
        path = self.path / "metrics.jsonl"
        with writing(path):
            self._metrics = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            kept = read_bytes(path)[:offset]
            if len(kept) < offset:
                raise DamagedError(
                    f"{path} is shorter than its checkpoint says; restore the file or start over with --fresh."
                )
            os.ftruncate(self._metrics, offset)
            self.offset = offset
        self._digest.update(kept)
        _check_metrics(kept, digest, path)
        return parsed_lines(kept, path)

    def append(self, record: Mapping[str, Any]) -> None:
        assert self._metrics is not None, "begin_metrics comes first"
        line = (json.dumps(record) + "\n").encode()
        with writing(self.path / "metrics.jsonl"):
            try:
                write_all(self._metrics, line)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._metrics, self.offset)
                raise
        self.offset += len(line)
        self._digest.update(line)

    @property
    def digest(self) -> str:
        """SHA-256 of the metrics written so far; part of every checkpoint."""
        return f"{WHOLE}{self._digest.hexdigest()}"

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, then delete all but the newest."""
        check_place(self.path, self._lock)
        if self._metrics is not None:
            with writing(self.path / "metrics.jsonl"):
                os.fsync(self._metrics)
        own = {**state, OWNER: self._identity}
        checkpoint.write_checkpoint(self.checkpoints / f"step-{step:08d}.safetensors", own)
        self._forget()

    def _forget(self) -> None:
        with writing(self.checkpoints):
            for old in self.saved()[:-KEEP]:
                old.unlink(missing_ok=True)

    def newest(self, device: Any = "cpu") -> tuple[Path, dict[str, Any]] | None:
        """Return the last undamaged checkpoint and its state, or None if there is no checkpoint.

        Damaged ones after it are deleted, with a warning: the meta-steps between them are taken again and end with the
        same bytes. Where all are damaged nothing is deleted: a backup may still have one of them.
        """
        damaged: list[DamagedError] = []
        for path in reversed(self.saved()):
            try:
                state = loaded(path, device)
            except DamagedError as error:
                damaged.append(error)
                continue
            for why, other in zip(damaged, reversed(self.saved()), strict=False):
                logger.warning("%s Resuming from %s.", why, path.name)
                with writing(other):
                    other.unlink()
            self._forget()  # a kill may have come between a save and this call
            return path, state
        if damaged:
            others = (
                "is the run's only one" if len(damaged) == 1 else f"so are all {len(damaged)} checkpoints of the run"
            )
            raise DamagedError(
                f"checkpoint {self.saved()[-1]} is damaged and {others}: restore it from a backup and repeat the "
                "command, or start over with --fresh (in Python, fresh=True), which deletes the run."
            )
        return None

    def saved(self) -> list[Path]:
        """List the checkpoints of meta-steps, oldest first."""
        return saved_checkpoints(self.path)

    def close(self) -> None:
        if self._metrics is not None:
            with suppress(OSError):  # `write_checkpoint` has already synced what matters to disk
                os.close(self._metrics)
            self._metrics = None
        if self._borrowed:
            _reserved[self.path.absolute()] = self._lock
        else:
            self._lock.release()

    def _clear(self) -> None:
        """Delete a run, and nothing that is not part of it."""
        for path in (self.path / name for name in FILES):
            require(
                not path.is_dir() or not any(path.iterdir()),
                f"{path} is a folder with files that are not part of a run; move it away and repeat the command.",
            )
        write_bytes(self.path / CLEARING, b"")
        for name in (*FILES, *FOLDERS):
            path = self.path / name
            if not path.is_dir():
                path.unlink(missing_ok=True)
            elif name in FOLDERS:
                shutil.rmtree(path)
            else:
                path.rmdir()  # a folder in place of a file: deleted only if it is empty
        (self.path / CLEARING).unlink()

    def _check_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Refuse settings or data other than those of the run in the directory.

        Return the checksums of the data it has read, which are kept where they cannot be computed now.
        """
        path = self.path / "config.json"
        if not path.exists():
            return {}
        kept = read_object(path)
        if kept.pop("format", None) != RUN_FORMAT:
            raise WarpgradError(
                f"{path} was written by another version of warpgrad; use that version, choose another directory, "
                "or start over with --fresh."
            )
        check_read(kept, config, self.path)
        read = contents_of(kept)
        given = {**DEFAULTS, **json.loads(json.dumps(settings_of(config)))}
        kept = {**DEFAULTS, **settings_of(kept)}
        done = checkpointed_steps(self.path)
        if given.get(EXTENDABLE, done) < done:
            raise WarpgradError(
                f"the run in {self.path} has taken {done} meta-steps, but only {given[EXTENDABLE]} were requested; "
                f"request at least {done}, choose another directory, or start over with --fresh."
            )
        differing = [
            f"{name} = {kept.get(name)!r}, not {given.get(name)!r}"
            # What follows from another part, such as the optimiser of what it learns, comes after it.
            for name in sorted(set(kept) | set(given), key=lambda one: (one.startswith(("clip.", "optimiser.")), one))
            if name != EXTENDABLE and kept.get(name) != given.get(name)
        ]
        if differing:
            more = f" (and {len(differing) - 4} more)" if len(differing) > 4 else ""
            raise WarpgradError(
                f"the run in {self.path} has {'; '.join(differing[:4])}{more}; choose another directory, start over "
                "with --fresh (in Python, fresh=True), or continue from it elsewhere with init_from=."
            )
        return read


def identity(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a run's settings, which identifies it, without the number of meta-steps, which may grow."""
    return digest({name: value for name, value in config.items() if name not in ("format", EXTENDABLE)})


def check_read(kept: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    """Refuse to resume a run if what one of its settings names has other content now, by checksums before and now."""
    for name, before in contents_of(kept).items():
        if now.get(name, before) != before:
            what = name.removesuffix(CONTENT)
            raise WarpgradError(
                f"the run in {path} was made with other content of '{what}' (SHA-256 {str(before)[:12]}…) than there "
                f"is now ({str(now[name])[:12]}…); restore that, name it with --{what}, choose another directory, or "
                "start over with --fresh."
            )


def check_owner(path: Path) -> None:
    """Refuse a run directory whose summary or evaluation belongs to another run.

    Also refuse one where these two are of different numbers of meta-steps.
    """
    own = identity(read_object(path / "config.json"))
    found = {name: read_object(path / name) for name in ("summary.json", "evaluation.json") if (path / name).exists()}
    for name, value in found.items():
        if value.get(OWNER, own) != own:
            raise DamagedError(
                f"{path / name} belongs to another run than the config.json beside it; restore the one that was "
                "replaced, or delete it and repeat the run's command."
            )
    summed = found.get("summary.json", {}).get("steps")
    tested = found.get("evaluation.json", {}).get("after_meta_steps")
    if summed is not None and tested is not None and summed != tested:
        raise WarpgradError(
            f"the run in {path} has a summary after {summed} meta-steps but an evaluation after {tested}; repeat its "
            "command to update both."
        )


def newest_checkpoint(path: Path) -> Path:
    """Return the last checkpoint of a run that is not being written; refuse one that is damaged or of another run."""
    saved = saved_checkpoints(path)
    if not saved:
        raise WarpgradError(f"{path} has no checkpoint; run it first with 'warpgrad run'.")
    loaded(saved[-1])
    return saved[-1]


def checkpointed_steps(path: Path) -> int:
    """Return the number of meta-steps done at the last checkpoint of a run; 0 if there is none."""
    return max((int(saved.stem.removeprefix("step-")) for saved in saved_checkpoints(path)), default=0)


def saved_checkpoints(path: Path) -> list[Path]:
    """List the checkpoints of meta-steps, oldest first."""
    named = (file for file in (path / "checkpoints").glob("step-*.safetensors") if _STEP.fullmatch(file.name))
    return sorted(named, key=lambda file: (len(file.name), file.name))


def loaded(path: Path, device: Any = "cpu") -> dict[str, Any]:
    """Read a checkpoint of a run, and check that it is of the meta-step in its name and of the run beside it."""
    state = checkpoint.read_checkpoint(path, device)
    wrong = "state" if not isinstance(state, dict) else next(_misfits(state), None)
    if wrong is not None:
        raise DamagedError(f"checkpoint {path} is damaged (it has an unexpected entry '{wrong}').")
    if path.name != f"step-{state['step']:08d}.safetensors":
        raise DamagedError(f"checkpoint {path} is damaged (its meta-step is not the one in its name).")
    config = path.parent.parent / "config.json"
    if OWNER in state and config.exists() and state[OWNER] != identity(read_object(config)):
        raise DamagedError(
            f"checkpoint {path} belongs to another run than {config}; restore the one that was replaced, or start over "
            "with --fresh."
        )
    return state


def _misfits(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield the entries of a checkpoint that have the wrong type: a checksum does not tell who wrote it."""

    def count(value: object) -> bool:
        return type(value) is int and value >= 0

    def tables(value: object) -> bool:
        """Return whether a value is made of weights: groups of named tensors."""
        return isinstance(value, dict) and all(
            isinstance(group, dict) and all(isinstance(part, torch.Tensor) for part in group.values())
            for group in value.values()
        )

    needed: dict[str, Callable[[object], bool]] = {
        "step": count,
        "offset": count,
        "seconds": lambda value: isinstance(value, float | int) and 0 <= value < math.inf,
        "weights": tables,
        "best": lambda value: value is None or tables(value),
        "update": lambda value: isinstance(value, dict),
        "algorithm": lambda value: isinstance(value, dict),
        "early_stopping": lambda value: value is None or isinstance(value, dict),
    }
    # Earlier versions wrote none of these.
    later: dict[str, Callable[[object], bool]] = {
        "digest": lambda value: value is None or isinstance(value, str),
        "backend": lambda value: isinstance(value, dict),
        "planned": lambda value: value is None or count(value),
        OWNER: lambda value: isinstance(value, str),
    }
    yield from (name for name, fits in needed.items() if name not in state or not fits(state[name]))
    yield from (name for name, fits in later.items() if name in state and not fits(state[name]))


def check_metrics(path: Path) -> bool:
    """Return whether the last checkpoint has a checksum of the run's metrics; refuse metrics that do not match it."""
    saved, metrics = saved_checkpoints(path), path / "metrics.jsonl"
    if not saved:
        return False
    state = loaded(saved[-1])
    try:
        lines = read_bytes(metrics)
    except OSError as error:
        raise DamagedError(
            f"{metrics} cannot be read: {reason(error)}; restore it or start over with --fresh."
        ) from error
    offset = state["offset"]
    known = _check_metrics(lines[:offset], state.get("digest"), metrics)
    # A run that was cut off has lines of meta-steps since its last checkpoint; the last of them may be incomplete.
    later = parsed_lines(lines[offset : lines.rfind(b"\n") + 1], metrics)
    saved_lines = parsed_lines(lines[:offset], metrics) if known and later else []
    begin = saved_lines[-1]["step"] + 1 if saved_lines else None
    if begin is not None and [line.get("step") for line in later] != list(range(begin, begin + len(later))):
        raise DamagedError(
            f"{metrics} is damaged: the lines after the last checkpoint are not the next meta-steps; restore "
            "the file or start over with --fresh."
        )
    return known


def _check_metrics(lines: bytes, digest: str | None, path: Path) -> bool:
    """Return whether there is a checksum; refuse lines that do not match it. Earlier versions had another kind."""
    if digest is None or not digest.startswith(WHOLE):
        return False
    if digest != f"{WHOLE}{hashlib.sha256(lines).hexdigest()}":
        raise DamagedError(
            f"{path} is damaged: its lines do not match the checksum in its checkpoint; restore the file or "
            "start over with --fresh."
        )
    return True


def parsed_lines(lines: bytes, path: Path) -> list[dict[str, Any]]:
    """Parse lines of a metrics.jsonl; raise an error if one of them is damaged."""
    try:
        records = [json.loads(line) for line in lines.splitlines()]
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged ({error}); restore the file or start over with --fresh.") from error
    if not all(isinstance(record, dict) for record in records):
        raise DamagedError(
            f"{path} is damaged: one of its lines is not a JSON object; restore the file or start over with --fresh."
        )
    return records


def _check_ours(path: Path) -> None:
    """Refuse a directory that holds something other than a run, before anything is written into it."""
    if not path.is_dir() or any((path / name).exists() for name in ("config.json", CLEARING)):
        return
    ours = {LOCK, *FILES, *FOLDERS}
    if other := next((entry for entry in path.iterdir() if not _ours(entry, ours)), None):
        raise WarpgradError(
            f"{path} is not a run directory but contains files, such as {other.name}; choose an empty directory."
        )


def _ours(entry: Path, names: set[str]) -> bool:
    return entry.name in names or entry.name.startswith(PARTIAL)
