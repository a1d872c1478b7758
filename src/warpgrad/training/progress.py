"""Progress of meta-training: a live bar on a terminal, plain lines in a log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from warpgrad.errors import printable
from warpgrad.training.run_directory import TIMES

if TYPE_CHECKING:
    from rich.progress import Progress

logger = logging.getLogger(__name__)

LINE_SECONDS = 20.0
"""Seconds between two plain lines."""


class MetaProgress:
    """Shows the number of meta-steps, the losses and the time left."""

    def __init__(self, title: str, total: int, done: int) -> None:
        self.title, self.total = printable(title), total
        self._bar = _bar() if sys.stderr.isatty() else None
        self._begin, self._begin_done, self._last = time.monotonic(), done, 0.0
        if self._bar is not None:
            self._task = self._bar.add_task(self.title, total=total, completed=done, metrics="")

    def __enter__(self) -> MetaProgress:
        if self._bar is not None:
            with suppress(OSError):
                self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            with suppress(OSError):
                self._bar.stop()

    def update(self, done: int, metrics: Mapping[str, float]) -> None:
        """Show that `done` meta-steps are done, and the metrics of the last one."""
        words = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items() if name not in ("step", *TIMES))
        if self._bar is not None:
            self._bar.update(self._task, completed=done, metrics=words)
        now = time.monotonic()
        if self._bar is None and (now - self._last >= LINE_SECONDS or done == self.total):
            self._last = now
            rate = (now - self._begin) / max(done - self._begin_done, 1)
            left = rate * (self.total - done)
            line = printable(f"{self.title}: {done}/{self.total}  {words}  {left:.0f} s left")
            with suppress(OSError):  # a closed terminal must not end the run
                print(line, file=sys.stderr, flush=True)


def _bar() -> Progress | None:
    """Make a live bar; None where rich, which the extra `paper` brings, is not installed."""
    try:
        from rich import progress
        from rich.console import Console
    except ModuleNotFoundError:
        return None
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[metrics]}"),
        console=Console(stderr=True),
    )
