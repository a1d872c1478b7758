"""What a run shows of itself on the way: trailing means of one of the numbers in its metrics.jsonl."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from warpgrad.errors import WarpgradError
from warpgrad.sweep.results import Direction, direction_of

TENTHS = 10
"""A run is looked at after every tenth of its meta-steps but the first, which is nearly all chance, and the last."""
LOOK_SECONDS = 1.0
LOSSES = ("task_loss_last", "meta_loss", "task_loss")
"""What methods record of their meta-training; the first one that is there is used where there is no validation."""


@dataclass(frozen=True)
class Prune:
    """Stop trials that are behind the median of the finished ones."""

    by: str | None = None
    """The number in metrics.jsonl to go by; None for the sweep's metric at validation or else the first of LOSSES."""
    after: int = 5
    """Trials that must be complete before any is stopped."""


class Watch:
    """The reports of one trial, made from its metrics.jsonl: each (meta-steps, mean over the last tenth), once.

    A report depends on what the run wrote and not on when it was looked at, so that a run too fast to be stopped is
    judged like any other. Reports are turned round where the study's metric is better the other way.
    """

    def __init__(
        self, prune: Prune, file: Path, meta_steps: int, metric: str, direction: Direction, reported: set[int]
    ) -> None:
        """`metric` and `direction` are the study's; `reported` the steps of reports that were made before."""
        self.file = file
        self._names = (f"validation/{metric}", *LOSSES) if prune.by is None else (prune.by,)
        self.window = max(1, meta_steps // TENTHS)
        self._due = [step for step in range(2 * self.window, meta_steps, self.window) if step not in reported]
        self._direction: Direction = direction
        self._looked = -math.inf

    def is_time(self) -> bool:
        """At most once in LOOK_SECONDS: the whole file is read, because a run that is resumed cuts it back first."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return False
        self._looked = now
        return True

    def reports(self) -> Iterator[tuple[int, float]]:
        """Those that have become due."""
        if not self._due or not self.file.exists():
            return
        # What follows the last newline is still being written.
        lines = self.file.read_bytes().split(b"\n")[:-1]
        while self._due and self._due[0] <= len(lines):
            step = self._due.pop(0)
            records = [json.loads(line) for line in lines[:step]]
            known = dict.fromkeys(name for record in records for name in record)
            by = next((name for name in self._names if name in known), None)
            if by is None and not self._due:
                raise WarpgradError(
                    f"{self.file} has no '{self._names[0]}' to prune by (it has {', '.join(known)}); "
                    "name another with --prune-by, or leave --prune out."
                )
            values = [record[by] for record in records[-self.window :] if by in record]
            if by is None or not values:
                continue  # validations may be further apart than reports
            mean = math.fsum(values) / len(values)
            yield step, mean if direction_of(by) == self._direction else -mean
