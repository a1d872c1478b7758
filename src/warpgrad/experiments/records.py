"""Records of results: one JSON file per table, from which the table and its page can be built without any run.

A record names its table and holds, for every run:

    config        every setting
    summary       final metrics, meta-steps, wall and processor time, versions, commit, hardware, command
    series        every number of every meta-step, by name; long runs in blocks of neighbouring steps
    evaluation    results per held-out task, learning curves, the data that were read and their hash

and, for a search, under `diverged`, the trials that ended with NaN or infinite values.

A table can thus be rebuilt where only some of its runs are available: the others are taken from the record, each with
the commit and the machine that produced it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpgrad.data.prepared import DRAWN
from warpgrad.errors import WarpgradError, require
from warpgrad.experiments.base import Diverged, Group, Results, RunTable
from warpgrad.io import JSON_BYTES, SEAL, DamagedError, read_bytes, sealed, settings_of, unsealed, write_bytes
from warpgrad.report.runs import Run
from warpgrad.training.run_directory import DIAGNOSTICS, TIMES

FORMAT = 2
POINTS = 1000
"""The largest number of points in a series; longer ones are averaged over blocks of meta-steps."""

Recorded = tuple[Run, dict[str, Any]]
"""A run from a record, and its evaluation."""
_PARTS = {"label": str, "config": dict, "summary": dict, "series": dict, "evaluation": dict}


@dataclass(frozen=True)
class Record:
    """The content of a record: one table."""

    table: str
    title: str
    preset: str
    papers: Mapping[str, float | None]
    """Label of a row -> the published figure, with rows in the table's order."""
    entries: Sequence[dict[str, Any]]
    """One per run."""
    diverged: Sequence[Diverged] = ()
    """The trials of a search that diverged."""

    def groups(self) -> list[Group]:
        """Return the rows with their runs."""
        found = []
        for label, paper in self.papers.items():
            own = [self._loaded(entry) for entry in self.entries if entry["label"] == label]
            runs, evaluations = zip(*own, strict=True)
            found.append(Group(label, runs, evaluations, paper))
        return found

    def find(self, wanted: Mapping[str, Any]) -> Recorded | None:
        """Return the run with exactly these settings, or None; a wanted setting that is None matches any value."""
        return next((self._loaded(entry) for entry in self.entries if _under(entry["config"], wanted)), None)

    def find_diverged(self, wanted: Mapping[str, Any]) -> Diverged | None:
        """Return the trial that diverged with exactly these settings, or None."""
        return next((trial for trial in self.diverged if _under(trial.config, wanted)), None)

    def _loaded(self, entry: dict[str, Any]) -> Recorded:
        path = Path("record") / self.table / f"{entry['label']}, seed {entry['summary']['seed']}"
        run = Run(path, entry["config"], entry["summary"], unpacked_series(entry["series"]))
        return run, {"metrics": entry["summary"].get("metrics", {}), **entry["evaluation"]}


def write_record(path: Path, table: RunTable, preset: str, results: Results) -> None:
    """Write the record of a table; raise for runs that cannot be repeated, or if drawn data would replace real data."""
    rows = []
    for group in results.groups:
        for run, evaluation in zip(group.runs, group.evaluations, strict=True):
            check_commit(run.summary.get("commit"), f"the run {run.name}")
            kept = {name: _shortened(value, 7) for name, value in evaluation.items() if name != "metrics"}
            rows.append(
                {
                    "label": group.label,
                    "config": run.config,
                    "summary": _shortened(run.summary, 7),
                    "series": packed_series(run.metrics),
                    "evaluation": kept,
                }
            )
    before, now = _data(read_record(path).entries if path.exists() else []), _data(rows)
    require(
        not before - {DRAWN} or before - {DRAWN} <= now,
        f"{path} is a record of runs on {' and '.join(sorted(before))}, but these runs are on "
        f"{' and '.join(sorted(now)) or 'no data set'}: give another file.",
    )
    head = {
        "format": FORMAT,
        "table": table.name,
        "title": table.title,
        "preset": preset,
        "papers": {group.label: group.paper for group in results.groups},
    }
    if results.diverged:
        head["diverged"] = [dataclasses.asdict(trial) for trial in results.diverged]
    write_bytes(path, _set(sealed(json.loads(json.dumps({**head, "runs": rows})))))


def _set(content: Mapping[str, Any]) -> bytes:
    """Serialise a record with one line per run, because nobody reads thousands of numbers on a line each."""
    opening = json.dumps({name: part for name, part in content.items() if name != "runs"}, ensure_ascii=False)
    lines = ",\n".join(json.dumps(row, sort_keys=True, ensure_ascii=False) for row in content["runs"])
    return f'{opening.removesuffix("}")}, "runs": [\n{lines}\n]}}\n'.encode()


