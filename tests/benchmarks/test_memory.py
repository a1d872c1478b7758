"""Algorithm 1 needs the same memory for 10 and for 640 adaptation steps; MAML does not."""

from __future__ import annotations

import pytest

from benchmarks.fresh_process import peak_memory
from tests.support.memory_probe import meta_step


@pytest.mark.parametrize("initialiser", ["none", "leap", "reptile", "fomaml"])
def test_peak_memory_of_algorithm_1_does_not_grow_with_k(initialiser):
    (short, (live_short, size)), (long, (live_long, _)) = (peak_memory(meta_step, initialiser, k) for k in (10, 640))
    assert live_long == live_short
    # One θ more at K = 640 than at K = 10 would already break this; a kept trajectory would be 630 of them.
    assert long - short < 0.9 * size, (short, long, size)


def test_peak_memory_of_maml_does_grow_with_k():
    (short, (_, size)), (long, _) = (peak_memory(meta_step, "maml", k) for k in (10, 40))
    assert long - short > 30 * size
