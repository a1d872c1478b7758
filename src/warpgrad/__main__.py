"""`python -m warpgrad` is `warpgrad`: this module is where both begin.

Signals are heard before anything large is imported: until `cli.outer` takes over, there is nothing to save, and they
end the process with the sentence and the exit code that they have later.
"""

import os
import signal
from contextlib import suppress
from types import FrameType


def _end(number: int, _: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, b"warpgrad: stopped; run the same command to go on.\n")
    os._exit(128 + number)


for _name in ("SIGINT", "SIGTERM", "SIGHUP"):
    _number = getattr(signal, _name, None)  # Windows has no SIGHUP
    # What is ignored stays so: nohup, and shells that start something in the background, mean it.
    if _number is not None and signal.getsignal(_number) is not signal.SIG_IGN:
        signal.signal(_number, _end)

from warpgrad.cli.main import main  # noqa: E402 - after the signals

if __name__ == "__main__":
    main()
