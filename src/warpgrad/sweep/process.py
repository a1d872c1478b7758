"""One trial as a process: `warpgrad run`, with an exit code of its own for a run that diverged.

A search tries settings under which training diverges, and has to tell that, which is a result, from a full disk or
missing data, which is none.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from warpgrad.allocator import keep_freed_memory
from warpgrad.errors import NonFiniteError, WarpgradError
from warpgrad.experiments.base import Config, Experiment
from warpgrad.experiments.runner import python_command

DIVERGED = 3
"""Exit code where a number became NaN or infinite, or a matrix could not be inverted."""


def trial_command(experiment: Experiment[Config], config: Config, directory: Path) -> list[str]:
    """The run's own command, through this module."""
    python, flag, _, *words = python_command(experiment, config, directory)
    return [python, flag, __name__, *words]


def main(words: list[str]) -> int:
    from warpgrad.cli.run import run

    keep_freed_memory()
    try:
        run(words[1:])
    except (NonFiniteError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
        print(f"warpgrad: {error}", file=sys.stderr)
        return DIVERGED
    except WarpgradError as error:
        print(f"warpgrad: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
