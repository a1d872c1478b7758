"""Worker processes: ordinary single-threaded commands, which end when the process that started them does."""

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
"""The interval at which workers are polled."""
_LINES = 50
"""The number of last lines of a worker's stderr that are kept."""


class Worker:
    """A running command, which is not a rank even under torchrun.

    It runs in a new session, so that Ctrl-C is forwarded to it by this process, once, and it can save. It holds the
    read end of a pipe whose write end only this process has: when this process ends, even if killed, it notices, saves
    and ends too. Its stderr is read continuously, so that it never blocks on a full pipe.
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
        """The exit code; None while it is running."""
        return self.process.poll()

    @property
    def last_words(self) -> str:
        """The last line on the stderr of a worker that has ended, or its exit code if there is none."""
        self._close()
        words = [line for line in self._said if line.strip()]
        return words[-1].removeprefix("warpgrad: ") if words else f"exit code {self.process.returncode}"

    def stop(self) -> None:
        """Ask the worker to save and end, and wait until it has."""
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
    """Stop several workers, asking all of them before waiting for any."""
    for worker in workers:
        if worker.code is None:
            worker.process.terminate()
    for worker in workers:
        worker.stop()


def print_progress(line: str) -> None:
    """Print a line of progress to stderr; a closed terminal is no error."""
    with suppress(OSError):
        print(printable(line), file=sys.stderr, flush=True)
