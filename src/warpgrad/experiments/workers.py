"""Worker processes: ordinary commands of one thread each, which end with the process that started them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress

from warpgrad.errors import printable
from warpgrad.io import LIFELINE
from warpgrad.training.distributed import environment_alone

POLL_SECONDS = 0.1
"""How often workers are looked after."""
_LINES = 50
"""The number of last lines that are kept of a worker's stderr."""


class Worker:
    """A command at work, no rank of anything.

    It has a session of its own, so that Ctrl-C reaches it through us, once, and it saves. It holds the read end of a
    pipe whose write end only this process has: when this process ends, killed or not, the worker learns it, saves and
    ends too. What it says is read as it says it, so that it never waits for a reader.
    """

    def __init__(self, command: list[str]) -> None:
        environment = {**environment_alone(), "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
        theirs, self._lifeline = os.pipe()
        try:
            self.process = subprocess.Popen(
                command,
                env={**environment, LIFELINE: str(theirs)},
                pass_fds=(theirs,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(theirs)
        self._said: deque[str] = deque(maxlen=_LINES)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._said.append(line.rstrip("\n"))

    @property
    def code(self) -> int | None:
        """The exit code; None while it works."""
        return self.process.poll()

    @property
    def last_words(self) -> str:
        """The last line that an ended worker has said; its exit code where it said nothing."""
        self._close()
        words = [line for line in self._said if line.strip()]
        return words[-1].removeprefix("warpgrad: ") if words else f"exit code {self.process.returncode}"

    def stop(self) -> None:
        """Ask it to save and end, and wait until it has."""
        if self.code is None:
            self.process.terminate()
        self.process.wait()
        self._close()

    def _close(self) -> None:
        self._reader.join(5)
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        if self.process.stderr is not None and not self._reader.is_alive():
            self.process.stderr.close()


def stop_all(workers: list[Worker]) -> None:
    """Stop several: all are asked before any is waited for."""
    for worker in workers:
        if worker.code is None:
            worker.process.terminate()
    for worker in workers:
        worker.stop()


def print_progress(line: str) -> None:
    """Tell the person how far it is; a terminal that is gone ends nothing."""
    with suppress(OSError):
        print(printable(line), file=sys.stderr, flush=True)
