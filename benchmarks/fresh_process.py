"""Run a function in a separate process, so that the peak memory of one measurement is not that of another."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from warpgrad.errors import WarpgradError
from warpgrad.training.resources import peak_bytes

GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Freed blocks go back to the system at once, so that the peak shows what is held and not what malloc kept."""


def peak_memory(function: Callable[..., Any], *arguments: Any) -> tuple[int, Any]:
    """Run `function(*arguments)` in a fresh process, and return its peak memory in bytes and the function's result.

    The function is looked up by its module and name, so it must be defined at the top level; arguments and result are
    JSON.
    """
    return _called(function, arguments, GIVE_BACK)


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run the function in the same way, but with malloc as the function itself sets it, and return the result."""
    return _called(function, arguments, {})[1]


def importing_alike(environment: Mapping[str, str]) -> dict[str, str]:
    """Return this environment for a process that can import what this one can, `benchmarks` included."""
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _called(function: Callable[..., Any], arguments: tuple[Any, ...], settings: Mapping[str, str]) -> tuple[int, Any]:
    module = function.__module__
    if module == "__main__":  # a script under `python -m`
        module = sys.modules[module].__spec__.name  # type: ignore[union-attr]
    command = [sys.executable, "-m", "benchmarks.fresh_process", module, function.__qualname__, json.dumps(arguments)]
    environment = {**importing_alike(os.environ), "OMP_NUM_THREADS": "1", **settings}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        call = f"{function.__qualname__}({', '.join(map(repr, arguments))})"
        raise WarpgradError(f"{call} could not be measured in a process of its own: {reason}")
    peak, value = json.loads(done.stdout.splitlines()[-1])
    return peak, value


def main(module: str, name: str, arguments: str) -> None:
    value = getattr(importlib.import_module(module), name)(*json.loads(arguments))
    print(json.dumps([peak_bytes(), value]))


if __name__ == "__main__":
    main(*sys.argv[1:])
