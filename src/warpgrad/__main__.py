"""The entry point of `python -m warpgrad` and of `warpgrad`.

Signals are handled before anything large is imported: until `cli.outer` takes over, there is nothing to save, and they
end the process with the same message and exit code as later.
"""

import os
import signal
from contextlib import suppress
from types import FrameType
from typing import NoReturn


def _end(number: int, _: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, b"warpgrad: stopped; run the same command to resume.\n")
    os._exit(128 + number)


def main() -> NoReturn:
    """Carry out the command line; a signal after its end has nothing to stop and must not change the exit code."""
    try:
        command()
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


# Windows has no SIGHUP.
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
for _number in _SIGNALS:
    # A signal that is ignored stays so, as nohup and shells with background jobs intend.
    if signal.getsignal(_number) is not signal.SIG_IGN:
        signal.signal(_number, _end)

from warpgrad.cli.main import main as command  # noqa: E402 - after the signals

if __name__ == "__main__":
    main()
