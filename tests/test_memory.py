"""Algorithm 1 needs the same memory for 10 and for 640 adaptation steps; MAML does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = Path(__file__).with_name("memory_probe.py")


def probe(initialiser: str, steps: int) -> tuple[int, int, int]:
    """Peak bytes, live tensors and bytes of θ of one meta-step in a fresh process."""
    # Freed blocks go back to the system at once, so that the peak shows what is held and not what malloc kept.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, str(PROBE), initialiser, str(steps)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    peak, live, size = (int(number) for number in output.split())
    return peak, live, size


@pytest.mark.parametrize("initialiser", ["none", "leap", "reptile", "fomaml"])
def test_peak_memory_of_algorithm_1_does_not_grow_with_k(initialiser):
    base, _, size = probe(initialiser, 1)
    (short, live_short, _), (long, live_long, _) = probe(initialiser, 10), probe(initialiser, 640)
    assert live_long == live_short
    # One θ more at K = 640 than at K = 10 would already break this; a kept trajectory would be 630 of them.
    assert (long - base) - (short - base) < 0.9 * size, (base, short, long, size)


def test_peak_memory_of_maml_does_grow_with_k():
    (short, _, size), (long, _, _) = probe("maml", 10), probe("maml", 40)
    assert long - short > 30 * size
