"""`python -m warpgrad` is `warpgrad`: this module is where both begin.

Signals are heard before anything large is imported: until `cli.outer` takes over, there is nothing to save, and they
end the process with the sentence and the exit code that they have later.
"""

import os
import signal
from contextlib import suppress
from types import FrameType
from typing import NoReturn


def _end(number: int, _: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, b"warpgrad: stopped; run the same command to go on.\n")
    os._exit(128 + number)


def main() -> NoReturn:
    """Carry out the command line. A signal after its end has nothing to stop and must not change the exit code."""
    try:
        command()
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


# Windows has no SIGHUP.
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
for _number in _SIGNALS:
    # What is ignored stays so: nohup, and shells that start something in the background, mean it.
    if signal.getsignal(_number) is not signal.SIG_IGN:
        signal.signal(_number, _end)

from warpgrad.cli.main import main as command  # noqa: E402 - after the signals

if __name__ == "__main__":
    main()