def check_record(path: Path) -> bool:
    """Return whether a record has a checksum; raise if any byte of it has changed."""
    read_record(path)
    data = read_bytes(path, JSON_BYTES, follow=True)
    content = json.loads(data)
    if SEAL in content and data != _set(content):
        raise DamagedError(f"{path} is damaged: its bytes are not as they were written; restore it.")
    return SEAL in content


def read_record(path: Path) -> Record:
    """Read a record, and check that it is one."""
    try:
        content = unsealed(json.loads(read_bytes(path, JSON_BYTES, follow=True)), path, "restore it or give another")
    except FileNotFoundError:
        raise WarpgradError(f"there is no record {path}; write it with 'warpgrad reproduce TABLE --record'.") from None
    except DamagedError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise WarpgradError(f"{path} cannot be read as a record ({error}); restore it or give another.") from error
    require(_is_record(content), f"{path} is not a record of `warpgrad reproduce`; restore it or give another.")
    diverged = [Diverged(**trial) for trial in content.get("diverged", [])]
    return Record(content["table"], content["title"], content["preset"], content["papers"], content["runs"], diverged)


def check_commit(commit: str | None, whose: str) -> None:
    """Raise if there is no commit, or if the source tree had uncommitted changes."""
    if commit is None:
        raise WarpgradError(f"{whose} has no commit: work in a checkout of the project, or leave out --record.")
    require(
        commit.isalnum(),
        f"{whose} was made from a source tree with uncommitted changes ({commit[:12]}): commit them and run it again "
        "with --fresh, or leave out --record.",
    )


def packed_series(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Regroup the lines of metrics.jsonl by name: a list if every step has a value, else (step, value) pairs.

    More than `POINTS` steps are merged in blocks of neighbours: the last step, the sum of times, the mean of the rest.
    Values that only some steps have, such as validations, are not merged. Diagnostics stay in the run directory.
    """
    width = math.ceil(len(metrics) / POINTS) if metrics else 1
    blocks = [metrics[begin : begin + width] for begin in range(0, len(metrics), width)]
    series: dict[str, Any] = {"block": width}
    for name in dict.fromkeys(name for line in metrics for name in line if not name.startswith(DIAGNOSTICS)):
        if all(name in line for line in metrics):
            series[name] = [_shortened(_merged(name, [line[name] for line in block]), 6) for block in blocks]
        else:
            series[name] = [[line["step"], _shortened(line[name], 6)] for line in metrics if name in line]
    return series


def unpacked_series(series: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Invert `packed_series`, except for the merging of steps."""
    lines: dict[int, dict[str, Any]] = {step: {"step": step} for step in series.get("step", [])}
    for name, values in series.items():
        if name in ("block", "step"):
            continue
        pairs = values if values and isinstance(values[0], list) else zip(series["step"], values, strict=True)
        for step, value in pairs:
            lines.setdefault(step, {"step": step})[name] = value
    return [lines[step] for step in sorted(lines)]


def _under(config: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a config has these settings, where None matches any value."""
    own = settings_of(config)
    return own.keys() == wanted.keys() and all(value is None or own[name] == value for name, value in wanted.items())


def _merged(name: str, values: list[Any]) -> Any:
    if name == "step":
        return values[-1]
    return values[0] if len(values) == 1 else math.fsum(values) / (1 if name in TIMES else len(values))


def _shortened(value: Any, digits: int) -> Any:
    """Round the numbers in a JSON value to keep records small; seven digits are what single precision holds."""
    if isinstance(value, Mapping):
        return {name: _shortened(part, digits) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_shortened(part, digits) for part in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def _data(entries: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the data sets of the entries."""
    return {str(entry["evaluation"]["data"]) for entry in entries if "data" in entry["evaluation"]}


def _is_record(content: Any) -> bool:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return False
    kinds = {"table": str, "title": str, "preset": str, "papers": dict, "runs": list}
    if not isinstance(content.get("diverged", []), list) or not all(
        isinstance(trial, dict)
        and {name: type(value) for name, value in trial.items()} == {"label": str, "config": dict, "words": str}
        for trial in content.get("diverged", [])
    ):
        return False
    return all(isinstance(content.get(name), kind) for name, kind in kinds.items()) and all(
        isinstance(entry, dict)
        and all(isinstance(entry.get(name), kind) for name, kind in _PARTS.items())
        and entry["label"] in content["papers"]
        and "seed" in entry["summary"]
        and _is_series(entry["series"])
        for entry in content["runs"]
    )


def _is_series(series: Mapping[str, Any]) -> bool:
    """Return whether series can be unpacked: one number for every step, or pairs of a step and a number."""

    def fits(values: list[Any]) -> bool:
        if values and isinstance(values[0], list):
            return all(
                isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int and _is_number(pair[1])
                for pair in values
            )
        return len(values) == len(steps) and all(_is_number(value) for value in values)

    steps = series.get("step", [])
    columns = [values for name, values in series.items() if name != "block"]
    return (
        all(isinstance(values, list) for values in columns)
        and all(type(step) is int for step in steps)
        and all(fits(values) for values in columns)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int)
