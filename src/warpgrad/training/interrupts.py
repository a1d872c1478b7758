"""Ctrl-C, SIGTERM and a closed terminal: stop at once, but never in the middle of a write."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import NoReturn

from warpgrad.io import HANG_UP, SIGNALS


class Interrupted(BaseException):
    """The run was asked to stop by the signal in `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def leave_after(error: BaseException) -> NoReturn:
    """Raise the exception that Python programs end with on this signal, once everything is saved."""
    if isinstance(error, Interrupted) and error.number != signal.SIGINT:
        raise SystemExit(128 + error.number) from error
    raise KeyboardInterrupt from error


class Interrupts:
    """While active, signals raise `Interrupted`; inside `held`, they wait until the block ends."""

    def __init__(self) -> None:
        self._previous: dict[int, object] = {}
        self._holding = 0
        self._waiting: int | None = None
        self._raised = False

    def __enter__(self) -> Interrupts:
        # Only the main thread of a process may set handlers; elsewhere signals are left alone.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # nohup ignores a closed terminal on purpose.
                if number != HANG_UP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if kind is None and self._waiting is not None:
            leave_after(Interrupted(self._waiting))  # it arrived when there was nothing left to interrupt

    def hold(self) -> None:
        """Hold signals back from here on."""
        self._holding += 1

    def release(self) -> None:
        """Raise the signals that were held back."""
        self._holding -= 1
        if self._holding == 0 and self._waiting is not None:
            number, self._waiting = self._waiting, None
            raise Interrupted(number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        # Remembered even when raised: Python swallows exceptions inside finalisers, and then `release` raises it again.
        self._waiting = number
        # The first signal ends the block; a second one must not interrupt the clean-up.
        if not self._holding and not self._raised:
            self._raised = True
            raise Interrupted(number)
