"""An interruption of `data prepare`, and the proof that the next call goes on from there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from warpgrad.data import ImageStore


def goes_on(
    make: Callable[..., ImageStore], place: Path, patch: pytest.MonkeyPatch, module: ModuleType, reader: str
) -> None:
    """`make(destination, progress=…)` reads every picture with `module.reader`; none of a finished class twice."""
    original, calls = getattr(module, reader), []

    def counted(*arguments, **options):
        calls.append(arguments)
        return original(*arguments, **options)

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    patch.setattr(module, reader, counted)
    unbroken = make(place / "unbroken")
    every = len(calls)
    with pytest.raises(KeyboardInterrupt):
        make(place / "broken", progress=stop)
    before = len(calls) - every
    resumed = make(place / "broken")
    assert 0 < before < every
    assert len(calls) == every + before + (every - before)
    for name in ("header.json", "images.bin"):
        assert (resumed.path / name).read_bytes() == (unbroken.path / name).read_bytes()
