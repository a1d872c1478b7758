"""Reads run directories, the contract between running and reporting.

config.json      every setting
metrics.jsonl    one object per meta-step, with "step" in it; append-only
summary.json     experiment, method, preset, seed, steps, metrics (of the final evaluation), wall_seconds,
                 versions, commit, hardware, command; stopped, if it ended before its last meta-step
figures/         PNG and SVG
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpgrad.errors import WarpgradError, require
from warpgrad.io import DamagedError, read_bytes, reason, unsealed

_REQUIRED = ("experiment", "method", "preset", "seed")


@dataclass(frozen=True)
class Run:
    """One finished run."""

    path: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    notes: tuple[str, ...] = ()
    """Remarks about what could not be read, which a report repeats."""

    @property
    def experiment(self) -> str:
        return str(self.summary["experiment"])

    @property
    def method(self) -> str:
        return str(self.summary["method"])

    @property
    def preset(self) -> str:
        """The preset; empty for a run of a user's program that names none."""
        return str(self.summary["preset"] or "")

    @property
    def seed(self) -> int | str:
        seed: int | str = self.summary["seed"]
        return seed

    @property
    def name(self) -> str:
        """Method, preset and seed, for display."""
        return ", ".join(filter(None, (self.method, self._preset, f"seed {self.seed}")))

    @property
    def title(self) -> str:
        """Experiment and preset, within which runs are compared."""
        return ", ".join(filter(None, (self.experiment, self._preset)))

    @property
    def _preset(self) -> str:
        return self.preset and f"{self.preset} preset"

    @property
    def figures(self) -> list[Path]:
        """The images in `figures/`, sorted by name."""
        folder = self.path / "figures"
        return sorted(file for file in folder.glob("*") if file.suffix.lower() in (".png", ".svg"))


def read_run(path: Path, *, unfinished: bool = False) -> Run:
    """Read a run directory; a truncated last line of `metrics.jsonl` is left out, and `notes` says so.

    With `unfinished`, a run that has no summary yet is read as far as it has come.
    """
    require(path.is_dir(), f"{path} is not a run directory; give the folder that `warpgrad run` wrote.")
    config = _object(path / "config.json", "it contains the settings of the run; start the run again with --fresh")
    if unfinished and not (path / "summary.json").exists():
        return _going_on(path, config)
    summary = _object(path / "summary.json", "the run is not finished; repeat its command to resume it")
    missing = [name for name in _REQUIRED if name not in summary]
    require(not missing, f"{path / 'summary.json'} has no {', '.join(missing)}; start the run again with --fresh.")
    require(
        isinstance(summary.get("metrics", {}), dict),
        f"{path / 'summary.json'} has metrics that are not named numbers; fix it by hand.",
    )
    metrics, notes = _metrics(path / "metrics.jsonl")
    steps = summary.get("steps")
    if isinstance(steps, int) and len(metrics) > steps:
        notes += (f"The run has continued to {len(metrics)} meta-steps since it was evaluated after {steps}.",)
    return Run(path, config, summary, metrics, notes)


def _going_on(path: Path, config: dict[str, Any]) -> Run:
    """Return a run that has no summary yet, from its settings and the metrics so far."""
    metrics, notes = _metrics(path / "metrics.jsonl") if (path / "metrics.jsonl").exists() else ([], ())
    summary = {
        "experiment": config.get("experiment", config.get("group", "own runs")),
        "method": config.get("method", path.name),
        "preset": config.get("preset"),
        "seed": config.get("seed", 0),
        "steps": len(metrics),
        "metrics": {},
    }
    of = f" of {config['meta_steps']}" if isinstance(config.get("meta_steps"), int) else ""
    return Run(path, config, summary, metrics, (*notes, f"Still running: {len(metrics)}{of} meta-steps so far."))


def _read(file: Path, remedy: str) -> bytes:
    try:
        return read_bytes(file)
    except FileNotFoundError:
        raise WarpgradError(f"{file} is missing: {remedy}.") from None
    except OSError as error:
        raise WarpgradError(f"{file} cannot be read: {reason(error)}.") from error


def _object(file: Path, remedy: str) -> dict[str, Any]:
    data = _read(file, remedy)
    try:
        value = unsealed(json.loads(data), file)
    except DamagedError:
        raise
    except (ValueError, RecursionError) as error:
        raise WarpgradError(
            f"{file} is not valid JSON ({error}); restore it, or start the run again with --fresh."
        ) from error
    if not isinstance(value, dict):
        raise WarpgradError(f"{file} holds a {type(value).__name__} instead of an object of named values.")
    return value


def _metrics(file: Path) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    data = _read(file, "it contains the metrics of the run; start the run again with --fresh")
    lines = data.split(b"\n")
    metrics: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            known = isinstance(row, dict) and isinstance(row.get("step"), int | float)
            problem = None if known else 'no object with a number as its "step"'
        except (ValueError, RecursionError) as error:
            row, problem = None, str(error)
        if problem is None:
            metrics.append(row)
        # Every complete line ends in a newline, so only what follows the last one can be incomplete.
        elif number == len(lines):
            return metrics, (f"The last line of {file.name} was cut off while it was being written; it is left out.",)
        else:
            raise WarpgradError(
                f"{file}, line {number} is damaged ({problem}); remove that line, or start the run again with --fresh."
            )
    return metrics, ()
