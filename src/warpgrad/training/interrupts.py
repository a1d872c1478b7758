"""Ctrl-C and SIGTERM: stop at once, but never in the middle of a write."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interrupted(BaseException):
    """The run was asked to stop by the signal in `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interrupts:
    """While active, signals raise `Interrupted`; inside `held`, they wait until the block ends."""

    def __init__(self) -> None:
        self._previous: dict[int, object] = {}
        self._holding = 0
        self._waiting: int | None = None

    def __enter__(self) -> Interrupts:
        # Only the main thread of a process may set handlers; elsewhere signals are someone else's business.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def hold(self) -> None:
        """From here on signals wait."""
        self._holding += 1

    def release(self) -> None:
        """Signals that waited are raised now."""
        self._holding -= 1
        if self._holding == 0 and self._waiting is not None:
            number, self._waiting = self._waiting, None
            raise Interrupted(number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        # Remembered even when raised: Python swallows exceptions inside finalisers, and then `release` raises it again.
        self._waiting = number
        if not self._holding:
            raise Interrupted(number)
